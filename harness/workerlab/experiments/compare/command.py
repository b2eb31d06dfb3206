"""A and B in turn, on fresh servers, until it is known whether they differ or the time is over.

    options ─► two sides ─► pairs of cells, the k-th with schedule k ─► changes ─► the next pair

Which of a pair comes first is drawn: what changes with time, or with what ran before, is then as
often on one side as on the other.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from workerlab import codec, run_store
from workerlab.analysis.comparison import LOOKS
from workerlab.experiments.budget import Budget
from workerlab.experiments.compare.junit import write
from workerlab.experiments.compare.options import AT_LEAST, LOAD_S, TOOL, check_limits, side
from workerlab.experiments.compare.pairs import SIDES, Asked, Group, compared, to_go_on_s
from workerlab.experiments.environment import chdir_of, python_of, serves_bundled_app
from workerlab.experiments.planning import plan_of
from workerlab.experiments.runner import Setup
from workerlab.finding import StoredFinding, stored
from workerlab.model import Cell, EnvironmentProblem, Plan, UsageError
from workerlab.notes import RequestsNotFollowed
from workerlab.options import Refused, classes, levels
from workerlab.server import preflight

RESUMES_WITH = ("budget",)
BUDGET_S = 300.0
AROUND_S = 2.0  # of a launch, beside its load, at least
MOST = 2 * LOOKS[-1]  # pairs, invalid ones among them


@contextmanager
def setup(options: argparse.Namespace, plan: Plan | None) -> Iterator[Setup]:
    resumed = plan is not None
    plan, found = first_plan(options) if plan is None else (plan, {})
    asked = Asked.of(plan)
    budget = Budget(options.budget or asked.budget_s, resumed=resumed)
    yield Setup(*(plan, found), label="compare", display=budget.display, grow=partial(grow, budget))


def finish(directory: Path) -> None:
    """The limits as JUnit XML, where they were asked for."""
    run = run_store.load(directory)
    if place := Asked.of(run.plan).junit:
        write(Path(place), compared(run), run.name)


def first_plan(options: argparse.Namespace) -> tuple[Plan, preflight.Interpreters]:
    """One pair of each group. Raises UsageError or EnvironmentProblem; starts nothing but looks."""
    if not (options.classes and options.levels and (options.a or options.b)):
        raise UsageError(
            "compare needs CLASSES, LEVELS and what differs, such as: workerlab compare sync 8"
            " --a gunicorn=25.3.0 --b gunicorn=27.0.1"
        )
    check_limits(options)
    sides = {which: planned(options, which) for which in ("a", "b")}
    (a, of_a), (b, of_b) = sides.values()
    base = _common(a, b)
    cells = {
        which: [_named(base, plan, cell, which) for cell in plan.cells]
        for which, (plan, _) in sides.items()
    }
    if list(map(_nameless, cells["a"])) == list(map(_nameless, cells["b"])):
        raise UsageError("A and B are the same: say what differs, such as --b workers=8")
    found, unavailable = dict[tuple[str, str], preflight.Interpreter](), dict[str, str]()
    for which, its in (("a", of_a), ("b", of_b)):
        (own,) = its.values()
        for server in (cell.server for cell in cells[which]):
            found[server.python, server.gunicorn] = own
            if why := own.lacks(server.worker_class):
                unavailable[server.variant] = why
    groups = tuple(Group(*pair) for pair in zip(cells["a"], cells["b"], strict=True))
    unavailable = with_other_side(groups, unavailable)
    if all(one.a.server.variant in unavailable for one in groups):
        raise EnvironmentProblem("; ".join(dict.fromkeys(unavailable.values())))
    asked = asked_of(options, groups)
    if options.budget is not None:
        check_budget(asked, base.duration_s)
    notes = tuple(map(_without_advice, base.notes))
    plan = replace(base, unavailable=unavailable, details=codec.plain(asked), notes=notes)
    return replace(plan, cells=pair(plan, groups, 1)), found


def with_other_side(groups: Sequence[Group], unavailable: Mapping[str, str]) -> dict[str, str]:
    """Variants that need not be launched, and why: what cannot run, and what it would have been
    compared with."""
    found = dict(unavailable)
    for group in groups:
        a, b = (cell.server.variant for cell in (group.a, group.b))
        for one, other in ((a, b), (b, a)):
            if one in unavailable:
                found.setdefault(other, unavailable[one])
    return found


def _without_advice(note: StoredFinding) -> StoredFinding:
    """A sweep's, of options that a comparison does not have."""
    if note.code != RequestsNotFollowed.__name__:
        return note
    return stored(RequestsNotFollowed(note.values["tool"], remedy=None))


