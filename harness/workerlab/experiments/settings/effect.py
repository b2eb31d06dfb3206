"""What a launch may prove: the effect of a setting, or of what happens to every server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from workerlab.numbers.formats import fill

Word = Literal["honoured", "ignored", "clamped", "changes"]
Evidence = Mapping[str, Mapping[str, Any]]  # by the launch: what was seen


class Effect(Struct, frozen=True):
    """`word` None: not a setting but something that happens. `sentence`: a template of what was
    seen; `shown`: in the matrix, in place of the word."""

    word: Word | None
    code: str
    sentence: str
    values: Mapping[str, Any] = {}
    shown: str = ""

    @property
    def seen(self) -> str:
        return fill(self.sentence, self.values)

    @property
    def cell(self) -> str:
        """In the matrix."""
        if self.shown or self.word is None:
            return fill(self.shown, self.values)
        return WORDS[self.word]


WORDS: Mapping[Word, str] = {
    "honoured": "honoured",
    "ignored": "ignored",
    "clamped": "clamped",
    "changes": "changes meaning",
}


class Setting(Struct, frozen=True):
    """One that is examined: the launches that prove it, and how. `happening`: what it is called
    where it is no setting but happens to every server."""

    name: str
    launches: tuple[str, ...]
    effect: Callable[[Evidence], Effect]
    happening: str = ""

    @property
    def label(self) -> str:
        return self.happening or self.name
