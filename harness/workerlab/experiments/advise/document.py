"""What `workerlab advise` shows: the recommendation, what it rests on, and why not the others."""

import shlex
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from workerlab.bundled import label_of
from workerlab.experiments.advise.answers import answers, left_out
from workerlab.experiments.advise.blocked import of_others
from workerlab.experiments.advise.charts import charts
from workerlab.experiments.advise.conf_file import OwnFile, conf_file
from workerlab.experiments.advise.result import Result, result_of
from workerlab.experiments.advise.search import search_of
from workerlab.experiments.advise.study import LATE, NOISE, study_of
from workerlab.experiments.advise.tables import tables
from workerlab.experiments.document import answer
from workerlab.experiments.reading import notes_of
from workerlab.model import Document, Finding
from workerlab.notes import SettingOverridden
from workerlab.report.messages import text
from workerlab.report.naming import served
from workerlab.run_store import Run

FILE = "gunicorn.conf.py"
VOIDS = {*NOISE, LATE}  # of launches that were measured
MORE_CORES, OVERRIDDEN = "advise.more_cores", SettingOverridden.__name__
EXIT_CODES = {"recommended": 0, "noisy": 1, "unfinished": 1, "no_class": 3}


def document(run: Run) -> Document:
    study = study_of(run)
    return show(result_of(search_of(study, run.plan)), run)


def show(result: Result, run: Run) -> Document:
    none = result.word == "no_class"  # why is its answer
    return Document(
        run=run.name,
        kind="advise",
        title=_title(result, run),
        environment=run.environment,
        findings=(*answers(result), *_file(result, run), *(() if none else left_out(result))),
        tables=tuple(tables(result)),
        charts=tuple(charts(result)),
        notes=(*notes_of(run), *_notes(result)),
        valid=result.word != "noisy",
        exit_code=_exit_code(result, run),
    )


def _exit_code(result: Result, run: Run) -> int:
    if result.word == "recommended" and not _written(result, run):
        return 3
    return EXIT_CODES.get(result.word, 4)


def _file(result: Result, run: Run) -> Iterable[Finding]:
    if result.word == "recommended":
        place = _places(result, run)[-1]  # where it was asked for, if anywhere
        code = "file" if _written(result, run) else "file.missing"
        asked, server = result.study.asked, result.server
        python = (server and server.python) or asked.python
        start = f"{shlex.quote(python)} -m gunicorn" if python else asked.start
        version = (server and server.gunicorn) or result.study.plan.gunicorn or None
        values = {"place": str(place), "start": start, "gunicorn": version}
        yield answer("advise", "file", code, values)


def _title(result: Result, run: Run) -> Finding:
    asked, plan = result.study.asked, result.study.plan
    target = label_of(plan.servers[0].app)
    versions = dict.fromkeys(filter(None, (one.gunicorn or plan.gunicorn for one in plan.servers)))
    values = {
        "rate_rps": asked.rate_rps,
        "slo": asked.slo,
        "app": target,
        "arrivals": Finding(f"arrivals.{plan.arrivals}"),
        "cores": asked.limits.cores,
        "here": next((one.values["here"] for one in plan.notes if one.code == MORE_CORES), None),
        "versions": tuple(versions) if len(versions) > 1 else None,
        "served": served(run.environment, plan.servers),
    }
    return Finding("advise.title", values)


def _notes(result: Result) -> Iterable[Finding]:
    yield from _once(note for needs in result.study.needs.values() for note in needs.notes)
    voids = (one.void.code for one in result.study.launches if one.void is not None)
    kinds = Counter(code.rpartition(".")[2] if code in VOIDS else "invalid" for code in voids)
    reasons = tuple(Finding(f"advise.voids.{kind}", {"launches": many})
                    for kind, many in kinds.items())  # fmt: skip
    if reasons:
        yield Finding("advise.voids", {"reasons": reasons})


def _once(notes: Iterable[Finding]) -> Iterable[Finding]:
    """What is said of several classes in the same words, of all of them at once."""
    found: dict[str, Finding] = {}
    for note in notes:
        classes = note.values.get("classes")
        key = note.code if classes else f"{note.code} {sorted(note.values.items())}"
        if classes and key in found:
            classes = (*found[key].values["classes"], *classes)
            note = replace(note, values={**note.values, "classes": classes})
        found[key] = note
    return found.values()


# --- the file -------------------------------------------------------------------------------------


def _places(result: Result, run: Run) -> list[Path]:
    """Where the file is to be, the run's directory first."""
    asked = result.study.asked.write
    return [run.directory / FILE, *([Path(asked)] if asked else [])]


def _written(result: Result, run: Run) -> bool:
    """Whether it is there, and where it was asked for the same."""
    try:
        own, *others = (one.read_text() for one in _places(result, run))
    except OSError:
        return False
    return all(one == own for one in others)


def write_file(run: Run) -> None:
    """The gunicorn.conf.py of what is recommended, into the run's directory, and where else it was
    asked for; none is left of an earlier answer. Raises OSError."""
    study = study_of(run)
    result = result_of(search_of(study, run.plan))
    own, *others = _places(result, run)
    before = own.read_text() if own.exists() else None
    if result.word != "recommended" or result.server is None:
        for place in (*others, own):
            if place.exists() and place.read_text() == before:
                place.unlink()
        return
    evidence = (one for one in answers(result) if not of_others(result, one))
    written = Finding("advise.written", {"run": run.name})
    sentences = [text(one) for one in (written, _title(result, run), *evidence)]
    asked = study.asked
    kept = {one.values["setting"]: text(Finding("advise.overridden", one.values))
            for one in run.plan.notes if one.code == OVERRIDDEN}  # fmt: skip
    own_file = OwnFile(asked.config_text, asked.config_path, asked.config_sets, kept)
    app = result.server.app  # one of the lab's is in the run
    app = replace(app, chdir=app.chdir or str(run.directory / "code"))
    server = replace(result.server, app=app)
    content = conf_file(server, sentences, own_file, grace_s=result.grace_s)
    own.unlink(missing_ok=True)  # or what another answer left would pass for this one
    _write(own, content)
    for place in others:
        if place.exists() and place.read_text() != before:
            raise FileExistsError(f"{place} is there, and not as this run wrote it: move it away")
        _write(place, content)


def _write(place: Path, content: str) -> None:
    """Whole, or not at all."""
    part = place.with_name(f".{place.name}.part")
    try:
        part.write_text(content)
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)
