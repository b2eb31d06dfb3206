"""`workerlab compare RUN_A RUN_B`: compares the common cells of two saved sweeps; with `--baseline
RUN`, a saved sweep with a new one that has the same plan.

The loads must be the same in both runs: load tool, its processes, keep-alive, concurrency or rate,
requests, arrivals, ramp, how clients close. The servers may differ, including path and headers. A
setting that has one value in A and another in B is the difference to compare, and is listed before
any figure. A setting that varies within a run identifies the cells.

Limits can also be written as JUnit XML for build servers: a test for each limit, class and load. An
exceeded limit is a failure, an inconclusive one is skipped.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from functools import partial
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from workerlab import run_store
from workerlab.analysis.stall import PauseDuringLoad
from workerlab.analysis.trials import grouped, valid_results
from workerlab.errors import ExitCode, UsageError
from workerlab.experiments import runner
from workerlab.experiments.compare.comparison import (
    SIDES,
    Group,
    GroupChanges,
    distinguishing_settings,
    launch_metrics,
    outcomes,
    unpaired_changes,
)
from workerlab.experiments.compare.document import TrialsByKey, comparison, trials_by_key
from workerlab.experiments.compare.findings import MetricChange, RunDifference
from workerlab.experiments.compare.options import CompareOptions, check_limits
from workerlab.experiments.planning import available_here
from workerlab.experiments.reading import (
    find_run,
    print_document,
    print_location,
    report_of,
    trial_data,
)
from workerlab.model.plan import Plan, Server
from workerlab.model.result import SWEEP, Invalid, TrialResult
from workerlab.numbers.units import format_bytes
from workerlab.options import BadArgument, levels, options_of, servers
from workerlab.plan import SLEEP_ENV
from workerlab.report.html import check_page, write_page
from workerlab.report.values import figure_of
from workerlab.run_store import Run
from workerlab.terminal.console import tell


def junit_xml(groups: Iterable[GroupChanges], run: str) -> str:
    """The outcomes of all limits. `run`: the name of the comparison."""
    suite = ElementTree.Element("testsuite", name=f"workerlab compare {run}")
    for group in groups:
        changes = {change.metric.name: MetricChange.of(change) for change in group.changes}
        for limit, outcome in group.outcomes:
            case = ElementTree.SubElement(suite, "testcase", classname=group.name, name=limit.text)
            if outcome != "met":
                tag = "failure" if outcome == "exceeded" else "skipped"
                message = str(changes.get(limit.metric, "not measured"))
                ElementTree.SubElement(case, tag, message=message)
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("*/failure"))))
    suite.set("skipped", str(len(suite.findall("*/skipped"))))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def write_junit(path: Path, groups: Iterable[GroupChanges], run: str) -> None:
    """Write `junit_xml`. If that fails, only print the reason: the measurements are stored."""
    try:
        path.write_text(junit_xml(groups, run))
    except OSError as error:
        tell(f"{path} cannot be written: {error.strerror or error}")


# Options allowed with --baseline
ALLOWED_WITH_BASELINE = frozenset(
    {"command", "baseline", "at_least", "fail_if", "junit", "strict", "out", "format", "explain",
     "html"}
)  # fmt: skip
# Options allowed with two saved runs
ALLOWED_WITH_RUNS = ALLOWED_WITH_BASELINE - {"baseline", "out"} | {"classes", "levels"}
LOAD_FIELDS = ("tool", "processes", "keepalive", "concurrency", "rate")
REQUEST_FIELDS = ("method", "body_file", "mix")  # fields of the app
PLAN_FIELDS = ("arrivals", "ramp_s", "linger_s")  # fields of the plan
APP_FIELDS = ("app", "chdir", "path", "headers", "sleep_s", "env")
# Of a server, from its class so that no new setting is overlooked; of its app; and of the load
SETTINGS = (
    *(name for name in Server.__struct_fields__ if name not in ("app", "name", "null", "config")),
    *APP_FIELDS,
    "requests",
)
MIN_LOAD_DIFFERENCE = 0.5  # of load averages; smaller ones occur on a quiet machine
MACHINE_FIELDS = ("cpu", "cores", "memory_bytes", "system", "python", "server_python", "gunicorn",
                  "load_average_at_start")  # fmt: skip
LOAD_AVERAGE = "machine.load_average_at_start"

# Labels of differences whose field name is not readable
LABELS = {
    "machine.cpu": "processor",
    "machine.cores": "cores",
    "machine.memory_bytes": "memory",
    "machine.system": "system",
    "machine.python": "Python of the lab",
    "machine.server_python": "Python of the server",
    "machine.gunicorn": "Gunicorn",
    LOAD_AVERAGE: "load average at the start",
    "gunicorn": "Gunicorn",
    "worker_class": "worker class",
    "worker_connections": "worker connections",
    "instances": "servers",
    "cores": "cores of the server",
    "cpu_s": "CPU of each request, s",
    "python": "interpreter",
    "chdir": "directory",
    "sleep_s": "sleep, s",
    "env": "environment",
    "duration_s": "seconds of load",
    "config": "Gunicorn file",
    "load_hosts": "machines that send the load",
}


class SavedSide(NamedTuple):
    """A saved run, its cells and its trials."""

    run: Run
    cells: Sequence[TrialResult]
    trials: TrialsByKey


def command(options: CompareOptions) -> int:
    """Compare a saved run with a new one (--baseline), two saved runs if both arguments name one,
    or else pairs of launches. Returns the exit code."""
    if options.baseline:
        return _compare_with_baseline(options, options.baseline)
    if not _names_runs(options):
        if options.html:
            raise UsageError(
                "--html works only with saved runs; after a new comparison, use"
                " `workerlab report RUN --html FILE`"
            )
        return runner.command(options)
    _check_options(options, ALLOWED_WITH_RUNS, "two saved runs are compared as they are")
    a, b = _load_side(options.classes), _load_side(options.levels)
    if a.run.directory.samefile(b.run.directory):
        raise UsageError(f"A and B are the same run, {a.run.name}: name two different runs")
    return _compare(a, b, options)


def _check_options(options: CompareOptions, allowed: Set[str], why: str) -> None:
    """Raises UsageError, with `why`, for an option that is not allowed; and for other invalid
    options, before anything starts."""
    if not_allowed := vars(options).keys() - allowed:
        raise UsageError(f"{why}: leave out {options_of(CompareOptions)[min(not_allowed)].flag}")
    check_limits(options)
    if options.html:
        check_page(Path(options.html).expanduser())


def _compare_with_baseline(options: CompareOptions, baseline: str) -> int:
    """Run the baseline's plan again as a sweep, and compare both. Returns the exit code."""
    why = "--baseline runs the plan of a saved sweep again"
    _check_options(options, ALLOWED_WITH_BASELINE, why)
    a = _load_side(baseline)
    directory, interrupted = runner.run(SWEEP, partial(_baseline_setup, a.run.plan), options)
    if interrupted is not None:
        return interrupted
    code = _compare(a, _load_side(str(directory)), options)
    print_location(directory)
    return code


