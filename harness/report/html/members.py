"""The groups of a report with their names, cells and views, for what shows them one by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.model import CellResult, ClassResult, Report, Timeline
from harness.report.sentences import label, varying
from harness.report.values import finite

LEGIBLE = 64  # connections whose bars can be told apart in one picture


@dataclass(frozen=True)
class Group:
    """All cells of one (server, tool, processes, keep-alive). `number` counts from 0."""

    number: int
    name: str
    result: ClassResult
    cells: tuple[CellResult, ...]  # of the closed loop
    opened: tuple[CellResult, ...] = ()  # at a rate

    @property
    def slug(self) -> str:
        """The name as a part of file names."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def believed(self) -> tuple[CellResult, ...]:
        return tuple(cell for cell in self.cells if cell.verdict != "invalid")

    @property
    def levels(self) -> dict[int, tuple[CellResult, ...]]:
        """Believed cells by connections, ascending."""
        found: dict[int, tuple[CellResult, ...]] = {}
        for cell in sorted(self.believed, key=lambda one: one.trial.cell.concurrency):
            at = cell.trial.cell.concurrency
            found[at] = (*found.get(at, ()), cell)
        return found


def groups(report: Report) -> tuple[Group, ...]:
    """In the order of the report. Names are different for different groups."""
    differ = varying(group.server for group in report.classes)
    tools = len({group.tool for group in report.classes})
    mixed = len({group.keepalive for group in report.classes}) > 1
    found = []
    for number, group in enumerate(report.classes):
        name = label(
            group.server, group.tool, differ, tools, group.keepalive and mixed, group.processes
        )
        key = group.server, group.tool, group.processes, group.keepalive
        mine = [cell for cell in report.cells if _key(cell) == key]
        cells = tuple(cell for cell in mine if cell.trial.cell.rate is None)
        opened = tuple(cell for cell in mine if cell.trial.cell.rate is not None)
        found.append(Group(number, name, group, cells, opened))
    return tuple(found)


def _key(cell: CellResult) -> object:
    asked = cell.trial.cell
    return asked.server, asked.tool, asked.processes, asked.keepalive


def mean(cells: Sequence[CellResult], value: Callable[[CellResult], float | None]) -> float | None:
    """The mean over the trials of one level; missing where one of them does not know."""
    found = [finite(value(cell)) for cell in cells]
    known = [one for one in found if one is not None]
    return fmean(known) if known and len(known) == len(found) else None


def seen(group: Group, report: Report) -> list[tuple[CellResult, Timeline]]:
    """Its cells that were seen over time, by connections; those at a rate last."""
    views = {view.key: view for view in report.timelines}
    cells = [*(cell for level in group.levels.values() for cell in level), *group.opened]
    return [(cell, views[cell.trial.key]) for cell in cells if cell.trial.key in views]


def most_telling(pairs: list[tuple[CellResult, Timeline]]) -> tuple[CellResult, Timeline] | None:
    """The most loaded cell in which something waits and that can still be read; where nothing
    waits, the most loaded one."""
    if not pairs:
        return None
    full = [pair for pair in pairs if pair[0].verdict == "saturated"] or pairs
    legible = [pair for pair in full if pair[0].trial.cell.concurrency <= LEGIBLE]
    return legible[-1] if legible else full[0]
