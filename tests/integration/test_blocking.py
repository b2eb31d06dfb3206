"""Which line of an app holds up its event loop, in real workers, quiet and beside a program that
burns a core; and none where nothing does."""

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
from workerlab.analysis.diagnosis.blocking import BlockingLine, blocking_lines
from workerlab.analysis.diagnosis.loop import BlockedLoop, loop_use
from workerlab.analysis.facts import Facts
from workerlab.model.plan import App, Cell, Server
from workerlab.report.values import text

APPS = ROOT / "tests" / "diagnosis" / "apps"
SOURCE = (APPS / "held.py").read_text().splitlines()
ASGI = ("asgi", "uvicorn")
LOOPS = (*ASGI, "gevent", "eventlet", "tornado")

HARDLY_RAN = 0.3  # of the time it waited for a core

Look = Callable[..., Facts]


@pytest.fixture
def look(tmp_path: Path, worker_class: str) -> Look:
    """The facts of a trial that looks into its worker, 4 connections for 2 s."""

    def facts(query: str, config: str = "", inside: str = "stacks") -> Facts:
        module = "held_asgi" if worker_class in ASGI else "held_wsgi"
        app = App(target=f"{module}:app", chdir=str(APPS), path=f"/?{query}")
        server = Server(worker_class, 1, 1, 2048, 1000, app=app)
        cell = Cell(server, "fast", 4, keepalive=True, inside="stacks" if inside else "")
        own = tmp_path / "own.conf.py"
        own.write_text(config)
        for _ in range(5):
            trial_facts = run_trial(Path(mkdtemp(dir=tmp_path)), cell, config=str(own))
            if not trial_facts.observations.pauses:  # during which nothing is seen of the loop
                return trial_facts
        pytest.skip(
            f"the machine stood still in each of 5 tries: {trial_facts.observations.pauses}"
        )

    return facts


def alarm(facts: Facts) -> BlockedLoop | None:
    """By the beats, which such a trial has more of; they need no other trials beside it."""
    return BlockedLoop.diagnose(facts, result_of(facts.data.trial))


def line_of(what: str) -> int:
    """Where the app's source has the marker."""
    (number,) = (n for n, line in enumerate(SOURCE, 1) if line.endswith(f"# line: {what}"))
    return number


def named(line: BlockingLine) -> tuple[str, str, int, str]:
    return line.how.partition(" ")[0], line.file, line.line, line.called


# What each class is asked, the kind of it, and the name that the line calls
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
# A program that burns a core, once: it slows all other tests
BESIDE = [("uvicorn", *HELD["uvicorn"][0], 1)]


def of_loop(name: str, *values: object) -> Any:
    return pytest.param(name, *values, marks=pytest.mark.classes(name))


@pytest.mark.parametrize(
    ("loop", "query", "kind", "called", "programs"), [of_loop(*case) for case in QUIET + BESIDE]
)
def test_the_line_that_holds_up_a_loop_is_named(
    look: Look, tmp_path: Path, loop: str, query: str, kind: str, called: str, programs: int
) -> None:
    """The one with the marker, before any other."""
    config = "preload_app = True" if "copied" in query else ""  # or gevent patches it in time
    with burning(tmp_path / "burned", programs):
        for _ in range(3):  # where the loop hardly had a core, too little of it may be seen
            facts = look(query, config)
            use = loop_use(facts)
            if blocking_lines(facts) or use is None or use.worst.core_wait < HARDLY_RAN:
                break
    what = query.partition("&")[0].removeprefix("what=")
    if loop != "tornado" and facts.window:  # a WSGI app blocks tornado by design
        assert (alarm(facts) is not None) == (kind == "blocks")
    first, *_ = blocking_lines(facts)
    if kind == "computes":  # of two lines, either
        assert named(first)[:2] == (kind, "held.py")
        assert first.function == what
        assert first.line in (line_of("computes"), line_of("computes") - 1)
    else:
        assert named(first) == (kind, "held.py", line_of(what), called)
    assert 0.01 <= first.share <= 1
    assert f"held.py line {first.line} in {what}()" in text(first)


BESIDE_FREE = ("gevent", "what=computes&ms=1&wait=50")
FREE = {
    "asgi": ["what=hashes&ms=20&wait=50&thread=1"],
    "uvicorn": ["what=nothing&wait=50", "what=computes&ms=1&wait=50"],
    "gevent": ["what=sleeps&ms=40", "what=computes&ms=1&wait=50"],
    "eventlet": ["what=asks&ms=40"],
}


@pytest.mark.parametrize(
    ("loop", "query"), [of_loop(name, query) for name, some in FREE.items() for query in some]
)
def test_nothing_is_named_where_the_loop_is_free(
    look: Look, tmp_path: Path, loop: str, query: str
) -> None:
    with burning(tmp_path / "burned", 1 if (loop, query) == BESIDE_FREE else 0):
        facts = look(query)
    assert len(facts.data.stacks.samples) > 20
    assert blocking_lines(facts) == ()
    assert alarm(facts) is None


@pytest.mark.classes("uvicorn", "sync")
def test_none_is_looked_into_where_nobody_asks(look: Look) -> None:
    assert look("what=nothing&wait=20", inside="").data.stacks.samples == ()
