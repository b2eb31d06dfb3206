"""Which worker class the integration tests are about: `pytest … --worker-class X`."""

from __future__ import annotations

import pytest
from hypothesis import settings

from harness.worker_classes import CLASSES

# Machines are shared: how long an example takes says nothing about it
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--worker-class",
        choices=CLASSES,
        default="sync",
        help="the Gunicorn worker class the integration tests launch",
    )


@pytest.fixture(scope="session")
def worker_class(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--worker-class"))
