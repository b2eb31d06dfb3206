"""What a launch shows: the effect of a setting, or of an event that every server meets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from workerlab.numbers.formats import fill

Word = Literal["honoured", "ignored", "clamped", "changes"]
Evidence = Mapping[str, Mapping[str, Any]]  # by launch: its observations


class Effect(Struct, frozen=True):
    """`word` None: not a setting but an event. `sentence`: template of the observation; `shown`:
    text in the matrix instead of the word."""

    word: Word | None
    code: str
    sentence: str
    values: Mapping[str, Any] = {}
    shown: str = ""

    @property
    def observation(self) -> str:
        return fill(self.sentence, self.values)

    @property
    def cell(self) -> str:
        """Its text in the matrix."""
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
    """An examined setting: the launches that test it, and the conclusion. `happening`: label of an
    event that is not a setting."""

    name: str
    launches: tuple[str, ...]
    effect: Callable[[Evidence], Effect]
    happening: str = ""

    @property
    def label(self) -> str:
        return self.happening or self.name
