"""What is said of a step of the lesson, in a terminal and in a browser: law, answer, measurement.

Where the accept queue was full, the figures are of the time in which every client had a request
under way, as on the live page: throughput of the steady window, and mean response time by Little's
law. A mean says little there: most requests are served as if nothing were, and some wait for many
seconds. So the slowest request is told too, and `demo/load_course.py` has the course of the load.
"""

from collections.abc import Iterable

from msgspec import Struct

from workerlab.analysis.diagnosis.cpu import disturbance
from workerlab.analysis.diagnosis.slots import IdleWhileClientsWait
from workerlab.analysis.facts import Facts
from workerlab.analysis.handshakes import handshakes, steps
from workerlab.analysis.stall import idle, in_flight_s, whole_load
from workerlab.analysis.window import Window
from workerlab.experiments.lesson.steps import Step
from workerlab.model import Breakdown, CellResult
from workerlab.report.messages import say, text

# The parts of a response time, as the report calls them, in the order in which they pass
PARTS = {
    "connect_s": "connecting",
    "accept_queue_s": "accept queue",
    "in_worker_s": "inside a worker",
    "service_s": "in the app",
}


class Measured(Struct, frozen=True):
    """`whole`: of the whole load, of which a steady part would tell the wrong story; `kept_up_s`:
    of so many seconds in which every client had a request under way. `slowest_s`: where it is far
    from the mean. `response_s`: None where clients give up: it is of those that do not."""

    rps: float
    response_s: float | None
    whole: bool = False
    kept_up_s: float | None = None
    slowest_s: float | None = None


def law(step: Step) -> str:
    """What the law predicts, with its numbers."""
    unlimited = step.at_once is None
    slots = say("lesson.slots.unlimited" if unlimited else "lesson.slots", slots=step.at_once)
    times: dict[str, object] = {
        "rps": step.rps, "response_s": step.response_s, "service_s": step.service_s,
    }  # fmt: skip
    if step.in_vain:
        return say("lesson.law.gives_up", patient_s=step.patient_s, patience_s=step.patience_s)
    if step.rate_rps is not None:
        bound = None if step.at_once is None else step.at_once / step.service_s
        load = {"rate": step.rate_rps, "bound": bound, "busy": bound and step.rate_rps / bound}
        return say("lesson.law.random", wait_s=step.wait_s, **load, **times)
    times |= {"connections": step.cell.concurrency, "slots": slots}
    if step.cpu_rps is None:
        return say("lesson.law", delay_s=step.delay_s, **times)
    cpu = {"cpu_s": step.cpu_s, "cpu_rps": step.cpu_rps, "slots_rps": step.slots_rps}
    return say("lesson.law.cpu", workers=step.cell.server.workers, cores=step.cores, **cpu, **times)


def law_in_short(step: Step) -> str:
    return say("lesson.short", rps=step.rps, response_s=step.response_s)


def answer(step: Step, guess: int | None) -> str:
    """Which choice is right, beside the one that was guessed."""
    letter, right = step.letters[step.right], step.choices[step.right]
    if guess is None:
        return say("lesson.answer", letter=letter, right=right)
    code = "lesson.guessed.right" if guess == step.right else "lesson.guessed.other"
    said = say(code, letter=letter, right=right)
    return say("lesson.guessed", letter=step.letters[guess], guess=step.choices[guess], right=said)


def overflowed(facts: Facts | None) -> bool:
    """Whether the accept queue of this server was full, and the kernel dropped what came."""
    return facts is not None and handshakes(facts).dropped


def measured(cell: CellResult, facts: Facts | None = None) -> Measured | None:
    """None where the cell is invalid."""
    response_s = cell.breakdown.response_s
    if cell.trial.cell.rate:  # from the moment when it was due
        response_s = cell.response.mean
    if cell.throughput_rps is None or response_s is None:
        return None
    if facts is not None and overflowed(facts) and (steady := facts.window) is not None:
        mean_s = in_flight_s(facts, steady) / steady.completed
        slowest_s = max(_took_s(facts), default=None)
        return Measured(steady.rps, mean_s, kept_up_s=steady.length_s, slowest_s=slowest_s)
    stalled = any(isinstance(one, IdleWhileClientsWait) for one in cell.findings)
    steady = None if stalled or facts is None else facts.window
    kept_up_s = None if steady is None else steady.length_s
    return Measured(cell.throughput_rps, response_s, whole=stalled, kept_up_s=kept_up_s)


