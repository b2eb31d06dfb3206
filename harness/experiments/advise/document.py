"""What `workerlab advise` shows: the recommendation, what it rests on, and why not the others."""

from collections.abc import Iterable
from pathlib import Path

from harness.experiments.advise.cautions import cautions
from harness.experiments.advise.charts import charts
from harness.experiments.advise.conf_file import OwnFile, conf_file
from harness.experiments.advise.result import (
    Result,
    limit_of,
    name_of,
    result_of,
    without_candidates,
)
from harness.experiments.advise.search import BEYOND, launches_at, search_of
from harness.experiments.advise.standing import LEAST
from harness.experiments.advise.study import Launch, holds, study_of
from harness.experiments.advise.tables import tables
from harness.experiments.document import answer
from harness.experiments.reading import notes_of
from harness.model import Document, Finding, Server
from harness.report.messages import text
from harness.run_store import Run

FILE = "gunicorn.conf.py"
EXIT_CODES = {"recommended": 0, "noisy": 1, "unfinished": 1, "no_class": 3}


def document(run: Run) -> Document:
    study = study_of(run)
    return show(result_of(search_of(study, run.plan)), run)


def show(result: Result, run: Run) -> Document:
    return Document(
        run=run.name,
        kind="advise",
        title=_title(result),
        environment=run.environment,
        findings=(*_findings(result), *_file(result, run), *_left_out(result)),
        tables=tuple(tables(result)),
        charts=tuple(charts(result)),
        notes=(*notes_of(run), *_notes(result)),
        valid=result.word != "noisy",
        exit_code=_exit_code(result, run),
    )


def _exit_code(result: Result, run: Run) -> int:
    if result.word == "recommended" and not all(one.exists() for one in _places(result, run)):
        return 3
    return EXIT_CODES.get(result.word, 4)


def _file(result: Result, run: Run) -> Iterable[Finding]:
    if result.word == "recommended":
        code = "file" if (run.directory / FILE).exists() else "file.missing"
        yield answer("advise", "file", code, {"place": str(run.directory / FILE)})


def _title(result: Result) -> Finding:
    asked, study = result.study.asked, result.study
    target = study.plan.servers[0].app.target
    values = {
        "rate_rps": asked.rate_rps,
        "slo": asked.slo,
        "app": target,
        "arrivals": Finding(f"arrivals.{study.plan.arrivals}"),
        "cores": asked.limits.cores,
    }
    return Finding("advise.title", values)


# --- the answer -----------------------------------------------------------------------------------


def _findings(result: Result) -> Iterable[Finding]:
    """A question each, as far as there is an answer."""
    evidence = tuple(_evidence(result))
    values = {
        "candidate": name_of(result.server) if result.server else None,
        "rate_rps": result.search.target_rps,
        "voids": result.study.voids or None,
        "further": _further(result),
        "untried": _untried(result),
    }
    keys = tuple(one.key for one in result.launches)
    yield answer("advise", "which", result.word, values, evidence, keys)
    if promises := tuple(_promises(result)):
        yield answer("advise", "meets", "meets", {"terms": promises}, trials=keys)
    yield from _reach(result)
    if result.word == "recommended":
        yield _costs(result)
        yield from cautions(result.launches, result.search.target_rps)
    elif result.word in ("nothing", "undecidable") and (limit := limit_of(result)):
        yield answer("advise", "limit", "limits", {"limit": limit})
    yield from _blocking(result)


def _further(result: Result) -> Finding | None:
    """Who went further than what is recommended, and was not launched often enough."""
    mine = result.reach.last or result.search.target_rps
    rows = [row for row in result.rows if (row.reach.last or 0.0) > BEYOND * mine]
    best = max(rows, key=lambda row: row.reach.last or 0.0, default=None)
    if best is None or best.standing.word != "open":
        return None
    values = {"candidate": name_of(best.server), "rps": best.reach.last}
    return Finding("advise.further", values)


