"""The API's description (OpenAPI 3.1); the tests check the API against it."""

from typing import Any

from apps.blog.posts import MAX_BODY, MAX_ID, MAX_REVISION, MAX_TITLE

Json = dict[str, Any]


def _integer(minimum: int | None = None, maximum: int | None = None) -> Json:
    bounds = {"minimum": minimum, "maximum": maximum}
    return {"type": "integer", **{name: n for name, n in bounds.items() if n is not None}}


def _object(**properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _response(name: str, description: str, kind: str = "application/json") -> Json:
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"description": description, "content": {kind: {"schema": schema}}}


def _problem(description: str) -> Json:
    return _response("Problem", description, "application/problem+json")


def _body(schema: Json, kind: str = "application/json") -> Json:
    return {"required": True, "content": {kind: {"schema": schema}}}


ID, REVISION, TIME = _integer(1, MAX_ID), _integer(1, MAX_REVISION), _integer()
TEXT = {"type": "string", "minLength": 1}
# At least one character other than white space, and no NUL
VISIBLE = {"allOf": [{"pattern": r"\S"}, {"pattern": r"^[^\x00]*$"}]}
DRAFT = {
    "title": {**TEXT, "maxLength": MAX_TITLE, **VISIBLE},
    "body": {**TEXT, "maxLength": MAX_BODY, **VISIBLE},
}
NOT_FOUND = _problem("Not found.")
BUSY = {"503": _problem("The storage does not respond; try again.")}
BAD = {
    "400": _problem("The request cannot be read."),
    "403": _problem("The request comes from another site's page."),
    "413": _problem("The body is too large."),
    "415": _problem("The body has the wrong type."),
    "422": _problem("The content is invalid."),
}
POSTS = {
    "get": {
        "operationId": "list",
        "parameters": [{"name": "page", "in": "query", "schema": _integer(1, 10**9)}],
        "responses": {
            "200": _response("Page", "Newest first."),
            "400": _problem("Invalid page number."),
            **BUSY,
        },
    },
    "post": {
        "operationId": "add",
        "requestBody": _body(_object(**DRAFT)),
        "responses": {"201": _response("Post", "The stored post."), **BAD, **BUSY},
    },
}
POST = {
    "parameters": [{"name": "number", "in": "path", "required": True, "schema": ID}],
    "get": {
        "operationId": "show",
        "responses": {"200": _response("Post", "The post."), "404": NOT_FOUND, **BUSY},
    },
    "put": {
        "operationId": "edit",
        "requestBody": _body(_object(**DRAFT, revision=REVISION)),
        "responses": {
            "200": _response("Post", "The post as it is now stored."),
            "404": NOT_FOUND,
            "409": _problem("The post has been edited since that revision."),
            **BAD,
            **BUSY,
        },
    },
}
IMAGES = {
    "post": {
        "operationId": "upload",
        "requestBody": _body({"type": "string", "format": "binary"}, "image/*"),
        "responses": {"201": _response("Image", "The stored image and its URL."), **BAD},
    }
}
HTML = {"type": "string"}
TYPE = {"enum": ["image/png", "image/jpeg", "image/gif", "image/webp"]}
LINES = {"type": "array", "items": _object(id=ID, title=TEXT, created=TIME)}
STAMPS = {"created": TIME, "edited": TIME, "revision": REVISION}
SCHEMAS = {
    "Post": _object(id=ID, title=TEXT, body=TEXT, html=HTML, **STAMPS),
    "Page": _object(page=ID, posts=_integer(0), items=LINES),
    "Image": _object(name=TEXT, type=TYPE, width=ID, height=ID, url=TEXT),
    "Problem": _object(status=_integer(), title={"type": "string"}, detail={"type": "string"}),
}
DESCRIPTION: Json = {
    "openapi": "3.1.0",
    "info": {"title": "A small blog", "version": "1"},
    "paths": {"/api/posts": POSTS, "/api/posts/{number}": POST, "/api/images": IMAGES},
    "components": {"schemas": SCHEMAS},
}
