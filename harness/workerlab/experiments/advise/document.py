"""The document of `workerlab advise`, and the file that it writes."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from workerlab.analysis.needs import ForecastUncertain
from workerlab.analysis.open_closed import ARRIVALS
from workerlab.errors import ExitCode
from workerlab.experiments.advise.answers import (
    HighestRate,
    NoRecommendation,
    Recommended,
    TargetAnswer,
    answers,
    exclusions,
)
from workerlab.experiments.advise.conf_file import OwnFile, conf_file, start_script
from workerlab.experiments.advise.result import AdviseResult, result_of
from workerlab.experiments.advise.search import search_of
from workerlab.experiments.advise.study import LaunchDisturbed, LaunchPaused, ToolLate, study_of
from workerlab.experiments.advise.tables import charts, tables
from workerlab.experiments.reading import notes_of
from workerlab.finding import Answer, Finding, Note
from workerlab.model.plan import Server
from workerlab.model.result import Document
from workerlab.notes import MoreCoresThanHere, SettingOverridden, Unfinished
from workerlab.numbers.units import counted, fill
from workerlab.paths import label_of, write_atomically
from workerlab.report.values import serving_software
from workerlab.run_store import Run
from workerlab.server.worker_classes import class_named, ignored_settings

# SCRIPT_NAME: for servers other than Gunicorn
FILE_NAME, SCRIPT_NAME = "gunicorn.conf.py", "start-server.sh"
MORE_CORES, OVERRIDDEN = MoreCoresThanHere.__name__, SettingOverridden.__name__  # codes of notes
EXIT_CODES = {
    "recommended": ExitCode.DONE,
    "noisy": ExitCode.INVALID,
    "unfinished": ExitCode.INVALID,
    "no_class": ExitCode.UNAVAILABLE,
}
TITLE = (
    "{rate_rps:number} requests/s arriving {arrivals}, with {slo}; app {app}"
    "[[, served by {served}]]; {cores:number} {cores:core/cores}[[ (launched on {here:number})]]"
    "[[; Gunicorn {versions:list}]]."
)
OVERRIDDEN_SETTING = "{setting} was overridden while measuring: {remark}."
# Why launches are discarded, as a phrase that follows "3 launches"
DISCARD_REASONS: Mapping[type[Finding], str] = {
    LaunchDisturbed: "delayed by other programs or machines",
    LaunchPaused: "during which this machine or the lab was paused",
    ToolLate: "in which the load tool was late",
}


def document(run: Run) -> Document:
    result = _result(run)
    findings, notes = tuple(answers(result)), notes_of(run)
    without_resumption = tuple(map(_without_resumption, findings))
    if any(record.interrupted for record in run.records.values()):  # a note says how to resume
        findings = without_resumption
    elif findings != without_resumption:
        notes = tuple(note for note in notes if not isinstance(note, Unfinished))
    code = EXIT_CODES.get(result.outcome, ExitCode.TARGET_MISSED)
    if result.outcome == "recommended" and not _is_written(result, run):
        code = ExitCode.UNAVAILABLE
    return Document(
        run=run.name,
        kind="advise",
        title=title(result, run),
        environment=run.environment,
        findings=(*findings, *_file(result, run), *exclusions(result)),
        tables=tuple(tables(result)),
        charts=tuple(charts(result)),
        notes=(*notes, *_notes(result)),
        valid=result.outcome != "noisy",
        exit_code=code,
    )


def _result(run: Run) -> AdviseResult:
    return result_of(search_of(study_of(run), run.plan))


def _without_resumption(answer: Finding) -> Finding:
    """The answer without the instructions for continuing the run."""
    resumable = isinstance(answer, NoRecommendation | Recommended)
    return replace(answer, run=None) if resumable else answer


class KeptOverridden(Finding):
    """{settings:list} {count:remains/remain} in the file, but {count:was/were} overridden while
    measuring: {count:it/each} may lower the rates[[; at {rps:number} requests/s, max_requests
    restarts each worker every {restart_s:duration}]]"""

    settings: tuple[str, ...]
    count: int
    rps: float
    restart_s: float | None  # None if max_requests is not among them


class ConfigurationFile(Answer):
    """{place}[[ {problem}.]][[. {kept}]][[. Start it with: {start}]]
    [[ (Gunicorn {gunicorn}, as measured)]]"""

    question = "Where is the configuration?"

    place: str
    problem: Literal["", "could not be written"] = ""
    kept: KeptOverridden | None = None
    start: str | None = None  # shell command, from any directory
    gunicorn: str | None = None


def _file(result: AdviseResult, run: Run) -> Iterator[ConfigurationFile]:
    if result.outcome != "recommended" or (server := result.server) is None:
        return
    request, place = result.study.request, str(_paths(result, run)[-1])  # of --write, if given
    python = server.python or request.python
    gunicorn = f"{shlex.quote(python)} -m gunicorn" if python else request.start
    directory = f"cd {shlex.quote(request.starts_in)} && " if request.starts_in else ""
    start, version = f"{directory}{gunicorn} -c", server.gunicorn or run.plan.gunicorn or None
    if result.is_another_server:
        start, version = "sh", None
    answer = ConfigurationFile(place=place, problem="could not be written")
    if _is_written(result, run):
        answer = ConfigurationFile(
            place=place,
            kept=_kept_overridden(result, server, run),
            start=f"{start} {shlex.quote(place)}",
            gunicorn=version,
        )
    yield answer


def _kept_overridden(result: AdviseResult, server: Server, run: Run) -> KeptOverridden | None:
    overridden = {} if result.is_another_server else _override_notes(run)
    values = {name: note["value"] for name, note in overridden.items() if note.get("may_slow")}
    rps = result.reach.passing_rps or result.search.target_rps
    requests = values.get("max_requests", "")
    restart_s = int(requests) * server.workers / rps if requests.isdigit() else None
    return KeptOverridden(tuple(values), len(values), rps, restart_s) if values else None


def _override_notes(run: Run) -> Mapping[str, Mapping[str, Any]]:
    """For each overridden setting of the app's configuration file, the values of its note."""
    notes = (note.values for note in run.plan.notes if note.code == OVERRIDDEN)
    return {values["setting"]: values for values in notes}


