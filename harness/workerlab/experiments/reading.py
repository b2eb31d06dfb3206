"""Makes a Report from a run directory: reads the files, parses the tools' output, analyses. Makes
and prints the Document of the command that made the run.

Needs only the directory, so any saved run can be analysed again, on any machine.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from workerlab import codec
from workerlab import run_store as store
from workerlab.analysis import TrialData, analyse
from workerlab.errors import ParseError, UsageError
from workerlab.experiments import EXPERIMENTS, evaluate
from workerlab.finding import Finding
from workerlab.load.registry import faster_tools, tool_named
from workerlab.load.tool import summary_of
from workerlab.model.evidence import Beats, NullCounts, Record, Spans, Stacks
from workerlab.model.plan import Plan, Trial, WorkerClass
from workerlab.model.result import SWEEP, Document, Report
from workerlab.notes import Unfinished
from workerlab.numbers.histogram import Histogram
from workerlab.observe.observations import read_observations
from workerlab.observe.spans import read_beats, read_spans, read_stacks
from workerlab.options import FormatOptions
from workerlab.paths import bundled_root, label_of
from workerlab.plan import grid, is_counted_load
from workerlab.report import FORMATS, text
from workerlab.run_store import Run
from workerlab.server.null_server import COUNTS
from workerlab.server.worker_classes import class_named
from workerlab.slo import parse
from workerlab.terminal.console import output_columns, program, short, tell


def find_run(name: str, *, measured: bool = False) -> Path:
    """The directory of the run that `name` refers to: a run's directory, a name below results/, or
    the newest run in a directory; with `measured`, preferably one that has a trial without a fault.

    Raises UsageError if there is no such run.
    """
    directories = [
        Path(name).expanduser(),
        Path("results") / name,
        bundled_root() / "results" / name,
    ]
    for directory in directories:
        if (directory / "run.json").is_file():
            return directory.absolute()
        if runs := sorted(directory.glob("*/run.json"), key=lambda path: path.stat().st_mtime):
            newest = [path.parent.absolute() for path in reversed(runs)]
            with_results = filter(_has_result, newest) if measured else iter(newest)
            return next(with_results, newest[0])
    raise UsageError(f"{name} is not a run: give its directory, or its name below results/")


def as_argument(run: Run) -> str:
    """The run as a command-line argument: its name if `find_run` accepts it, else its directory."""
    found_by_name = run.directory.parent in (Path("results").absolute(), bundled_root() / "results")
    return run.name if found_by_name else str(run.directory)


def _has_result(run_dir: Path) -> bool:
    """Whether a trial of the run ended without a fault."""
    try:
        records = store.load(run_dir).records.values()
    except (UsageError, OSError):
        return False
    parts = run_dir.glob("parts/*")  # a run may consist of other runs
    return any(record.fault is None for record in records) or any(map(_has_result, parts))


def read_trial(trial: Trial, record: Record | None, plan: Plan, run_dir: Path) -> TrialData:
    """All data of one trial, read from its files. `record`: None if it has not begun."""
    raw, tool, app = run_dir / "raw" / trial.key, tool_named(trial.cell.tool), trial.cell.server.app
    measurement, parse_error = None, None
    maps: dict[str, Any] = {"spans": Spans(()), "beats": Beats(), "stacks": Stacks()}
    if record is not None:
        try:
            maps = {"spans": read_spans(raw), "beats": read_beats(raw), "stacks": read_stacks(raw)}
        except (ValueError, OSError) as error:
            parse_error = f"the workers' maps cannot be read: {error}"
        try:
            if record.load_start_ns is not None:  # else the tool did not start
                output = store.tool_output(raw, tool.OUTPUT_FILES, record.exit_code)
                measurement = tool.parse(output)
        except ParseError as error:
            parse_error = str(error)
    is_counted = is_counted_load(plan, trial.cell)
    return TrialData(
        trial=trial,
        record=record,
        measurement=measurement,
        parse_error=parse_error,
        **maps,
        app=label_of(app),
        sleep_s=app.sleep_s,
        lone_first=tool.SENDS_FIRST_ALONE and is_counted and not plan.together,
        fixed_count=is_counted,
        can_trace=tool.NUMBERS_REQUESTS,
        expect_status=app.expect_status,
        good_statuses=tool.SUCCESS_STATUSES,
        worker_class=_worker_class_of(trial, record),
        observations=read_observations(raw),
        null=None if trial.cell.server.null is None else null_counts(raw),
        ramp_s=plan.ramp_s if trial.cell.rate is None else 0.0,
        remote_load=bool(plan.load_hosts),
        body_sha256=app.body_sha256,
        tool_units=tool.cores_used(trial.cell.concurrency, trial.cell.processes),
        faster_tools=faster_tools(trial.cell.tool),
    )


def _worker_class_of(trial: Trial, record: Record | None) -> WorkerClass:
    """The worker class of the trial. Its slots are unlimited if the app is written for tornado:
    such an app may await, while a WSGI app under the tornado class blocks the loop."""
    row = class_named(trial.cell.server.worker_class)
    is_tornado_app = record is not None and record.proof.get("app_kind") == "tornado"
    return replace(row, slots="unlimited", loop=True) if is_tornado_app else row


def null_counts(raw: Path) -> NullCounts | None:
    """The counts of a trial's null server; None if the file is missing or damaged."""
    try:
        values = codec.decode((raw / COUNTS).read_bytes(), dict[str, Any])
        service = Histogram.from_json(values.pop("service"))
        values["most_connections"] = values.pop("most_connections_at_once")
        derived = {"answers": service.count, "service": summary_of(service)}
        return codec.convert({**values, **derived}, NullCounts)
    except (OSError, ValueError, KeyError):
        return None


