"""The sentences of `advise`, which omit unknown values."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.analysis import SYNC, derived, evidence
from tests.builders.runs import recorded
from workerlab import run_store
from workerlab.experiments.advise import answers
from workerlab.experiments.advise.answers import RateBroken, RateKept
from workerlab.experiments.advise.candidates import Limits
from workerlab.experiments.advise.document import ConfigurationFile, document, write_file
from workerlab.experiments.advise.standing import TermBound
from workerlab.experiments.advise.study import Exclusion, NeedsUnknown
from workerlab.experiments.planning import override_notes
from workerlab.finding import stored
from workerlab.slo import parse

SENTENCES = {
    "cores": "It uses 0.03 cores at 50 requests/s.",
    "memory_bytes": "Memory: about 50.0 MB.",
    "start_s": "Start: 230 ms.",
    "stop_s": "Stop: 428 ms.",
}


def test_an_unmeasured_cost_is_omitted() -> None:
    cost = answers.RunningCost(
        rate_rps=50.0, cores=0.03, memory_bytes=50 << 20, start_s=0.23, stop_s=0.428,
        slow_stop=None, preload_bytes=None, preload_workers=None,
    )  # fmt: skip
    assert str(cost) == " ".join(SENTENCES.values())
    for name, sentence in SENTENCES.items():
        others = (other for other in SENTENCES.values() if other != sentence)
        assert str(replace(cost, **{name: None})) == " ".join(others)


KEPT = RateKept(outcome="is met up to", rps=100.0, unshown=(), launches=3, above=None, discarded=1)
BROKEN = RateBroken(
    rps=120.0, launches=2, broke=1, which="1 of 2 launches", caveat="",
    reasons=("p95 was 2 s", "why"),
)  # fmt: skip
CLOSE = RateBroken(
    rps=120.0, launches=3, broke=0, which="none of 3 launches", caveat="but the margin is small",
    reasons=(), usage=("the server used 1 core",),
)  # fmt: skip


@pytest.mark.parametrize(
    ("kept", "broken", "remark", "answer"),
    [
        (KEPT, None, "It may be met at higher rates.", "The target is met up to 100 requests/s"
         " (3 launches; 1 more discarded). It may be met at higher rates."),
        (None, BROKEN, "", "At 120 requests/s 1 of 2 launches missed it: p95 was 2 s; why."),
        (None, CLOSE, "", "At 120 requests/s none of 3 launches missed it, but the margin is small."
         " There, the server used 1 core."),
        (KEPT, BROKEN, "", "The target is met up to 100 requests/s (3 launches; 1 more discarded)."
         " At 120 requests/s 1 of 2 launches missed it: p95 was 2 s; why."),
    ],
)  # fmt: skip
def test_the_highest_rate_names_the_passing_and_the_failing_rate(
    kept: RateKept | None, broken: RateBroken | None, remark: str, answer: str
) -> None:
    assert str(answers.HighestRate(kept, broken, None, remark)) == answer


@pytest.mark.parametrize(
    ("term", "values", "sentence"),
    [
        ("p95<100ms", ("met", 3, 0.5, 0.75), "p95<100ms: met, 500 ms on average over 3 launches;"
         " the next one is predicted to stay within 750 ms (97.5 %)."),
        ("rps>20", ("met", 3, 0.5, 0.75), "rps>20: met, 0.5 req/s on average over 3 launches;"
         " the next one is predicted to stay within 0.75 req/s (97.5 %)."),
        ("errors<80%", ("met", 3, 0.5, 0.75), "errors<80%: met, 50 % on average over 3 launches;"
         " the next one is predicted to stay within 75 % (97.5 %)."),
        ("p95<100ms", ("not shown yet", 2, 0.05), "p95<100ms: not shown yet, 50.0 ms on average"
         " over 2 launches."),
        ("p95<300ms", ("undecidable", 8, 0.5, 1.0, "too many took 1 s"), "p95<300ms: undecidable,"
         " 500 ms on average over 8 launches; the next one is predicted to stay within 1.00 s"
         " (97.5 %); too many took 1 s."),
    ],
)  # fmt: skip
def test_a_bound_has_the_unit_of_its_term(
    term: str, values: tuple[Any, ...], sentence: str
) -> None:
    assert str(TermBound(parse(term)[0], *values)) == sentence


def test_excluded_classes_are_grouped_by_reason() -> None:
    left_out = {
        "uvicorn": Exclusion("uvicorn is not installed"),
        "sync": Exclusion("it does not start", "see a", trials=("sync-1",)),
        "gthread": Exclusion("it does not start", "see b", trials=("gthread-1",)),
        "gevent": NeedsUnknown("too few requests", trials=("gevent-1",)),
    }
    request: Any = SimpleNamespace(unfit=("asgi",))
    study = SimpleNamespace(request=request, left_out=left_out, needs={"tornado": None})
    servers = (SimpleNamespace(variant="tornado"),)
    search = SimpleNamespace(study=study, servers=servers, has_forecast=True)
    limits = Limits(cores=2, thread_safe=False)
    result: Any = SimpleNamespace(study=study, search=search, limits=limits)
    assert list(map(str, answers.exclusions(result))) == [
        "Left out sync and gthread: it does not start; see a.",
        "Left out gevent: the needs of requests are unknown: too few requests.",
        "Left out uvicorn: uvicorn is not installed.",
        "Left out asgi: no settings satisfy --not-thread-safe.",
    ]
    study.needs = {}  # no class could serve the app, and installing uvicorn would not help
    failed = [answer.classes for answer in answers.exclusions(result)]
    assert failed == [("sync", "gthread"), ("gevent",)]


def test_overridden_settings_are_named(tmp_path: Path) -> None:
    run_directory = shutil.copytree(recorded("advise"), tmp_path / "run")
    run = run_store.load(run_directory)
    settings = {"bind": "0.0.0.0:80", "max_requests": 900, "accesslog": "-", "pidfile": "x.pid"}
    interpreter: Any = SimpleNamespace(settings=settings, assignments={})
    options: Any = SimpleNamespace(config="own.py")
    config_text = "".join(f"{name} = {value!r}\n" for name, value in settings.items())
    details = {**run.plan.details, "config_text": config_text, "starts_in": "/srv/my shop"}
    notes = tuple(map(stored, override_notes(options, interpreter)))
    run = replace(run, plan=replace(run.plan, details=details, notes=notes))
    write_file(run)
    content = (run_directory / "gunicorn.conf.py").read_text()
    remark = "# max_requests was overridden while measuring: it may lower the rates."
    assert f"{remark}\nmax_requests = 900\n# accesslog was overridden while measuring:" in content
    assert content.count("may lower the rates") == 1
    bind_remark = "# bind was overridden while measuring: the lab takes a free port on loopback.\n"
    assert bind_remark in content
    assert "# Chosen by `workerlab advise`, run run, for 30 requests/s arriving" in content
    assert "discarded" not in content
    (answer,) = (entry for entry in document(run).findings if isinstance(entry, ConfigurationFile))
    assert answer.start == f"cd '/srv/my shop' && gunicorn -c {run_directory}/gunicorn.conf.py"
    assert (
        "max_requests remains in the file, but was overridden while measuring: it may lower the"
        " rates; at 30 requests/s, max_requests restarts each worker every 4m 00s. Start it with: "
    ) in str(answer)


def launch(slowdown_s: float) -> Any:
    """A launch in which each request takes `slowdown_s` longer than the one before."""
    data = evidence(SYNC, 8, rounds=10, delays=lambda number: 0.1 + number * slowdown_s)
    return SimpleNamespace(facts=derived(data), due=81)


def test_an_app_that_slows_down_in_most_launches_is_reported() -> None:
    steady, slowing = launch(0.0), launch(0.0025)
    assert list(answers.cautions([steady, steady, steady], 50.0)) == []
    assert list(answers.cautions([steady, steady, slowing], 50.0)) == []
    (caution,) = map(str, answers.cautions([steady, slowing, slowing], 50.0))
    assert caution.startswith("Service times drift: 1")
    assert caution.endswith("; seen in 2 of 3 launches.")
