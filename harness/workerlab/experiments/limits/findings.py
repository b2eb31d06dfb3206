"""The conclusions of `workerlab limits`, each with its steps as evidence.

Questions without a measured step are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Literal

from msgspec.structs import replace

from workerlab.experiments.limits.results import MistakeForm, StepMeasured, StepResult
from workerlab.finding import Answer, Finding
from workerlab.numbers.units import count_text

NEAR_IDEAL_RATIO = 1.15  # at most; connections idle while the last responses arrive
MILLION = 1_000_000
Steps = Sequence[StepResult]
Limit = Literal["files", "ports", "time_wait"]


def findings(results: Steps) -> Iterator[Answer]:
    """The answers that the measured steps allow."""
    steps = [step for step in results if step.measurement]

    def by_name(*prefixes: str) -> Steps:
        return [step for step in steps if step.name.startswith(prefixes)]

    tasks, bodies, aiohttp = by_name("all-tasks-"), by_name("all-bodies-"), by_name("aiohttp-")
    for rule, basis in (
        (asynchronous_gain, [step for step in steps if step.chapter == "clients"]),
        (partial(limit_reached, "files"), by_name("unbounded-")[-1:]),
        (remedies, by_name("raised-", "bounded-")),
        (farthest, [step for step in steps if step.chapter == "far"]),
        (farthest_by_aiohttp, aiohttp),
        (peak_memory, [step for step in complete(steps, "kept-") if step.memory_bytes]),
        (large_bodies, by_name("bodies-")[:1]),
        (kept_memory, [*tasks, *bodies, *aiohttp[:1]]),
        (million_large_bodies, by_name("dropped-")),
        (partial(limit_reached, "ports"), by_name("ports-used-up", "ports-sources", "ports-reuse")),
        (partial(limit_reached, "time_wait"), by_name("time-wait-")),
        (missing_await, by_name("missing-await-")),
        (session_per_request, by_name("session-per-request-")),
    ):
        if basis and (answer := rule(basis)):
            keys = tuple(step.data.trial.key for step in basis)
            yield replace(answer, trials=keys, evidence=tuple(step.evidence for step in basis))


def complete(steps: Steps, *prefixes: str) -> Steps:
    """Steps without failures, since failures save time and memory. `prefixes`: of their names; if
    none are given, any name."""
    return [
        step
        for step in steps
        if step.failed == 0 and step.wall_s and step.name.startswith(prefixes or "")
    ]


def largest(steps: Steps) -> StepResult | None:
    """The step without failures that has the most requests, then the most connections."""
    order = attrgetter("load.requests", "load.concurrency")
    return max(complete(steps), key=order, default=None)


class AsynchronousGain(Answer):
    """{at_once.requests:count} requests at once took {at_once.took_s:duration}
    [[; the longest response took {longest_answer_s:duration}]]. One at a time, they
    [[ took {one_by_one.took_s:duration}, {times:number} times as long]]
    [[ would take {delays_s:duration}, the sum of all delays]]."""

    question = "What does an asynchronous client gain?"

    at_once: StepMeasured
    longest_answer_s: float | None
    one_by_one: StepMeasured | None
    times: float | None
    delays_s: float | None  # if the synchronous client was left out


def asynchronous_gain(steps: Steps) -> AsynchronousGain | None:
    at_once = next(iter(complete(steps, "async-")), None)
    if at_once is None or at_once.data.null is None:
        return None
    took_s = at_once.summary.took_s
    one_by_one = next((step.summary for step in complete(steps, "sync-")), None)
    return AsynchronousGain(
        at_once=at_once.summary,
        longest_answer_s=at_once.data.null.service.max,
        one_by_one=one_by_one,
        times=one_by_one.took_s / took_s if one_by_one else None,
        delays_s=None if one_by_one else at_once.data.null.delays_s,
    )


class LimitAnswer(Answer):
    """A limit that is reached on purpose."""

    limit: Limit

    @property
    def question(self) -> str:
        return {
            "files": "What stops an unbounded client?",
            "ports": "What happens when the local ports run out?",
            "time_wait": "Can ports run out even if few connections are open at once?",
        }[self.limit]


class LimitNotReached(LimitAnswer):
    """The limit was not reached here: {step.failed:count} of {step.requests:# request} failed
    [[ ({step.errors:counts})]].[[ Without failures: {worked:; }.]]"""

    step: StepMeasured
    worked: tuple[str, ...]


class LimitReached(LimitAnswer):
    """{causes: }[[ Without failures: {worked:; }.]]"""

    causes: tuple[Finding, ...]
    worked: tuple[str, ...]


class PortsInTimeWait(LimitAnswer):
    """Errno 99 (cannot assign requested address):[[ after {connections:# connection},]]
    {failed:# request} failed for lack of a local port. Each request opened a connection; the side
    that closes it first, here the client, keeps its port in TIME_WAIT for a minute
    [[ (at most {time_wait:count} at once)]].
    [[ Without failures: {worked:; }, where such ports can be reused.]]"""

    connections: int | None
    failed: int
    time_wait: int | None
    worked: tuple[str, ...]


REACHING_STEPS: Mapping[Limit, str] = {
    "files": "unbounded-",
    "ports": "ports-used-up",
    "time_wait": "time-wait-0",
}  # prefix of the name of the step that reaches each limit


def limit_reached(limit: Limit, steps: Steps) -> LimitAnswer | None:
    """The answer on a limit; None if the step that should reach it was not measured. `steps`: that
    step, and those that avoid the limit."""
    reaching_steps = [step for step in steps if step.name.startswith(REACHING_STEPS[limit])]
    if not reaching_steps:
        return None
    step = reaching_steps[0]
    worked = tuple(other.label for other in steps if other is not step and other.failed == 0)
    failed = step.errors.get("no_files" if limit == "files" else "no_address")
    if not failed:
        return LimitNotReached(limit, step.summary, worked)
    if limit != "time_wait":
        return LimitReached(limit, step.causes, worked)
    samples = step.data.observations.connections
    return PortsInTimeWait(
        limit=limit,
        connections=step.data.null.connections if step.data.null else None,
        failed=failed,
        time_wait=max((sample.client.get("TIME_WAIT", 0) for sample in samples), default=None),
        worked=worked,
    )


class WaysOut(Answer):
    """[[Without failures: {worked:; }.]][[ With failures: {failed:; }.]]
    [[ {faster.connections:# connection} took {faster.took_s:duration}, {slower.connections:count}
    took {slower.took_s:duration}.]]"""

    question = "How can a client avoid running out of files?"

    worked: tuple[str, ...]
    failed: tuple[str, ...]
    faster: StepMeasured | None = None
    slower: StepMeasured | None = None


def remedies(steps: Steps) -> WaysOut:
    worked = [step for step in steps if step.failed == 0]
    by_time = sorted((step.summary for step in worked), key=lambda step: step.took_s)
    return WaysOut(
        worked=tuple(step.label for step in worked),
        failed=tuple(
            f"{step.label} ({count_text(step.failed)} failed)" for step in steps if step.failed
        ),
        faster=by_time[0] if len(by_time) > 1 else None,
        slower=by_time[-1] if len(by_time) > 1 else None,
    )


class Farthest(Answer):
    """At least {step.requests:count} requests over {step.connections:# connection} without
    failures, in {step.took_s:duration}: {ratio:number} times the ideal {step.ideal_s:duration},
    {verdict}."""

    question = "How far does one client go?"

    step: StepMeasured
    ratio: float
    verdict: str


CLOSE_TO_IDEAL = "close to the best possible"
SLOWER_THAN_SERVER = "so the client or the machine was slower than the server"


def farthest(steps: Steps) -> Farthest | None:
    step = largest([step for step in steps if step.ratio is not None])
    if step is None or step.ratio is None:
        return None
    verdict = CLOSE_TO_IDEAL if step.ratio <= NEAR_IDEAL_RATIO else SLOWER_THAN_SERVER
    return Farthest(step.summary, step.ratio, verdict)


class FarthestByAiohttp(Answer):
    """{step.requests:# request} over {step.connections:# connection} took {step.took_s:duration}.
    [[ The client used {step.client_cores:.2f} cores, the server {step.server_cores:.2f}.]]"""

    question = "How does aiohttp's client compare?"

    step: StepMeasured


def farthest_by_aiohttp(steps: Steps) -> FarthestByAiohttp | None:
    step = largest(steps)
    return FarthestByAiohttp(step.summary) if step else None


class MillionLargeBodies(Answer):
    """{step.requests:count} bodies of {body_bytes:bytes} took aiohttp {step.took_s:duration}. At
    that rate a million take about {million_s:duration} (extrapolated); the delays alone take
    {million_delays_s:duration}.
    [[ The client used {step.client_cores:.2f} cores, the server {step.server_cores:.2f}.]]"""

    question = "How long would a million large bodies take?"

    step: StepMeasured
    body_bytes: int
    million_s: float
    million_delays_s: float


def million_large_bodies(steps: Steps) -> MillionLargeBodies | None:
    step = largest(steps)
    if step is None:
        return None
    return MillionLargeBodies(
        step=step.summary,
        body_bytes=step.null.body_bytes,
        million_s=step.summary.took_s * MILLION / step.load.requests,
        million_delays_s=sum(step.null.delay_s) / 2 * MILLION / step.load.concurrency,
    )


class PeakMemory(Answer):
    """At most {step.memory_bytes:bytes} for {step.requests:count} requests: timings are counted in
    a histogram, and bodies are dropped once they are verified."""

    question = "How much memory does that take?"

    step: StepMeasured


def peak_memory(steps: Steps) -> PeakMemory:
    return PeakMemory(max(steps, key=lambda step: step.load.requests).summary)


class LargeBodies(Answer):
    """{bodies:count} bodies of {body_bytes:bytes}, {total_bytes:bytes} in all, arrived complete in
    {step.took_s:duration} ({bytes_per_s:bytes} per second); {step.failed:count} failed."""

    question = "How fast are large bodies?"

    step: StepMeasured
    bodies: int
    body_bytes: int
    total_bytes: int
    bytes_per_s: float


def large_bodies(steps: Steps) -> LargeBodies | None:
    step, body_bytes = steps[0].summary, steps[0].null.body_bytes
    bodies = step.requests - step.failed
    if not step.took_s:
        return None
    return LargeBodies(
        step=step,
        bodies=bodies,
        body_bytes=body_bytes,
        total_bytes=bodies * body_bytes,
        bytes_per_s=bodies * body_bytes / step.took_s,
    )


class KeptMemory(Answer):
    """A task for each request takes {task_bytes:bytes}; a million would take
    {million_tasks_bytes:bytes}. With its body of {body_bytes:bytes} a task takes
    {kept_bytes:bytes}; a million, {million_kept_bytes:bytes} (both extrapolated from two sizes).
    [[ {bounded.connections:# task} that drop the bodies took at most
    {bounded.memory_bytes:bytes} for {bounded.requests:# request}.]]"""

    question = "What does it cost to keep everything until the end?"

    task_bytes: float
    million_tasks_bytes: float
    body_bytes: int
    kept_bytes: float
    million_kept_bytes: float
    bounded: StepMeasured | None


def kept_memory(steps: Steps) -> KeptMemory | None:
    tasks, bodies, bounded = (
        complete(steps, start) for start in ("all-tasks-", "all-bodies-", "aiohttp-")
    )
    task_bytes, kept_bytes = bytes_per_request(tasks), bytes_per_request(bodies)
    if task_bytes is None or kept_bytes is None:
        return None
    return KeptMemory(
        task_bytes=task_bytes,
        million_tasks_bytes=task_bytes * MILLION,
        body_bytes=bodies[0].null.body_bytes,
        kept_bytes=kept_bytes,
        million_kept_bytes=kept_bytes * MILLION,
        bounded=bounded[0].summary if bounded else None,
    )


def bytes_per_request(steps: Steps) -> float | None:
    """Growth of the client's memory per request between two loads; None without two loads or
    without growth."""
    sizes = sorted((step.load.requests, step.memory_bytes) for step in steps if step.memory_bytes)
    if len(sizes) != 2 or sizes[0][1] >= sizes[1][1]:
        return None
    (fewer_requests, lower_bytes), (more_requests, higher_bytes) = sizes
    return (higher_bytes - lower_bytes) / (more_requests - fewer_requests)


class MissingAwait(Answer):
    """The calls return {mistake.returned:counts} for {mistake.requested:# request}, at once
    ({mistake.took_s:duration}), but the server sees {mistake.requests:# request}; with await it
    sees {cure.requests:count}."""

    question = "What are the symptoms of a missing await?"

    mistake: MistakeForm
    cure: MistakeForm


def missing_await(steps: Steps) -> MissingAwait | None:
    forms = counted_forms(steps)
    return MissingAwait(forms["mistake"], forms["cure"]) if forms else None


class SessionPerRequest(Answer):
    """{mistake.connections:# connection} for {mistake.requests:# request}, where one session needs
    {cure.connections:count}. It took {times:number} times as long ({mistake.took_s:duration}
    instead of {cure.took_s:duration})[[ and left {mistake.time_wait:count} ports in TIME_WAIT
    instead of {cure.time_wait:count}]]."""

    question = "What are the symptoms of a session per request?"

    mistake: MistakeForm
    cure: MistakeForm
    times: float


def session_per_request(steps: Steps) -> SessionPerRequest | None:
    forms = counted_forms(steps)
    if not forms or not forms["cure"].took_s:
        return None
    mistake, cure = forms["mistake"], forms["cure"]
    return SessionPerRequest(mistake, cure, times=mistake.took_s / cure.took_s)


def counted_forms(steps: Steps) -> Mapping[str, MistakeForm]:
    """Forms by `what`; empty unless the server counted both the mistake and its cure."""
    forms = {step.what: step.mistake_form for step in steps if step.data.null}
    return forms if {"mistake", "cure"} <= forms.keys() else {}
