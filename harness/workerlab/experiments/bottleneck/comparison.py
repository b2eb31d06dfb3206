"""Comparisons: cells that differ in one factor only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from workerlab.analysis.trials import Trials
from workerlab.finding import Finding
from workerlab.model import Cell
from workerlab.numbers.formats import amount, counted
from workerlab.numbers.intervals import Effect, Ratio

EFFECT = 1.2  # times the throughput: a smaller change does not count
BY_STRENGTH: tuple[Effect, ...] = ("more", "less", "chance", "none")

FactorLevel = int | str  # a number, or a name


class Factor(Enum):
    """What is varied while everything else stays the same. `path`: of its level in a Cell; `noun`:
    the unit of a level, "" if it is a name; `title`: of its table."""

    # fmt: off
    USERS = ("concurrency", "user", "More users",
             "Do more users bring more throughput?")
    THREADS = ("server.threads", "thread", "More threads in the server",
               "Do more threads in the server help?")
    SERVERS = ("server.instances", "server", "A second server, on a port of its own",
               "Does a second server help?")
    PROCESSES = ("processes", "process/processes", "The generator in more processes",
                 "Do more processes of the generator help?")
    TOOL = ("tool", "", "Another generator",
            "Does another generator get more out of the same server?")
    # fmt: on

    def __init__(self, path: str, noun: str, title: str, question: str) -> None:
        self.path, self.noun, self.title, self.question = path, noun, title, question

    def level(self, cell: Cell) -> FactorLevel:
        level: FactorLevel = attrgetter(self.path)(cell)
        return level

    def without(self, cell: Cell) -> Cell:
        """A key that is equal for cells that differ in this factor only."""
        name, _, inner = self.path.partition(".")
        rest: Any = replace(getattr(cell, name), **{inner: None}) if inner else None
        return replace(cell, **{name: rest})

    def words(self, level: FactorLevel) -> str:
        """'6 threads', 'wrk'."""
        return level if isinstance(level, str) else counted(level, self.noun)

    def __str__(self) -> str:
        return self.name.lower()


class LevelChange(Struct, frozen=True):
    """From one level of a factor to another."""

    before: Trials
    after: Trials

    @property
    def ratio(self) -> Ratio:
        """Of the throughput."""
        return self.after.ratio(self.before)

    @property
    def effect(self) -> Effect | None:
        """None without an interval."""
        return self.ratio.effect(EFFECT)

    @property
    def wait_ratio(self) -> float | None:
        """Of the mean response time."""
        before_s, after_s = (side.mean("response.mean") for side in (self.before, self.after))
        return after_s / before_s if before_s and after_s else None


class Throughputs(Finding):
    """Evidence: '500 users: locust 544 req/s, wrk 4690 req/s'."""

    factor: Factor
    levels: tuple[FactorLevel, ...]
    rps: tuple[float, ...]
    users: int | None  # None if they are the factor

    def __str__(self) -> str:
        users = f"{Factor.USERS.words(self.users)}: " if self.users else ""
        levels = zip(map(self.factor.words, self.levels), self.rps, strict=True)
        return users + ", ".join(f"{level} {amount(rps)} req/s" for level, rps in levels)


class Comparison(Struct, frozen=True):
    """Groups of cells that differ in one factor only, by its level. Each group is compared with its
    first cell: the lowest level, or the generator under test."""

    factor: Factor
    generator: str
    groups: tuple[tuple[Trials, ...], ...]

    @classmethod
    def of(cls, factor: Factor, cells: Iterable[Trials], generator: str) -> Comparison:
        """Of cells of this generator, except to compare it with others."""
        groups: dict[Cell, list[Trials]] = {}
        for trials in cells:
            if factor is Factor.TOOL or trials.cell.tool == generator:
                groups.setdefault(factor.without(trials.cell), []).append(trials)

        def order(trials: Trials) -> FactorLevel:
            level = factor.level(trials.cell)
            return level != generator if factor is Factor.TOOL else level

        varied = [tuple(sorted(group, key=order)) for group in groups.values() if len(group) > 1]
        if factor is Factor.USERS:
            varied = varied[:1]  # on the usual server
        return cls(factor, generator, tuple(varied))

    @property
    def valid(self) -> Comparison:
        """Of the cells with a valid trial. Other generators are compared only with the one under
        test."""
        groups = (tuple(trials for trials in group if trials.valid) for group in self.groups)
        comparable = [group for group in groups if len(group) > 1]
        if self.factor is Factor.TOOL:
            comparable = [group for group in comparable if group[0].cell.tool == self.generator]
        return replace(self, groups=tuple(comparable))

    @property
    def cells(self) -> list[Trials]:
        return [trials for group in self.groups for trials in group]

    @property
    def changes(self) -> list[LevelChange]:
        """The changes that answer the factor's question."""
        return [
            LevelChange(group[0], trials) for group in self.groups for trials in self._after(group)
        ]

    def _after(self, group: Sequence[Trials]) -> Sequence[Trials]:
        if self.factor is Factor.USERS:
            return group[-1:]
        if self.factor is Factor.PROCESSES:
            return [max(group[1:], key=lambda trials: trials.throughput_rps or 0.0)]
        return group[1:]

    @property
    def effect(self) -> Effect | None:
        """The strongest change's; None if none has an interval."""
        effects = [change.effect for change in self.changes]
        return next((effect for effect in BY_STRENGTH if effect in effects), None)

    @property
    def strongest(self) -> LevelChange | None:
        """The change that shows the effect best."""
        if self.effect == "less" and self.factor is not Factor.TOOL:
            return min(self._showing("less"), key=lambda change: change.ratio.value)
        # If other generators reach no more: the best of them
        effects = ("less", "none") if self.effect == "less" else (self.effect,)
        shown = self._showing(*effects) if self.effect else []
        return max(shown, key=lambda change: change.ratio.value, default=None)

    def _showing(self, *effects: Effect | None) -> list[LevelChange]:
        return [change for change in self.changes if change.effect in effects]

    @property
    def throughputs(self) -> tuple[Throughputs, ...]:
        return tuple(
            Throughputs(
                factor=self.factor,
                levels=tuple(self.factor.level(trials.cell) for trials in group),
                rps=tuple(trials.throughput_rps or 0.0 for trials in group),
                users=None if self.factor is Factor.USERS else group[0].cell.concurrency,
            )
            for group in self.groups
        )
