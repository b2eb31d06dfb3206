"""Which worker class the integration tests are about: `pytest … --worker-class X`."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from workerlab.server.worker_classes import CLASSES

# Machines are shared: how long an example takes says nothing about it
settings.register_profile(
    "untimed", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--worker-class",
        choices=CLASSES,
        default="sync",
        help="the Gunicorn worker class the integration tests launch",
    )
    parser.addoption(
        "--none-is-fine", action="store_true", help="-k and -m may leave no test at all"
    )
    parser.addoption(
        "--give-way",
        action="store_true",
        help="compute while those who measure beside us leave the processors idle",
    )
    parser.addoption(
        "--rewrite-goldens",
        action="store_true",
        help="accept what the reports print now: then read the difference in tests/data/goldens",
    )


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # what is collected stays
    if not config.getoption("--give-way"):
        return
    os.nice(7)
    if hasattr(config, "workerinput"):  # the others hear the terminal's Ctrl-C, which ends these
        with suppress(OSError):  # Linux weighs whole sessions: this one has the weight of its own
            os.setsid()
            Path("/proc/self/autogroup").write_text("7")


def pytest_collection_finish() -> None:
    gc.freeze()  # or each full collection looks through thousands of tests
    gc.set_threshold(20_000, 50, 100)  # little of what tests make is cyclic
    gc.enable()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    none = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
    if none and session.config.getoption("--none-is-fine"):
        session.exitstatus = pytest.ExitCode.OK


@pytest.fixture(scope="session")
def worker_class(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--worker-class"))
