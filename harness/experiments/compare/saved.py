"""`workerlab compare RUN_A RUN_B`: two saved sweeps, by the cells they have in common.

What a load was must be the same in both, or nothing can be said: load tool, its processes,
keep-alive, concurrency or rate. What the servers were may differ: a setting that has one value in
each run, but not the same, is what is compared, and told before any figure; one that is an axis of
both tells which cell is which.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from harness import run_store
from harness.analysis.comparison import unpaired
from harness.experiments import runner
from harness.experiments.compare.document import comparison
from harness.experiments.compare.gate import judge, parse
from harness.experiments.compare.junit import write
from harness.experiments.compare.options import AT_LEAST, check_limits
from harness.experiments.compare.pairs import Compared, Group, apart, launch
from harness.experiments.reading import find, report_of
from harness.experiments.results import print_document
from harness.model import CellResult, Finding, UsageError
from harness.options import Refused, classes, levels
from harness.report.document import SWEEP
from harness.run_store import Run

LOAD = ("tool", "processes", "keepalive", "concurrency", "rate")
SERVER = ("worker_class", "workers", "threads", "backlog", "worker_connections", "gunicorn",
          "python", "app")  # fmt: skip
MACHINE = ("cpu", "cores", "memory_bytes", "system", "python", "server_python", "gunicorn",
           "load_average_at_start")  # fmt: skip


class Side(NamedTuple):
    run: Run
    cells: Sequence[CellResult]


def command(options: argparse.Namespace) -> int:
    """Two saved runs where both words name one, else a new run. Returns the exit code."""
    if not _names_runs(options):
        return runner.command(options)
    given = {"a", "b", "resume", "out", "budget"} & {
        name for name, value in vars(options).items() if value
    }
    if given:
        raise UsageError(f"two saved runs are compared as they are: --{min(given)} is for new ones")
    check_limits(options)
    a, b = (_side(name) for name in (options.classes, options.levels))
    groups = groups_of(a, b, options)
    document = comparison(
        groups,
        Finding("compare.saved", {"a": a.run.name, "b": b.run.name}),
        a.run,
        options.at_least or AT_LEAST,
        tuple(_differences(a, b)),
        strict=bool(options.strict),
    )
    print_document(document, options)
    if options.junit:
        write(Path(options.junit).expanduser(), groups, f"{a.run.name} {b.run.name}")
    return document.exit_code or 0


def _names_runs(options: argparse.Namespace) -> bool:
    if not (options.classes and options.levels):
        return False
    for kind, word in ((classes, options.classes), (levels, options.levels)):
        try:
            kind(word)
        except Refused:
            continue
        return False
    return True


def _side(name: str) -> Side:
    run = run_store.load(find(name, measured=True))
    if run.plan.kind != SWEEP:
        raise UsageError(
            f"{run.name} is a run of `{run.plan.kind}`: compare takes those of a sweep"
        )
    return Side(run, report_of(run).cells)


def groups_of(a: Side, b: Side, options: argparse.Namespace) -> list[Compared]:
    """The cells in common. Raises UsageError where there are none."""
    limits = parse(options.fail_if) if options.fail_if else ()
    joined, found = _joined(a, b), []
    for one, other in joined:
        valid = [[cell for cell in cells if cell.verdict != "invalid"] for cells in (one, other)]
        of_a, of_b = (
            [launch(cell, side.run.records[cell.trial.key]) for cell in cells]
            for side, cells in zip((a, b), valid, strict=True)
        )
        changes = unpaired(of_a, of_b, options.at_least or AT_LEAST, len(joined))
        outcomes = [(limit, judge(limit, changes)) for limit in limits]
        left_out = [cell for cell in (*one, *other) if cell.verdict == "invalid"]
        group = Group(one[0].trial.cell, other[0].trial.cell)
        launches = list(zip(*valid, strict=False))
        found.append(Compared(group, launches, changes, left_out, outcomes))
    names = apart([one.group for one in found])
    return [one._replace(apart=name) for one, name in zip(found, names, strict=True)]


# --- which cell belongs to which ------------------------------------------------------------------


def _of(cell: CellResult, name: str) -> object:
    asked = cell.trial.cell
    if name == "app":
        return cell.app
    if name == "rate":
        return asked.rate.label if asked.rate else None
    return getattr(asked if name in LOAD else asked.server, name)


def _axes(a: Side, b: Side) -> list[str]:
    """What tells cells of a run apart, beside their load; and what is the same in both runs."""
    found = []
    for name in SERVER:
        values = [{_of(cell, name) for cell in side.cells} for side in (a, b)]
        if values[0] == values[1] or max(map(len, values)) > 1:
            found.append(name)
    return found


def _joined(a: Side, b: Side) -> list[tuple[list[CellResult], list[CellResult]]]:
    names = (*LOAD, *_axes(a, b))

    def by_key(side: Side) -> Mapping[tuple[object, ...], list[CellResult]]:
        found: dict[tuple[object, ...], list[CellResult]] = {}
        for cell in side.cells:
            found.setdefault(tuple(_of(cell, name) for name in names), []).append(cell)
        return found

    one, other = by_key(a), by_key(b)
    joined = [(cells, other[key]) for key, cells in one.items() if key in other]
    if not joined:
        raise UsageError(
            f"{a.run.name} and {b.run.name} have no cell in common: worker class, concurrency or"
            " rate, load tool and keep-alive must be the same"
        )
    return joined


# --- what differs beside --------------------------------------------------------------------------


def _differences(a: Side, b: Side) -> list[Finding]:
    """Of machine, versions and settings, before any figure."""
    found = []
    for name in MACHINE:
        one, other = (side.run.environment.get(name) for side in (a, b))
        if one != other:
            found.append(_difference(name, one, other))
    for name in SERVER:
        values = [{_of(cell, name) for cell in side.cells} for side in (a, b)]
        if values[0] != values[1] and max(map(len, values)) == 1:
            found.append(_difference(name, *(next(iter(one)) for one in values)))
    for name in ("duration_s", "rounds", "ramp_s", "arrivals", "config"):
        one, other = (getattr(side.run.plan, name) for side in (a, b))
        if one != other:
            found.append(_difference(name, one, other))
    return found


def _difference(name: str, a: object, b: object) -> Finding:
    said = ("none" if one in (None, "") else str(one) for one in (a, b))
    return Finding("compare.difference", dict(zip(("name", "a", "b"), (name, *said), strict=True)))
