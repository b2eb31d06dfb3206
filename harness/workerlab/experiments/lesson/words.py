"""The texts about a step of the lesson, in a terminal and in a browser: law, answer, measurement.

If the accept queue was full, the figures cover the time in which every client had a request in
flight, as on the live page: throughput of the steady window, and mean response time by Little's
law. The mean says little then: most requests are served normally, and some wait for many seconds.
So the slowest request is reported as well, and the terminal draws the load over time.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import asdict

from workerlab.analysis.diagnosis.cpu import disturbance
from workerlab.analysis.diagnosis.slots import IdleWhileClientsWait
from workerlab.analysis.facts import Facts
from workerlab.analysis.handshakes import handshakes, steps_finding
from workerlab.analysis.samples import Window
from workerlab.analysis.stall import idle_time, in_flight_integral_s, whole_load
from workerlab.experiments.lesson.steps import LessonStep
from workerlab.model import Breakdown, CellResult
from workerlab.numbers.units import counted, fill, format_duration
from workerlab.report.player.places import GAVE_UP, PlacesSample
from workerlab.report.values import text

# The parts of a response time, named as in the report, in chronological order
PARTS = {
    "connect_s": "connecting",
    "accept_queue_s": "accept queue",
    "in_worker_s": "inside a worker",
    "service_s": "in the app",
}
LONG_TIMES = 2  # times the law's mean: slower responses are reported
MEAN_DIFFERS = 0.1  # share of the mean: beyond this difference, the parts are of other requests

# --- the law --------------------------------------------------------------------------------------

LITTLE = (
    "{law.rps:number} requests/s at best. By Little's law, each then takes {load.clients:#"
    " connection} / {law.rps:number} requests/s = {law.response_s:duration} on average."
)
LAW_OF_SLOTS = "The law: min({load.clients:# connection}, {slots}) / {load.delay_s:number} s = "
LAW_OF_CPU = (
    "The law: the slots allow min({load.clients:# connection}, {slots}) / {load.service_s:number} s"
    " = {law.slots_rps:number} requests/s, and the CPU min({law.server.workers:# worker},"
    " {law.cores:# core}) / {load.cpu_s:number} s = {law.cpu_rps:number}. The lower of the two is "
)
LAW_AT_RANDOM = (
    "The law: {load.rate:number} requests/s come at random.[[ The slots can serve"
    " {law.bound_rps:number}, so that they are busy {law.busy:percent} of the time.]] By queueing"
    " theory, a request then waits about {law.wait_s:duration} on average, and takes"
    " {law.response_s:duration}."
)
LAW_OF_IMPATIENCE = (
    "The law: with patient clients, each request would take {law.patient_s:duration}. These give up"
    " after {load.patience_s:duration}, but the workers serve abandoned requests, too. The queue"
    " grows, and once its wait is too long, no request is answered in time."
)


def law_in_words(step: LessonStep) -> str:
    """What the law predicts, with its numbers."""
    law, load = step.law, step.load
    slots = "unlimited slots" if law.at_once is None else counted(law.at_once, "slot")
    if law.in_vain:
        template = LAW_OF_IMPATIENCE
    elif load.is_open:
        template = LAW_AT_RANDOM
    else:
        template = (LAW_OF_CPU if load.cpu_s else LAW_OF_SLOTS) + LITTLE
    return fill(template, {"law": law, "load": load, "slots": slots})


def law_in_short(step: LessonStep) -> str:
    return Measured(step.law.rps or 0.0, step.law.response_s).short


# --- the guess ------------------------------------------------------------------------------------


def answer(step: LessonStep, guess: int | None) -> str:
    """The guess, if there is one, and the right choice."""
    right = f"{step.letters[step.right]}) {step.choices[step.right]}."
    if guess is None:
        return f"The answer: {right}"
    verdict = "That is right." if guess == step.right else f"The answer is {right}"
    return f"You guessed {step.letters[guess]}) {step.choices[guess]}. {verdict}"


# --- what was measured ----------------------------------------------------------------------------


LITTLES_LAW, CLIENTS = "in flight / throughput", "from the scheduled time of each"


class Measured(Struct, frozen=True):
    """`response_s`: the mean; None if clients give up, as the others would not represent them.
    `period`, `method`: when and how it was measured, as text. `slowest_s`: if far from the mean."""

    rps: float
    response_s: float | None
    period: str = ""
    method: str = LITTLES_LAW
    slowest_s: float | None = None

    @property
    def short(self) -> str:
        time = "{response_s:duration}" if self.slowest_s is None else "up to {slowest_s:duration}"
        return fill(f"{{rps:number}}/s[[, {time}]]", asdict(self))


BESIDE_LAW = (
    "Measured[[ {measured.period}]]: {measured.rps:number} requests/s (the law: {law.rps:number} in"
    " the long run)[[, a mean of {measured.response_s:duration} each ({measured.method}; the law:"
    " {law.response_s:duration})]]."
)


def beside_law(step: LessonStep, measured: Measured) -> str:
    return fill(BESIDE_LAW, {"measured": measured, "law": step.law})


def failures(failed: int | None) -> list[str]:
    return [f"{counted(failed, 'request')} failed."] if failed else []


def no_outcome(reason: str) -> str:
    return fill("No result: {reason:sentence}", {"reason": reason})


def parts_of(split: Breakdown) -> str:
    """The parts of a mean response time; "" if none is known."""
    return ", ".join(
        f"{name} {'under 1 ms' if spent_s < 0.001 else format_duration(spent_s)}"
        for field, name in PARTS.items()
        if (spent_s := getattr(split, field)) is not None
    )


# --- of a trial -----------------------------------------------------------------------------------


def overflowed(facts: Facts | None) -> bool:
    """Whether the server's accept queue was full and the kernel dropped packets."""
    return facts is not None and handshakes(facts).dropped


