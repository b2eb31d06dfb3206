"""Which lines of the app hold up the event loop, of the recommended class where it has one.

One class of several that gave an alarm with the same app was looked at: the lines are the app's,
and the same under the others. How much of the time they take is that trial's, by its load.
"""

from __future__ import annotations

from collections.abc import Iterator

from workerlab.experiments.advise.result import AdviseResult
from workerlab.experiments.advise.study import Study
from workerlab.finding import Answer, Finding
from workerlab.model import Cell


class LoopBlocked(Answer):
    """With {connections:# connection} to {workers:# worker} of {worker_class}[[: {lines: }]]
    [[ {unnamed}]][[ The event loop of {others:list} shows the same sign, with the same app.]]"""

    question = "What holds up the event loop?"

    worker_class: str
    connections: int
    workers: int
    lines: tuple[Finding, ...]
    unnamed: str  # where there are none
    others: tuple[str, ...]


NO_LINE = "something does, but no line was seen for 1 % of the time."


def blocked(result: AdviseResult) -> Iterator[LoopBlocked]:
    study = result.study
    alarmed = {name for name, lines in study.blocking.items() if lines or name in study.blocked}
    cells = [
        cell
        for cell in study.plan.cells
        if cell.inside == "stacks" and cell.server.variant in alarmed
    ]
    if not cells:
        return
    cell = min(cells, key=lambda cell: _distance(result, cell))
    server, lines = cell.server, study.blocking[cell.server.variant]
    yield LoopBlocked(
        worker_class=server.variant,
        connections=cell.concurrency,
        workers=server.workers,
        lines=lines,
        unnamed="" if lines else NO_LINE,
        others=_alike(study, cell),
        trials=tuple(trial for line in lines for trial in line.trials),
    )


def _distance(result: AdviseResult, cell: Cell) -> int:
    """0: of the recommended class; 1: of one that runs the same app on a loop; 2: of another."""
    own = result.server.variant if result.server else ""
    return 0 if cell.server.variant == own else 1 if own in _alike(result.study, cell) else 2


def _alike(study: Study, cell: Cell) -> tuple[str, ...]:
    """Other variants whose event loop gave an alarm with the same app."""
    alarmed = {*study.blocked, *study.alarmed} - {cell.server.variant}
    apps = {cell.server.variant: cell.server.app for cell in study.plan.cells}
    return tuple(sorted(name for name in alarmed if apps.get(name) == cell.server.app))


def is_of_others(result: AdviseResult, finding: Finding) -> bool:
    """Whether it is about the event loop of other worker classes than the recommended one."""
    if not isinstance(finding, LoopBlocked) or result.server is None:
        return False
    return result.server.variant not in (finding.worker_class, *finding.others)
