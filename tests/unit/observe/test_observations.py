"""What was observed, read back: lines and what they mean, whole, torn and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.model import (
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
QUEUE = [
    '{"queue": {"at_ns": 1000000000, "length": 0, "limit": 5}}',
    '{"queue": {"at_ns": 1050000000, "length": 3, "limit": 5}}',
    '{"queue": {"at_ns": 1110000000, "length": 6, "limit": 5}}',
    '{"queue": {"at_ns": 1310000000, "length": 6, "limit": 5}}',
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
SEEN = Observations(
    queue=(
        QueueSample(1_000_000_000, 0, 5),
        QueueSample(1_050_000_000, 3, 5),
        QueueSample(1_110_000_000, 6, 5),
        QueueSample(1_310_000_000, 6, 5),
    ),
    processes=(ProcessSample(1_000_000_000, 0.0, None, 0.0, 4096, None),),
    connections=(
        ConnectionSample(
            1_000_000_000, {"ESTABLISHED": 3, "TIME_WAIT": 1}, {"SYN_SENT": 2}, {17: 2, 18: 0}, 1
        ),
    ),
    # A counter this kernel does not have is unknown, one that did not grow is 0
    counters=Counters(listen_overflows=0, listen_drops=3),
    cores=2,
    syn_steps_s=(1.0, 3.0, 7.0),
)


def test_what_the_lines_mean() -> None:
    assert parse_observations(LINES) == SEEN


def test_what_is_there_with_some_apps_only() -> None:
    found = parse_observations([*LINES[:-1], *SERVICES, *APP_METRICS, END])
    assert found.services == (
        ServiceSample(1_000_000_000, {"storage": 0.0}, {"storage": 4096}),
        ServiceSample(2_000_000_000, {}, {}),  # it has ended, which is not 0
    )
    assert found.app_metrics == (AppMetricsSample(1_500_000_000, {"requests": 3, "db_ns": 70}),)
    assert found.missing == {}


@pytest.mark.parametrize("name", ["services", "app_metrics"])
def test_what_some_apps_have_is_missing_where_it_was_lost_or_cut_short(name: str) -> None:
    lost = json.dumps({"lost": {"sampler": name, "reason": "no such thing"}})
    assert parse_observations([*LINES[:-1], lost, END]).missing == {name: "no such thing"}
    cut = parse_observations([*LINES[:-1], *SERVICES, *APP_METRICS])
    assert cut.missing[name] == "the observation was cut short"
    assert len(cut.services) == 2
    assert len(cut.app_metrics) == 1


def test_an_old_run_has_no_file(tmp_path: Path) -> None:
    found = read_observations(tmp_path)
    assert found == Observations(missing=dict.fromkeys(SAMPLERS, "the trial was not observed"))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    found = read_observations(tmp_path)
    assert set(found.missing) == set(SAMPLERS)
    assert all("cannot be read" in reason for reason in found.missing.values())


def test_cut_anywhere_it_is_missing_and_what_was_seen_is_kept(tmp_path: Path) -> None:
    text = "\n".join(LINES) + "\n"
    path = tmp_path / FILE
    for size in range(len(text)):
        path.write_text(text[:size])
        found = read_observations(tmp_path)
        assert found.missing == dict.fromkeys(SAMPLERS, "the observation was cut short")
        assert found.counters is None
        assert found.queue == SEEN.queue[: len(found.queue)]
        assert len(found.queue) == sum(line in text[:size].split("\n")[:-1] for line in QUEUE)
    path.write_text(text)
    assert read_observations(tmp_path) == SEEN


@pytest.mark.parametrize("number", range(len(LINES)))
@pytest.mark.parametrize("damage", ["", "{", "[]", "4", "{}", '{"queue": {}}', '{"queue": 3}',
                                    '{"services": {"at_ns": 1, "cpu_s": 3, "rss_bytes": {}}}',
                                    '{"app_metrics": {"at_ns": 1, "totals": null}}',
                                    '{"end": 1, "queue": 2}', '{"moon": 1}', "\0\0"])  # fmt: skip
def test_a_line_that_cannot_be_read_casts_doubt_on_all(number: int, damage: str) -> None:
    lines = [*LINES[:number], damage, *LINES[number:]]
    found = parse_observations(lines)
    reason = f"line {number + 1} of {FILE} cannot be read"
    assert found.missing == dict.fromkeys(SAMPLERS, reason)
    assert found.queue == SEEN.queue
    assert found.counters is None


def test_a_sampler_that_was_lost_is_missing_alone() -> None:
    lost = json.dumps({"lost": {"sampler": "queue", "reason": "no such thing"}})
    found = parse_observations([*LINES[:3], lost, *LINES[5:]])
    assert found.missing == {"queue": "no such thing"}
    assert found.queue == SEEN.queue[:2]
    assert found.counters == SEEN.counters


def test_counters_lost_on_the_way_have_not_grown_by_0() -> None:
    lost = json.dumps({"lost": {"sampler": "counters", "reason": "gone"}})
    found = parse_observations([*LINES[:-2], lost, END])
    assert found.counters is None
    assert found.missing == {"counters": "gone"}


@pytest.mark.parametrize("counters", [COUNTERS[:1], []])
def test_counters_read_once_or_never_say_nothing(counters: list[str]) -> None:
    found = parse_observations([*LINES[:-3], *counters, END])
    assert found.counters is None
    assert set(found.missing) == {"counters"}


def test_a_sampler_that_never_spoke_is_missing() -> None:
    found = parse_observations([HEADER, *COUNTERS, END])
    assert set(found.missing) == {"queue", "processes", "connections"}
    assert found.counters == SEEN.counters


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\n")), max_size=5))
def test_whatever_stands_there_nothing_is_made_of_it(lines: list[str]) -> None:
    found = parse_observations(lines)
    assert set(found.missing) == set(SAMPLERS)
    assert found.counters is None
