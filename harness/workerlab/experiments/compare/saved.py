"""`workerlab compare RUN_A RUN_B`: two saved sweeps, by the cells they have in common; and with
`--baseline RUN` one that is made now, as RUN was planned.

What a load was must be the same in both, or nothing can be said: load tool, its processes,
keep-alive, concurrency or rate, what is requested, how arrivals come, how clients close. What the
servers were may differ, their path and headers among it: a setting that has one value in each run,
but not the same, is what is compared, and told before any figure; one that is an axis of both tells
which cell is which.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from workerlab import run_store
from workerlab.analysis.comparison import unpaired
from workerlab.analysis.pauses import PauseDuringLoad
from workerlab.experiments import runner
from workerlab.experiments.compare.document import comparison
from workerlab.experiments.compare.findings import RunDifference
from workerlab.experiments.compare.gate import judge, parse
from workerlab.experiments.compare.junit import write
from workerlab.experiments.compare.options import AT_LEAST, check_limits
from workerlab.experiments.compare.pairs import Compared, Group, apart, launch
from workerlab.experiments.planning import check_tools, lacking
from workerlab.experiments.reading import find, report_of
from workerlab.experiments.results import print_document, print_location
from workerlab.model import CellResult, Plan, UsageError
from workerlab.numbers.units import format_bytes
from workerlab.options import Refused, classes, levels
from workerlab.plan import SLEEP_ENV
from workerlab.report import publish
from workerlab.report.document import SWEEP
from workerlab.run_store import Run
from workerlab.server import preflight
from workerlab.terminal.console import tell

# What may be said beside --baseline
BESIDE_BASELINE = frozenset(
    {"command", "baseline", "at_least", "fail_if", "junit", "strict", "out", "format", "explain",
     "html"}
)  # fmt: skip
LOAD = ("tool", "processes", "keepalive", "concurrency", "rate")
REQUESTS = ("method", "body_file", "mix")  # of the app
PLANNED = ("arrivals", "ramp_s", "linger_s")  # of the whole run
SERVER = ("worker_class", "workers", "threads", "backlog", "worker_connections", "gunicorn",
          "python", "app", "chdir", "path", "headers", "sleep_s", "env")  # fmt: skip
LOAD_APART = 0.5  # of the load average: less is on a quiet machine, too
LOADED = "load_average_at_start"
MACHINE = ("cpu", "cores", "memory_bytes", "system", "python", "server_python", "gunicorn", LOADED)


# Of what may differ beside the figures, where its name does not say it
LABELS = {
    "machine.cpu": "processor",
    "machine.cores": "cores",
    "machine.memory_bytes": "memory",
    "machine.system": "system",
    "machine.python": "Python of the lab",
    "machine.server_python": "Python of the server",
    "machine.gunicorn": "Gunicorn",
    "machine.load_average_at_start": "load average at the start",
    "gunicorn": "Gunicorn",
    "worker_class": "worker class",
    "python": "interpreter",
    "chdir": "directory",
    "sleep_s": "sleep, s",
    "env": "environment",
    "duration_s": "seconds of load",
    "config": "Gunicorn file",
}


class Side(NamedTuple):
    run: Run
    cells: Sequence[CellResult]


def command(options: argparse.Namespace) -> int:
    """Two saved runs where both words name one, a saved run and that plan again, else pairs of
    launches. Returns the exit code."""
    if options.baseline:
        return _against_baseline(options)
    if not _names_runs(options):
        if options.html:
            raise UsageError(
                "--html is for saved runs: of what is measured now, `workerlab report RUN --html"
                " FILE` makes the page"
            )
        return runner.command(options)
    if given := _given(options) & {"a", "b", "resume", "out", "budget"}:
        raise UsageError(f"two saved runs are compared as they are: --{min(given)} is for new ones")
    _check(options)
    a, b = _side(options.classes), _side(options.levels)
    if a.run.directory.samefile(b.run.directory):
        raise UsageError(f"A and B are the same run, {a.run.name}: name two")
    return _compare(a, b, options)


def _check(options: argparse.Namespace) -> None:
    check_limits(options)
    if options.html:
        publish.ready(Path(options.html).expanduser())


def _given(options: argparse.Namespace) -> set[str]:
    return {name for name, value in vars(options).items() if value}


def _against_baseline(options: argparse.Namespace) -> int:
    """The plan of the baseline is run once more, as a sweep of its own."""
    if given := _given(options) - BESIDE_BASELINE:
        raise UsageError(
            f"--baseline runs the plan of a saved sweep again: leave out {_as_typed(min(given))}"
        )
    _check(options)
    a = _side(options.baseline)
    directory, interrupted = runner.run(SWEEP, partial(_again, a.run.plan), options)
    if interrupted is not None:
        return interrupted
    code = _compare(a, _side(str(directory)), options)
    print_location(directory)
    return code


def _as_typed(name: str) -> str:
    return name.upper() if name in ("classes", "levels") else f"--{name.replace('_', '-')}"


@contextmanager
def _again(
    plan: Plan, _options: argparse.Namespace, _resumed: Plan | None
) -> Iterator[runner.Setup]:
    """That plan on this machine as it is now; its seed orders the trials as it did then."""
    chdir = Path(plan.servers[0].app.chdir or ".")
    check_tools(plan.tools)
    found = preflight.of_plan(plan, chdir)
    plan = replace(plan, unavailable=lacking(plan.servers, found))
    yield runner.Setup(plan, found, label="again")


def _compare(a: Side, b: Side, options: argparse.Namespace) -> int:
    """Print what differs. Returns the exit code."""
    groups = groups_of(a, b, options)
    document = comparison(
        groups,
        f"A: {a.run.name}; B: {b.run.name}",
        (a.run, b.run),
        options.at_least or AT_LEAST,
        tuple(_differences(a, b)),
        strict=bool(options.strict),
    )
    print_document(document, options)
    if options.html:
        publish.page(document, Path(options.html).expanduser())
        tell(f"wrote {options.html}")
    if options.junit:
        write(Path(options.junit).expanduser(), groups, f"{a.run.name} {b.run.name}")
    return (0 if document.valid else 1) if document.exit_code is None else document.exit_code


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
    return Side(run, tuple(map(_spoilt, report_of(run).cells)))


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
        left_out = [
            (side, cell)
            for side, cells in (("A", one), ("B", other))
            for cell in cells
            if cell.verdict == "invalid"
        ]
        group = Group(one[0].trial.cell, other[0].trial.cell)
        launches = list(zip(*valid, strict=False))
        counts = (len(of_a), len(of_b))
        found.append(Compared(group, launches, changes, left_out, outcomes, launches=counts))
    names = apart([one.group for one in found])
    return [one._replace(apart=name) for one, name in zip(found, names, strict=True)]


def _spoilt(cell: CellResult) -> CellResult:
    """As invalid where this machine stood still: launches of a sweep may run side by side, so that
    one such moment spoils all launches of a setting alike, and no interval over them shows it."""
    still = next((note for note in cell.notes if isinstance(note, PauseDuringLoad)), None)
    return cell if still is None else replace(cell, verdict="invalid", reason=still)


# --- which cell belongs to which ------------------------------------------------------------------


def _of(cell: CellResult, name: str) -> object:
    asked = cell.trial.cell
    app = asked.server.app
    if name == "app":
        return cell.app
    if name == "rate":  # of one that is a share of what the run found, what came of it
        return asked.rate and (asked.rate.rps or cell.asked_rps)
    if name == "env":
        return tuple(one for one in app.env if one[0] != SLEEP_ENV)
    if name in (*REQUESTS, "chdir", "path", "headers", "sleep_s"):
        return getattr(app, name)
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
    for name in PLANNED:
        one, other = (getattr(side.run.plan, name) for side in (a, b))
        if one != other:
            what, said = name.removesuffix("_s"), f"{one or 'none'} and {other or 'none'}"
            raise UsageError(f"{a.run.name} and {b.run.name} were not loaded alike: {what} {said}")
    names = (*LOAD, *REQUESTS, *_axes(a, b))

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
            " rate, load tool, keep-alive and what is requested must be the same"
        )
    return joined


# --- what differs beside --------------------------------------------------------------------------


def _differences(a: Side, b: Side) -> list[RunDifference]:
    """Of machine, versions and settings, before any figure."""
    found = []
    for name in MACHINE:
        one, other = (side.run.environment.get(name) for side in (a, b))
        if name == LOADED and None not in (one, other):
            if abs(float(str(one)) - float(str(other))) >= LOAD_APART:
                found.append(_difference(f"machine.{name}", one, other))
        elif one != other:
            found.append(_difference(f"machine.{name}", one, other))
    for name in SERVER:
        values = [{_of(cell, name) for cell in side.cells} for side in (a, b)]
        if values[0] != values[1] and max(map(len, values)) == 1:
            found.append(_difference(name, *(next(iter(one)) for one in values)))
    for name in ("duration_s", "rounds", "config"):
        one, other = (getattr(side.run.plan, name) for side in (a, b))
        if one != other:
            found.append(_difference(name, one, other))
    return found


def _difference(name: str, a: object, b: object) -> RunDifference:
    return RunDifference(name, LABELS.get(name, name), _in_words(name, a), _in_words(name, b))


def _in_words(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    if isinstance(value, tuple):  # of an environment, or of headers
        value = " ".join(f"{one}={text}" for one, text in value)
    if isinstance(value, float):
        return f"{value:.3g}"
    return "none" if value in (None, "") else str(value)
