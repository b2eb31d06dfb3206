"""Reading observations back from complete, truncated and damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from workerlab.model.evidence import (
    AppMetricsSample,
    ConnectionSample,
    Counters,
    Observations,
    ProcessSample,
    QueueSample,
    ServiceSample,
)
from workerlab.observe.observations import FILE, SAMPLERS, parse_observations, read_observations

HEADER = '{"header": {"cores": 2, "syn_steps_s": [1.0, 3.0, 7.0]}}'
QUEUE_SAMPLES = ((1_000_000_000, 0), (1_050_000_000, 3), (1_110_000_000, 6), (1_310_000_000, 6))
QUEUE = [
    f'{{"queue": {{"at_ns": {at_ns}, "length": {length}, "limit": 5}}}}'
    for at_ns, length in QUEUE_SAMPLES
]
PROCESSES = (
    '{"processes": {"at_ns": 1000000000, "server_cpu_s": 0.0, "tool_cpu_s": null,'
    ' "host_busy_s": 0.0, "server_rss_bytes": 4096, "tool_rss_bytes": null}}'
)
CONNECTIONS = (
    '{"connections": {"at_ns": 1000000000, "server": {"ESTABLISHED": 3, "TIME_WAIT": 1},'
    ' "client": {"SYN_SENT": 2}, "per_worker": {"17": 2, "18": 0}, "unread": 1}}'
)
COUNTERS = [
    '{"counters": {"at_ns": 1000000000, "counts": {"listen_overflows": 7, "listen_drops": 9}}}',
    '{"counters": {"at_ns": 2000000000, "counts": {"listen_overflows": 7, "listen_drops": 12}}}',
]
SERVICES = [
    '{"services": {"at_ns": 1000000000, "cpu_s": {"storage": 0.0},'
    ' "rss_bytes": {"storage": 4096}}}',
    '{"services": {"at_ns": 2000000000, "cpu_s": {}, "rss_bytes": {}}}',
]
APP_METRICS = ['{"app_metrics": {"at_ns": 1500000000, "totals": {"requests": 3, "db_ns": 70}}}']
END = '{"end": 2000000001}'
LINES = [HEADER, *QUEUE, CONNECTIONS, PROCESSES, *COUNTERS, END]
OBSERVED = Observations(
    queue=tuple(QueueSample(at_ns, length, 5) for at_ns, length in QUEUE_SAMPLES),
    processes=(ProcessSample(1_000_000_000, 0.0, None, 0.0, 4096, None),),
    connections=(
        ConnectionSample(
            1_000_000_000, {"ESTABLISHED": 3, "TIME_WAIT": 1}, {"SYN_SENT": 2}, {17: 2, 18: 0}, 1
        ),
    ),
    # A counter that the kernel lacks is unknown; one that did not grow is 0
    counters=Counters(listen_overflows=0, listen_drops=3),
    cores=2,
    syn_steps_s=(1.0, 3.0, 7.0),
)


def lost(sampler: str) -> str:
    """The line of a sampler that failed."""
    return json.dumps({"lost": {"sampler": sampler, "reason": "no such thing"}})


def test_services_and_app_metrics_are_optional() -> None:
    observations = parse_observations([*LINES[:-1], *SERVICES, *APP_METRICS, END])
    assert observations.services == (
        ServiceSample(1_000_000_000, {"storage": 0.0}, {"storage": 4096}),
        ServiceSample(2_000_000_000, {}, {}),  # it has ended: not 0
    )
    assert observations.app_metrics == (
        AppMetricsSample(1_500_000_000, {"requests": 3, "db_ns": 70}),
    )
    assert observations.missing == {}


@pytest.mark.parametrize("name", ["services", "app_metrics"])
def test_optional_samples_are_missing_if_lost_or_truncated(name: str) -> None:
    missing = parse_observations([*LINES[:-1], lost(name), END]).missing
    assert missing == {name: "no such thing"}
    truncated = parse_observations([*LINES[:-1], *SERVICES, *APP_METRICS])
    assert truncated.missing[name] == "the observation was cut short"
    assert (len(truncated.services), len(truncated.app_metrics)) == (2, 1)


def test_without_a_readable_file_all_samplers_are_missing(tmp_path: Path) -> None:
    missing = dict.fromkeys(SAMPLERS, "the trial was not observed")
    assert read_observations(tmp_path) == Observations(missing=missing)
    (tmp_path / FILE).mkdir()
    observations = read_observations(tmp_path)
    assert set(observations.missing) == set(SAMPLERS)
    assert all("cannot be read" in reason for reason in observations.missing.values())


def test_a_truncated_file_keeps_complete_lines(tmp_path: Path) -> None:
    text = "\n".join(LINES) + "\n"
    path = tmp_path / FILE
    for size in range(len(text)):
        path.write_text(text[:size])
        observations = read_observations(tmp_path)
        assert observations.missing == dict.fromkeys(SAMPLERS, "the observation was cut short")
        assert observations.counters is None
        complete = text[:size].split("\n")[:-1]
        assert observations.queue == OBSERVED.queue[: sum(line in complete for line in QUEUE)]
    path.write_text(text)
    assert read_observations(tmp_path) == OBSERVED


@pytest.mark.parametrize("number", range(len(LINES)))
@pytest.mark.parametrize("damage", ["", "{", "[]", "4", "{}", '{"queue": {}}', '{"queue": 3}',
                                    '{"services": {"at_ns": 1, "cpu_s": 3, "rss_bytes": {}}}',
                                    '{"app_metrics": {"at_ns": 1, "totals": null}}',
                                    '{"end": 1, "queue": 2}', '{"moon": 1}', "\0\0"])  # fmt: skip
def test_an_unreadable_line_makes_all_samplers_missing(number: int, damage: str) -> None:
    observations = parse_observations([*LINES[:number], damage, *LINES[number:]])
    reason = f"line {number + 1} of {FILE} cannot be read"
    assert observations.missing == dict.fromkeys(SAMPLERS, reason)
    assert observations.queue == OBSERVED.queue
    assert observations.counters is None


@pytest.mark.parametrize(
    ("lines", "changes", "missing"),
    [
        (LINES, {}, {}),
        ([*LINES[:3], lost("queue"), *LINES[5:]], {"queue": OBSERVED.queue[:2]},
         {"queue": "no such thing"}),
        ([HEADER, lost("queue"), *LINES[5:]], {"queue": ()}, {"queue": "no such thing"}),
        ([*LINES[:-2], lost("counters"), END], {"counters": None}, {"counters": "no such thing"}),
        ([*LINES[:-2], END], {"counters": None},
         {"counters": "not read both before and after the load"}),
        ([*LINES[:-3], END], {"counters": None}, {"counters": "never sampled"}),
        ([HEADER, *COUNTERS, END], {"queue": (), "processes": (), "connections": ()},
         dict.fromkeys(("queue", "processes", "connections"), "never sampled")),
    ],
    ids=["complete", "lost later", "lost at first", "counters lost", "counters read once",
         "counters never read", "only counters"],
)  # fmt: skip
def test_a_sampler_that_fails_does_not_affect_the_others(
    lines: list[str], changes: dict[str, Any], missing: dict[str, str]
) -> None:
    assert parse_observations(lines) == replace(OBSERVED, **changes, missing=missing)


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\n")), max_size=5))
def test_arbitrary_lines_give_no_samples(lines: list[str]) -> None:
    observations = parse_observations(lines)
    assert set(observations.missing) == set(SAMPLERS)
    assert observations.counters is None
