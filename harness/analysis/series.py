"""One line for all trials of a group: where its server stops serving more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from harness.analysis.capacity import Capacity, Sample, capacity
from harness.analysis.evidence import TrialData
from harness.analysis.facts import Facts
from harness.analysis.knee import BUSY, Knee, knee
from harness.model import CellResult, ClassResult, Server
from harness.numbers.words import number, plural


@dataclass(frozen=True)
class Group:
    """All trials of one server, tool, its processes and keep-alive, and what could be
    believed of them. Knee and capacity are the server's, so trials that the load tool held up
    (`bound`) say nothing of them but that there is more."""

    server: Server
    tool: str
    keepalive: bool
    trials: Sequence[TrialData]
    valid: Sequence[Facts]
    lone_s: float | None
    processes: int = 1
    bound: frozenset[str] = frozenset()  # keys of the trials that the load tool held up
    opened: Sequence[Facts] = ()  # believed trials of the open model: they tell no knee

    @property
    def slots(self) -> int | None:
        return self.trials[0].slots_configured

    @property
    def keys(self) -> frozenset[str]:
        """Of the trials that are believed."""
        return frozenset(facts.evidence.trial.key for facts in self.valid)

    @property
    def free(self) -> Sequence[Facts]:
        """Those in which the load tool was not the limit."""
        return [facts for facts in self.valid if facts.evidence.trial.key not in self.bound]

    def levels(self, trials: Iterable[Facts]) -> dict[int, float]:
        """The median throughput of each level, requests/s."""
        rates: dict[int, list[float]] = defaultdict(list)
        for facts in trials:
            if facts.steady.rps is not None:
                rates[facts.concurrency].append(facts.steady.rps)
        return {level: median(found) for level, found in rates.items()}

    def knee(self) -> Knee:
        """From the median throughput of each level, over its valid trials.

        Completions count whatever their status: a wrong answer holds a slot as a good one does.
        """
        found = knee(self.levels(self.free), self.lone_s, self.slots)
        if not self.bound:
            return found
        return replace(found, note=self._at_least(found), levels=self.levels(self.valid))

    def _at_least(self, found: Knee) -> str:
        first = min(f.concurrency for f in self.valid if f.evidence.trial.key in self.bound)
        limit = f"from {plural(first, 'connection')} on {self.tool} is the limit"
        if self.free:
            return f"{found.note}; {limit}"
        most = max(self.levels(self.valid).values(), default=0.0) * (self.lone_s or 0.0)
        return f"at least {number(most)}: {limit}, not the server"

    def capacity(self) -> Capacity:
        samples = [
            Sample(facts.concurrency, facts.evidence.trial.number, facts.throughput_rps)
            for facts in self.free
            if facts.throughput_rps
        ]
        if self.bound and not samples:
            return Capacity(None, None, f"{self.tool} is the limit in every cell")
        return capacity(samples, self.lone_s, flat=self.knee().connections is not None)

    def result(self, cells: Iterable[CellResult]) -> ClassResult:
        """`cells`: those of this group."""
        found, limit = self.knee(), self.capacity()
        open_at_once = (facts.open_at_once for facts in self.valid)
        most = _most_telling(cell for cell in cells if cell.trial.cell.rate is None)
        return ClassResult(
            server=self.server,
            tool=self.tool,
            slots_configured=self.slots,
            slots_measured=max(open_at_once, default=None),
            capacity_rps=limit.rps,
            capacity_ci95=limit.ci95,
            knee=found.connections,
            knee_note=found.note,
            keepalive=self.keepalive,
            processes=self.processes,
            diagnosis=most.diagnosis if most else None,
            telling=most.trial.key if most else None,
            worker_class=self.trials[0].worker_class,
        )


def _most_telling(cells: Iterable[CellResult]) -> CellResult | None:
    """The believed cell that lost most of what its slots or connections allow, since that is what
    settings can win back; where none lost any, the most loaded. Of several trials the first."""
    believed = [cell for cell in cells if cell.verdict != "invalid"]
    return max(believed, key=_tells, default=None)


def _tells(cell: CellResult) -> tuple[float, int, int]:
    reached = (cell.throughput_rps or 0.0) / cell.bound_rps if cell.bound_rps else 1.0
    lost = round(1 - reached, 2) if reached < BUSY else 0.0
    return lost, cell.trial.cell.concurrency, -cell.trial.number
