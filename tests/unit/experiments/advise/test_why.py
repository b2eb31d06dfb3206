"""Why a launch missed the target, and when the server is not the reason."""

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.analysis import cell_of, derived, ns, with_observations
from tests.builders.open_model import open_trial
from workerlab import slo
from workerlab.analysis.diagnosis.blocking import BlockingLine
from workerlab.analysis.target import requests_of
from workerlab.experiments.advise import answers
from workerlab.experiments.advise.candidates import Limits
from workerlab.experiments.advise.result import BlockingCall, limit_of
from workerlab.experiments.advise.search import SLOW_ALONE_RATIO, SlowAlone, slow_alone
from workerlab.experiments.advise.study import LaunchPaused, ToolLate, _delay, launch_of
from workerlab.finding import Note
from workerlab.model.evidence import Pause, Summary
from workerlab.model.plan import Rate, Server
from workerlab.model.result import Breakdown, Needs, RequestNeed, Usage

BOTH = slo.parse("p95<100ms,errors<0.1%")
BUSY = Usage(server_cores=0.4, generator_cores=0.2, host_busy=0.33)


def launch(
    times_s: list[float], failed: int = 0, verdict: str = "below capacity", lag_s: float = 0.0
) -> Any:
    cell = SimpleNamespace(
        verdict=verdict, diagnosis=None, reason=Note("at capacity"), usage=BUSY,
        core_wait=None, occupancy=None, at_rate=SimpleNamespace(lag=Summary(p95=lag_s)),
    )  # fmt: skip
    facts = SimpleNamespace(outcome=SimpleNamespace(errors={"non_2xx": failed} if failed else {}))
    return SimpleNamespace(
        cell=cell, result=cell, facts=facts, failed=failed, due=len(times_s) + failed, rps=40.0,
        requests=requests_of(sorted(times_s), failed, 40.0),
    )  # fmt: skip


def needs_of(wait_s: float, cpu_s: float) -> Needs:
    return Needs("", (RequestNeed(wait_s, cpu_s),) * 100, 0.0, 0.0)


def result(
    needs: Needs | None, target: str = "p95<100ms", target_rps: float = 20.0, **changes: Any
) -> Any:
    """The result of a search without a ceiling or blocking calls, for a target that is missed."""
    values = {
        "search": SimpleNamespace(slow_in_all_classes=lambda: False, expected={}, servers=(),
                                  target_rps=target_rps, terms=slo.parse(target)),
        "standing": SimpleNamespace(word="broken"),
        "study": SimpleNamespace(ceiling=None, blocking={}),
        "limits": Limits(cores=2),
        "needs": needs,
        "server": Server("asgi", 1, 1, 2048, 1000),
        "failing_launch": None,
    }  # fmt: skip
    return SimpleNamespace(**{**values, **changes})


def reasons(launch: Any, target: str, pool: int | None = None) -> str:
    missed = result(needs_of(0.04, 0.001), target, limits=Limits(cores=2, max_in_flight=pool))
    return "; ".join(map(str, answers.reasons(missed, launch)))


def test_errors_are_named_without_the_machine_usage() -> None:
    text = reasons(launch([0.02] * 5000, failed=24), "p95<100ms,errors<0.1%")
    assert text.startswith("24 of 5024 requests failed (24 x ")
    assert "machine" not in text
    assert "p95" not in text


def test_a_slow_p95_is_named_with_the_usage() -> None:
    text = reasons(launch([0.2] * 100), "p95<100ms,errors<0.1%")
    assert text.startswith("p95 was 200 ms; the server used 0.4 cores")
    assert "requests failed" not in text


def test_a_full_pool_is_the_reason() -> None:
    slow = launch([0.2] * 100)
    assert reasons(slow, "p95<100ms", pool=2) == (
        "p95 was 200 ms; at this rate about 1.64 requests are in the app at once; it can handle 2"
    )
    assert "machine was 33 % busy" in reasons(slow, "p95<100ms", pool=20)


def test_a_small_margin_is_explained_by_the_usage() -> None:
    assert reasons(launch([0.02] * 100), "p95<100ms").startswith("the server used 0.4 cores")


@pytest.mark.parametrize(("lag_s", "discarded"), [(0.0, False), (0.05, False), (0.12, True)])
def test_a_launch_with_a_late_load_tool_is_discarded(lag_s: float, discarded: bool) -> None:
    reason = _delay(launch([0.2] * 100, lag_s=lag_s), slo.parse("p95<100ms"))
    assert (reason is not None) == discarded
    if reason is not None:
        assert str(reason).startswith("the load tool sent requests 120 ms late (p95)")
    # Errors are not due to the load tool
    assert _delay(launch([0.2] * 100, failed=50, lag_s=lag_s), BOTH) is None
    assert _delay(launch([0.05] * 100, lag_s=lag_s), slo.parse("p95<100ms")) is None


