"""The texts about a step of the lesson, in a terminal and in a browser: law, answer, measurement.

If the accept queue was full, the figures cover the time in which every client had a request in
flight, as on the live page: throughput of the steady window, and mean response time by Little's
law. The mean then says little: most requests are served normally, and some wait for many seconds.
So the slowest request is reported as well, and the terminal draws the load over time.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import asdict

from workerlab.analysis.diagnosis.cpu import disturbance
from workerlab.analysis.diagnosis.slots import IdleWhileClientsWait
from workerlab.analysis.facts import Facts
from workerlab.analysis.handshakes import handshakes
from workerlab.analysis.samples import Window
from workerlab.analysis.stall import idle_time, requests_in_flight, whole_load
from workerlab.experiments.lesson.steps import LessonStep
from workerlab.model.result import Breakdown, Result, TrialResult
from workerlab.numbers.units import counted, fill, format_duration
from workerlab.report.player.places import GAVE_UP, PlacesSample

# The parts of a response time, named as in the report, in chronological order
PART_NAMES = {
    "connect_s": "connecting",
    "accept_queue_s": "accept queue",
    "in_worker_s": "inside a worker",
    "service_s": "in the app",
}
SLOW_RESPONSE_RATIO = 2  # times the law's mean; slower responses are reported
# A share of the mean: if the sum of the parts differs by more, they belong to other requests
MAX_MEAN_DIFFERENCE_SHARE = 0.1

# --- the law --------------------------------------------------------------------------------------

LAW_RESULT = (
    "{law.rps:number} requests/s at best. By Little's law, each then takes {load.clients:#"
    " connection} / {law.rps:number} requests/s = {law.response_s:duration} on average."
)
LAW_OF_SLOTS = "The law: min({load.clients:# connection}, {slots}) / {load.delay_s:number} s = "
LAW_OF_CPU = (
    "The law: the slots allow min({load.clients:# connection}, {slots}) / {load.service_s:number} s"
    " = {law.slots_rps:number} requests/s, and the CPU min({law.server.workers:# worker},"
    " {law.cores:# core}) / {load.cpu_s:number} s = {law.cpu_rps:number}. The lower of the two is "
)
LAW_OF_RANDOM_ARRIVALS = (
    "The law: {load.rate:number} requests/s arrive at random.[[ The slots can serve"
    " {law.bound_rps:number}, so they are busy {law.utilisation:percent} of the time.]] By queueing"
    " theory, a request then waits about {law.wait_s:duration} on average, and takes"
    " {law.response_s:duration}."
)
LAW_OF_GIVING_UP = (
    "The law: if no client gave up, each request would take {law.patient_s:duration}. These clients"
    " give up after {load.patience_s:duration}, but the workers serve abandoned requests too. The"
    " queue grows, and once the wait is too long, no request is answered in time."
)


def law_text(step: LessonStep) -> str:
    """What the law predicts, with its numbers."""
    law, load = step.law, step.load
    slots = "unlimited slots" if law.at_once is None else counted(law.at_once, "slot")
    if law.clients_give_up:
        template = LAW_OF_GIVING_UP
    elif load.is_open:
        template = LAW_OF_RANDOM_ARRIVALS
    else:
        template = (LAW_OF_CPU if load.cpu_s else LAW_OF_SLOTS) + LAW_RESULT
    return fill(template, {"law": law, "load": load, "slots": slots})


def law_summary(step: LessonStep) -> str:
    return Figures(step.law.rps or 0.0, step.law.response_s).summary


# --- the guess ------------------------------------------------------------------------------------


def answer(step: LessonStep, guess: int | None) -> str:
    """The guess, if there is one, and the right choice."""
    right = f"{step.letters[step.right]}) {step.choices[step.right]}."
    if guess is None:
        return f"The answer: {right}"
    verdict = "That is right." if guess == step.right else f"The answer is {right}"
    return f"You guessed {step.letters[guess]}) {step.choices[guess]}. {verdict}"


# --- the measurement ------------------------------------------------------------------------------


BY_LITTLES_LAW = "in flight / throughput"
FROM_SCHEDULED_TIME = "from the scheduled time of each"


class Figures(Struct, frozen=True):
    """`response_s`: the mean; None if clients give up, since the other clients would not represent
    them. `period`, `method`: when and how they were measured. `slowest_s`: set if far from
    the mean."""

    rps: float
    response_s: float | None
    period: str = ""
    method: str = BY_LITTLES_LAW
    slowest_s: float | None = None

    @property
    def summary(self) -> str:
        time = "{response_s:duration}" if self.slowest_s is None else "up to {slowest_s:duration}"
        return fill(f"{{rps:number}}/s[[, {time}]]", asdict(self))


COMPARISON = (
    "Measured[[ {figures.period}]]: {figures.rps:number} requests/s (the law: {law.rps:number} in"
    " the long run)[[, a mean of {figures.response_s:duration} each ({figures.method}; the law:"
    " {law.response_s:duration})]]."
)


def comparison(step: LessonStep, figures: Figures) -> str:
    return fill(COMPARISON, {"figures": figures, "law": step.law})


def failures(failed: int) -> list[str]:
    return [f"{counted(failed, 'request')} failed."] if failed else []


def no_result(reason: str) -> str:
    return fill("No result: {reason:sentence}", {"reason": reason})


def parts_text(breakdown: Breakdown) -> str:
    """The parts of a mean response time; "" if none is known."""
    return ", ".join(
        f"{name} {'under 1 ms' if part_s < 0.001 else format_duration(part_s)}"
        for field, name in PART_NAMES.items()
        if (part_s := getattr(breakdown, field)) is not None
    )


# --- of a trial -----------------------------------------------------------------------------------


def queue_overflowed(facts: Facts | None) -> bool:
    """Whether the server's accept queue was full and the kernel dropped packets."""
    return facts is not None and handshakes(facts).dropped