def measured(cell: CellResult, facts: Facts | None = None) -> Measured | None:
    """The figures of a trial; None if the cell is invalid."""
    settings, rps, steady = cell.trial.cell, cell.throughput_rps, facts.window if facts else None
    response_s = cell.response.mean if settings.rate else cell.breakdown.response_s
    if rps is None or response_s is None:
        return None
    period = ""
    if steady is not None and not settings.rate:
        length, clients = format_duration(steady.length_s), counted(settings.concurrency, "client")
        period = f"over {length}, in which each of {clients} had a request under way"
    if facts is not None and steady is not None and overflowed(facts):
        mean_s = in_flight_integral_s(facts, steady) / steady.completed
        slowest_s = max(_took_s(facts), default=None)
        return Measured(steady.rps, mean_s, period, slowest_s=slowest_s)
    stalled = any(isinstance(finding, IdleWhileClientsWait) for finding in cell.findings)
    if stalled and not settings.rate:
        period = "over the whole load"
    method = CLIENTS if settings.rate else LITTLES_LAW
    return Measured(rps, response_s, period, method)


def outcome(step: LessonStep, cell: CellResult, facts: Facts | None = None) -> list[str]:
    """What was measured, compared to the law; what a full queue did, or where the time was spent;
    and disturbances."""
    figures = measured(cell, facts)
    if figures is None:
        return [no_outcome(text(cell.reason))]
    lines = [beside_law(step, figures), *failures(cell.failed)]
    if facts is not None and overflowed(facts):
        lines += _full(facts)
    else:
        lines += [
            fill(IDLE, asdict(diagnosis.stall))
            for diagnosis in cell.findings
            if isinstance(diagnosis, IdleWhileClientsWait)
        ]
        if parts := parts_of(cell.breakdown):
            lines.append(f"Where a request spent its time: {parts}.")
    others = None if facts is None else disturbance(facts)
    return lines if others is None else [*lines, text(others)]


IDLE = "For {idle_s:duration} of {load_s:duration} slots were idle while clients waited."
IDLE_AT_END = (
    "At the end, in the last {load_s:duration}, some clients had nothing more to send: for"
    " {idle_s:duration} of it slots were idle while others still waited."
)
QUEUE_FULL = (
    "The accept queue was full: the kernel dropped {drops:# packet} (SYNs, and last ACKs of"
    " handshakes)[[, and clients sent a SYN again {repeats:# time}]][[; {steps}]]."
)


def _full(facts: Facts) -> Iterator[str]:
    """The effects of a full accept queue, which means would hide."""
    counts = handshakes(facts)
    syn_steps = steps_finding(counts)
    values = {
        "drops": counts.counters.listen_overflows or 0,
        "repeats": counts.counters.syn_retransmits,
        "steps": syn_steps and text(syn_steps),
    }
    yield fill(QUEUE_FULL, values)
    whole, steady = whole_load(facts), facts.window
    if whole is not None and steady is not None and whole.closes_ns > steady.closes_ns:
        end = idle_time(facts, Window(steady.closes_ns, whole.closes_ns, whole.rps))
        yield fill(IDLE_AT_END, {"idle_s": end.idle_s, "load_s": end.load_s})
    if took_s := _took_s(facts):
        fastest, slowest = format_duration(min(took_s)), format_duration(max(took_s))
        yield f"Of all requests, the fastest took {fastest}, the slowest {slowest}."


