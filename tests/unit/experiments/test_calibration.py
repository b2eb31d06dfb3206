"""The ceilings that a plan needs, their measurement, and a lost or damaged cache of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from tests.builders.runs import recorded
from workerlab import run_store as store
from workerlab.analysis import TrialData
from workerlab.analysis.load_tool import Ceiling, ceilings
from workerlab.experiments import calibration, reading
from workerlab.experiments.calibration import CeilingKey
from workerlab.experiments.reading import read_trial, report_of
from workerlab.model.evidence import Observations, Pause
from workerlab.model.plan import App, Plan, Server, Trial
from workerlab.plan import product

SLEEPS = App("apps.sleep_wsgi:app", "", sleep_s=1.0)
FAST = replace(SLEEPS, sleep_s=0.0)
FOREIGN = replace(SLEEPS, sleep_s=None)
MACHINE = {"cpu": "x", "cores": 2, "system": "Linux", "python": "3.11", "tools": {"ab": "2.4"}}


def plan(app: App, *levels: int, tool: str = "ab", **changes: Any) -> Plan:
    """A sweep of these levels. `changes`: keepalive, processes of its cells, load_hosts."""
    hosts = changes.pop("load_hosts", ())
    server = Server("eventlet", 4, 1, 2048, 1000, app=app)
    cells = product([server], [tool], levels, **changes)
    return Plan("sweep", cells, 1, 5, 1, "python", None, {}, (), load_hosts=hosts)


RANGES = [CeilingKey("ab", False, 1, 16), CeilingKey("ab", False, 1, 64)]


@pytest.mark.parametrize(
    ("sweep", "keys"),
    [
        pytest.param(plan(SLEEPS, 4, 8, 16), [], id="an app that sleeps, few connections"),
        (plan(SLEEPS, 4, 1000), [CeilingKey("ab", False, 1, 256)]),
        pytest.param(plan(FAST, 4, 8, 16, 32), RANGES, id="per range of connections"),
        pytest.param(plan(FOREIGN, 4, 8, 16, 32), RANGES, id="another app"),
        pytest.param(
            plan(FAST, 8, tool="fast", keepalive=(False, True), processes=(1, 2)),
            [CeilingKey("fast", kept, count, 16) for kept in (False, True) for count in (1, 2)],
            id="per keep-alive and number of processes",
        ),
        pytest.param(plan(FAST, 8, tool="locust", load_hosts=("a", "b")), [], id="other hosts"),
        (plan(FAST, 200, tool="processes"), [CeilingKey("processes", False, 1, 16)]),
    ],
)
def test_a_plan_needs_ceilings_for_cells_that_may_be_fast(
    sweep: Plan, keys: list[CeilingKey]
) -> None:
    assert calibration.ceilings_needed(sweep) == keys


def test_ceilings_and_report_read_each_trial_once(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = recorded("trials")
    keys = list[str]()

    def read(trial: Trial, *rest: Any) -> TrialData:
        keys.append(trial.key)
        return read_trial(trial, *rest)

    monkeypatch.setattr(reading, "read_trial", read)
    rates = calibration.highest_rates(directory)
    cells = report_of(store.load(directory)).cells
    assert sorted(keys) == sorted(cell.trial.key for cell in cells)
    assert max(rates.values()) == max(cell.throughput_rps or 0.0 for cell in cells)


def test_the_fingerprint_changes_with_machine_and_versions() -> None:
    reference = calibration.fingerprint("ab", MACHINE)
    assert reference == calibration.fingerprint("ab", {**MACHINE, "gunicorn": "26"})
    for change in ({"cpu": "y"}, {"cores": 4}, {"python": "3.12"}, {"tools": {"ab": "2.5"}}):
        assert calibration.fingerprint("ab", {**MACHINE, **change}) != reference


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of an empty cache of ceilings."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return calibration.cache_file()


def calibrated(
    parent: Path, sweep: Plan, tell: Callable[[str], None] = pytest.fail, **options: bool
) -> dict[str, Any]:
    """The environment of a new run of this plan, after its calibration."""
    run = parent / "run"
    store.create(run, sweep, MACHINE)
    calibration.calibrate(run, sweep, tell, **options)
    return store.load(run).environment


CEILING = Ceiling("ab", keepalive=False, processes=1, connections=16, rps=12_000.0)


def test_a_cached_ceiling_is_not_measured_again(cache: Path, tmp_path: Path) -> None:
    calibration.write_cache(cache, {calibration._cache_key(CEILING, MACHINE): CEILING})
    environment = calibrated(tmp_path, plan(FAST, 8))
    assert ceilings(environment) == (CEILING,)
    assert environment["ceilings_missing"] == {}
    assert environment["cpu"] == "x"
    assert list(cache.parent.iterdir()) == [cache]


def test_a_calibrated_run_is_not_calibrated_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    store.create(run, plan(FAST, 8), MACHINE)
    store.save_machine(run, {"ceilings": [CEILING], "ceilings_missing": {}})
    calibration.calibrate(run, plan(FAST, 8), pytest.fail)
    assert ceilings(store.load(run).environment) == (CEILING,)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(("rps", "missing"), [(600.0, []), (700.0, ["ab, 16 connections"])])
def test_a_slow_tool_is_measured_only_if_a_cell_came_near_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rps: float, missing: list[str]
) -> None:
    """ab reaches 2000 requests/s on any machine; a third of that is far from its limit."""
    messages, rates = list[str](), {CeilingKey("ab", False, 1, 16): rps}
    monkeypatch.setattr(calibration, "highest_rates", lambda _: rates)
    monkeypatch.setattr(calibration, "measure", lambda key, _: f"{key.name} is busy")
    environment = calibrated(tmp_path, plan(FOREIGN, 8, 16), messages.append)
    assert list(environment["ceilings_missing"]) == missing
    assert len(messages) == 2 * len(missing)


@pytest.mark.usefixtures("cache")
def test_always_measures_ceilings_of_slow_cells_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "measure", lambda *_: CEILING)
    environment = calibrated(tmp_path, plan(FOREIGN, 8), lambda _: None, always=True)
    assert ceilings(environment) == (CEILING,)


NO_CEILINGS: tuple[object, ...] = (None, 1, {}, {"rps": 1.0}, {**asdict(CEILING), "rps": "x"})


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"format": 1, "ceilings": {}}',
     *(json.dumps({"a": entry}) for entry in NO_CEILINGS)],
)  # fmt: skip
def test_a_cache_that_cannot_be_read_is_empty(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ceilings.json"
    calibration.write_cache(path, {"good": CEILING})
    assert calibration.read_cache(path) == {"good": CEILING}
    path.write_text(text)
    assert calibration.read_cache(path) == {}


def test_an_unwritable_cache_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "below" / "ceilings.json"
    calibration.write_cache(path, {"good": CEILING})
    assert calibration.read_cache(path) == {}


def measured(
    monkeypatch: pytest.MonkeyPatch,
    directory: Path,
    tool: str,
    rates: Sequence[float],
    paused: Container[int],
) -> tuple[Ceiling | str, list[int]]:
    """The ceiling, and the number of requests of each load. `rates`: of the loads; `paused`: the
    numbers of the loads during which the machine was paused."""
    sizes = list[int]()

    def load(_key: CeilingKey, requests: int, number: int, _directory: Path) -> SimpleNamespace:
        sizes.append(requests)
        measurement = SimpleNamespace(failed=0, rps=rates[number - 1], duration_s=1.0)
        observations = Observations(pauses=(Pause(1, 2),) if number in paused else ())
        return SimpleNamespace(measurement=measurement, null=None, observations=observations)

    monkeypatch.setattr(calibration, "_measure_load", load)
    return calibration.measure(CeilingKey(tool, False, 1, 16), directory), sizes


def test_the_first_undisturbed_load_sizes_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that only counts requests would otherwise be measured for a tenth of a second."""
    result, sizes = measured(monkeypatch, tmp_path, "ab", [50_000.0] * 4, (1,))
    assert isinstance(result, Ceiling)
    assert sizes[0] == sizes[1] < 50_000 <= sizes[2]


@pytest.mark.parametrize(("paused", "rps"), [((), 500.0), ((1, 2), 900.0), ((1, 2, 3), None)])
def test_loads_during_a_pause_are_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paused: tuple[int, ...], rps: float | None
) -> None:
    """Otherwise a disturbed ceiling would be cached and the tool would look slow from then on."""
    result, _ = measured(monkeypatch, tmp_path, "fast", [100.0, 500.0, 900.0], paused)
    if isinstance(result, Ceiling):
        assert result.rps == rps
    else:
        assert rps is None
        assert "was paused" in result
