"""`workerlab compare`: launches A and B alternately on fresh servers until the comparison is
conclusive or the budget ends.

    options ─► two sides ─► pairs of cells, the k-th with schedule k ─► changes ─► the next pair

The order within a pair is random, so drift and effects of the previous launch affect both sides
equally often.
"""

import random
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from workerlab import codec, run_store
from workerlab.durations import MIN_OVERHEAD_S
from workerlab.errors import EnvironmentProblem, UsageError
from workerlab.experiments.budget import Budget
from workerlab.experiments.compare.comparison import (
    LOOKS,
    SIDES,
    CompareRequest,
    Group,
    compare_groups,
    next_look_s,
)
from workerlab.experiments.compare.options import (
    LOAD_S,
    TOOL,
    CompareOptions,
    check_limits,
    side,
)
from workerlab.experiments.compare.saved import write_junit
from workerlab.experiments.environment import directories_of, python_of, serves_bundled_app
from workerlab.experiments.planning import plan_of
from workerlab.experiments.runner import Setup
from workerlab.experiments.sweep_options import SweepOptions
from workerlab.model.plan import Cell, Plan
from workerlab.notes import RequestsNotFollowed
from workerlab.options import BadArgument, levels, servers
from workerlab.server import preflight

DEFAULT_BUDGET_S = 300.0
MAX_PAIRS = 2 * LOOKS[-1]  # including invalid ones


def setup(options: CompareOptions, plan: Plan | None) -> Setup:
    resumed = plan is not None
    plan, serving = first_plan(options) if plan is None else (plan, {})
    request = CompareRequest.of(plan)
    budget = Budget(options.budget or request.budget_s, resumed=resumed)
    return Setup(
        plan,
        interpreters=serving,
        label="compare",
        display=budget.display,
        grow=partial(grow, budget),
        finish=finish,
    )


def finish(directory: Path) -> None:
    """Write the limits as JUnit XML if requested."""
    run = run_store.load(directory)
    if junit := CompareRequest.of(run.plan).junit:
        write_junit(Path(junit), compare_groups(run), run.name)


def first_plan(options: CompareOptions) -> tuple[Plan, preflight.Interpreters]:
    """The first pair of each group, and the interpreters. Raises UsageError, EnvironmentProblem."""
    if not (options.classes and options.levels and (options.a or options.b)):
        raise UsageError(
            "compare needs CLASSES, LEVELS and a difference, such as: workerlab compare sync 8"
            " --a gunicorn=25.3.0 --b gunicorn=27.0.1"
        )
    check_limits(options)
    plans, pythons = zip(*(plan_side(options, name) for name in ("a", "b")), strict=True)
    if len({len(plan.cells) for plan in plans}) > 1:
        raise UsageError("class= on a side replaces CLASSES, which must then be a single class")
    base = _common_plan(*plans)
    sides = [[_with_side_settings(base, plan, cell) for cell in plan.cells] for plan in plans]
    if sides[0] == sides[1]:
        raise UsageError("A and B are the same: give a difference, such as --b workers=8")
    serving, unavailable = dict[tuple[str, str], preflight.Interpreter](), dict[str, str]()
    for interpreters, cells in zip(pythons, sides, strict=True):
        (interpreter,) = interpreters.values()
        for server in (cell.server for cell in cells):
            serving[server.python, server.gunicorn] = interpreter
            if why := interpreter.why_unavailable(server.worker_class):
                unavailable[server.variant] = why
    groups = tuple(Group(*map(_with_side_name, SIDES, pair)) for pair in zip(*sides, strict=True))
    unavailable = with_counterparts(groups, unavailable)
    if all(group.a.server.variant in unavailable for group in groups):
        raise EnvironmentProblem("; ".join(dict.fromkeys(unavailable.values())))
    request = request_of(options, groups)
    if options.budget is not None:
        check_budget(request, base.duration_s)
    # Omit advice for a sweep: the note below the table says that parts are estimates
    notes = tuple(note for note in base.notes if note.code != RequestsNotFollowed.__name__)
    plan = replace(base, unavailable=unavailable, details=codec.plain(request), notes=notes)
    return replace(plan, cells=next_pairs(plan, groups, 1)), serving


def with_counterparts(groups: Sequence[Group], unavailable: Mapping[str, str]) -> dict[str, str]:
    """Variants not to launch, with the reason: those that cannot run, and their counterparts on the
    other side."""
    reasons = dict(unavailable)
    for group in groups:
        a, b = (cell.server.variant for cell in (group.a, group.b))
        for variant, other in ((a, b), (b, a)):
            if variant in unavailable:
                reasons.setdefault(other, unavailable[variant])
    return reasons


