"""Charts of a launch over time, from its samples."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.builders.analysis import ORIGIN_NS, derived, evidence, with_observations
from tests.builders.ladder import all_configurations, cells
from workerlab.analysis import TrialData
from workerlab.experiments.ladder.document import launch_charts
from workerlab.experiments.ladder.steps import ConfigurationStep, ladder
from workerlab.model.evidence import ProcessSample, ServiceSample
from workerlab.model.result import Chart

NS = 1_000_000_000
MB = 1_000_000


def step(stand_ins: tuple[str, ...] = ()) -> ConfigurationStep:
    """The first step: MongoDB and Redis."""
    planned = [replace(config, stand_ins=stand_ins) for config in all_configurations()]
    return ladder(cells(planned), planned, {}).conclusive[0]


def at(second: float, *, network: bool) -> ProcessSample:
    """Half a core, a quarter of a core, memory that grows, 2 MB/s over the loopback interface and
    1 MB/s from outside."""
    t = second + 100  # counters began 100 s before the load
    sent = int(2 * MB * t)
    sums = {"lo in": sent, "lo out": sent, "eth0 in": int(MB * t), "eth0 out": 7}
    return ProcessSample(
        at_ns=ORIGIN_NS + round(second * NS),
        server_cpu_s=t / 2,
        tool_cpu_s=t / 4 if second > 0 else None,
        host_busy_s=t,
        server_rss_bytes=round((50 + second) * MB),
        tool_rss_bytes=10 * MB if second > 0 else None,
        network_bytes=sums if network else {},
    )


def observed_load(*, network: bool = True) -> TrialData:
    """A load of some seconds, with a sample before it and a sample after it."""
    samples = [at(second, network=network) for second in (-1, 0.5, 1, 1.5, 60)]
    services = [
        ServiceSample(ORIGIN_NS + round(second * NS), {"storage": 0.1 * second, "cache": 0.0},
                      {"storage": 30 * MB})
        for second in (0.5, 1, 1.5)
    ]  # fmt: skip
    return with_observations(evidence(), processes=tuple(samples), services=tuple(services))


def charts(data: TrialData) -> dict[str, Chart]:
    """The charts by their subject."""
    drawn = {str(chart.title): chart for chart in launch_charts(step(), derived(data))}
    assert all(title.startswith("Over time: ") for title in drawn)
    return {title[11:].partition(";")[0]: chart for title, chart in drawn.items()}


def points(chart: Chart) -> dict[str, list[tuple[float, float]]]:
    return {str(series.name): list(series.points) for series in chart.series}


def close(*pairs: tuple[float, float]) -> list[object]:
    return [(pytest.approx(x), pytest.approx(y)) for x, y in pairs]


def test_cores_and_network_are_rates_and_memory_is_as_sampled() -> None:
    drawn = charts(observed_load())
    cores = points(drawn["cores"])
    assert cores["app"] == close((1.0, 0.5), (1.5, 0.5))
    assert cores[step().load.tool] == close((1.0, 0.25), (1.5, 0.25))
    assert cores["MongoDB"] == close((1.0, 0.1), (1.5, 0.1))
    assert "Redis" not in cores
    memory = points(drawn["memory"])
    assert memory["app"] == close((0.5, 50.5), (1.0, 51.0), (1.5, 51.5))
    assert memory["MongoDB"][0] == (0.5, 30.0)
    assert points(drawn["network"]) == {  # loopback once, and no idle interface
        "lo out": close((1.0, 2.0), (1.5, 2.0)),
        "eth0 in": close((1.0, 1.0), (1.5, 1.0)),
    }
    assert set(charts(observed_load(network=False))) == {"responses", "cores", "memory"}


def test_responses_are_rates_of_the_load() -> None:
    data = evidence(rounds=40)  # one second each, four at a time
    ((name, rates),) = points(charts(data)["responses"]).items()
    assert name == "app"
    assert 10 < len(rates) <= 21
    assert sorted(rate for _, rate in rates)[len(rates) // 2] == pytest.approx(4, rel=0.1)


def test_a_stand_in_is_named() -> None:
    drawn = launch_charts(step(stand_ins=("mongodb",)), derived(observed_load()))
    names = {series.name for chart in drawn for series in chart.series}
    assert "MongoDB-compatible server" in names
    assert "MongoDB" not in names