def title(result: AdviseResult, run: Run) -> str:
    request, plan = result.study.request, run.plan
    versions = dict.fromkeys(server.gunicorn or plan.gunicorn for server in plan.servers)
    versions.pop("", None)
    values = {
        "rate_rps": request.rate_rps,
        "slo": request.slo,
        "app": label_of(plan.servers[0].app),
        "arrivals": ARRIVALS[plan.arrivals],
        "cores": request.limits.cores,
        "here": next((note.values["here"] for note in plan.notes if note.code == MORE_CORES), None),
        "versions": tuple(versions) if len(versions) > 1 else None,
        "served": serving_software(run.environment, plan.servers),
    }
    return fill(TITLE, values)


def _notes(result: AdviseResult) -> Iterator[Finding]:
    """Each note once; uncertain forecasts of multiple classes are one note."""
    all_notes = [note for needs in result.study.needs.values() for note in needs.notes]
    uncertain = [note for note in all_notes if isinstance(note, ForecastUncertain)]
    classes = tuple(name for note in uncertain for name in note.classes)
    for note in {
        type(note) if note in uncertain else str(note): note for note in all_notes
    }.values():
        yield ForecastUncertain(classes) if note in uncertain else note
    reasons = filter(None, (launch.discard_reason for launch in result.study.launches))
    counts = Counter(DISCARD_REASONS.get(type(reason), "found invalid") for reason in reasons)
    if counts:
        launches = (f"{counted(count, 'launch/launches')} {why}" for why, count in counts.items())
        yield Note(f"Discarded: {', '.join(launches)}")


# --- the file -------------------------------------------------------------------------------------


def _paths(result: AdviseResult, run: Run) -> list[Path]:
    """The paths of the file: in the run's directory, then that of --write."""
    write = result.study.request.write
    name = SCRIPT_NAME if result.is_another_server else FILE_NAME
    return [run.directory / name, *([Path(write)] if write else [])]


def _is_written(result: AdviseResult, run: Run) -> bool:
    """Whether the file exists at all its paths with the same content."""
    try:
        content, *others = (path.read_text() for path in _paths(result, run))
    except OSError:
        return False
    return all(other == content for other in others)


def write_file(run: Run) -> None:
    """Write the file of the recommendation into the run's directory and to the path of --write.
    Without a recommendation, remove the files of an earlier answer. Raises OSError."""
    result = _result(run)
    in_run, *others = _paths(result, run)
    earlier = [run.directory / name for name in (FILE_NAME, SCRIPT_NAME)]
    previous = next((path.read_text() for path in earlier if path.exists()), None)
    if result.outcome != "recommended" or result.server is None:
        for path in (*others, *earlier):
            if path.exists() and path.read_text() == previous:
                path.unlink()
        return
    content = _content(result, result.server, run)
    for path in earlier:  # none must remain if writing fails
        path.unlink(missing_ok=True)
    write_atomically(in_run, content.encode())
    for path in others:
        if path.exists() and path.read_text() != previous:
            raise FileExistsError(f"{path} exists and was modified: move it away")
        write_atomically(path, content.encode())


def _content(result: AdviseResult, server: Server, run: Run) -> str:
    """The text of the file that starts this server."""
    app = server.app  # without a chdir: a bundled app, copied into the run
    server = replace(server, app=replace(app, chdir=app.chdir or str(run.directory / "code")))
    evidence = tuple(_evidence(result, run))
    if result.is_another_server:
        return start_script(server, evidence, server.python or run.plan.python)
    request, row = result.study.request, class_named(server.worker_class)
    # The environment may have more than one version
    versions = (server.gunicorn or str(run.environment["gunicorn"])).split(", ")
    by_version = (set(ignored_settings(row, version)) for version in versions)
    ignored = set.intersection(*by_version) - {"threads"}
    remarks = {name: f"{name} has no effect with {row.name}."
               for name in request.config_sets if name in ignored}  # fmt: skip
    for name, values in _override_notes(run).items():
        remark = "it may lower the rates" if values.get("may_slow") else values["why"]
        remarks[name] = fill(OVERRIDDEN_SETTING, {"setting": name, "remark": remark})
    own_file = OwnFile(request.config_text, request.config_path, request.config_sets, remarks)
    return conf_file(
        server, evidence, own_file, grace_s=result.grace_s, starts_in=request.starts_in
    )


def _evidence(result: AdviseResult, run: Run) -> Iterator[str]:
    """The purpose of the settings, and the targets and rates that they were shown to meet."""
    yield f"Chosen by `workerlab advise`, run {run.name}, for {title(result, run)}"
    for answer in answers(result):
        if isinstance(answer, TargetAnswer):
            yield str(answer)
        elif isinstance(answer, HighestRate) and answer.kept and answer.kept.is_confirmed:
            yield str(replace(answer.kept, discarded=None))
