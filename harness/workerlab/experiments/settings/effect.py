"""What a launch may prove: the effect of a setting, or of what happens to every server."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from workerlab.model import Finding

Word = Literal["honoured", "ignored", "clamped", "changes"]
Evidence = Mapping[str, Mapping[str, Any]]  # by the launch: what was seen


class Effect(Struct, frozen=True):
    """`word` None: not a setting but something that happens, told by `code` alone."""

    word: Word | None
    code: str  # of what was seen, after "settings.seen."
    values: Mapping[str, Any] = {}

    @property
    def seen(self) -> Finding:
        return Finding(f"settings.seen.{self.code}", self.values)


class Setting(Struct, frozen=True):
    """One that is examined: the launches that prove it, and how. `name` of what is no setting but
    happens to every server: a code."""

    name: str
    launches: tuple[str, ...]
    effect: Callable[[Evidence], Effect]
    happens: bool = False