def check_budget(asked: Asked, load_s: float | None) -> None:
    """Raises UsageError where what was asked for would be over before anything can be known."""
    needed_s = LOOKS[0] * len(asked.groups) * len(SIDES) * ((load_s or LOAD_S) + AROUND_S)
    if asked.budget_s < needed_s:
        raise UsageError(
            f"--budget: nothing is known before {LOOKS[0]} pairs of launches, which take about"
            f" {needed_s:.0f} s: allow more time, or compare fewer classes and levels"
        )


def asked_of(options: argparse.Namespace, groups: tuple[Group, ...]) -> Asked:
    return Asked(
        groups=groups,
        at_least=options.at_least or AT_LEAST,
        budget_s=options.budget or BUDGET_S,
        words=(options.a or "", options.b or ""),
        limits=options.fail_if or "",
        strict=bool(options.strict),
        junit=str(Path(options.junit).expanduser().absolute()) if options.junit else "",
    )


def _common(a: Plan, b: Plan) -> Plan:
    """What is the same of both sides; a server names the rest."""
    return replace(
        a,
        kind="compare",
        gunicorn=a.gunicorn if a.gunicorn == b.gunicorn else "",
        config=a.config if a.config == b.config else None,
        notes=tuple(dict.fromkeys((*a.notes, *b.notes))),
        max_seconds=None,
    )


def _nameless(cell: Cell) -> Cell:
    return replace(cell, server=replace(cell.server, name=""))


def planned(options: argparse.Namespace, which: str) -> tuple[Plan, preflight.Interpreters]:
    """One side as a sweep would be planned."""
    found = side(options, which)
    found.python = found.python or _python_of(options, which)
    try:
        found.classes, found.levels = classes(found.classes), levels(found.levels)
    except Refused as refused:
        raise UsageError(f"{refused}") from None
    found.tool = found.tool or (TOOL,)
    found.duration = found.duration or (None if found.rate else LOAD_S)
    unused = ("trials", "requests", "rounds", "ramp", "load_hosts", "max_seconds", "slo")
    for name in (*unused, "cpu", "server_cores"):
        setattr(found, name, None)
    return plan_of(found)


def _python_of(options: argparse.Namespace, which: str) -> tuple[str, ...] | None:
    """Of two checkouts of the user's app one may have no environment: the other's serves both."""
    first, second = (side(options, one) for one in (which, *{"a", "b"} - {which}))
    if first.app is None or serves_bundled_app(first, {}):
        return None
    if any(one.config and not one.chdir for one in (first, second)):
        return None  # a Gunicorn file may say where the app is
    pythons = [python_of(chdir_of(one, {})) for one in (first, second)]
    return next(((one,) for one in pythons if one != sys.executable), None)


def _named(base: Plan, plan: Plan, cell: Cell, which: str) -> Cell:
    """As a cell of one side, with what its server does not share with the other's plan."""
    server = replace(
        cell.server,
        name=f"{which.upper()}-{cell.server.worker_class}",
        gunicorn=plan.gunicorn if plan.gunicorn != base.gunicorn else "",
        python=plan.python if plan.python != base.python else "",
        config=plan.config if plan.config != base.config else None,
    )
    return replace(cell, server=server)


def pair(plan: Plan, groups: Sequence[Group], number: int) -> tuple[Cell, ...]:
    """The cells of the next pair of each, in an order drawn from the plan's seed."""
    found: list[Cell] = []
    for at, group in enumerate(groups):
        both = [replace(cell, schedule=number) for cell in (group.a, group.b)]
        random.Random(f"{plan.seed} {number} {at}").shuffle(both)
        found += both
    return tuple(found)


def grow(budget: Budget, directory: Path, plan: Plan) -> Plan | None:
    """The next pair of every group of which something is still unknown; none where the budget ends
    before it would be looked at. The first look is made anyway: less shows nothing."""
    run = run_store.load(directory)
    groups = compared(run)
    needed_s, number = to_go_on_s(run, groups), 1 + max(cell.schedule or 0 for cell in plan.cells)
    if needed_s is None or number > MOST:
        return None
    if needed_s > budget.left_s() and number > LOOKS[0]:
        return None
    undecided = [one.group for one in groups if one.goes_on]
    return replace(plan, cells=(*plan.cells, *pair(plan, undecided, number)))
