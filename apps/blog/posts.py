"""A post, and what may be said in one."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from apps.blog.markdown import rendered

TITLE_MOST = 200  # characters
BODY_MOST = 100_000
REVISION_MOST = 2**31 - 1
ID_MOST = 2**63 - 1


class BadInput(ValueError):
    """Nobody can post this; the message is one sentence for the one who tried."""


class NoSuchPost(LookupError):
    """There is no such post."""


class Conflict(Exception):
    """The post was edited by someone else meanwhile: `revision` is the newest one."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        super().__init__(f"it is at revision {revision} by now")


class Unreachable(Exception):
    """The database does not answer: nothing can be said of what it holds."""


@dataclass(frozen=True)
class Draft:
    """What someone wants to post; checked, rendered and free of scripts."""

    title: str
    body: str  # Markdown, as typed
    html: str  # of the body; safe to show

    @classmethod
    def of(cls, title: object, body: object) -> Draft:
        """Raises BadInput."""
        for name, value, most in (("title", title, TITLE_MOST), ("body", body, BODY_MOST)):
            if not isinstance(value, str) or not value.strip():
                raise BadInput(f"A post needs a {name}.")
            if len(value) > most:
                raise BadInput(f"The {name} has {len(value)} characters; {most} is the most.")
            if "\x00" in value:  # PostgreSQL takes none, so nobody does
                raise BadInput(f"The {name} holds a zero character.")
            if any("\ud800" <= letter <= "\udfff" for letter in value):
                raise BadInput(f"The {name} holds half a character (a lone surrogate).")
        assert isinstance(title, str)
        assert isinstance(body, str)
        return cls(" ".join(title.split()), body, rendered(body))  # one line, however it came


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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


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


def now() -> int:
    return int(time.time())