def trial_figures(cell: TrialResult, facts: Facts | None = None) -> Figures | None:
    """The figures of a trial; None if it is invalid, or has no mean response time."""
    if not isinstance(cell, Result):
        return None
    settings, rps, steady = cell.trial.cell, cell.throughput_rps, facts.window if facts else None
    response_s = cell.response.mean if settings.rate else cell.breakdown.response_s
    if response_s is None:
        return None
    period = ""
    if steady is not None and not settings.rate:
        length, clients = format_duration(steady.length_s), counted(settings.concurrency, "client")
        period = f"over {length}, in which each of {clients} had a request in flight"
    if facts is not None and steady is not None and queue_overflowed(facts):
        mean_s = requests_in_flight(facts).inside_s(steady) / steady.completed
        slowest_s = max(_response_times_s(facts), default=None)
        return Figures(rps=steady.rps, response_s=mean_s, period=period, slowest_s=slowest_s)
    stalled = any(isinstance(finding, IdleWhileClientsWait) for finding in cell.findings)
    if stalled and not settings.rate:
        period = "over the whole load"
    method = FROM_SCHEDULED_TIME if settings.rate else BY_LITTLES_LAW
    return Figures(rps=rps, response_s=response_s, period=period, method=method)


def trial_outcome(step: LessonStep, cell: TrialResult, facts: Facts | None = None) -> list[str]:
    """Sentences that compare the measurement with the law, and report the effects of a full queue
    or where the time was spent, and disturbances."""
    figures = trial_figures(cell, facts)
    if figures is None or not isinstance(cell, Result):
        return [no_result(str(cell.reason))]
    lines = [comparison(step, figures), *failures(cell.failed)]
    if facts is not None and queue_overflowed(facts):
        lines += _overflow_effects(facts)
    else:
        lines += [
            fill(IDLE, asdict(diagnosis.stall))
            for diagnosis in cell.findings
            if isinstance(diagnosis, IdleWhileClientsWait)
        ]
        if parts := parts_text(cell.breakdown):
            lines.append(f"Where a request spent its time: {parts}.")
    finding = None if facts is None else disturbance(facts)
    return lines if finding is None else [*lines, str(finding)]


IDLE = "For {idle_s:duration} of {load_s:duration}, slots were idle while clients waited."
IDLE_AT_END = (
    "In the last {load_s:duration}, some clients had nothing left to send: for {idle_s:duration} of"
    " that time, slots were idle while other clients still waited."
)
QUEUE_FULL = (
    "The accept queue was full: the kernel dropped {drops:# packet} (SYNs, and last ACKs of"
    " handshakes)[[, and clients sent a SYN again {retransmits:# time}]][[; {steps}]]."
)


def _overflow_effects(facts: Facts) -> Iterator[str]:
    """The effects of a full accept queue, which a mean would hide."""
    values = {
        "drops": facts.counters.listen_overflows or 0,
        "retransmits": facts.counters.syn_retransmits,
        "steps": handshakes(facts).steps,
    }
    yield fill(QUEUE_FULL, values)
    whole, steady = whole_load(facts), facts.window
    if whole is not None and steady is not None and whole.closes_ns > steady.closes_ns:
        end = idle_time(facts, Window(steady.closes_ns, whole.closes_ns, whole.rps))
        yield fill(IDLE_AT_END, {"idle_s": end.idle_s, "load_s": end.load_s})
    if times_s := _response_times_s(facts):
        fastest, slowest = format_duration(min(times_s)), format_duration(max(times_s))
        yield f"Of all requests, the fastest took {fastest}, the slowest {slowest}."


