"""Writing and editing. Whatever goes wrong, what was typed comes back with the reason."""

import contextlib
from dataclasses import dataclass, replace
from http import HTTPStatus

from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Request, Response

from apps.blog import posts
from apps.blog.pages import page_of
from apps.blog.posts import BadInput, Conflict, Failure, Post, Unreachable
from apps.blog.site import Site


@dataclass(frozen=True)
class FormInput:
    """What a form held, and is shown again where it could not be saved. `body`: that of a Markdown
    file, where one was chosen. `unreadable`: that file is no text. `revision`: 0 is none, or no
    number."""

    title: str = ""
    body: str = ""
    revision: int = 0
    unreadable: bool = False

    @classmethod
    def of(cls, request: Request) -> "FormInput":
        body, unreadable = request.form.get("body", ""), False
        file = request.files.get("file")
        if file is not None and file.filename:
            try:
                body = file.read().decode("utf-8-sig")
            except UnicodeDecodeError:
                unreadable = True
        number = request.form.get("revision", "")
        digits = number.isascii() and number.isdigit() and len(number) < 20
        lines = body.replace("\r\n", "\n").replace("\r", "\n")
        return cls(request.form.get("title", ""), lines, int(number) if digits else 0, unreadable)


def _form(
    filled: FormInput,
    number: int | None = None,
    error: Failure | None = None,
    theirs: Post | None = None,
) -> Response:
    """`number`: of the post that is edited. `theirs`: what somebody else made of it meanwhile."""
    return page_of(
        "form.html",
        error.status if error else HTTPStatus.OK,
        typed=filled,
        number=number,
        why=error.sentence if error else "",
        replaces=isinstance(error, Conflict),
        theirs=theirs,
        title_most=posts.TITLE_MOST,
        body_most=posts.BODY_MOST,
    )


async def write(site: Site, request: Request) -> Response:
    return _form(FormInput())


async def edit(site: Site, request: Request, number: int) -> Response:
    one = await site.posts.newest(number)
    return _form(FormInput(one.title, one.body, revision=one.revision), number)


async def save(site: Site, request: Request, number: int | None = None) -> Response:
    """A new post, or an edit of that number."""
    filled = FormInput.of(request)
    if number is not None and not 0 < filled.revision <= posts.REVISION_MOST:
        raise BadRequest("An edit says which revision it was made from.")
    try:
        await site.start()
        if filled.unreadable:
            raise BadInput("The file is no text in UTF-8.")
        draft = await site.draft(filled.title, filled.body)
        if number is None:
            number = (await site.posts.add(draft)).id
        else:
            await site.posts.edit(number, draft, filled.revision)
    except (BadInput, Unreachable) as error:
        return _form(filled, number, error)
    except Conflict as error:
        theirs = None
        with contextlib.suppress(Unreachable):
            theirs = await site.posts.newest(number or 0)
        newest = theirs.revision if theirs else error.revision
        return _form(replace(filled, revision=newest), number, error, theirs)
    return Response(status=HTTPStatus.SEE_OTHER, headers={"Location": f"/posts/{number}"})