def _baseline_setup(plan: Plan, _options: CompareOptions, _resumed: Plan | None) -> runner.Setup:
    """The baseline's plan, prepared for this machine. Its seed gives the same order of trials."""
    return runner.Setup(*available_here(plan), label="again")


def _compare(a: SavedSide, b: SavedSide, options: CompareOptions) -> int:
    """Print the comparison. Returns the exit code."""
    groups = groups_of(a, b, options)
    document = comparison(
        groups,
        title=f"A: {a.run.name}; B: {b.run.name}",
        run=a.run,
        trials=(a.trials, b.trials),
        at_least=options.at_least,
        differences=tuple(differences_of(a, b)),
        strict=options.strict,
    )
    print_document(document, options)
    if options.html:
        write_page(document, Path(options.html).expanduser())
        tell(f"wrote {options.html}")
    if options.junit:
        write_junit(Path(options.junit).expanduser(), groups, f"{a.run.name} {b.run.name}")
    if document.exit_code is not None:
        return document.exit_code
    return ExitCode.DONE if document.valid else ExitCode.INVALID


def _names_runs(options: CompareOptions) -> bool:
    if not (options.classes and options.levels):
        return False
    for read, argument in ((servers, options.classes), (levels, options.levels)):
        try:
            read(argument)
        except BadArgument:
            continue
        return False
    return True


def _load_side(name: str) -> SavedSide:
    run = run_store.load(find_run(name, measured=True))
    if run.plan.kind != SWEEP:
        raise UsageError(
            f"{run.name} is a run of `{run.plan.kind}`: compare accepts only runs of `sweep`"
        )
    trials = trial_data(run)
    return SavedSide(run, report_of(run, trials).cells, trials_by_key(trials))


def groups_of(a: SavedSide, b: SavedSide, options: CompareOptions) -> list[GroupChanges]:
    """The common cells, compared. Raises UsageError if there are none."""
    matched, comparisons = _matched_cells(a, b), []
    groups = [Group(cells_a[0].trial.cell, cells_b[0].trial.cell) for cells_a, cells_b in matched]
    all_settings = distinguishing_settings(groups)
    for group, settings, cells_of_sides in zip(groups, all_settings, matched, strict=True):
        sides = [list(map(_invalid_if_paused, cells)) for cells in cells_of_sides]
        valid_a, valid_b = map(valid_results, sides)
        changes = unpaired_changes(
            [launch_metrics(a.run, cell) for cell in valid_a],
            [launch_metrics(b.run, cell) for cell in valid_b],
            options.at_least,
            comparisons=len(matched),
        )
        comparisons.append(
            GroupChanges(
                group=group,
                pairs=list(zip(valid_a, valid_b, strict=False)),
                changes=changes,
                invalid=[
                    (name, cell)
                    for name, side in zip(SIDES, sides, strict=True)
                    for cell in side
                    if isinstance(cell, Invalid)
                ],
                outcomes=outcomes(options.fail_if, changes),
                settings=settings,
                launches=(len(valid_a), len(valid_b)),
            )
        )
    return comparisons


