"""Writing and editing. Whatever goes wrong, what was typed comes back with the reason."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from http import HTTPStatus

from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Request, Response

from apps.blog.failures import sentence, status_of
from apps.blog.pages import page_of
from apps.blog.posts import (
    BODY_MOST,
    REVISION_MOST,
    TITLE_MOST,
    BadInput,
    Conflict,
    Draft,
    Post,
    Unreachable,
)
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
    def of(cls, request: Request) -> FormInput:
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

    async def draft(self, site: Site) -> Draft:
        """Raises BadInput."""
        if self.unreadable:
            raise BadInput("The file is no text in UTF-8.")
        return await site.draft(self.title, self.body)


def _form(
    filled: FormInput,
    number: int | None = None,
    *,
    error: Exception | None = None,
    theirs: Post | None = None,
) -> Response:
    """`number`: of the post that is edited. `theirs`: what somebody else made of it meanwhile."""
    status = status_of(error) if error else HTTPStatus.OK
    options = {
        "typed": filled,
        "number": number,
        "why": sentence(error) if error else "",
        "replaces": isinstance(error, Conflict),
        "theirs": theirs,
        "title_most": TITLE_MOST,
        "body_most": BODY_MOST,
    }
    return page_of("form.html", status, **options)


async def write(site: Site, request: Request) -> Response:
    return _form(FormInput())


async def create(site: Site, request: Request) -> Response:
    filled = FormInput.of(request)
    try:
        await site.start()
        added = await site.posts.add(await filled.draft(site))
    except (BadInput, Unreachable) as error:
        return _form(filled, error=error)
    return _redirect(f"/posts/{added.id}")


async def edit(site: Site, request: Request, number: int) -> Response:
    one = await site.posts.newest(number)
    return _form(FormInput(one.title, one.body, revision=one.revision), number)


async def change(site: Site, request: Request, number: int) -> Response:
    filled = FormInput.of(request)
    if not 0 < filled.revision <= REVISION_MOST:
        raise BadRequest("An edit says which revision it was made from.")
    try:
        await site.start()
        await site.posts.edit(number, await filled.draft(site), filled.revision)
    except (BadInput, Unreachable) as error:
        return _form(filled, number, error=error)
    except Conflict as error:
        theirs = None
        with contextlib.suppress(Unreachable):
            theirs = await site.posts.newest(number)
        newest = theirs.revision if theirs else error.revision
        return _form(replace(filled, revision=newest), number, error=error, theirs=theirs)
    return _redirect(f"/posts/{number}")


def _redirect(path: str) -> Response:
    return Response(status=HTTPStatus.SEE_OTHER, headers={"Location": path})
