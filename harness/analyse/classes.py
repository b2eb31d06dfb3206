"""One line for all cells of a (server, tool, keep-alive): where it stops serving more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from harness.analyse.capacity import Capacity, Sample, capacity
from harness.analyse.evidence import Evidence
from harness.analyse.facts import Facts
from harness.analyse.knee import BUSY, Knee, knee
from harness.model import CellResult, ClassResult, Server


@dataclass(frozen=True)
class Group:
    """All trials of one server, tool and keep-alive, and what could be believed of them."""

    server: Server
    tool: str
    keepalive: bool
    trials: Sequence[Evidence]
    valid: Sequence[Facts]
    lone_s: float | None

    @property
    def slots(self) -> int | None:
        return self.trials[0].slots_configured

    def knee(self) -> Knee:
        """From the median throughput of each level, over its valid trials.

        Completions count whatever their status: a wrong answer holds a slot as a good one does.
        """
        rates: dict[int, list[float]] = defaultdict(list)
        for facts in self.valid:
            if facts.steady.rps is not None:
                rates[facts.concurrency].append(facts.steady.rps)
        levels = {level: median(found) for level, found in rates.items()}
        return knee(levels, self.lone_s, self.slots)

    def capacity(self) -> Capacity:
        samples = [
            Sample(facts.concurrency, facts.evidence.trial.number, facts.throughput_rps)
            for facts in self.valid
            if facts.throughput_rps
        ]
        return capacity(samples, self.lone_s, flat=self.knee().connections is not None)

    def result(self, cells: Iterable[CellResult]) -> ClassResult:
        """`cells`: those of this group."""
        found, limit = self.knee(), self.capacity()
        open_at_once = (facts.open_at_once for facts in self.valid)
        most = _most_telling(cells)
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
            diagnosis=most.diagnosis if most else None,
            telling=most.trial.key if most else None,
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
