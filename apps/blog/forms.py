"""Forms to write and edit posts. If saving fails, the form keeps its input and shows the reason."""

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
    """The input of a form, which is shown again if it cannot be saved. `body`: from a Markdown
    file, if one was chosen. `unreadable`: that file is not UTF-8. `revision`: 0 if missing or not a
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
        text = body.replace("\r\n", "\n").replace("\r", "\n")
        return cls(request.form.get("title", ""), text, int(number) if digits else 0, unreadable)


def _form(
    form_input: FormInput,
    number: int | None = None,
    error: Failure | None = None,
    theirs: Post | None = None,
) -> Response:
    """The form. `number`: the post being edited. `theirs`: its newest revision, saved by others."""
    return page_of(
        "form.html",
        error.status if error else HTTPStatus.OK,
        typed=form_input,
        number=number,
        why=error.sentence if error else "",
        replaces=isinstance(error, Conflict),
        theirs=theirs,
        title_max=posts.MAX_TITLE,
        body_max=posts.MAX_BODY,
    )


async def write(site: Site, request: Request) -> Response:
    return _form(FormInput())


async def edit(site: Site, request: Request, number: int) -> Response:
    post = await site.posts.newest(number)
    return _form(FormInput(post.title, post.body, revision=post.revision), number)


async def save(site: Site, request: Request, number: int | None = None) -> Response:
    """Save a new post, or an edit of post `number`."""
    form_input = FormInput.of(request)
    if number is not None and not 0 < form_input.revision <= posts.MAX_REVISION:
        raise BadRequest("An edit needs the revision that it is based on.")
    try:
        await site.start()
        if form_input.unreadable:
            raise BadInput("The file is not UTF-8 text.")
        draft = await site.draft(form_input.title, form_input.body)
        if number is None:
            number = (await site.posts.add(draft)).id
        else:
            await site.posts.edit(number, draft, form_input.revision)
    except (BadInput, Unreachable) as error:
        return _form(form_input, number, error)
    except Conflict as error:
        theirs = None
        with contextlib.suppress(Unreachable):
            theirs = await site.posts.newest(number or 0)
        newest = theirs.revision if theirs else error.revision
        return _form(replace(form_input, revision=newest), number, error, theirs)
    return Response(status=HTTPStatus.SEE_OTHER, headers={"Location": f"/posts/{number}"})