def measured_in_short(found: Measured | None) -> str:
    if found is None:
        return "-"
    if found.slowest_s is not None:
        return say("lesson.short.apart", rps=found.rps, slowest_s=found.slowest_s)
    return say("lesson.short", rps=found.rps, response_s=found.response_s)


def outcome(step: Step, cell: CellResult, facts: Facts | None = None) -> list[str]:
    """What was measured beside what the law says; what became of a full queue; where the time
    went."""
    found = measured(cell, facts)
    if found is None:
        return [say("lesson.nothing", reason=text(cell.reason))]
    lines = [
        say(
            "lesson.measured.random" if step.rate_rps else "lesson.measured",
            over=say("lesson.over_whole") if found.whole else "",
            kept_up_s=found.kept_up_s,
            connections=step.cell.concurrency,
            rps=found.rps,
            response_s=found.response_s,
            law_rps=step.rps,
            law_s=step.response_s,
        )
    ]
    lines += [say("lesson.failed", failed=cell.failed)] if cell.failed else []
    if facts is not None and overflowed(facts):
        lines += _full(facts)
    else:
        lines += [
            say("lesson.idle", idle_s=diagnosis.stall.idle_s, load_s=diagnosis.stall.load_s)
            for diagnosis in cell.findings
            if isinstance(diagnosis, IdleWhileClientsWait)
        ]
        lines += where(cell.breakdown)
    others = None if facts is None else disturbance(facts)
    return lines if others is None else [*lines, text(others)]


def where(split: Breakdown, answered: bool = False) -> Iterable[str]:
    """Where a request spent its time, on average. `answered`: of those answered while it was
    measured, whose mean is not that of all under way."""
    spent = {name: getattr(split, field) for field, name in PARTS.items()}
    spent = {name: spent_s for name, spent_s in spent.items() if spent_s is not None}
    parts = [
        say("lesson.part" if spent_s >= 0.001 else "lesson.part.none", name=name, spent_s=spent_s)
        for name, spent_s in spent.items()
    ]
    if parts:
        code = "lesson.parts.answered" if answered else "lesson.parts"
        yield say(code, parts=parts, mean_s=sum(spent.values()))


def _full(facts: Facts) -> Iterable[str]:
    """What a full accept queue did, which means would hide."""
    found = handshakes(facts)
    seen = steps(found)
    yield say(
        "lesson.full",
        drops=found.counters.listen_overflows or 0,
        repeats=found.counters.syn_retransmits,
        steps=seen and text(seen),
    )
    whole, steady = whole_load(facts), facts.window
    if whole is not None and steady is not None and whole.closes_ns > steady.closes_ns:
        end = idle(facts, Window(steady.closes_ns, whole.closes_ns, whole.rps))
        yield say("lesson.idle.end", idle_s=end.idle_s, load_s=end.load_s)
    if took_s := _took_s(facts):
        yield say("lesson.apart", fastest_s=min(took_s), slowest_s=max(took_s))


def _took_s(facts: Facts) -> list[float]:
    return [one.end_s for one in facts.measurement.timings if one.end_s is not None]


# --- at the end -----------------------------------------------------------------------------------


class Told(Struct, frozen=True):
    """What came of a step. `guess`: of its choices, None for none; `left_out`: it cannot be run
    here."""

    step: Step
    guess: int | None = None
    measured: Measured | None = None
    left_out: bool = False

    @property
    def row(self) -> tuple[str, str, str, str, str]:
        """Title, guess, right, law, measured: the choices by their letters."""
        guess = "-" if self.guess is None else self.step.letters[self.guess]
        right = self.step.letters[self.step.right]
        return (self.step.title, guess, right, law_in_short(self.step), self.found)

    @property
    def in_words(self) -> tuple[str, str | None, str, str, str]:
        """The same with the choices' own words; None: no guess."""
        title, _, _, *numbers = self.row
        guess = None if self.guess is None else self.step.choices[self.guess]
        return (title, guess, self.step.choices[self.step.right], numbers[0], numbers[1])

    @property
    def found(self) -> str:
        """What was measured, in short."""
        return say("lesson.left_out") if self.left_out else measured_in_short(self.measured)


def score(told: Iterable[Told]) -> str:
    """Of the steps that were measured; "" where nobody guessed."""
    made = [each for each in told if each.guess is not None and not each.left_out]
    guesses = [each.guess == each.step.right for each in made]
    return say("lesson.score", right=sum(guesses), of=len(guesses)) if guesses else ""
