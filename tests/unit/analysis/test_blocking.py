"""Lines of code that block the event loop, from synthetic stack samples."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.builders.analysis import derived, evidence, server, with_spans
from workerlab.analysis.diagnosis.blocking import BlockingLine, blocking_lines
from workerlab.model.evidence import CodeLine, Stacks, StackSample
from workerlab.report.values import text

MS = 1_000_000
TRIAL = evidence(server("asgi", 2), 8, slots=[8])
LINES = {
    2: CodeLine(2, "orders.py", 42, "total", "time.sleep"),
    3: CodeLine(3, "orders.py", 50, "rows", "", "json.encoder.encode"),
    4: CodeLine(4, "orders.py", 51, "rows"),
    5: CodeLine(5, "pool/api.py", 7, "Pool.get", "wait", "threading.wait", app=False),
}


def sample(number: int = 0, other: int = 0, *, asleep: bool = True, **ms: float) -> StackSample:
    """10 ms long, on line `number`; other times in ms."""
    cells = {f"{name}_ns": round(value * MS) for name, value in ms.items()}
    base = StackSample(0, 10 * MS, *[0] * 4, 0, 0, 2 * MS, *[0] * 4, int(asleep), number, other)
    return replace(base, **cells)


def lines_of(*samples: StackSample, interval: int = 10) -> tuple[BlockingLine, ...]:
    """The lines of a load in which one in `interval` samples is one of these, in turn; in the
    others, the loop is idle."""
    stack_samples, at_ns = list[StackSample](), derived(TRIAL).window.opens_ns
    for number in range(300):
        turn, idle = divmod(number, interval)
        latest = sample() if idle else samples[turn % len(samples)]
        at_ns += latest.length_ns
        stack_samples.append(replace(latest, at_ns=at_ns))
    return blocking_lines(derived(replace(TRIAL, stacks=Stacks(100, tuple(stack_samples), LINES))))


def kinds_of(*samples: StackSample, interval: int = 10) -> list[str]:
    return [line.how for line in lines_of(*samples, interval=interval)]


SLEEPS = sample(2, overdue=20, since=25, stuck=20)
COMPUTES = sample(3, asleep=False, overdue=20, since=25, cpu=25, stuck=10, ran=10)
HOLDS = sample(2, asleep=False, length=40, late=30, overdue=35, since=40, cpu=38, ran=38)


def test_a_line_that_sleeps_blocks_the_loop() -> None:
    (blocking,) = lines_of(SLEEPS)
    assert blocking.trials == (TRIAL.trial.key,)
    assert text(blocking) == (
        "orders.py line 42 in total() blocks the event loop 10 % of the time, for 25.0 ms per"
        " request on average; it calls time.sleep; the loop is delayed by up to 25.0 ms."
    )


def test_consecutive_short_calls_are_reported_as_several() -> None:
    (blocking,) = lines_of(replace(SLEEPS, since_ns=390 * MS, stuck_ns=20 * MS))
    assert text(blocking).endswith(
        "the loop is delayed by up to 390 ms, in several calls in a row of at most 30.0 ms each."
    )


def test_the_lines_of_a_computing_function_count_as_one() -> None:
    (blocking,) = lines_of(COMPUTES, COMPUTES, replace(COMPUTES, number=4))
    assert blocking.line == 50
    assert "computes on the event loop 10 % of the time" in text(blocking)


def test_a_line_that_holds_the_gil_is_reported() -> None:
    (blocking,) = lines_of(HOLDS)
    assert (blocking.how, blocking.line) == ("holds the GIL", 42)
    assert blocking.longest_s == pytest.approx(0.038)
    assert text(blocking).endswith("no other thread of its worker runs.")


def test_another_thread_that_holds_the_gil_is_reported() -> None:
    (blocking,) = lines_of(
        replace(HOLDS, number=0, other=2, ran_ns=0, cpu_ns=0, others_ran_ns=38 * MS)
    )
    assert (blocking.how, blocking.line) == ("holds the GIL", 42)
    assert text(blocking).endswith("nor its event loop: the call is made in another thread.")
    assert blocking.per_request_s is None  # no request may have made it


@pytest.mark.parametrize("cpu_field", ["ran_ns", "others_ran_ns"])
def test_few_late_samples_of_a_thread_that_computes_do_not_count(cpu_field: str) -> None:
    """Such as hashing. A sample may be late because the machine paused; two late ones are enough
    only if the thread hardly computes otherwise."""
    line = {"number": 2} if cpu_field == "ran_ns" else {"other": 2, "number": 0, "ran_ns": 0}
    held = replace(HOLDS, **line, **{cpu_field: 38 * MS})
    on_time = replace(sample(line["number"]), **{cpu_field: 9 * MS})
    assert lines_of(*[held] * 2, *[on_time] * 48, interval=5) == ()
    assert len(lines_of(*[held] * 2, *[sample()] * 28)) == 1
    assert len(lines_of(*[held] * 8, *[on_time] * 42, interval=5)) == 1


def test_a_line_of_a_library_is_marked_as_such() -> None:
    (blocking,) = lines_of(replace(SLEEPS, number=5))
    assert "(library code, not called by the app)" in text(blocking)
    assert "which waits in threading.wait" in text(blocking)


@pytest.mark.parametrize(
    "blocked_sample",
    [
        sample(2, since=4),  # the loop is on time
        replace(SLEEPS, queued_ns=18 * MS),  # the loop waited for a core
        replace(SLEEPS, sleeps=0),  # the loop is runnable
        replace(SLEEPS, others_cpu_ns=18 * MS),  # another thread computed
        replace(SLEEPS, number=0),  # in the loop itself
        replace(SLEEPS, number=1),  # lines beyond the limit
        replace(COMPUTES, stuck_ns=0),  # many short calls
        replace(COMPUTES, queued_ns=18 * MS),
        replace(HOLDS, waited_ns=30 * MS),  # the sampler had no core
        replace(HOLDS, ran_ns=11 * MS, cpu_ns=11 * MS, starved_ns=28 * MS),  # nor had the loop
    ],
)
def test_delays_not_caused_by_the_app_are_not_reported(blocked_sample: StackSample) -> None:
    assert lines_of(blocked_sample) == ()


def test_a_line_that_blocks_rarely_is_not_reported() -> None:
    assert lines_of(SLEEPS, interval=150) == ()  # two samples of 300
    assert kinds_of(SLEEPS, interval=50) == ["blocks the event loop"]


def test_a_function_is_described_by_what_it_mostly_does() -> None:
    """A thread that computes looks asleep while another machine uses its core."""
    stolen = replace(COMPUTES, cpu_ns=5 * MS, sleeps=1)
    assert kinds_of(COMPUTES, COMPUTES, stolen) == ["computes on the event loop"]


def test_lines_are_ordered_by_their_share() -> None:
    kinds = ["blocks the event loop", "computes on the event loop"]
    assert kinds_of(SLEEPS, SLEEPS, COMPUTES) == kinds


def test_a_load_without_a_steady_part_is_sampled_as_a_whole() -> None:
    short = with_spans(TRIAL, TRIAL.spans.spans[:4])
    facts = derived(short)
    assert facts.window is None
    samples = tuple(replace(SLEEPS, at_ns=facts.started_ns + n * 10 * MS) for n in range(5))
    (blocking,) = blocking_lines(derived(replace(short, stacks=Stacks(100, samples, LINES))))
    assert blocking.line == 42


def test_without_samples_there_are_no_lines() -> None:
    assert blocking_lines(derived(TRIAL)) == ()