def _invalid_if_paused(cell: TrialResult) -> TrialResult:
    """The cell, or an invalid one if the machine paused: launches of a sweep may run in parallel,
    so one pause may affect all launches of a setting, and no interval would show it."""
    pause = next((note for note in cell.notes if isinstance(note, PauseDuringLoad)), None)
    return cell if pause is None else Invalid(cell.trial, cell.app, cell.sleep_s, pause)


# --- matching cells -------------------------------------------------------------------------------


def _field_of(cell: TrialResult, name: str) -> object:
    planned = cell.trial.cell
    app = planned.server.app
    if name == "app":
        return cell.app
    if name == "rate":  # a share of the capacity is compared by the resulting rate
        return planned.rate and (planned.rate.rps or figure_of(cell, "asked_rps"))
    if name == "env":
        return tuple(variable for variable in app.env if variable[0] != SLEEP_ENV)
    if name in (*REQUEST_FIELDS, *APP_FIELDS):
        return getattr(app, name)
    return getattr(planned if name in (*LOAD_FIELDS, "requests") else planned.server, name)


def _values(a: SavedSide, b: SavedSide, name: str) -> list[set[object]]:
    """The values of a setting in A and in B."""
    return [{_field_of(cell, name) for cell in side.cells} for side in (a, b)]


def _identifies(values: Sequence[Set[object]]) -> bool:
    """Whether a setting identifies cells: it varies within a run, or is the same in both."""
    return values[0] == values[1] or max(map(len, values)) > 1


def _matched_cells(a: SavedSide, b: SavedSide) -> list[tuple[list[TrialResult], list[TrialResult]]]:
    """The common cells of A and B. Raises UsageError if there are none or the loads differ."""
    for name in PLAN_FIELDS:
        value_a, value_b = (getattr(side.run.plan, name) for side in (a, b))
        if value_a != value_b:
            difference = f"{name.removesuffix('_s')} {value_a or 'none'} and {value_b or 'none'}"
            raise UsageError(f"{a.run.name} and {b.run.name} have different loads: {difference}")
    identifying = (name for name in SETTINGS if _identifies(_values(a, b, name)))
    names = (*LOAD_FIELDS, *REQUEST_FIELDS, *identifying)

    def key(cell: TrialResult) -> tuple[object, ...]:
        return tuple(_field_of(cell, name) for name in names)

    cells_a, cells_b = (grouped(side.cells, key) for side in (a, b))
    matched = [(cells, cells_b[key]) for key, cells in cells_a.items() if key in cells_b]
    if not matched:
        raise UsageError(
            f"{a.run.name} and {b.run.name} have no cell in common: concurrency or rate, load"
            " tool, keep-alive and requests must be the same; so must the worker class if a run has"
            " more than one"
        )
    return matched


# --- other differences of the runs ----------------------------------------------------------------


def differences_of(a: SavedSide, b: SavedSide) -> Iterator[RunDifference]:
    """The differences in machine, versions and settings."""
    pairs = {f"machine.{name}": [side.run.environment.get(name) for side in (a, b)]
             for name in MACHINE_FIELDS}  # fmt: skip
    for name in SETTINGS:
        if not _identifies(values := _values(a, b, name)):
            pairs[name] = [value for (value,) in values]
    for name in ("duration_s", "rounds", "config", "load_hosts"):
        pairs[name] = [getattr(side.run.plan, name) for side in (a, b)]
    for name, (value_a, value_b) in pairs.items():
        if value_a != value_b and not (
            name == LOAD_AVERAGE and _similar_load_averages(value_a, value_b)
        ):
            texts = (_value_text(name, value) for value in (value_a, value_b))
            yield RunDifference(name, LABELS.get(name, name), *texts)


def _similar_load_averages(a: object, b: object) -> bool:
    """Whether two load averages hardly differ; False if one is unknown."""
    return None not in (a, b) and abs(float(str(a)) - float(str(b))) < MIN_LOAD_DIFFERENCE


def _value_text(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    if isinstance(value, tuple):  # environment variables, headers or hosts
        value = " ".join(item if isinstance(item, str) else "=".join(item) for item in value)
    if isinstance(value, float):
        return f"{value:.3g}"
    return "none" if value in (None, "") else str(value)
