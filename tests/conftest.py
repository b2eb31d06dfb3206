"""Shared by all tests: the worker class of the integration tests (`pytest … --worker-class X`), and
an environment without variables that change the lab, the apps or Gunicorn."""

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

os.environ.pop("VIRTUAL_ENV", None)  # set by an activated shell


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--worker-class",
        choices=CLASSES,
        default="sync",
        help="the Gunicorn worker class the integration tests launch",
    )
    parser.addoption(
        "--allow-no-tests", action="store_true", help="succeed if -k and -m select no test"
    )
    parser.addoption(
        "--low-priority",
        action="store_true",
        help="yield the processors to measurements that run at the same time",
    )
    parser.addoption(
        "--rewrite-goldens",
        action="store_true",
        help="accept the current output of the reports; then review the diff of tests/data/goldens",
    )


LOW_PRIORITY = 3  # a niceness
# Environment variables of the user's shell
REMOVED_PREFIXES = ("ASGI_", "BLOG_", "GUNICORN_", "UVICORN_", "WORKERLAB_")
REMOVED_NAMES = ("COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "PORT", "WEB_CONCURRENCY")


@pytest.hookimpl(trylast=True)  # pytest has read its own variables by then
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quiet: valid only if no other test runs at the same time")
    for name in list(os.environ):
        removed = name in REMOVED_NAMES or name.startswith(REMOVED_PREFIXES)
        if removed and name != "WORKERLAB_SCREENSHOTS":
            del os.environ[name]
    gc.disable()  # collected tests stay in memory
    if not config.getoption("--low-priority"):
        return
    os.nice(LOW_PRIORITY)
    if hasattr(config, "workerinput"):  # an xdist worker: the controller handles Ctrl-C
        with suppress(OSError):  # Linux schedules by session: give this one its own low weight
            os.setsid()
            Path("/proc/self/autogroup").write_text(str(LOW_PRIORITY))


# Tests of real servers: their timings are wrong if the machine pauses
TIMED = ("integration", "ladder", "browser", "diagnosis", "packaging")
MAX_ATTEMPTS, PAUSE_CHECK_S = 5, 0.5
WATCH = pytest.StashKey[PauseWatch]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if any(map(timed, items)):
        config.stash[WATCH] = watch = PauseWatch(PAUSE_CHECK_S)
        watch.__enter__()
        config.add_cleanup(watch.__exit__)


def timed(item: pytest.Item) -> bool:
    return item.path.relative_to(HERE).parts[0] in TIMED


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Repeat a failed test of real servers if, and only if, the machine paused during it;
    `scripts/tally.py` lists these tests and their failures. Rejected: pytest-rerunfailures, whose
    processes communicate by a socket that may be unreachable on such a machine."""
    if not timed(item):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for attempts_left in reversed(range(MAX_ATTEMPTS)):
        start_ns = time.monotonic_ns()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failures = [report for report in reports if report.failed]
        if not (failures and attempts_left and item.config.stash[WATCH].paused_since(start_ns)):
            break
        crash = getattr(failures[0].longrepr, "reprcrash", None)
        why = crash.message if crash else str(failures[0].longrepr)
        item.user_properties.append(("run again", why.partition("\n")[0]))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last output of the lab that a failed test ran."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for fixture in item.funcargs.values():
            if last_output := getattr(fixture, "last_output", None):
                report.sections.append(("last output of the lab", last_output()))
    return report


def pytest_collection_finish() -> None:
    gc.freeze()  # otherwise each full collection traverses thousands of tests
    gc.set_threshold(20_000, 50, 100)  # tests create few cycles
    gc.enable()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    no_tests = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
    if no_tests and session.config.getoption("--allow-no-tests"):
        session.exitstatus = pytest.ExitCode.OK


@pytest.fixture(scope="session")
def worker_class(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--worker-class"))
