"""The API's own description (OpenAPI 3.1), which its tests hold it to."""

from __future__ import annotations

from typing import Any

from apps.blog.posts import BODY_MOST, ID_MOST, REVISION_MOST, TITLE_MOST

ID = {"type": "integer", "minimum": 1, "maximum": ID_MOST}
TEXT = {"type": "string", "minLength": 1}
# Something that can be seen, and no zero character
WORDS = {"allOf": [{"pattern": r"\S"}, {"pattern": r"^[^\x00]*$"}]}
DRAFT = {
    "title": {**TEXT, "maxLength": TITLE_MOST, **WORDS},
    "body": {**TEXT, "maxLength": BODY_MOST, **WORDS},
}
REVISION = {"type": "integer", "minimum": 1, "maximum": REVISION_MOST}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _json(schema: Any, description: str, kind: str = "application/json") -> dict[str, Any]:
    return {"description": description, "content": {kind: {"schema": schema}}}


def _problem(description: str) -> dict[str, Any]:
    return _json({"$ref": "#/components/schemas/Problem"}, description, "application/problem+json")


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


BUSY = {"503": _problem("The storage does not answer; try again.")}
BAD = {
    "400": _problem("The request cannot be read."),
    "403": _problem("It comes from another site's page."),
    "413": _problem("The body is too large."),
    "415": _problem("The body is of another type."),
    "422": _problem("It can be read, and cannot be posted."),
}
NUMBER = {"name": "number", "in": "path", "required": True, "schema": ID}
LINE = _object(id=ID, title=TEXT, created={"type": "integer"})
DESCRIPTION: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "A small blog", "version": "1"},
    "paths": {
        "/api/posts": {
            "get": {
                "operationId": "list",
                "parameters": [
                    {
                        "name": "page",
                        "in": "query",
                        "schema": {"type": "integer", "minimum": 1, "maximum": 10**9},
                    }
                ],
                "responses": {
                    "200": _json(_ref("Page"), "Newest first."),
                    "400": _problem("That is no page."),
                    **BUSY,
                },
            },
            "post": {
                "operationId": "add",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": _object(**DRAFT)}},
                },
                "responses": {"201": _json(_ref("Post"), "As it is stored."), **BAD, **BUSY},
            },
        },
        "/api/posts/{number}": {
            "parameters": [NUMBER],
            "get": {
                "operationId": "show",
                "responses": {
                    "200": _json(_ref("Post"), "The post."),
                    "404": _problem("There is none."),
                    **BUSY,
                },
            },
            "put": {
                "operationId": "edit",
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": _object(**DRAFT, revision=REVISION)}
                    },
                },
                "responses": {
                    "200": _json(_ref("Post"), "As it is stored now."),
                    "404": _problem("There is none."),
                    "409": _problem("It is at another revision by now."),
                    **BAD,
                    **BUSY,
                },
            },
        },
        "/api/images": {
            "post": {
                "operationId": "upload",
                "requestBody": {
                    "required": True,
                    "content": {
                        "image/*": {"schema": {"type": "string", "format": "binary"}},
                    },
                },
                "responses": {"201": _json(_ref("Image"), "Where it is now."), **BAD},
            }
        },
    },
    "components": {
        "schemas": {
            "Post": _object(
                id=ID,
                title=TEXT,
                body=TEXT,
                html={"type": "string"},
                created={"type": "integer"},
                edited={"type": "integer"},
                revision=REVISION,
            ),
            "Page": _object(
                page=ID,
                posts={"type": "integer", "minimum": 0},
                items={"type": "array", "items": LINE},
            ),
            "Image": _object(
                name=TEXT,
                type={"enum": ["image/png", "image/jpeg", "image/gif", "image/webp"]},
                width=ID,
                height=ID,
                url=TEXT,
            ),
            "Problem": _object(
                status={"type": "integer"}, title={"type": "string"}, detail={"type": "string"}
            ),
        }
    },
}
