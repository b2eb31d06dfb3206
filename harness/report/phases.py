"""The phases of loads on kept connections, a line per cell."""

from __future__ import annotations

from harness.model import CellResult, Phase, Timeline
from harness.numbers.units import format_duration
from harness.report.document import SweepResult
from harness.report.loops import load, named
from harness.report.messages import text


def phased(report: SweepResult) -> list[tuple[CellResult, Timeline]]:
    """The cells in which phases were found, and their views."""
    views = {view.key: view for view in report.timelines if view.phases}
    return [(cell, views[cell.trial.key]) for cell in report.cells if cell.trial.key in views]


def tells(view: Timeline) -> bool:
    """Whether there is more to see than that nothing changes."""
    return {phase.name for phase in view.phases} & {"ramp-up", "drain"} != set()


def phase_lines(report: SweepResult) -> list[str]:
    """'gthread at 64: ramp-up until 3.0 s: why. Steady until 7.9 s: why.'"""
    return [
        f"{named(report, cell)} at {load(cell)}: {' '.join(map(said, view.phases))}"
        for cell, view in phased(report)
        if tells(view)
    ]


def said(phase: Phase) -> str:
    name = phase.name.capitalize()
    return f"{name} until {format_duration(phase.end_s)}: {text(phase.why)}."