def _response_times_s(facts: Facts) -> list[float]:
    return [timing.end_s for timing in facts.measurement.timings if timing.end_s is not None]


# --- of a live load -------------------------------------------------------------------------------


class LiveFigures(Struct, frozen=True):
    """Recent figures of a live load. `slowest_s`: of answered and waiting requests;
    `slowest_waits`: the slowest still waits. `fastest_s`: the fastest response; `where`: mean time
    of the responses in each part; `answered`: their number. `wasted`: requests served although
    their clients had given up."""

    sample: PlacesSample
    slowest_s: float | None
    fastest_s: float | None
    where: Breakdown | None = None
    answered: int = 0
    wasted: int = 0
    slowest_waits: bool = False


SLOWEST_WAITS = (
    "In that time, the fastest response took {fastest_s:duration}; one request has waited for"
    " {slowest_s:duration} without a response."
)
SLOWEST_ANSWERED = (
    "In that time, the fastest response took {fastest_s:duration}, the slowest"
    " {slowest_s:duration}."
)
NONE_IN_TIME = (
    "Measured in the last {over_s:duration}: {rps:number} requests/s answered in time (the law: 0)."
    " Meanwhile the workers served {wasted:# request} of clients that had given up."
)
GAVE_UP_IN_ALL = (
    "In all, {answered:# request} {answered:was/were} answered in time, and clients gave up"
    " {gave_up:# time}."
)


def live_result(
    step: LessonStep, live_figures: LiveFigures, over_s: float
) -> tuple[Figures | None, list[str]]:
    """Figures of the last `over_s` seconds, None without a response; and sentences about them."""
    sample, slowest_s, law = live_figures.sample, live_figures.slowest_s, step.law
    if law.clients_give_up:
        gave_up = sample.causes.get(GAVE_UP, 0)
        rps = live_figures.answered / over_s
        lines = [
            fill(NONE_IN_TIME, {"over_s": over_s, "rps": rps, "wasted": live_figures.wasted}),
            fill(GAVE_UP_IN_ALL, {"answered": sample.answered, "gave_up": gave_up}),
        ]
        return Figures(rps, None), [*lines, *failures(sample.failed - gave_up)]
    if not sample.rps:
        return None, failures(sample.failed) or [no_result("there was no response")]
    if step.load.is_open or slowest_s is None or slowest_s <= SLOW_RESPONSE_RATIO * law.patient_s:
        slowest_s = None
    period = f"in the last {format_duration(over_s)}"
    figures = Figures(rps=sample.rps, response_s=sample.mean, period=period, slowest_s=slowest_s)
    lines = [comparison(step, figures)]
    if slowest_s is not None and live_figures.fastest_s is not None:
        template = SLOWEST_WAITS if live_figures.slowest_waits else SLOWEST_ANSWERED
        lines.append(fill(template, asdict(live_figures)))
    return figures, [*lines, *answered_parts(live_figures), *failures(sample.failed)]


def answered_parts(figures: LiveFigures) -> list[str]:
    """The parts of the mean; [] if their sum differs, since the mean covers waiting requests."""
    breakdown, mean_s = figures.where, figures.sample.mean
    if breakdown is None or mean_s is None:
        return []
    sum_s = sum(getattr(breakdown, part) or 0.0 for part in PART_NAMES)
    if abs(sum_s - mean_s) >= MAX_MEAN_DIFFERENCE_SHARE * mean_s:
        return []
    mean, parts = format_duration(sum_s), parts_text(breakdown)
    return [f"Of the requests answered in that time, the mean is {mean}: {parts}."]


# --- at the end -----------------------------------------------------------------------------------


class StepOutcome(Struct, frozen=True):
    """`guess`: index of a choice, None without a guess; `skipped`: the step cannot run here."""

    step: LessonStep
    guess: int | None = None
    figures: Figures | None = None
    skipped: bool = False

    @property
    def measured_summary(self) -> str:
        """The measured figures as a short text; "-" if there are none."""
        if self.skipped:
            return "skipped"
        return self.figures.summary if self.figures else "-"

    def row(self, choices: Sequence[str]) -> tuple[str, str | None, str, str, str]:
        """Title, guess (None: no guess), right choice, law, measurement. `choices`: their texts."""
        guess = None if self.guess is None else choices[self.guess]
        step = self.step
        return step.title, guess, choices[step.right], law_summary(step), self.measured_summary


def score(results: Iterable[StepOutcome]) -> str:
    """A sentence on how many guesses were right in the steps that could run; "" without
    guesses."""
    correct = [
        result.guess == result.step.right
        for result in results
        if result.guess is not None and not result.skipped
    ]
    template = "Correct guesses: {right} of {of}."
    return fill(template, {"right": sum(correct), "of": len(correct)}) if correct else ""