# The directory of a run, and the data of its trials by key
_cached_run: tuple[Path, dict[str, TrialData]] = (Path(), {})


def trial_data(run: Run, *, keep: bool = False) -> tuple[TrialData, ...]:
    """The data of every planned trial, in the order of the plan. `keep`: caches the data
    for the next call, until another run is cached. Cached data is reused, with everything
    derived from it, if its record is unchanged."""
    global _cached_run
    cached_data, all_data = _cached_run[1] if _cached_run[0] == run.directory else {}, []
    for trial in grid(run.plan):
        record, data = run.records.get(trial.key), cached_data.get(trial.key)
        if data is None or record is None or data.record != record or data.trial != trial:
            data = read_trial(trial, record, run.plan, run.directory)
        all_data.append(data)
    if keep:
        _cached_run = (run.directory, {data.trial.key: data for data in all_data})
    return tuple(all_data)


def notes_of(run: Run) -> tuple[Finding, ...]:
    """The notes of the plan, and one on unfinished trials that can run here."""

    def unfinished(trial: Trial) -> bool:
        record = run.records.get(trial.key)
        return record is None or record.interrupted

    unfinished_count = sum(
        unfinished(trial) and trial.cell.server.variant not in run.plan.unavailable
        for trial in grid(run.plan)
    )
    note = Unfinished(unfinished_count, command=run.plan.kind, run=as_argument(run))
    return (*run.plan.notes, *([note] if unfinished_count else []))


def report_of(run: Run, trials: Iterable[TrialData] | None = None) -> Report:
    """The analysis of a run without its trials on null servers. `trials`: the run's data, if
    it has been read before."""
    data = trial_data(run) if trials is None else trials
    return analyse(
        run.name,
        run.environment,
        [trial for trial in data if trial.cell.server.null is None],
        run_argument=as_argument(run),
        terms=parse(run.plan.slo) if run.plan.slo else (),
    )


# --- documents ------------------------------------------------------------------------------------


def document_of(directory: Path, slo: str | None = None) -> Document:
    """The document of a run. `slo`: a target that replaces the plan's. Raises UsageError if the
    directory is not a run, or its command is unknown or takes no target."""
    run = store.load(directory)
    if slo is not None:
        if run.plan.kind != SWEEP:
            raise UsageError(
                f"{run.name} is a run of `{run.plan.kind}`: --slo works only with sweeps"
            )
        run = replace(run, plan=replace(run.plan, slo=slo))
    if run.plan.kind not in EXPERIMENTS:
        kinds = ", ".join(EXPERIMENTS)
        raise UsageError(f"{run.name} is a run of `{run.plan.kind}`; known commands: {kinds}")
    document = evaluate(run)
    if not run.plan.project:
        return document
    names = ", ".join(run.plan.project)
    return replace(document, title=f"{document.title} ({names} from pyproject.toml)")


def print_document(document: Document, options: FormatOptions) -> None:
    """Print a document on standard output in the requested format. Text has colour only on a
    terminal; its width comes from the terminal or COLUMNS."""
    if options.format != "table":
        sys.stdout.write(FORMATS[options.format](document))
    else:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        width, explain = output_columns(), options.explain
        sys.stdout.write(text.render(document, colour=colour, width=width, explain=explain))
    sys.stdout.flush()


def print_location(directory: Path) -> None:
    """Print where a run is stored."""
    tell(f"saved in {short(directory)}; show it again: {program()} report {short(directory)}")
