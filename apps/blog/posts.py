"""Posts, their validation and rendering, and the errors of a request."""

import re
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import ClassVar

import nh3
from markdown_it import MarkdownIt

MAX_TITLE = 200  # characters
MAX_BODY = 100_000
MAX_REVISION = 2**31 - 1
MAX_ID = 2**63 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


class Failure(Exception):
    """A request cannot be served. `sentence` is for the client: the error's own text, unless that
    is meant only for the operator."""

    status: HTTPStatus

    @property
    def sentence(self) -> str:
        return str(self)


class BadInput(Failure):
    """The request can be parsed, but its content is invalid."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY


class NoSuchPost(Failure):
    status = HTTPStatus.NOT_FOUND
    sentence = "There is no such post."


class Conflict(Failure):
    """Someone else has edited the post in the meantime: `revision` is the newest one."""

    status = HTTPStatus.CONFLICT

    def __init__(self, revision: int) -> None:
        self.revision = revision
        why = "Someone else has edited this post in the meantime"
        super().__init__(f"{why}: it is now at revision {revision}.")


class Unreachable(Failure):
    """The database does not respond, or cannot be used."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    sentence = "The posts cannot be reached at the moment; please try again."


@dataclass(frozen=True)
class Draft:
    """The content of a post to save: validated, rendered and free of scripts."""

    title: str
    body: str  # Markdown, as typed
    html: str  # of the body; safe to show

    @classmethod
    def of(cls, title: object, body: object) -> "Draft":
        """Raises BadInput."""
        title, body = _text("title", title, MAX_TITLE), _text("body", body, MAX_BODY)
        return cls(" ".join(title.split()), body, render(body))  # collapsed into one line


def _text(name: str, value: object, max_length: int) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"A post needs a {name}.")
    if len(value) > max_length:
        raise BadInput(f"The {name} has {len(value)} characters; the maximum is {max_length}.")
    if "\x00" in value:  # PostgreSQL rejects it, so all storages do
        raise BadInput(f"The {name} contains a NUL character.")
    if _SURROGATE.search(value):
        raise BadInput(f"The {name} contains half a character (an unpaired surrogate).")
    return value


def render(text: str) -> str:
    """HTML without scripts, whatever `text` contains: markdown-it escapes raw HTML, and nh3 drops
    everything that is not on its allowlist."""
    return nh3.clean(_MARKDOWN.render(text))


@dataclass(frozen=True)
class Post:
    """A stored post. `revision`: 1, plus 1 for each edit; times are whole seconds since 1970."""

    id: int
    title: str
    body: str
    html: str
    created: int
    edited: int
    revision: int


@dataclass(frozen=True)
class Line:
    """A post in a list."""

    id: int
    title: str
    created: int


@dataclass(frozen=True)
class Page:
    """One page of the list, newest first, and the total number of posts."""

    number: int  # from 1
    lines: tuple[Line, ...]
    posts: int
    revision: ClassVar[int] = 0  # lists have none: the list read last is cached


def now() -> int:
    return int(time.time())