def test_a_launch_that_misses_the_target_in_a_machine_pause_is_discarded() -> None:
    trial = open_trial(Rate(rps=20), 20, still=(2.0, 4.0))
    with_pause = with_observations(trial, pauses=(Pause(ns(2.08), ns(4.0)),))
    for data, reason_type in ((trial, ToolLate), (with_pause, LaunchPaused)):
        cell, facts = cell_of(data), derived(data)
        assert type(launch_of(cell, facts, slo.parse("p95<500ms")).discard_reason) is reason_type
        assert launch_of(cell, facts, slo.parse("p95<5s")).discard_reason is None


@pytest.mark.parametrize(("target_rps", "most_rps"), [(20.0, None), (200.0, 250.0)])
def test_a_blocking_call_must_change(target_rps: float, most_rps: float | None) -> None:
    line = BlockingLine(
        file="orders.py", line=42, function="total", library=None, how="blocks the event loop",
        share=0.4, per_request_s=0.003, called="", inside="", effect="", longest_s=0.0136, trial="",
    )  # fmt: skip
    study = SimpleNamespace(ceiling=None, blocking={"asgi": (line,)})
    standing = SimpleNamespace(word="not shown yet")
    blocked = result(needs_of(0.04, 0.001), "p95<35ms", target_rps, study=study, standing=standing)
    answer = limit_of(blocked)
    assert isinstance(answer, BlockingCall)
    assert answer.most_rps == (most_rps and pytest.approx(most_rps))
    assert str(answer).startswith(
        "orders.py line 42 in total() blocks the event loop: for 3.00 ms per request on average, up"
        " to 13.6 ms at a stretch"
    )
    # Once launches missed the target: even without the call, these requests would take too long
    standing.word = "broken"
    assert isinstance(limit_of(blocked), SlowAlone)


def test_without_a_shortage_the_waits_of_the_failing_launch_are_named() -> None:
    failing = launch([0.02] * 90 + [0.3] * 10)
    failing.result.breakdown = Breakdown(
        response_s=0.06, connect_s=0.001, accept_queue_s=0.035, in_worker_s=0.004, service_s=0.02
    )
    sync, asgi = (Server(name, 1, 1, 2048, 1000) for name in ("sync", "asgi"))
    needs, target = needs_of(0.01, 0.01), "p95<100ms,errors<0.1%"
    late = result(needs, target, server=sync, failing_launch=failing)
    late.search.servers = (asgi,)
    assert str(limit_of(late)).startswith(
        "The waiting time under load: without any waiting, p95 would be 20.0 ms; at 40"
        " requests/s it was 300 ms. The mean of 60.0 ms includes 35.0 ms in the accept queue,"
        " 20.0 ms in the app and 4.00 ms in the worker before the app."
    )
    late.failing_launch = launch([0.02] * 100)
    assert limit_of(late) is None


def test_a_cpu_shortage_of_all_classes_is_named_without_a_launch() -> None:
    def answer(*cpu_s: float) -> object:
        needs = {str(time_s): needs_of(0.0, time_s) for time_s in cpu_s}
        study = SimpleNamespace(ceiling=None, needs=needs)
        return limit_of(result(None, target_rps=2000.0, study=study))

    shortage = "Not enough CPU: at 10.0 ms per request this rate needs"
    assert str(answer(0.01, 0.02)).startswith(shortage)
    assert answer(0.01, 0.0001) is None


@pytest.mark.parametrize(("ratio", "is_slow"), [(0.9, False), (1.1, False), (1.5, True)])
def test_requests_slightly_above_the_limit_are_decided_by_launches(
    ratio: float, *, is_slow: bool
) -> None:
    """Another program may have slowed down the short load that measured them."""
    assert 1.1 < SLOW_ALONE_RATIO < 1.5  # premise
    needs = needs_of(0.3 * ratio, 0.001)
    assert (slow_alone(needs, slo.parse("p95<300ms")) is not None) == is_slow


@pytest.mark.parametrize(
    ("wait_s", "cpu_s", "value"),
    [(1.0, 0.2, "at least 1.10 s"), (0.0, 1.0, "at least 500 ms"), (0.0, 0.5, "")],
)
def test_half_of_the_cpu_time_of_a_disturbed_load_may_be_due_to_other_programs(
    wait_s: float, cpu_s: float, value: str
) -> None:
    needs = replace(needs_of(wait_s, cpu_s), disturbed=True)
    answer = slow_alone(needs, slo.parse("p95<300ms"))
    assert (value in str(answer)) if value else answer is None


def test_only_the_slow_part_of_a_mix_takes_too_long_alone() -> None:
    fast, slow = RequestNeed(0.01, 0.001, route="home"), RequestNeed(1.0, 0.001, route="report")
    slow_home = replace(slow, route="home")
    for requests, sentence in (
        ([fast] * 80 + [slow] * 20, "20 % of the requests, all to report, take too long for p95"),
        ([fast] * 75 + [slow_home] * 5 + [slow] * 20,
         "25 % of the requests, most to report, take too long for p95"),
        ([slow] * 100, "Requests take too long for p95"),
    ):  # fmt: skip
        answer = slow_alone(Needs("", tuple(requests), 0.0, 0.0), slo.parse("p95<300ms"))
        assert str(answer).startswith(sentence)
