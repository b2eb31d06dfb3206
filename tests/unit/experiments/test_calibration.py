"""Which ceilings a plan needs, and how a lost or damaged cache of them is handled."""

from __future__ import annotations

import json
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
from workerlab.experiments.calibration import (
    CeilingKey,
    ceilings_needed,
    fingerprint,
    highest_rates,
    read_cache,
    write_cache,
)
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
        pytest.param(
            plan(FAST, 8, tool="locust", load_hosts=("a", "b")), [], id="not of other hosts"
        ),
        (plan(FAST, 200, tool="processes"), [CeilingKey("processes", False, 1, 16)]),
    ],
)
def test_ceilings_that_a_plan_needs(sweep: Plan, keys: list[CeilingKey]) -> None:
    assert ceilings_needed(sweep) == keys


def test_ceilings_and_report_read_each_trial_once(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = recorded("trials")
    keys: list[str] = []

    def read(trial: Trial, *rest: Any) -> TrialData:
        keys.append(trial.key)
        return read_trial(trial, *rest)

    monkeypatch.setattr(reading, "read_trial", read)
    rates = highest_rates(directory)
    cells = report_of(store.load(directory)).cells
    assert sorted(keys) == sorted(cell.trial.key for cell in cells)
    assert max(rates.values()) == max(cell.throughput_rps or 0.0 for cell in cells)


def test_the_fingerprint_changes_with_machine_and_versions() -> None:
    reference = fingerprint("ab", MACHINE)
    assert reference == fingerprint("ab", {**MACHINE, "gunicorn": "26"})
    for change in ({"cpu": "y"}, {"cores": 4}, {"python": "3.12"}, {"tools": {"ab": "2.5"}}):
        assert fingerprint("ab", {**MACHINE, **change}) != reference


def use_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return calibration.cache_file()


CEILING = Ceiling("ab", keepalive=False, processes=1, connections=16, rps=12_000.0)


def test_a_cached_ceiling_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = use_cache(tmp_path, monkeypatch)
    key = calibration._cache_key(CEILING, MACHINE)
    write_cache(path, {key: CEILING})
    messages: list[str] = []
    run = tmp_path / "run"
    store.create(run, plan(FAST, 8), MACHINE)
    calibration.calibrate(run, plan(FAST, 8), messages.append)
    environment = store.load(run).environment
    assert ceilings(environment) == (CEILING,)
    assert environment["ceilings_missing"] == {}
    assert environment["cpu"] == "x"
    assert messages == []
    assert list(path.parent.iterdir()) == [path]


def test_a_calibrated_run_is_not_calibrated_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    store.create(run, plan(FAST, 8), MACHINE)
    store.save_machine(run, {"ceilings": [CEILING], "ceilings_missing": {}})
    calibration.calibrate(run, plan(FAST, 8), pytest.fail)
    assert ceilings(store.load(run).environment) == (CEILING,)


@pytest.mark.parametrize(("rps", "missing"), [(600.0, []), (700.0, ["ab, 16 connections"])])
def test_a_slow_tool_is_measured_only_if_a_cell_came_near_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rps: float, missing: list[str]
) -> None:
    """ab reaches 2000 requests/s on any machine; a third of that is far from its limit."""
    use_cache(tmp_path, monkeypatch)
    run, messages = tmp_path / "run", list[str]()
    store.create(run, plan(FOREIGN, 8, 16), MACHINE)
    rates = {CeilingKey("ab", False, 1, 16): rps}
    monkeypatch.setattr(calibration, "highest_rates", lambda _: rates)
    monkeypatch.setattr(calibration, "measure", lambda key, _: f"{key.name} is busy")
    calibration.calibrate(run, plan(FOREIGN, 8, 16), messages.append)
    assert list(store.load(run).environment["ceilings_missing"]) == missing
    assert len(messages) == 2 * len(missing)


def test_always_measures_ceilings_of_slow_cells_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cache(tmp_path, monkeypatch)
    run = tmp_path / "run"
    store.create(run, plan(FOREIGN, 8), MACHINE)
    monkeypatch.setattr(calibration, "measure", lambda *_: CEILING)
    calibration.calibrate(run, plan(FOREIGN, 8), lambda _: None, always=True)
    assert ceilings(store.load(run).environment) == (CEILING,)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1, "ceilings": {}}'])
def test_a_cache_that_cannot_be_read_is_empty(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ceilings.json"
    path.write_text(text)
    assert read_cache(path) == {}


@pytest.mark.parametrize("entry", [None, 1, {}, {"rps": 1.0}, {**asdict(CEILING), "rps": "x"}])
def test_a_cache_with_an_entry_that_is_no_ceiling_is_empty(tmp_path: Path, entry: object) -> None:
    path = tmp_path / "ceilings.json"
    write_cache(path, {"good": CEILING})
    assert read_cache(path) == {"good": CEILING}
    path.write_text(json.dumps({"a": entry}))
    assert read_cache(path) == {}


def test_an_unwritable_cache_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "below" / "ceilings.json"
    write_cache(path, {"good": CEILING})
    assert read_cache(path) == {}


def load_result(rps: float, *, paused: bool) -> SimpleNamespace:
    measurement = SimpleNamespace(failed=0, rps=rps, duration_s=1.0)
    observations = Observations(pauses=(Pause(1, 2),) if paused else ())
    return SimpleNamespace(measurement=measurement, null=None, observations=observations)


def test_the_first_undisturbed_load_sizes_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that only counts requests would otherwise be measured for a tenth of a second."""
    sizes = []

    def load(_key: CeilingKey, requests: int, number: int, _directory: Path) -> SimpleNamespace:
        sizes.append(requests)
        return load_result(50_000.0, paused=number == 1)

    monkeypatch.setattr(calibration, "_measure_load", load)
    assert isinstance(calibration.measure(CeilingKey("ab", False, 1, 16), tmp_path), Ceiling)
    assert sizes[0] == sizes[1] < 50_000 <= sizes[2]


@pytest.mark.parametrize(("paused", "rps"), [((), 500.0), ((1, 2), 900.0), ((1, 2, 3), None)])
def test_loads_during_a_pause_are_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paused: tuple[int, ...], rps: float | None
) -> None:
    """Otherwise a disturbed ceiling would be cached and the tool would look slow from then on."""
    rates = {1: 100.0, 2: 500.0, 3: 900.0}

    def load(_key: CeilingKey, _requests: int, number: int, _directory: Path) -> SimpleNamespace:
        return load_result(rates[number], paused=number in paused)

    monkeypatch.setattr(calibration, "_measure_load", load)
    result = calibration.measure(CeilingKey("fast", False, 1, 16), tmp_path)
    if rps is None:
        assert "was paused" in result
    else:
        assert result.rps == rps
