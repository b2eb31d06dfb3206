"""What can go wrong with a request, as a status and as a sentence for whoever made it."""

from __future__ import annotations

from http import HTTPStatus

from apps.blog.posts import BadInput, Conflict, NoSuchPost, Unreachable
from apps.blog.uploads import NotAnImage, TooLarge

STATUS: dict[type[Exception], HTTPStatus] = {
    BadInput: HTTPStatus.UNPROCESSABLE_ENTITY,
    TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    NotAnImage: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    NoSuchPost: HTTPStatus.NOT_FOUND,
    Conflict: HTTPStatus.CONFLICT,
    Unreachable: HTTPStatus.SERVICE_UNAVAILABLE,
}
EXPECTED = tuple(STATUS)


def status_of(error: Exception) -> HTTPStatus:
    """Of one of EXPECTED."""
    return next(status for kind, status in STATUS.items() if isinstance(error, kind))


def sentence(error: Exception) -> str:
    """Nothing of what the database said: that is for the one who runs it."""
    if isinstance(error, NoSuchPost):
        return "There is no such post."
    if isinstance(error, Unreachable):
        return "The posts cannot be reached at the moment; please try again."
    if isinstance(error, Conflict):
        return f"Somebody edited this post meanwhile: {error}."
    return str(error)
