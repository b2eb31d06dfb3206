"""What the comparison of generators concludes, on trials whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.evidence import TrialData
from harness.experiments.generators.document import study
from harness.experiments.generators.findings import findings
from harness.experiments.generators.usage import Way, way_of
from harness.model import (
    Fault,
    Load,
    Measurement,
    NullCounts,
    NullServer,
    Observations,
    ProcessSample,
    Record,
    Summary,
)
from harness.plan import null_plan
from tests.builders.null import null_trial

NS = 1_000_000_000
STEP_S = 0.25
BEFORE_S = 1.5  # that a tool takes until it sends


def trial(
    tool: str = "fast",
    connections: int = 10,
    *,
    rps: float = 1000.0,
    cores: float = 0.5,
    server: float = 0.1,
    others: float = 0.0,
    low: bool = False,
    processes: int = 1,
    start_cpu_s: float = 1.2,
    duration_s: float = 4.0,
    origin: bool = True,
    p50_s: float = 0.002,
    served_s: float = 0.00001,
) -> TrialData:
    """A tool that starts up for BEFORE_S with `start_cpu_s` of CPU, then loads steadily."""
    key = f"{'low' if low else 'full'}-{tool}-{connections}"
    load = Load(connections, 1, duration_s, 60.0, keepalive=True, processes=processes, timed=True)
    begin_ns = 50 * NS
    samples = []
    for number in range(int((BEFORE_S + duration_s) / STEP_S) + 1):
        at_s = number * STEP_S
        loaded_s = max(0.0, at_s - BEFORE_S)
        tool_s = start_cpu_s * min(1.0, at_s / BEFORE_S) + cores * loaded_s
        samples.append(
            ProcessSample(
                at_ns=begin_ns + round(at_s * NS),
                server_cpu_s=server * loaded_s,
                tool_cpu_s=tool_s,
                host_busy_s=tool_s + (server + others) * loaded_s,
                server_rss_bytes=1 << 20,
                tool_rss_bytes=(10 + number) << 20,
                host_memory_bytes=1 << 30,
            )
        )
    requests = round(rps * duration_s)
    return null_trial(
        key,
        tool,
        load,
        null=NullServer(delay_s=(0.05, 0.05) if low else (0.0, 0.0), core=1),
        record=Record(
            key=f"{key}-1",
            fault=None,
            load_start_ns=begin_ns,
            load_end_ns=begin_ns + round((BEFORE_S + duration_s) * NS),
            tool_cpu_s=start_cpu_s + cores * duration_s,
        ),
        measurement=Measurement(
            requests=requests,
            failed=0,
            errors={},
            duration_s=duration_s,
            rps=rps,
            response=Summary(mean=p50_s, p50=p50_s, p99=2 * p50_s),
            origin_ns=begin_ns + round(BEFORE_S * NS) if origin else None,
        ),
        counts=NullCounts(
            requests=requests,
            answers=requests,
            connections=connections,
            most_connections=connections,
            cpu_s=server * duration_s,
            delays_s=0.0,
            service=Summary(mean=served_s, p50=served_s, p99=served_s),
        ),
        observations=Observations(processes=tuple(samples), cores=2),
    )


def way(data: TrialData) -> Way:
    found = way_of(data)
    assert found is not None
    return found


PLAN = null_plan("generators", (), (), {"server_core": 1, "keepalive": True})
FOUR = (
    trial("threads", 1, rps=1000, cores=0.9),
    trial("threads", 10, rps=1050, cores=1.02),
    trial("processes", 1, rps=900, cores=0.9),
    trial("processes", 10, rps=1700, cores=1.7),
    trial("coroutines", 10, rps=4000, cores=1.0),
    trial("fast", 10, rps=60_000, cores=1.0, server=0.95),
    trial("coroutines", 25, low=True, rps=490, cores=0.15),
    trial("threads", 25, low=True, rps=480, cores=0.4),
    trial("fast", 25, low=True, rps=495, cores=0.01),
)


def answers(trials: tuple[TrialData, ...] = FOUR, cores: int = 2) -> dict[str, str]:
    found = study("a run", {"cores": cores}, PLAN, trials)
    return {one.question: one.answer for one in found.findings}


# --- one way ----------------------------------------------------------------------------------


@given(
    cores=st.floats(0.01, 1.9),
    rps=st.floats(10, 90_000),
    start_cpu_s=st.floats(0, 3),
    origin=st.booleans(),
)
def test_cpu_per_request_is_that_of_the_load_alone(
    cores: float, rps: float, start_cpu_s: float, origin: bool
) -> None:
    """However long it takes to start, and whether or not it says when it began."""
    found = way(trial(rps=rps, cores=cores, start_cpu_s=start_cpu_s, origin=origin))
    answered = round(rps * 4.0) / 4.0
    assert found.cores == pytest.approx(cores, abs=1e-6)
    assert found.cpu_per_request_s == pytest.approx(cores / answered, rel=1e-6)
    assert found.cpu_s == pytest.approx(start_cpu_s + 4 * cores)


def test_what_others_used_is_seen() -> None:
    assert way(trial(others=0.7)).others_cores == pytest.approx(0.7)
    assert way(trial()).others_cores == pytest.approx(0.0, abs=1e-9)


def test_too_few_samples_say_nothing() -> None:
    one = trial()
    seen = replace(one.observations, processes=one.observations.processes[:2])
    found = way(replace(one, observations=seen))
    assert found.cores is None
    assert found.cpu_per_request_s is None
    assert found.rps == 1000.0


def test_what_was_not_observed_is_missing() -> None:
    one = trial()
    seen = replace(one.observations, missing={"processes": "it died"})
    found = way(replace(one, observations=seen))
    assert (found.cores, found.memory_bytes, found.host_busy) == (None, None, None)


def test_the_own_error_is_believed_less_served() -> None:
    found = way(trial(p50_s=0.052, served_s=0.050))
    assert found.own_error_s("p50") == pytest.approx(0.002)
    assert found.own_error_s("p99") == pytest.approx(0.054)


def test_more_answers_than_were_sent_are_doubted() -> None:
    one = trial()
    assert one.null is not None
    found = way(replace(one, null=replace(one.null, answers=3000)))
    assert found.doubt == "it counts 4000 answers, the server sent 3000: one of them is wrong"
    assert not study("r", {}, PLAN, (replace(one, null=None),)).valid


# --- conclusions ------------------------------------------------------------------------------


def test_who_needs_least_at_a_low_rate() -> None:
    answer = answers()["Who needs the least CPU at a low rate?"]
    assert answer.startswith("At 495 requests/s fast: 20.2 us of CPU per request.")
    assert "Of the ways to write one in Python coroutines (306 us), then threads (833 us)" in answer


def test_what_the_clock_cannot_tell_apart_is_said() -> None:
    trials = (
        trial("fast", 25, low=True, rps=495, cores=0.010),
        trial("wrk", 25, low=True, rps=495, cores=0.011),
    )
    answer = answers(trials)["Who needs the least CPU at a low rate?"]
    assert "fast and wrk" in answer
    assert "does not tell them apart" in answer


def test_who_did_not_keep_the_low_rate_does_not_win() -> None:
    trials = (*FOUR, trial("ab", 25, low=True, rps=100, cores=0.0001))
    assert answers(trials)["Who needs the least CPU at a low rate?"].startswith(
        "At 495 requests/s f"
    )


def test_who_sends_most_and_that_a_busy_server_makes_it_a_lower_bound() -> None:
    answer = answers()["Who sends the most at a high rate?"]
    assert answer.startswith("fast: 60 000 requests/s at 10 connections with 1.00 cores, at least:")
    assert "coroutines: 4000 requests/s" in answer
    assert "a lower bound, as the server was busy" in answers()["Where is a second machine needed?"]


def test_the_gil_shows_in_threads_that_do_not_grow() -> None:
    answer = answers()["Where does the GIL show?"]
    assert answer == (
        "In the threads: 10 threads send 1.05 times as much as 1, with at most 1.02 cores;"
        " processes used 1.70."
    )


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ((trial("threads", 1), trial("threads", 10, rps=1900, cores=1.0)), "Not here: 10 threads"),
        ((trial("threads", 1), trial("threads", 10, rps=1050, cores=1.8)), "do not use that many"),
        ((trial("threads", 1), trial("threads", 10, others=0.6)), "Cannot be said here: other"),
        ((trial("threads", 1),), "Cannot be said: it takes threads at two levels"),
    ],
)
def test_the_gil_is_not_seen_where_it_does_not_show(
    changed: tuple[TrialData, ...], says: str
) -> None:
    trials = (*changed, trial("processes", 1), trial("processes", 10, rps=1800, cores=1.7))
    assert says in answers(trials)["Where does the GIL show?"]


def test_one_core_cannot_show_the_gil() -> None:
    trials = (
        trial("threads", 1), trial("threads", 10, cores=0.8), trial("processes", 10, cores=0.8),
    )  # fmt: skip
    answer = answers(trials, cores=1)["Where does the GIL show?"]
    assert answer.startswith("Cannot be said here")
    assert "processes used no more than 0.80 either; this machine has 1 core." in answer


def test_a_busy_server_says_nothing_about_belief() -> None:
    trials = (trial("fast", 10, rps=60_000, server=0.97),)
    assert answers(trials)["Whose response times are its own queueing?"].startswith(
        "Cannot be said"
    )


def test_nothing_measured_is_nothing_concluded() -> None:
    for finding in findings((), (), None):
        assert finding.answer.startswith("Cannot be said")


# --- the study --------------------------------------------------------------------------------


def test_tables_hold_every_way_and_notes_every_gap() -> None:
    broken = replace(
        trial("locust", 10),
        measurement=None,
        record=Record("full-locust-10-1", Fault("tool", "it died")),
    )
    plan = replace(PLAN, notes=("left out: ab is not installed. Install it.",))
    found = study("a run", {"cores": 2}, plan, (*FOUR, broken))
    assert [len(table.rows) for table in found.tables] == [6, 6, 3, 3]
    assert not found.valid
    assert "left out: ab is not installed. Install it." in found.notes
    assert "locust at 10 connections was not measured: it died" in found.notes
    assert study("a run", {"cores": 2}, plan, FOUR).valid


def test_a_column_per_value() -> None:
    for table in study("a run", {"cores": 2}, PLAN, FOUR).tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert len({column.name for column in table.columns}) == len(table.columns)