def _untried(result: Result) -> Finding | None:
    """Worker classes that were worth a launch, and had none when the budget ended."""
    if result.search.next() is None:
        return None
    launched = {one.server.worker_class for one in result.study.launches}
    worth = (row.server.worker_class for row in result.rows
             if row.status.code == "advise.status.not_tried")  # fmt: skip
    classes = tuple(sorted({*worth} - launched))
    return Finding("advise.untried", {"classes": classes}) if classes else None


def _blocking(result: Result) -> Iterable[Finding]:
    """Which lines hold up the event loop: of the recommended class, else of any that has one."""
    found = result.study.blocking
    own = result.server.worker_class if result.server else ""
    name = own if own in found else next(iter(found), None)
    if name is None or not (found[name] or name in result.study.blocked):
        return
    lines = found[name]
    code = "blocking" if lines else "blocking.unnamed"
    values = {"worker_class": name, "lines": lines}
    yield answer(
        "advise", "blocking", code, values, trials=[t for one in lines for t in one.trials]
    )


def _promises(result: Result) -> Iterable[Finding]:
    """Each term, with its value at the target's rate."""
    for bound in result.standing.bounds:
        values = {
            "term": bound.term,
            "value": _unit(bound.term, bound.mean),
            "bound": _unit(bound.term, bound.bound),
            "launches": bound.n,
            "note": bound.note,
        }
        yield Finding(f"advise.term.{bound.word}", values)
    for outcome in result.standing.unshown:
        yield Finding("advise.term.unshown", {"outcome": outcome})
    for outcome in result.standing.shown:
        names = ("term", "failed", "requests")
        last, target = result.reach.last or 0.0, result.search.target_rps
        rates = {"rate_rps": target, "last_rps": last if last > target else None}
        yield Finding("advise.errors", {**{name: outcome.values[name] for name in names}, **rates})


def _unit(term: str, value: float | None) -> Finding | None:
    if value is None:
        return None
    kind = "rps" if term.startswith("rps") else "errors" if term.startswith("errors") else "time"
    return Finding(f"advise.value.{kind}", {"value": value})


def _reach(result: Result) -> Iterable[Finding]:
    reach, server = result.reach, result.server
    if server is None or (reach.last is None and reach.first is None):
        return
    values = {
        "last": None if reach.last is None else _last(result, server, reach.last),
        "first": None if reach.first is None else _first(result, server, reach.first),
    }
    code = "none" if reach.last is None else "open" if reach.first is None else "between"
    yield answer("advise", "reach", f"reach.{code}", values)


def _last(result: Result, server: Server, rps: float) -> Finding:
    """The highest rate at which the target was kept."""
    launches = result.study.at(server, rps)
    made = [one for one in result.study.launches if one.server == server and one.rps == rps]
    values: dict[str, object] = {"rps": rps, "launches": len(launches)}
    values["voids"] = len(made) - len(launches) or None
    code = "advise.reach.last" if len(launches) >= LEAST else "advise.reach.last.few"
    return Finding(code, values, tuple(one.key for one in launches))


def _first(result: Result, server: Server, rps: float) -> Finding:
    """The lowest rate at which it was not, and what was busy there."""
    launches = result.study.at(server, rps)
    broke = sum(not holds(one, result.search.terms) for one in launches)
    values = {
        "rps": rps,
        "launches": len(launches),
        "broke": broke,
        "why": _why(result.breaks) if result.breaks else None,
    }
    code = "advise.reach.first" if broke else "advise.reach.first.close"
    return Finding(code, values, tuple(one.key for one in launches))


OTHERS = 0.05  # cores: what is told of other programs
FULL = ("saturated", "at capacity", "generator-bound")


def _why(launch: Launch) -> Finding | None:
    """What breaks the target in that launch. Queues grow before anything is full: where nothing is,
    how full it is stands there instead of a cause. None: not even that was seen."""
    cell = launch.cell
    if cell.verdict in FULL:
        return cell.diagnosis or cell.reason
    used = cell.usage
    if used.server_cores is None or used.host_busy is None:
        return None
    others = cell.core_wait.others_cores if cell.core_wait else None
    values = {
        "server_cores": used.server_cores,
        "tool_cores": used.generator_cores,
        "others_cores": others if others and others >= OTHERS else None,
        "host_busy": used.host_busy,
        "occupancy": cell.occupancy,
    }
    return Finding("advise.busy", values)


