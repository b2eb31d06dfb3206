"""A pytest plugin that load-tests an app under a worker class and asserts a limit.

    import pytest

    @pytest.mark.gunicorn("gthread", app="shop.wsgi:app", workers=2, slo="p95<300ms")
    def test_front_page(gunicorn_server):
        pass                                       # the marker's limit has been asserted

    @pytest.mark.gunicorn("gevent", app="shop.wsgi:app")
    def test_cart(gunicorn_server):
        urlopen(gunicorn_server.url + "cart")      # Gunicorn serves the app during the test
        result = gunicorn_server.load(concurrency=32, seconds=3, path="/cart")
        assert result.keeps("p95<300ms,errors<0.1%"), result

The marker's options are those of `workerlab sweep`, with _ instead of -: keep_queries=True becomes
a flag, env={"POOL": 4} an --env. The interpreter that runs the tests serves the app, with its
Gunicorn. A load is a sweep of one cell, on a server launched for it alone; its run is stored in
pytest's temporary directory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from workerlab import testing

MARKER = "gunicorn(worker_class, *, slo=None, concurrency=8, seconds=3, **options): serve an app"
RESULT_KEY: pytest.StashKey[tuple[testing.LoadResult, str]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(autouse=True)
def _gunicorn_limit(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Measure before a marked test, even if it does not request `gunicorn_server`;
    `pytest_runtest_call` asserts the limit."""
    marker = request.node.get_closest_marker("gunicorn")
    if marker is None:
        return
    if not marker.kwargs.get("slo"):
        if "gunicorn_server" not in request.fixturenames:
            pytest.fail("the marker gunicorn checks nothing: set slo=, or use the fixture"
                        " gunicorn_server", pytrace=False)  # fmt: skip
        return
    with _failing_with_message():
        arguments, load = _sweep_arguments(marker)
        result = _server(arguments, tmp_path_factory.mktemp("gunicorn"), "").load(**load)
    request.node.stash[RESULT_KEY] = result, marker.kwargs["slo"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail the test if the marker's limit is missed; skip it if the load is inconclusive."""
    if RESULT_KEY not in item.stash:
        return
    result, slo = item.stash[RESULT_KEY]
    if not result.valid or result.breaks(slo):
        pytest.fail(result.report(slo), pytrace=False)
    if not result.keeps(slo):
        pytest.skip(f"inconclusive: {result.words(slo)}")


@pytest.fixture
def gunicorn_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[testing.GunicornServer]:
    """The server of the test's `gunicorn` marker."""
    marker = request.node.get_closest_marker("gunicorn")
    if marker is None:
        pytest.fail(f"gunicorn_server needs a marker: {MARKER}", pytrace=False)
    from workerlab import testing

    directory = tmp_path_factory.mktemp("gunicorn")
    with _failing_with_message():
        arguments, _ = _sweep_arguments(marker)
        with testing.running_server(arguments, directory / "served") as url:
            yield _server(arguments, directory, url)


def _server(arguments: list[str], directory: Path, url: str) -> testing.GunicornServer:
    from workerlab import testing  # imported late: sessions without the marker do not need it

    return testing.GunicornServer(arguments, directory / "runs", url)


def _sweep_arguments(marker: pytest.Mark) -> tuple[list[str], dict[str, Any]]:
    """The command-line arguments of the sweep, and the arguments of the load."""
    from workerlab import testing
    from workerlab.slo import canonical

    if len(marker.args) != 1:
        pytest.fail(f"the marker gunicorn must name one worker class: {MARKER}", pytrace=False)
    options = {name: value for name, value in marker.kwargs.items() if name != "slo"}
    if marker.kwargs.get("slo"):
        canonical(marker.kwargs["slo"])  # rejects an invalid target before any load
    load_names = {"concurrency", "seconds"} & options.keys()
    load: dict[str, Any] = {name: options.pop(name) for name in load_names}
    options.setdefault("python", sys.executable)
    return [marker.args[0], *testing.arguments_of(options)], load


@contextmanager
def _failing_with_message() -> Iterator[None]:
    """Turn the errors of a load into failures without a traceback."""
    from workerlab.errors import LabError
    from workerlab.server.running import TrialFailed
    from workerlab.slo import TargetSyntaxError

    try:
        yield
    except (LabError, TrialFailed, TargetSyntaxError) as error:
        pytest.fail(f"{error}", pytrace=False)
