"""The answer of a run in one or two sentences: who serves most, who least, and who waits where."""

from __future__ import annotations

from collections.abc import Sequence

from harness.model import CellResult, Report
from harness.numbers.units import format_duration
from harness.report.html.members import Group, groups
from harness.report.sentences import amount
from harness.report.values import finite

ALIKE = 1.05  # rates that differ by less are said to be alike
LONG = 160  # letters: a longer answer leaves out who waits where
NOTABLE = 0.05  # of a response time: below, a wait is not worth a word
WAITS = (
    ("connect_s", "until connected"),
    ("accept_queue_s", "in the accept queue"),
    ("in_worker_s", "inside a worker"),
)


def headline(report: Report) -> str:
    """At the highest level that all believed groups share, best against worst."""
    members = [group for group in groups(report) if _levels(group)]
    if not members:
        return "No cell of this run is believed, so it answers nothing: the reasons are below."
    shared = set.intersection(*[_levels(group) for group in members])
    level = max(shared or set.union(*[_levels(group) for group in members]))
    there = [(group, group.levels[level][0]) for group in members if level in _levels(group)]
    there.sort(key=lambda pair: -(pair[1].throughput_rps or 0.0))
    (best, most), (worst, least) = there[0], there[-1]
    with_load = f"With {level} connections"
    if len(there) == 1:
        return f"{with_load}, {best.name} answers {_says(most)}."
    if (most.throughput_rps or 0.0) < ALIKE * (least.throughput_rps or 0.0):
        every = "both" if len(there) == 2 else "all"
        return f"{with_load}, {every} answer about {_says(most)}: {_names(there)}."
    said = f"{with_load}, {best.name} answers {_says(most)}; {worst.name} {_says(least)}."
    if len(said) <= LONG:
        return said
    return f"{with_load}, {best.name} answers {_brief(most)}; {worst.name} {_brief(least)}."


def _levels(group: Group) -> set[int]:
    return {at for at, cells in group.levels.items() if finite(cells[0].throughput_rps)}


def _names(there: Sequence[tuple[Group, CellResult]]) -> str:
    return ", ".join(group.name for group, _ in there)


def _response_s(cell: CellResult) -> float | None:
    return finite(cell.breakdown.response_s) or finite(cell.response.mean)


def _brief(cell: CellResult) -> str:
    said, response = f"{amount(cell.throughput_rps or 0.0)} requests/s", _response_s(cell)
    return said if response is None else f"{said}, each in {format_duration(response)}"


def _says(cell: CellResult) -> str:
    said, response = _brief(cell), _response_s(cell)
    if response is None:
        return said
    parts = [(finite(getattr(cell.breakdown, field)) or 0.0, where) for field, where in WAITS]
    longest, where = max(parts)
    if longest < NOTABLE * response:
        return said
    return f"{said}, {format_duration(longest)} of it waiting {where}"
