"""Writing and editing. Whatever goes wrong, what was typed comes back with the reason."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Request, Response

from apps.blog.failures import sentence, status_of
from apps.blog.pages import shown
from apps.blog.posts import (
    BODY_MOST,
    REVISION_MOST,
    TITLE_MOST,
    Conflict,
    Draft,
    Post,
    Unfit,
    Unreachable,
)

if TYPE_CHECKING:
    from apps.blog.site import Site


@dataclass(frozen=True)
class Typed:
    """What a form held, and is shown again where it could not be saved. `body`: that of a Markdown
    file, where one was chosen. `unread`: that file is no text. `revision`: 0 is none, or no number.
    """

    title: str = ""
    body: str = ""
    revision: int = 0
    unread: bool = False

    @classmethod
    def of(cls, request: Request) -> Typed:
        body, unread = request.form.get("body", ""), False
        file = request.files.get("file")
        if file is not None and file.filename:
            try:
                body = file.read().decode("utf-8-sig")
            except UnicodeDecodeError:
                unread = True
        said = request.form.get("revision", "")
        revision = int(said) if said.isascii() and said.isdigit() and len(said) < 20 else 0
        lines = body.replace("\r\n", "\n").replace("\r", "\n")
        return cls(request.form.get("title", ""), lines, revision, unread)

    async def draft(self, site: Site) -> Draft:
        """Raises Unfit."""
        if self.unread:
            raise Unfit("The file is no text in UTF-8.")
        return await site.draft(self.title, self.body)


def _form(
    typed: Typed,
    number: int | None = None,
    *,
    error: Exception | None = None,
    theirs: Post | None = None,
) -> Response:
    """`number`: of the post that is edited. `theirs`: what somebody else made of it meanwhile."""
    status = status_of(error) if error else HTTPStatus.OK
    words = {
        "typed": typed,
        "number": number,
        "why": sentence(error) if error else "",
        "replaces": isinstance(error, Conflict),
        "theirs": theirs,
        "title_most": TITLE_MOST,
        "body_most": BODY_MOST,
    }
    return shown("form.html", status, **words)


async def write(site: Site, request: Request) -> Response:
    return _form(Typed())


async def create(site: Site, request: Request) -> Response:
    typed = Typed.of(request)
    try:
        await site.start()
        added = await site.shelf.add(await typed.draft(site))
    except (Unfit, Unreachable) as error:
        return _form(typed, error=error)
    return _see(f"/posts/{added.id}")


async def edit(site: Site, request: Request, number: int) -> Response:
    one = await site.shelf.newest(number)
    return _form(Typed(one.title, one.body, revision=one.revision), number)


async def change(site: Site, request: Request, number: int) -> Response:
    typed = Typed.of(request)
    if not 0 < typed.revision <= REVISION_MOST:
        raise BadRequest("An edit says which revision it was made from.")
    try:
        await site.start()
        await site.shelf.edit(number, await typed.draft(site), typed.revision)
    except (Unfit, Unreachable) as error:
        return _form(typed, number, error=error)
    except Conflict as error:
        theirs = None
        with contextlib.suppress(Unreachable):
            theirs = await site.shelf.newest(number)
        newest = theirs.revision if theirs else error.revision
        return _form(replace(typed, revision=newest), number, error=error, theirs=theirs)
    return _see(f"/posts/{number}")


def _see(path: str) -> Response:
    return Response(status=HTTPStatus.SEE_OTHER, headers={"Location": path})


HANDLERS: dict[str, Callable[..., Awaitable[Response]]] = {
    "write": write,
    "create": create,
    "edit": edit,
    "change": change,
}
