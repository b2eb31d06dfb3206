"""The line of an app that blocks its event loop, in real workers, alone and with a program that
keeps a core busy; no line if the loop is free."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from tests.builders.analysis import result_of
from tests.builders.processes import burning
from tests.builders.trials import run_trial
from tests.integration.conftest import ROOT
from workerlab.analysis.diagnosis.blocking import blocking_lines
from workerlab.analysis.diagnosis.loop import BlockedLoop, loop_use
from workerlab.analysis.facts import Facts
from workerlab.analysis.needs import NO_CPU, needs_of
from workerlab.model.plan import App, Cell, Inside, Server
from workerlab.report.values import text

APPS = ROOT / "tests" / "diagnosis" / "apps"
SOURCE = (APPS / "held.py").read_text().splitlines()
ASGI = ("asgi", "uvicorn")

HIGH_CORE_WAIT = 0.3  # share of the time that the loop waited for a core

Measure = Callable[..., Facts]


@pytest.fixture
def measure(tmp_path: Path, worker_class: str) -> Measure:
    """The facts of a trial that samples the stacks of its worker: 4 connections for 2 s."""

    def facts(query: str, config: str = "", inside: Inside = "stacks") -> Facts:
        module = "held_asgi" if worker_class in ASGI else "held_wsgi"
        app = App(target=f"{module}:app", chdir=str(APPS), path=f"/?{query}")
        server = Server(worker_class, 1, 1, 2048, 1000, app=app)
        cell = Cell(server, "fast", 4, keepalive=True, inside=inside)
        config_file = tmp_path / "own.conf.py"
        config_file.write_text(config)
        for _ in range(5):
            trial_facts = run_trial(Path(mkdtemp(dir=tmp_path)), cell, config=str(config_file))
            if not trial_facts.observations.pauses:  # which hide the loop
                return trial_facts
        pytest.skip(f"the machine paused in each of 5 tries: {trial_facts.observations.pauses}")

    return facts


def alarm(facts: Facts) -> BlockedLoop | None:
    """From the beats of this trial alone, which has more of them than others."""
    return BlockedLoop.diagnose(facts, result_of(facts.data.trial))


def line_of(marker: str) -> int:
    """The line of the app's source with the marker."""
    (number,) = (n for n, line in enumerate(SOURCE, 1) if line.endswith(f"# line: {marker}"))
    return number


# By class: queries, the kind of blocking, and the function that the line calls
HELD = {
    "asgi": [
        ("what=asks&ms=40&wait=100", "blocks", "answer.readline"),
        ("what=adds&ms=40&wait=100&thread=1", "holds", "sum"),
    ],
    "uvicorn": [
        ("what=sleeps&ms=40&wait=50&each=5", "blocks", "time.sleep"),
        ("what=backtracks&ms=40&wait=100", "holds", "re.match"),
        ("what=computes&ms=40&wait=100", "computes", ""),
    ],
    "gevent": [("what=copied&ms=40&wait=100", "blocks", "sleep")],
    "eventlet": [("what=usleeps&ms=40&wait=100", "blocks", "LIBC.usleep")],
    "tornado": [("what=sleeps&ms=40", "blocks", "time.sleep")],
}
QUIET = [(name, *case, 0) for name, cases in HELD.items() for case in cases]
NOISY = [("uvicorn", *HELD["uvicorn"][0], 1)]  # only once: it slows all other tests


def case_of(name: str, *values: object) -> Any:
    return pytest.param(name, *values, marks=pytest.mark.classes(name))


@pytest.mark.parametrize(
    ("loop", "query", "kind", "called", "programs"), [case_of(*case) for case in QUIET + NOISY]
)
def test_the_line_that_blocks_a_loop_is_reported_first(
    measure: Measure, tmp_path: Path, loop: str, query: str, kind: str, called: str, programs: int
) -> None:
    config = "preload_app = True" if "copied" in query else ""  # else gevent patches it in time
    with burning(tmp_path / "burned", programs):
        for _ in range(3):  # a loop that hardly had a core may have too few samples
            facts = measure(query, config)
            use = loop_use(facts)
            if blocking_lines(facts) or use is None or use.worst.core_wait < HIGH_CORE_WAIT:
                break
    function = query.partition("&")[0].removeprefix("what=")
    if loop != "tornado" and facts.window:  # a WSGI app blocks tornado by design
        assert (alarm(facts) is not None) == (kind == "blocks")
    first, *_ = blocking_lines(facts)
    assert (first.how.partition(" ")[0], first.file) == (kind, "held.py")
    if kind == "computes":  # either of two lines
        assert first.function == function
        assert first.line in (line_of("computes"), line_of("computes") - 1)
    else:
        assert (first.line, first.called) == (line_of(function), called)
    assert 0.01 <= first.share <= 1
    assert f"held.py line {first.line} in {function}()" in text(first)


NOISY_FREE = ("gevent", "what=computes&ms=1&wait=50")
FREE = {
    "asgi": ["what=hashes&ms=20&wait=50&thread=1"],
    "uvicorn": ["what=nothing&wait=50", "what=computes&ms=1&wait=50"],
    "gevent": ["what=sleeps&ms=40", "what=computes&ms=1&wait=50"],
    "eventlet": ["what=asks&ms=40"],
}


@pytest.mark.parametrize(
    ("loop", "query"), [case_of(name, query) for name, queries in FREE.items() for query in queries]
)
def test_free_loops_report_no_line(measure: Measure, tmp_path: Path, loop: str, query: str) -> None:
    with burning(tmp_path / "burned", 1 if (loop, query) == NOISY_FREE else 0):
        facts = measure(query)
    assert len(facts.data.stacks.samples) > 20
    assert blocking_lines(facts) == ()
    assert alarm(facts) is None


@pytest.mark.classes("uvicorn", "sync")
def test_stacks_and_needs_are_measured_only_on_request(measure: Measure, tmp_path: Path) -> None:
    facts = measure("what=nothing&wait=20", inside="")
    assert facts.data.stacks.samples == ()
    assert all(span.cost is None for span in facts.spans)
    assert not list(tmp_path.rglob("costs-*"))
    assert needs_of(facts) == NO_CPU
