"""A post: what may be said in one, how that is shown, and what can go wrong with a request."""

import re
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import ClassVar

import nh3
from markdown_it import MarkdownIt

TITLE_MOST = 200  # characters
BODY_MOST = 100_000
REVISION_MOST = 2**31 - 1
ID_MOST = 2**63 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


class Failure(Exception):
    """A request cannot be served. `sentence` is for whoever made it: its own text, unless that is
    only for the one who runs the blog."""

    status: HTTPStatus

    @property
    def sentence(self) -> str:
        return str(self)


class BadInput(Failure):
    """Nobody can post this."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY


class NoSuchPost(Failure):
    status = HTTPStatus.NOT_FOUND
    sentence = "There is no such post."


class Conflict(Failure):
    """The post was edited by someone else meanwhile: `revision` is the newest one."""

    status = HTTPStatus.CONFLICT

    def __init__(self, revision: int) -> None:
        self.revision = revision
        at = f"it is at revision {revision} by now"
        super().__init__(f"Somebody edited this post meanwhile: {at}.")


class Unreachable(Failure):
    """The database does not answer: nothing can be said of what it holds."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    sentence = "The posts cannot be reached at the moment; please try again."


@dataclass(frozen=True)
class Draft:
    """What someone wants to post; checked, rendered and free of scripts."""

    title: str
    body: str  # Markdown, as typed
    html: str  # of the body; safe to show

    @classmethod
    def of(cls, title: object, body: object) -> "Draft":
        """Raises BadInput."""
        title, body = _text("title", title, TITLE_MOST), _text("body", body, BODY_MOST)
        return cls(" ".join(title.split()), body, rendered(body))  # one line, however it came


def _text(name: str, value: object, most: int) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"A post needs a {name}.")
    if len(value) > most:
        raise BadInput(f"The {name} has {len(value)} characters; {most} is the most.")
    if "\x00" in value:  # PostgreSQL takes none, so nobody does
        raise BadInput(f"The {name} holds a zero character.")
    if _SURROGATE.search(value):
        raise BadInput(f"The {name} holds half a character (a lone surrogate).")
    return value


def rendered(text: str) -> str:
    """HTML without scripts, whatever `text` holds: markdown-it takes no raw HTML, and nh3 drops all
    that is not on its list of harmless elements."""
    return nh3.clean(_MARKDOWN.render(text))


@dataclass(frozen=True)
class Post:
    """As stored. `revision` counts its edits from 1; times are seconds since 1970, whole ones."""

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
    """Some lines, newest first, and how many posts there are in all."""

    number: int  # from 1
    lines: tuple[Line, ...]
    posts: int
    revision: ClassVar[int] = 0  # none: of a list, the last one that was read stands


def now() -> int:
    return int(time.time())
