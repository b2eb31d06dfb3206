"""Which figures there are: of a whole run, and of one cell over time."""

from __future__ import annotations

from harness.model import CellResult, Report, Timeline
from harness.report.html.connects import connects
from harness.report.html.figures import Figure
from harness.report.html.keepalive import keepalive
from harness.report.html.members import Group, groups
from harness.report.html.open_and_closed import open_and_closed
from harness.report.html.phases import phases
from harness.report.html.series import queue, states
from harness.report.html.throughput import throughput
from harness.report.html.timeline import timeline
from harness.report.html.usage import cpu, memory
from harness.report.html.waiting import longest_s, waiting
from harness.report.loops import load


def of_run(report: Report) -> list[Figure]:
    """Those that have anything to show."""
    longest = longest_s(report)
    found = [throughput(report)]
    found += [waiting(group, longest) for group in groups(report)]
    found += [keepalive(group) for group in groups(report)]
    found += [open_and_closed(group) for group in groups(report)]
    return [figure for figure in found if figure is not None]


def of_cell(group: Group, cell: CellResult, view: Timeline) -> list[Figure]:
    """Those that have anything to show; names are different in all cells of a run."""
    suffix, place = f"{group.slug}-{_level(cell)}", where(group, cell)
    found = [
        timeline(cell, view, f"timeline-{suffix}", f"{place}, request by request"),
        phases(view, f"phases-{suffix}", place),
        connects(view, f"connects-{suffix}", f"Time to connect, {place}"),
        queue(view, f"queue-{suffix}", place),
        states(view, f"states-{suffix}", place),
        cpu(view, f"cpu-{suffix}", place),
        memory(view, f"memory-{suffix}", place),
    ]
    return [figure for figure in found if figure is not None]


def _level(cell: CellResult) -> str:
    """As a part of file names."""
    asked = cell.trial.cell
    if asked.rate is None:
        return str(asked.concurrency)
    return f"rate-{asked.rate.label.replace('%', 'pc').replace('.', '-')}"


def where(group: Group, cell: CellResult) -> str:
    return f"{group.name} at {load(cell)}"
