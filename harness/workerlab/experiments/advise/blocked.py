"""Which lines of the app hold up the event loop, of the recommended class where it has one.

One class of several that gave an alarm with the same app was looked at: the lines are the app's,
and the same under the others. How much of the time they take is that trial's, by its load.
"""

from collections.abc import Iterable

from workerlab.experiments.advise.result import Result
from workerlab.experiments.advise.study import Study
from workerlab.experiments.document import answer
from workerlab.model import Cell, Finding


def blocked(result: Result) -> Iterable[Finding]:
    study = result.study
    telling = [
        cell
        for cell in study.plan.cells
        if cell.inside == "stacks" and (name := cell.server.variant) in study.blocking
        and (study.blocking[name] or name in study.blocked)
    ]  # fmt: skip
    if not telling:
        return
    cell = min(telling, key=lambda one: _distance(result, one))
    lines = study.blocking[cell.server.variant]
    values = {
        "worker_class": cell.server.variant,
        "connections": cell.concurrency,
        "workers": cell.server.workers,
        "lines": lines,
        "others": _alike(study, cell) or None,
    }
    code = "blocking" if lines else "blocking.unnamed"
    yield answer(
        "advise", "blocking", code, values, trials=(t for one in lines for t in one.trials)
    )


def _distance(result: Result, cell: Cell) -> int:
    """0: of the recommended class; 1: of one that runs the same app on a loop; 2: of another."""
    own = result.server.variant if result.server else ""
    return 0 if cell.server.variant == own else 1 if own in _alike(result.study, cell) else 2


def _alike(study: Study, cell: Cell) -> tuple[str, ...]:
    """Other variants whose event loop gave an alarm with the same app."""
    alarmed = {*study.blocked, *study.alarmed} - {cell.server.variant}
    apps = {one.server.variant: one.server.app for one in study.plan.cells}
    return tuple(sorted(one for one in alarmed if apps.get(one) == cell.server.app))


def of_others(result: Result, found: Finding) -> bool:
    """Whether that answer is about other worker classes than the recommended one."""
    if found.code not in ("advise.blocking", "advise.blocking.unnamed") or result.server is None:
        return False
    about = (found.values["worker_class"], *(found.values["others"] or ()))
    return result.server.variant not in about