SAVES = 0.9  # of the memory: from here on it is worth a word


def _costs(result: Result) -> Finding:
    needs = result.needs
    values = {
        "memory_bytes": result.memory_bytes,
        "cores": result.cores,
        "rate_rps": result.search.target_rps,
        "start_s": needs.start_s if needs else None,
        "preload": _preload(result),
    }
    return answer("advise", "costs", "costs", values)


def _preload(result: Result) -> Finding | None:
    """What it would take with the app loaded before the workers are forked; None where that saves
    nothing, or was not measured."""
    preloaded, memory_bytes = result.study.preloaded, result.memory_bytes
    if preloaded is None or preloaded.memory is None or memory_bytes is None or not result.server:
        return None
    found = preloaded.memory.of(result.server.workers)
    if found >= SAVES * memory_bytes:
        return None
    values = {"memory_bytes": found, "workers": preloaded.memory.workers}
    return Finding("advise.preload", values, (preloaded.trial,))


def _evidence(result: Result) -> Iterable[Finding]:
    """What a request needs of each class; each rate that was tried on the recommended one."""
    for name, needs in result.study.needs.items():
        many = len(needs.requests)
        values = {
            "worker_class": name,
            "wait_s": sum(one.wait_s for one in needs.requests) / many,
            "cpu_s": sum(one.cpu_s + one.nogil_s for one in needs.requests) / many,
            "blocked_s": sum(one.blocked_s for one in needs.requests) / many or None,
            "gap_s": needs.gap_s or None,
            "requests": many,
            "start_s": needs.start_s,
            "shared_bytes": needs.memory.shared_bytes if needs.memory else None,
            "private_bytes": needs.memory.private_bytes if needs.memory else None,
        }
        yield Finding("advise.needs", values, (needs.trial,))
    if result.server is not None:
        for rps, launches in launches_at(result.study, result.server).items():
            p95 = tuple(Finding("advise.value.time", {"value": one.response.p95})
                        for one in launches if one.response.p95 is not None)  # fmt: skip
            keys = tuple(one.key for one in launches)
            yield Finding("advise.tried", {"rps": rps, "p95": p95}, keys)


def _left_out(result: Result) -> Iterable[Finding]:
    """Each reason once."""
    classes: dict[str, list[str]] = {}
    reasons: dict[str, Finding] = {}
    limited = dict.fromkeys(without_candidates(result.search), Finding("advise.left_out.limits"))
    for name, why in {**result.study.left_out, **limited}.items():
        key = f"{why.code} {sorted(why.values.items())}"
        reasons.setdefault(key, why)
        classes.setdefault(key, []).append(name)
    for key, why in reasons.items():
        values = {"classes": tuple(classes[key]), "why": why}
        yield Finding("advise.left_out", values, why.trials)


def _notes(result: Result) -> Iterable[Finding]:
    for needs in result.study.needs.values():
        yield from needs.notes
    if result.study.voids:
        yield Finding("advise.voids", {"launches": result.study.voids})


# --- the file -------------------------------------------------------------------------------------


def _places(result: Result, run: Run) -> list[Path]:
    """Where the file is to be, the run's directory first."""
    asked = result.study.asked.write
    return [run.directory / FILE, *([Path(asked)] if asked else [])]


def write_file(run: Run) -> None:
    """The gunicorn.conf.py of what is recommended, into the run's directory, and where else it was
    asked for; none is left of an earlier answer. Raises OSError."""
    study = study_of(run)
    result = result_of(search_of(study, run.plan))
    own, *others = _places(result, run)
    before = own.read_text() if own.exists() else None
    if result.word != "recommended" or result.server is None:
        own.unlink(missing_ok=True)
        return
    sentences = [
        text(one) for one in (_title(result), *_findings(result)) if one.code != "advise.file"
    ]
    asked = study.asked
    own_file = OwnFile(asked.config_text, asked.config_path, asked.config_sets)
    content = conf_file(result.server, sentences, own_file)
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
