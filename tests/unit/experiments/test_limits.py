"""What a run of limits concludes, on steps whose truth is known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.experiments.limits.causes import explained
from harness.experiments.limits.demonstrations import Demonstration
from harness.experiments.limits.document import study
from harness.experiments.limits.rows import causes, seen
from harness.experiments.limits.steps import Machine, predicted_s, steps
from harness.experiments.points import Shot, TargetReport, point_from_json, point_to_json
from harness.model import (
    Answer,
    Document,
    Fault,
    Load,
    Measurement,
    Observations,
    Point,
    ProcessSample,
    Record,
    Summary,
    Target,
)


def shot(
    key: str,
    requests: int = 100,
    connections: int = 100,
    *,
    wall_s: float = 3.1,
    delays_s: float = 150.0,
    longest_s: float = 3.0,
    errors: Mapping[str, int] | None = None,
    memory_bytes: int = 20 << 20,
    why_not: str | None = None,
    **load: Any,
) -> Shot:
    asked = Load(connections, requests, 1.0, 60.0, keepalive=True, **load)
    failed = sum((errors or {}).values())
    fault = Fault("tool", why_not) if why_not else None
    measured = Measurement(
        requests - failed, failed, errors or {}, wall_s, requests / wall_s, Summary(), sent=requests
    )
    served = Summary(mean=delays_s / requests, max=longest_s)
    return Shot(
        point=Point(key, Target(delay_s=(0.0, 3.0)), "fast", asked),
        record=Record(key, fault, tool_cpu_s=1.5),
        measurement=None if why_not else measured,
        why_not=why_not,
        server=TargetReport(requests, connections, connections, 0.1, delays_s, served, requests),
        observations=Observations(
            processes=tuple(
                ProcessSample(at, 0.0, 0.0, 0.0, 1, size)
                for at, size in ((1, None), (2, memory_bytes), (3, memory_bytes // 2))
            )
        ),
    )


CHAPTER = {"sync": "clients", "async": "clients", "kept": "far", "bodies": "far",
           "new": "far", "ports": "ports"}  # fmt: skip


def of(
    *shots: Shot, open_files: int | None = None, shown: tuple[Demonstration, ...] = ()
) -> Document:
    meant = {
        one.point.key: {
            "chapter": CHAPTER.get(one.point.key.partition("-")[0], "unbounded"),
            "what": f"what {one.point.key} is",
            "open_files": open_files,
        }
        for one in shots
    }
    return study("run", {}, {"steps": meant, "left_out": ["the moon"]}, shots, shown)


def answer(found: Document, question: str) -> Answer:
    (one,) = (finding for finding in found.findings if question in finding.question)
    return one


def test_one_after_the_other_and_all_at_once() -> None:
    found = of(shot("sync-100", connections=1, wall_s=155.0), shot("async-100-coroutines"))
    said = answer(found, "asynchronous")
    assert "took 3.10 s, hardly longer than the longest answer (3.00 s)" in said.answer
    assert "took 2m 35s, 50.0 times as long" in said.answer
    assert len(said.evidence) == 2
    assert found.valid


def test_without_the_slow_step_the_server_knows_what_it_would_take() -> None:
    said = answer(of(shot("async-100-fast", wall_s=9.0)), "asynchronous").answer
    assert "hardly" not in said
    assert "would take 2m 30s, all added up" in said


def test_the_ideal_is_a_bound_of_both_kinds() -> None:
    shared = shot("kept-1", 1000, 10, delays_s=500.0, longest_s=1.0, wall_s=55.0)
    alone = shot("kept-2", 10, 10, delays_s=5.0, longest_s=1.0, wall_s=1.1)
    meant = {"chapter": "far", "what": "", "open_files": None}
    one, other = seen((shared, alone), {"kept-1": meant, "kept-2": meant})
    assert (one.ideal_s, one.ratio) == (50.0, pytest.approx(1.1))
    assert (other.ideal_s, other.ratio) == (1.0, pytest.approx(1.1))
    assert one.memory_bytes == 20 << 20


def test_where_some_failed_there_is_no_ideal() -> None:
    failed = shot("unbounded-1", 1000, 1000, errors={"no_files": 10})
    found = of(failed, open_files=990)
    (table,) = found.tables
    row = dict(zip((column.name for column in table.columns), table.rows[0], strict=True))
    assert (row["ideal_s"], row["wall_to_ideal"]) == (None, None)
    assert (row["failed"], row["errors"]) == (10, {"no_files": 10})
    assert found.charts == ()


def test_errno_24() -> None:
    tried = shot("unbounded-10000", 10_000, 10_000, errors={"no_files": 8980, "reset": 1})
    found = of(tried, shot("bounded-10000", 10_000, 900), open_files=1024)
    said = answer(found, "without a bound").answer
    assert said.startswith("Errno 24, too many open files: 8,980 requests")
    assert "1,024 of them" in said
    assert "ulimit -n 10064" in said
    assert "what bounded-10000 is" in answer(found, "avoids").answer
    assert found.valid  # it was meant to fail


def test_a_way_out_that_is_none() -> None:
    found = of(
        shot("raised-10000", 10_000, 10_000, errors={"reset": 3}),
        shot("bounded-10000"),
        open_files=9,
    )
    assert "Not: what raised-10000 is (3 failed)" in answer(found, "avoids").answer


def test_a_machine_on_which_nothing_runs_out() -> None:
    found = of(shot("unbounded-10000", 10_000, 10_000), shot("ports-used-up"))
    assert "did not run out of files here" in answer(found, "without a bound").answer
    assert "did not run out here" in answer(found, "local ports").answer


def test_errno_99_and_both_ways_out() -> None:
    used_up = shot("ports-used-up", 800, 300, errors={"no_address": 570}, ports=(40_000, 40_199))
    found = of(used_up, shot("ports-sources"), shot("ports-reuse", errors={"no_address": 1}))
    said = answer(found, "local ports").answer
    assert said.startswith("Errno 99, cannot assign requested address: 570 requests")
    assert "200 of them" in said
    assert "300 connections" in said
    assert said.endswith("Without a failure: what ports-sources is.")


def test_the_farthest_is_the_largest_without_a_failure() -> None:
    steps = (
        shot("kept-100000", 100_000, 10_000, delays_s=50_000, longest_s=1.0, wall_s=5.5),
        shot("kept-1000000", 1_000_000, 10_000, delays_s=500_000, longest_s=1.0, wall_s=53.0),
        shot("new-1", 2_000_000, 10_000, errors={"no_address": 1}),
    )
    found = of(*steps)
    said = answer(found, "How far").answer
    assert "To 1,000,000 requests over 10,000 connections" in said
    assert "1.06 times the ideal 50.0 s, close to the best there is" in said
    assert "20.0 MB for 1,000,000 requests" in answer(found, "a million cost").answer
    (chart,) = found.charts
    assert {series.name for series in chart.series} == {"10,000 connections", "ideal"}


def test_a_slow_client_is_not_praised() -> None:
    slow = shot("kept-100000", 100_000, 10_000, delays_s=50_000, longest_s=1.0, wall_s=9.0)
    assert "close to the best there is" not in answer(of(slow), "How far").answer


def test_what_was_not_measured_is_said() -> None:
    found = of(shot("kept-100000", why_not="the load tool was ended by signal 9"))
    assert not found.valid
    assert "kept-100000 was not measured: the load tool was ended by signal 9" in found.notes
    assert "left out: the moon" in found.notes
    assert "not measured" in str(found.tables[0].rows[0])


def shown(mistake: str, form: str, **values: Any) -> Demonstration:
    known = {"asked": 100, "answers": 0, "seconds": 0.5, "requests_seen": 0, "connections_seen": 0}
    return Demonstration(f"{mistake}-{form}", mistake, form, **{**known, **values})


def test_mistakes_and_their_symptoms() -> None:
    found = of(
        shown=(
            shown("missing_await", "mistake", got={"coroutine": 100}, said={"never awaited": 100}),
            shown("missing_await", "cure", got={"int": 100}, requests_seen=100),
            shown("session_per_request", "mistake", requests_seen=100, connections_seen=100,
                  seconds=2.0, time_wait=100),
            shown("session_per_request", "cure", requests_seen=100, connections_seen=20,
                  time_wait=20),
        )
    )  # fmt: skip
    await_ = answer(found, "missing await")
    assert "100 coroutine" in await_.answer
    assert "sees 0 requests; with await it sees 100" in await_.answer
    assert "said 100 times: never awaited" in await_.evidence[0]
    session = answer(found, "session per request").answer
    assert "100 connections for 100 requests, where one session needs 20" in session
    assert "4.00 times as long" in session
    assert found.valid


def test_a_mistake_that_could_not_be_shown() -> None:
    found = of(shown=(Demonstration("k", "missing_await", "cure", why_not="aiohttp is missing"),))
    assert not found.valid
    assert found.tables == ()
    assert "k was not shown: aiohttp is missing" in found.notes


def test_what_is_no_limit_of_the_machine_is_not_explained() -> None:
    assert explained({"reset": 3, "timeout": 2}, 10, 1024, None) == []
    both = explained({"no_files": 1, "no_address": 2}, 10, None, None)
    assert [text.split(",")[0] for text in both] == ["Errno 24", "Errno 99"]
    assert causes({"b": 2, "a": 1}) == "a 1, b 2"


# --- the plan -------------------------------------------------------------------------------


@given(
    files=st.none() | st.integers(400, 1 << 20),
    tools=st.sets(st.sampled_from(["threads", "coroutines"])),
    ports=st.none() | st.just((32768, 60999)),
    quick=st.booleans(),
)
def test_steps_keep_to_the_machine(
    files: int | None, tools: set[str], ports: tuple[int, int] | None, quick: bool
) -> None:
    here = Machine(lambda tool: tool == "fast" or tool in tools, files, ports, core=None)
    chosen, _ = steps(here, quick)
    keys = [one.point.key for one in chosen]
    assert len(set(keys)) == len(keys)
    for one in chosen:
        load = one.point.load
        assert here.has(one.point.tool)
        assert load.concurrency <= here.connections
        assert one.open_files is None or files is None or one.open_files <= files
        assert load.deadline_s > 3 * predicted_s(one.point)
        if load.ports is not None and ports is not None:
            assert ports[0] <= load.ports[0] <= load.ports[1] <= ports[1]
        back = point_from_json(json.loads(json.dumps(point_to_json(one.point))))
        assert back == one.point
    assert quick is not any(one.point.load.requests == 1_000_000 for one in chosen)


def test_what_a_point_will_take() -> None:
    def point(requests: int, connections: int) -> Point:
        load = Load(connections, requests, 1.0, 60.0)
        return Point("a", Target(delay_s=(0.0, 3.0)), "fast", load)

    assert 150 <= predicted_s(point(100, 1)) <= 155
    assert 3 <= predicted_s(point(100, 100)) <= 6
    assert 150 <= predicted_s(point(100_000, 1000)) <= 155
