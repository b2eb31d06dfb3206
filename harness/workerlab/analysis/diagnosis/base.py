"""The base of all diagnoses.

    class SlowDisk(Diagnosis):
        '''Requests wait {wait_s:duration} for the disk'''

        rank, advice = 55, ("a faster disk helps",)
        explains = (WaitingForSlots,)
        below_slots = "the disk is the limit"

        wait_s: float

        @classmethod
        def diagnose(cls, facts: Facts, *_: object) -> SlowDisk | None:
            wait_s = disk_wait_s(facts)
            return cls(wait_s) if wait_s >= MIN_WAIT_S else None

The advice is appended to the sentence: "Requests wait 20.0 ms for the disk; a faster disk
helps." If it depends on the evidence, the class derives from `Advised`, and the rule passes it.
A class that defines `diagnose` is a rule, which is applied without being listed anywhere. A rule
may return an instance of a subclass, such as one for a likely cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from workerlab.analysis.facts import Facts
from workerlab.analysis.series import Series
from workerlab.finding import Finding
from workerlab.model.result import Result

ObservationKind = Literal["cpu", "queue", "states"]  # over time: CPU, accept queue, TCP states


class Diagnosis(Finding):
    """The limit of a cell with advice, or a statement that there is none. A class without `rank` or
    `advice` raises TypeError on import, unless its sentence names no value, as in a base class."""

    rank: ClassVar[int]  # a cell's diagnoses are sorted by it, lowest first
    explains: ClassVar[tuple[type[Diagnosis], ...]] = ()  # omitted: their advice would be wrong
    below_slots: ClassVar[str] = ""  # why throughput levels off with slots unused; "": no reason
    seen_in: ClassVar[ObservationKind | None] = None
    shows_loss: ClassVar[bool] = True  # other settings may raise the throughput
    at_rate: ClassVar[bool] = False  # the rule needs no law of the closed loop
    rules: ClassVar[list[type[Diagnosis]]] = []  # all classes that define `diagnose`

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        complete = hasattr(cls, "rank") and cls.advice is not Diagnosis.advice
        if "{" in cls.template and not complete:
            raise TypeError(f"{cls.__name__} has no rank, or no advice (which may be `()`)")
        cls.template += "[[; {advice:; }]]."
        if "diagnose" in vars(cls):
            Diagnosis.rules.append(cls)

    @classmethod
    def diagnose(cls, facts: Facts, cell: Result, series: Series | None, /) -> Diagnosis | None:
        """The diagnosis if there is evidence of it. `series`: that of a closed cell."""
        raise NotImplementedError

    @property
    def advice(self) -> tuple[str, ...]:
        """Proposed changes; a class constant or a field."""
        raise NotImplementedError

    @property
    def share(self) -> float:
        """The affected share of the requests, or of their time."""
        return 1.0

    @property
    def brief(self) -> str:
        """The sentence for a summary."""
        return str(self)

    @property
    def values(self) -> Mapping[str, Any]:
        return {**super().values, "advice": self.advice}


class Advised(Diagnosis, kw_only=True):
    """A diagnosis whose advice depends on the evidence."""

    advice: tuple[str, ...]