def _took_s(facts: Facts) -> list[float]:
    return [timing.end_s for timing in facts.measurement.timings if timing.end_s is not None]


# --- of a live load -------------------------------------------------------------------------------


class LiveFigures(Struct, frozen=True):
    """Recent figures of a live load. `slowest_s`: of answered and waiting requests;
    `slowest_waits`: it still waits. `fastest_s`: the fastest answer; `where`: mean time of the
    answers in each part; `answered`: their number. `wasted`: requests served although their clients
    had given up."""

    sample: PlacesSample
    slowest_s: float | None
    fastest_s: float | None
    where: Breakdown | None = None
    answered: int = 0
    wasted: int = 0
    slowest_waits: bool = False


SLOWEST_WAITS = (
    "In that time, the fastest answer took {fastest_s:duration}; one request has waited for"
    " {slowest_s:duration}, and is not answered yet."
)
SLOWEST_ANSWERED = (
    "In that time, the fastest answer took {fastest_s:duration}, the slowest {slowest_s:duration}."
)
IN_VAIN = (
    "Measured in the last {over_s:duration}: {rps:number} requests/s answered in time (the law: 0)."
    " Meanwhile the workers served {wasted:# request} of clients that had given up."
)
GIVEN_UP = (
    "In all, {answered:# request} {answered:was/were} answered in time, and clients gave up"
    " {gave_up:# time}."
)


def live_outcome(
    step: LessonStep, figures: LiveFigures, over_s: float
) -> tuple[Measured | None, list[str]]:
    """Figures of the last `over_s` seconds, None if nothing was answered; and their text."""
    sample, slowest_s, law = figures.sample, figures.slowest_s, step.law
    if law.in_vain:
        gave_up = sample.causes.get(GAVE_UP, 0)
        measured = Measured(figures.answered / over_s, None)
        values = {"over_s": over_s, "rps": measured.rps, "wasted": figures.wasted}
        counts = {"answered": sample.answered, "gave_up": gave_up}
        others = failures(sample.failed - gave_up)
        return measured, [fill(IN_VAIN, values), fill(GIVEN_UP, counts), *others]
    if not sample.rps:
        return None, failures(sample.failed) or [no_outcome("there was no answer")]
    if step.load.is_open or slowest_s is None or slowest_s <= LONG_TIMES * law.patient_s:
        slowest_s = None
    period = f"in the last {format_duration(over_s)}"
    measured = Measured(sample.rps, sample.mean, period, slowest_s=slowest_s)
    lines = [beside_law(step, measured)]
    if slowest_s is not None and figures.fastest_s is not None:
        template = SLOWEST_WAITS if figures.slowest_waits else SLOWEST_ANSWERED
        lines.append(fill(template, asdict(figures)))
    return measured, [*lines, *parts_of_answered(figures), *failures(sample.failed)]


def parts_of_answered(figures: LiveFigures) -> list[str]:
    """Empty if the mean differs from the sum of its parts: it includes waiting requests."""
    split, mean_s = figures.where, figures.sample.mean
    if split is None or mean_s is None:
        return []
    spent_s = sum(getattr(split, part) or 0.0 for part in PARTS)
    if abs(spent_s - mean_s) >= MEAN_DIFFERS * mean_s:
        return []
    mean, parts = format_duration(spent_s), parts_of(split)
    return [f"Of the requests answered in that time, the mean is {mean}: {parts}."]


# --- at the end -----------------------------------------------------------------------------------


class StepOutcome(Struct, frozen=True):
    """`guess`: index of a choice, None for none; `left_out`: the step cannot run here."""

    step: LessonStep
    guess: int | None = None
    measured: Measured | None = None
    left_out: bool = False

    @property
    def numbers(self) -> tuple[str, str]:
        """The figures of the law and of the measurement, as short texts."""
        if self.left_out:
            return law_in_short(self.step), "left out"
        return law_in_short(self.step), self.measured.short if self.measured else "-"

    def row(self, choices: Sequence[str]) -> tuple[str, str | None, str, str, str]:
        """Title, guess (None: no guess), right, law, measured; `choices`: their names."""
        guess = None if self.guess is None else choices[self.guess]
        return (self.step.title, guess, choices[self.step.right], *self.numbers)


def score(outcomes: Iterable[StepOutcome]) -> str:
    """How many guesses were right, of the steps that could run; "" without guesses."""
    correct = [
        outcome.guess == outcome.step.right
        for outcome in outcomes
        if outcome.guess is not None and not outcome.left_out
    ]
    template = "{right} of {of:# guess/guesses} {right:was/were} right."
    return fill(template, {"right": sum(correct), "of": len(correct)}) if correct else ""
