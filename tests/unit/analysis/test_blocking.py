"""Which lines hold up the loop, from samples that are made up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.builders.analysis import derived, evidence, server, with_spans
from workerlab.analysis.diagnosis.loop import BlockingLine, blocking_lines
from workerlab.model import CodeLine, Stacks, StackSample
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
    """10 ms after the one before; on the line `number`."""
    cells = {f"{name}_ns": round(value * MS) for name, value in ms.items()}
    base = StackSample(0, 10 * MS, *[0] * 4, 0, 0, 2 * MS, *[0] * 4, int(asleep), number, other)
    return replace(base, **cells)  # type: ignore[arg-type]


def lines_of(*samples: StackSample, each: int = 10) -> tuple[BlockingLine, ...]:
    """Of a load in which every `each`-th sample is one of these, and the loop else idle."""
    found, at_ns = list[StackSample](), derived(TRIAL).window.opens_ns  # type: ignore[union-attr]
    for number in range(300):
        one = samples[number // each % len(samples)] if number % each == 0 else sample()
        at_ns += one.length_ns
        found.append(replace(one, at_ns=at_ns))
    return blocking_lines(derived(replace(TRIAL, stacks=Stacks(100, tuple(found), LINES))))


SLEEPS = sample(2, overdue=20, since=25, stuck=20)
COMPUTES = sample(3, asleep=False, overdue=20, since=25, cpu=25, stuck=10, ran=10)
HOLDS = sample(2, asleep=False, length=40, late=30, overdue=35, since=40, cpu=38, ran=38)


def test_a_line_that_sleeps() -> None:
    (found,) = lines_of(SLEEPS)
    assert found.how == "blocks the event loop"
    assert (found.file, found.line) == ("orders.py", 42)
    assert found.share == pytest.approx(0.1, abs=0.01)
    assert found.longest_s == 0.025
    assert found.trials == (TRIAL.trial.key,)
    assert text(found) == (
        "orders.py line 42 in total() blocks the event loop 10 % of the time; it calls time.sleep;"
        " the loop is held up for up to 25.0 ms."
    )


def test_many_calls_in_a_row_are_not_one_long_one() -> None:
    (found,) = lines_of(replace(SLEEPS, since_ns=390 * MS, stuck_ns=20 * MS))
    assert text(found).endswith(
        "the loop is held up for up to 390 ms, by several calls in a row of at most 30.0 ms each."
    )


def test_a_function_that_computes_is_one_however_many_its_lines() -> None:
    (found,) = lines_of(COMPUTES, COMPUTES, replace(COMPUTES, number=4))
    assert found.how == "computes on the event loop"
    assert found.line == 50
    assert found.share == pytest.approx(0.1, abs=0.01)
    assert "computes on the event loop 10 % of the time" in text(found)


def test_a_line_that_holds_the_gil() -> None:
    (found,) = lines_of(HOLDS)
    assert (found.how, found.line) == ("holds the GIL", 42)
    assert found.longest_s == pytest.approx(0.038)
    assert text(found).endswith("no other thread of its worker runs.")


def test_another_thread_that_holds_the_gil() -> None:
    other = replace(HOLDS, number=0, other=2, ran_ns=0, cpu_ns=0, others_ran_ns=38 * MS)
    (found,) = lines_of(other)
    assert (found.how, found.line) == ("holds the GIL", 42)
    assert text(found).endswith("nor its event loop: the call is made in another thread.")


@pytest.mark.parametrize("mine", ["ran_ns", "others_ran_ns"])
def test_few_late_looks_at_a_thread_that_mostly_computes_without_the_gil(mine: str) -> None:
    """Hashes, of which a look is late now and then: a machine may stop for a moment. Where a thread
    hardly computes but while the look is late, two are enough."""
    line = {"number": 2} if mine == "ran_ns" else {"other": 2, "number": 0, "ran_ns": 0}
    held = replace(HOLDS, **line, **{mine: 38 * MS})  # type: ignore[arg-type]
    in_time = replace(sample(**{"number": 2} if mine == "ran_ns" else {}), **{mine: 9 * MS})  # type: ignore[arg-type]
    assert lines_of(*[held] * 2, *[in_time] * 48, each=5) == ()
    assert len(lines_of(*[held] * 2, *[sample()] * 28)) == 1
    assert len(lines_of(*[held] * 8, *[in_time] * 42, each=5)) == 1


def test_a_line_of_a_library() -> None:
    (found,) = lines_of(replace(SLEEPS, number=5))
    assert "(library code, not called by the app)" in text(found)
    assert "which waits in threading.wait" in text(found)


@pytest.mark.parametrize(
    "one",
    [
        sample(2, since=4),  # the loop is in time
        replace(SLEEPS, queued_ns=18 * MS),  # it waited for a core
        replace(SLEEPS, sleeps=0),  # it waits for one
        replace(SLEEPS, others_cpu_ns=18 * MS),  # another thread computed
        replace(SLEEPS, number=0),  # in the loop itself
        replace(SLEEPS, number=1),  # one line too many
        replace(COMPUTES, stuck_ns=0),  # many short calls
        replace(COMPUTES, queued_ns=18 * MS),
        replace(HOLDS, waited_ns=30 * MS),  # the sampler had no core
        replace(HOLDS, ran_ns=11 * MS, cpu_ns=11 * MS, starved_ns=28 * MS),  # nor had the loop
    ],
)
def test_what_is_no_doing_of_the_app(one: StackSample) -> None:
    assert lines_of(one) == ()


def test_too_little_to_matter() -> None:
    assert lines_of(SLEEPS, each=150) == ()  # two samples of 300
    assert [item.how for item in lines_of(SLEEPS, each=50)] == ["blocks the event loop"]


def test_what_a_function_mostly_does() -> None:
    """Where the host had the core, its computing looks like sleep."""
    stolen = replace(COMPUTES, cpu_ns=5 * MS, sleeps=1)
    assert [item.how for item in lines_of(COMPUTES, COMPUTES, stolen)] == [
        "computes on the event loop"
    ]


def test_two_lines() -> None:
    found = lines_of(SLEEPS, SLEEPS, COMPUTES)
    assert [item.how for item in found] == ["blocks the event loop", "computes on the event loop"]


def test_a_load_too_short_for_a_steady_part() -> None:
    """A line that lets hardly any request through."""
    short = with_spans(TRIAL, TRIAL.spans.spans[:4])
    facts = derived(short)
    assert facts.window is None
    samples = (replace(SLEEPS, at_ns=facts.started_ns + n * 10 * MS) for n in range(5))
    stacks = Stacks(100, tuple(samples), LINES)
    assert [
        blocking_line.line
        for blocking_line in blocking_lines(derived(replace(short, stacks=stacks)))
    ] == [42]


def test_nothing_was_looked_at() -> None:
    assert blocking_lines(derived(TRIAL)) == ()
