"""The end of a readable report: what is invalid and why, and what the reader should know."""

from __future__ import annotations

from collections.abc import Sequence

from harness.model import CellResult
from harness.report.document import SweepResult
from harness.report.messages import text
from harness.report.sentences import label, listed, varying


def invalid_lines(report: SweepResult) -> list[str]:
    """One line per invalid cell, with its reason."""
    return [
        f"{_where(cell, report)}: {text(cell.reason)}"
        for cell in report.cells
        if cell.verdict == "invalid"
    ]


def note_lines(report: SweepResult) -> list[str]:
    """Every note once, with the cells it is about; those of the whole run last."""
    about: dict[str, list[CellResult]] = {}
    for cell in report.cells:
        for note in dict.fromkeys(map(text, cell.notes)):
            about.setdefault(note, []).append(cell)
    lines = [f"{_places(cells, report)}: {note}" for note, cells in about.items()]
    return lines + [text(note) for note in report.notes]


def _name(cell: CellResult, report: SweepResult) -> str:
    cells = [one.trial.cell for one in report.cells]
    tools = len({one.tool for one in cells})
    asked = cell.trial.cell
    kept = asked.keepalive and not all(one.keepalive for one in cells)
    differ = varying(one.server for one in cells)
    return label(asked.server, asked.tool, differ, tools, kept, asked.processes)


def _where(cell: CellResult, report: SweepResult) -> str:
    several = any(one.trial.number > 1 for one in report.cells)
    trial = f", trial {cell.trial.number}" if several else ""
    return f"{_name(cell, report)} at {_level(cell)}{trial}"


def _level(cell: CellResult) -> str:
    """'16', or '80% (open)'."""
    rate = cell.trial.cell.rate
    if rate is None:
        return str(cell.trial.cell.concurrency)
    return f"{rate.label}{'' if rate.share is not None else '/s'} (open)"


def _places(cells: Sequence[CellResult], report: SweepResult) -> str:
    """'every cell', or 'sync at 4 and 8, gthread at 16'."""
    if len(cells) == len(report.cells):
        return "every cell"
    levels: dict[str, list[str]] = {}
    for cell in cells:
        found = levels.setdefault(_name(cell, report), [])
        if _level(cell) not in found:
            found.append(_level(cell))
    return ", ".join(f"{name} at {listed(at)}" for name, at in levels.items())
