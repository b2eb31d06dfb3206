"""What cells differ in: a comparison is between cells that agree in everything but one factor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.model import Cell, CellResult


@dataclass(frozen=True)
class Factor:
    """`level` of a cell; `without` gives cells that differ in nothing else the same value."""

    level: Callable[[Cell], int | str]
    without: Callable[[Cell], Cell]


FACTORS: Mapping[str, Factor] = {
    "users": Factor(lambda cell: cell.concurrency, lambda cell: replace(cell, concurrency=1)),
    "threads": Factor(
        lambda cell: cell.server.threads,
        lambda cell: replace(cell, server=replace(cell.server, threads=1)),
    ),
    "servers": Factor(
        lambda cell: cell.server.instances,
        lambda cell: replace(cell, server=replace(cell.server, instances=1)),
    ),
    "processes": Factor(lambda cell: cell.processes, lambda cell: replace(cell, processes=1)),
    "tool": Factor(lambda cell: cell.tool, lambda cell: replace(cell, tool="")),
}


def generator_of(cells: Sequence[CellResult]) -> str:
    """The generator under suspicion: the one of most cells; "" where there is none."""
    counts = Counter(cell.trial.cell.tool for cell in cells)
    return counts.most_common(1)[0][0] if counts else ""


def comparisons(name: str, cells: Sequence[CellResult], generator: str) -> list[list[CellResult]]:
    """Groups of cells that differ in this factor alone, each by the factor's level, first the
    lowest (of `tool` the generator under suspicion); but for `tool`, of that generator."""
    factor = FACTORS[name]
    groups: dict[Cell, list[CellResult]] = {}
    for cell in cells:
        if name == "tool" or cell.trial.cell.tool == generator:
            groups.setdefault(factor.without(cell.trial.cell), []).append(cell)

    def order(cell: CellResult) -> tuple[bool, str]:
        level = factor.level(cell.trial.cell)
        return level != generator, f"{level:>9}"

    compared = [
        sorted(group, key=order)
        for group in groups.values()
        if len({factor.level(cell.trial.cell) for cell in group}) > 1
    ]
    return compared[:1] if name == "users" else compared  # on the usual server
