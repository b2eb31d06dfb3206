"""The base of all conclusions. Each conclusion is a class: its name is the code, its fields are the
values, and its docstring is the sentence. The rule that creates it follows the class.

    class SlowService(Finding):
        '''With {users:# user} a request spends {service_s:duration} in the app.'''

        users: int
        service_s: float

`workerlab.numbers.units` defines the formats. Fields have base units, which end their names
(`wait_s`, `memory_bytes`). A sentence that names an unknown field or format raises TypeError on
import. Rules, tests and programs use the class and its fields; none of them parses a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, cast, dataclass_transform

import msgspec
from msgspec import Struct

from workerlab.numbers.units import fields, fill, is_format

# Where the first screen shows a note: only in a count, among the notes, or below the title
Prominence = Literal["counted", "notes", "title"]
# Where the page shows a conclusion: among the findings, below the tables, or among invalid cells
Placement = Literal["findings", "costs", "invalid"]


@dataclass_transform(frozen_default=True)
class Finding(Struct, frozen=True):
    """A conclusion, with the values in its sentence."""

    template: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__str__" in vars(cls):
            return
        if cls.__doc__ is None:
            raise TypeError(f"{cls.__name__} has no sentence (python -OO drops docstrings)")
        # Join lines with a space, but without one before an optional part
        cls.template = re.sub(r"\s*\n\s*", " ", re.sub(r"\s*\n\s*(?=\[\[)", "", cls.__doc__))
        names = {name for base in cls.__mro__ for name in vars(base).get("__annotations__", ())}
        for name, spec in fields(cls.template):
            if name.partition(".")[0] not in names:
                raise TypeError(f"{cls.__name__} has no field {name!r}")
            if not is_format(spec):
                raise TypeError(f"{cls.__name__}: no format {spec!r} for {name!r}")

    def __str__(self) -> str:
        return fill(self.template, self.values).strip()

    def __hash__(self) -> int:
        return hash(self.code)  # values may be unhashable

    @property
    def code(self) -> str:
        return type(self).__name__

    @property
    def values(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in self.__struct_fields__}

    @property
    def prominence(self) -> Prominence:
        return "counted"

    @property
    def placement(self) -> Placement:
        return "findings"

    @property
    def short(self) -> str:
        """A short form for tables."""
        return str(self)

    @property
    def trials(self) -> tuple[str, ...]:
        return ()

    @property
    def evidence(self) -> tuple[Finding, ...]:
        return ()

    @property
    def question(self) -> str:
        return ""


class Answer(Finding, kw_only=True):
    """A conclusion that is based on trials, or answers a question."""

    trials: tuple[str, ...] = ()  # keys of the trials it is based on
    evidence: tuple[Finding, ...] = ()

    @property
    def values(self) -> Mapping[str, Any]:
        excluded = ("question", "trials", "evidence")
        names = (name for name in self.__struct_fields__ if name not in excluded)
        return {name: getattr(self, name) for name in names}

    @classmethod
    def unanswered(cls, reason: str, evidence: tuple[Finding, ...] = ()) -> Inconclusive:
        """The answer to this class's question if the rule reaches no conclusion."""
        return Inconclusive(reason, question=cast("str", cls.question), evidence=evidence)


class Inconclusive(Answer):
    """Inconclusive: {reason:sentence}"""

    reason: str
    question: str


Findings = tuple[Finding, ...]


class Note(Finding):
    """{text}"""

    text: str  # no rule, table or test parses it


class StoredFinding(Finding):
    """A finding as stored in a file. Its class may be from another version, or not imported."""

    code: str
    values: Mapping[str, Any] = {}
    text: str = ""
    prominence: Prominence = "counted"

    def __str__(self) -> str:
        return self.text or f"{self.code}: {dict(self.values)}"

    def __hash__(self) -> int:
        return hash((self.code, self.text))


def stored(finding: Finding) -> StoredFinding:
    if isinstance(finding, StoredFinding):
        return finding
    values = msgspec.to_builtins(finding.values)  # the types that decoding returns
    return StoredFinding(finding.code, values, str(finding), finding.prominence)
