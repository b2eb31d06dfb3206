"""A series: the cells that differ in load alone. Where does its server stop serving more?"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from statistics import median

from msgspec import Struct

from harness.analysis.facts import Facts, TrialData
from harness.analysis.knee import REACHED, Capacity, Knee, Sample, capacity, knee
from harness.model import Cell, CellResult, ClassResult, Finding

Reasons = tuple[Finding, ...] | None  # why the load tool was the limit: () it was not, None unknown


class Series(Struct, dict=True, frozen=True, eq=False):
    """The trials of a series, and which of them are valid. Knee and capacity are the server's, so
    trials that the load tool held up (`bound`, by key) say nothing of them but that there is more.
    """

    key: Cell
    trials: Sequence[TrialData]
    lone_s: float | None  # R0
    closed: Sequence[Facts]  # valid trials of the closed loop
    at_rate: Sequence[Facts]  # and of the open model: they tell no knee
    invalid: Sequence[CellResult]
    notes: tuple[Finding, ...] = ()  # on all of its cells
    bound: Mapping[str, Reasons] = {}

    @property
    def valid(self) -> Sequence[Facts]:
        return (*self.closed, *self.at_rate)

    @property
    def slots(self) -> int | None:
        return self.trials[0].slots_configured

    @cached_property
    def levels(self) -> Mapping[int, float]:
        return _levels(self.closed)

    @cached_property
    def free(self) -> Sequence[Facts]:
        """The trials in which the load tool was not the limit."""
        return [facts for facts in self.closed if not self.bound.get(facts.key)]

    @cached_property
    def knee(self) -> Knee:
        """Completions count whatever their status: a wrong answer holds a slot as well."""
        found = knee(_levels(self.free), self.lone_s, self.slots)
        if len(self.free) == len(self.closed):
            return found
        first = min(facts.connections for facts in self.closed if self.bound.get(facts.key))
        tool = {"connections": first, "tool": self.key.tool}
        if self.free:
            note = Finding("knee.tool_is_limit_later", {"knee": found.note, **tool})
        else:
            least = max(self.levels.values(), default=0.0) * (self.lone_s or 0.0)
            note = Finding("knee.tool_is_limit", {"least": least, **tool})
        return found._replace(note=note)

    @cached_property
    def capacity(self) -> Capacity:
        samples = [
            Sample(facts.connections, facts.data.trial.number, facts.throughput_rps)
            for facts in self.free
            if facts.throughput_rps
        ]
        if not samples and len(self.free) < len(self.closed):
            return Capacity(note=Finding("capacity.tool_is_limit", {"tool": self.key.tool}))
        return capacity(samples, self.lone_s, flat=self.knee.connections is not None)

    def result(self, cells: Iterable[CellResult]) -> ClassResult:
        """`cells`: those of this series. The most telling of the closed loop is the valid one that
        lost most of what its slots or connections allow, since that is what settings can win back;
        where none lost any, the most loaded. Of several trials the first."""
        closed = (cell for cell in cells if cell.trial.cell.rate is None)
        valid = (cell for cell in closed if cell.verdict != "invalid")
        most = max(valid, key=_tells, default=None)
        return ClassResult(
            server=self.key.server,
            tool=self.key.tool,
            slots_configured=self.slots,
            slots_measured=max((facts.open_at_once for facts in self.closed), default=None),
            capacity_rps=self.capacity.rps,
            capacity_ci95=self.capacity.ci95,
            knee=self.knee.connections,
            knee_note=self.knee.note,
            keepalive=self.key.keepalive,
            processes=self.key.processes,
            diagnosis=most.diagnosis if most else None,
            telling=most.trial.key if most else None,
            worker_class=self.trials[0].worker_class,
        )


def _levels(trials: Iterable[Facts]) -> Mapping[int, float]:
    """The median completions per second of each number of connections."""
    rates: dict[int, list[float]] = defaultdict(list)
    for facts in trials:
        rates[facts.connections].append(facts.rps)
    return {level: median(found) for level, found in rates.items()}


def _tells(cell: CellResult) -> tuple[float, int, int]:
    reached = (cell.throughput_rps or 0.0) / cell.bound_rps if cell.bound_rps else 1.0
    lost = round(1 - reached, 2) if reached < REACHED else 0.0
    return lost, cell.trial.cell.concurrency, -cell.trial.number