def check_budget(request: CompareRequest, load_s: float | None) -> None:
    """Raises UsageError if the budget ends before the first result."""
    launches = 2 * LOOKS[0] * len(request.groups)
    min_s = launches * ((load_s or LOAD_S) + MIN_OVERHEAD_S)
    if request.budget_s < min_s:
        raise UsageError(
            f"--budget is too short: the first result needs {LOOKS[0]} pairs of launches, about"
            f" {min_s:.0f} s; allow more time, compare fewer classes and levels, or use a shorter"
            " --duration"
        )


def request_of(options: CompareOptions, groups: tuple[Group, ...]) -> CompareRequest:
    return CompareRequest(
        groups=groups,
        at_least=options.at_least,
        budget_s=options.budget or DEFAULT_BUDGET_S,
        words=(options.a, options.b),
        limits=options.fail_if,
        strict=options.strict,
        junit=str(Path(options.junit).expanduser().absolute()) if options.junit else "",
    )


def _common_plan(a: Plan, b: Plan) -> Plan:
    """The plan without settings that differ between the sides; those are set on the servers."""
    return replace(
        a,
        kind="compare",
        gunicorn=a.gunicorn if a.gunicorn == b.gunicorn else "",
        config=a.config if a.config == b.config else None,
        notes=tuple(dict.fromkeys((*a.notes, *b.notes))),
        max_seconds=None,
    )


def _with_side_name(side_name: str, cell: Cell) -> Cell:
    name = f"{side_name}-{cell.server.worker_class}"
    return replace(cell, server=replace(cell.server, name=name))


def plan_side(options: CompareOptions, side_name: str) -> tuple[Plan, preflight.Interpreters]:
    """One side, planned as a sweep, and its interpreters. Raises UsageError, EnvironmentProblem."""
    side_options = side(options, side_name)
    try:
        classes, concurrencies = servers(side_options.classes), levels(side_options.levels)
    except BadArgument as error:
        raise UsageError(f"{error}") from None
    changes = {
        "classes": classes,
        "levels": concurrencies,
        "python": side_options.python or _python_for_side(options, side_name),
        "tool": side_options.tool or (TOOL,),
        "duration": side_options.duration or (None if side_options.rate else LOAD_S),
    }
    return plan_of(SweepOptions(**{**side_options.values_for(SweepOptions), **changes}))


def _python_for_side(options: CompareOptions, side_name: str) -> tuple[str, ...] | None:
    """The interpreter for a side that names none: that of its checkout of the user's app, else that
    of the other side's checkout; None for the default."""
    sides = [side(options, name) for name in (side_name, *{"a", "b"} - {side_name})]
    if sides[0].app is None or serves_bundled_app(sides[0], {}):
        return None
    if any(side_options.config and not side_options.chdir for side_options in sides):
        return None  # the Gunicorn file may set the app's directory
    pythons = (python_of(directories_of(side_options, {})) for side_options in sides)
    return next(((python,) for python in pythons if python != sys.executable), None)


def _with_side_settings(base: Plan, plan: Plan, cell: Cell) -> Cell:
    """The cell of one side, with the settings of its server that differ from the other side."""
    settings = {
        name: value
        for name in ("gunicorn", "python", "config")
        if (value := getattr(plan, name)) != getattr(base, name)
    }
    return replace(cell, server=replace(cell.server, **settings))


def next_pairs(plan: Plan, groups: Sequence[Group], number: int) -> tuple[Cell, ...]:
    """The next pair of cells of each group, in an order drawn from the plan's seed."""
    cells: list[Cell] = []
    for index, group in enumerate(groups):
        both = [replace(cell, schedule=number) for cell in (group.a, group.b)]
        random.Random(f"{plan.seed} {number} {index}").shuffle(both)
        cells += both
    return tuple(cells)


def grow(budget: Budget, directory: Path, plan: Plan) -> Plan | None:
    """The plan with the next pair of every undecided group; None if all are decided, there are too
    many pairs, or the budget ends before the next look. The first LOOKS[0] pairs are always
    launched, since fewer show nothing."""
    run = run_store.load(directory)
    groups = compare_groups(run)
    next_s, number = next_look_s(run, groups), 1 + max(cell.schedule or 0 for cell in plan.cells)
    if next_s is None or number > MAX_PAIRS:
        return None
    if next_s > budget.left_s() and number > LOOKS[0]:
        return None
    undecided = [comparison.group for comparison in groups if comparison.needs_more_pairs]
    return replace(plan, cells=(*plan.cells, *next_pairs(plan, undecided, number)))
