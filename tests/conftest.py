"""What all tests share: the worker class the integration tests are about (`pytest … --worker-class
X`), and an environment without what would change the lab, the apps, or Gunicorn."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from workerlab.observe.pauses import PauseWatch
from workerlab.server.worker_classes import CLASSES

HERE = Path(__file__).parent

# Whose shell has activated what is no part of a test
os.environ.pop("VIRTUAL_ENV", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--worker-class",
        choices=CLASSES,
        default="sync",
        help="the Gunicorn worker class the integration tests launch",
    )
    parser.addoption(
        "--allow-no-tests", action="store_true", help="-k and -m may leave no test at all"
    )
    parser.addoption(
        "--low-priority",
        action="store_true",
        help="compute while those who measure beside us leave the processors idle",
    )
    parser.addoption(
        "--rewrite-goldens",
        action="store_true",
        help="accept what the reports print now: then read the difference in tests/data/goldens",
    )


LOW_PRIORITY = 3  # a niceness
# Of whoever runs the tests
FOREIGN = ("ASGI_", "BLOG_", "GUNICORN_", "UVICORN_", "WORKERLAB_")
FOREIGN_NAMES = ("COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "PORT", "WEB_CONCURRENCY")


@pytest.hookimpl(trylast=True)  # after pytest has read what its own output is to be
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quiet: proves nothing while other tests run beside it")
    for name in list(os.environ):
        if name in FOREIGN_NAMES or (name.startswith(FOREIGN) and name != "WORKERLAB_SCREENSHOTS"):
            del os.environ[name]
    gc.disable()  # what is collected stays
    if not config.getoption("--low-priority"):
        return
    os.nice(LOW_PRIORITY)
    if hasattr(config, "workerinput"):  # the others hear the terminal's Ctrl-C, which ends these
        with suppress(OSError):  # Linux weighs whole sessions: this one has the weight of its own
            os.setsid()
            Path("/proc/self/autogroup").write_text(str(LOW_PRIORITY))


# Tests of real servers: what they say of time is not so where the machine stands still meanwhile
TIMED = ("integration", "ladder", "browser", "diagnosis", "packaging")
TIMES, LOOK_S = 5, 0.5
WATCH = pytest.StashKey[PauseWatch]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if any(map(timed, items)):
        config.stash[WATCH] = watch = PauseWatch(LOOK_S)
        watch.__enter__()
        config.add_cleanup(watch.__exit__)


def timed(item: pytest.Item) -> bool:
    return item.path.relative_to(HERE).parts[0] in TIMED


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A test of real servers that fails is run again where this machine was seen to stand still
    while it ran, and only there: `scripts/tally.py` tells which, and how it failed. Rejected:
    pytest-rerunfailures, whose processes talk to each other by a socket that they may not reach on
    such a machine."""
    if not timed(item):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for again in reversed(range(TIMES)):
        begun_ns = time.monotonic_ns()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failed = [report for report in reports if report.failed]
        if not (failed and again and item.config.stash[WATCH].paused_since(begun_ns)):
            break
        crash = getattr(failed[0].longrepr, "reprcrash", None)  # one line of it is enough
        why = crash.message if crash else str(failed[0].longrepr)
        item.user_properties.append(("run again", why.partition("\n")[0]))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a lab that the test ran said last is part of the report of its failure."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for fixture in item.funcargs.values():
            if said := getattr(fixture, "what_it_said", None):
                report.sections.append(("what the lab said last", said()))
    return report


def pytest_collection_finish() -> None:
    gc.freeze()  # or each full collection looks through thousands of tests
    gc.set_threshold(20_000, 50, 100)  # little of what tests make is cyclic
    gc.enable()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    none = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
    if none and session.config.getoption("--allow-no-tests"):
        session.exitstatus = pytest.ExitCode.OK


@pytest.fixture(scope="session")
def worker_class(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--worker-class"))
