"""Is it the server or the load generator? What the comparisons show.

In a closed loop requests wait at the bottleneck. If more of the server (threads, a second server)
changes nothing, the server is not the limit; if another generator, or more of it, changes much, the
generator is. A change counts if its whole interval over the trials is beyond a factor of EFFECT.
Cells that had to wait for a core that other programs used (`analysis/core_wait`) prove nothing:
those programs may cause any difference between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Literal

from msgspec.structs import replace

from workerlab.analysis.diagnosis.cpu import Disturbance, worst
from workerlab.analysis.trials import Trials
from workerlab.experiments.bottleneck.comparison import (
    EFFECT,
    Comparison,
    Factor,
    FactorLevel,
    LevelChange,
)
from workerlab.finding import Answer, Finding
from workerlab.numbers.intervals import TRIALS, Ratio

KEEPS_UP = 0.5  # relative growth of throughput per relative growth of users

Compared = Mapping[Factor, Comparison]


def conclusions(compared: Compared, generator: str, cores: int | None) -> Iterator[Answer]:
    """`compared`: valid cells; `generator`: the one under test; `cores`: of the machine."""
    answer = verdict(compared, generator)
    disturbed = isinstance(answer, Disturbed)
    yield replace(answer, evidence=() if disturbed else tuple(evidence(compared)))
    for factor, comparison in compared.items():
        if factor is Factor.PROCESSES:  # the one with the most users is only in the table
            comparison = replace(comparison, groups=comparison.groups[:1])
        if comparison.groups:
            yield replace(effect_of(comparison, cores), evidence=comparison.throughputs)
    times = [time for trials in compared[Factor.USERS].cells if (time := time_in_server(trials))]
    if times:
        yield replace(times[-1], evidence=tuple(times[:-1]))


# --- the verdict ----------------------------------------------------------------------------------


class BottleneckVerdict(Answer):
    """Of the whole run."""

    question = "Is it the server or the load generator?"


class GeneratorIsBottleneck(BottleneckVerdict):
    """The generator, {generator}, is the bottleneck, so its figures are a lower bound for the
    server[[: another one gets {gain:times} the throughput{gain:interval}]]."""

    generator: str
    gain: Ratio | None  # by another one; None if the load itself shows the limit


class ServerIsBottleneck(BottleneckVerdict):
    """The server is the bottleneck:
    [[ with more of it {generator} gets {gain:times} the throughput{gain:interval}]]
    [[ no other generator gets more out of it than {unbeaten}]]."""

    generator: str
    gain: Ratio | None  # by more of the server
    unbeaten: str | None  # the generator, if the others show the limit


class NoBottleneckFound(BottleneckVerdict):
    """Inconclusive: neither the server nor the generator shows its limit in these cells."""


class Disturbed(BottleneckVerdict):
    """Inconclusive: {disturbance}"""

    disturbance: Disturbance


class TooFewTrials(Answer):
    """Inconclusive: too few valid trials to compare; repeat with --trials {needed}."""

    factor: Factor | None  # None: all of them
    needed: int = TRIALS

    @property
    def question(self) -> str:
        return self.factor.question if self.factor else BottleneckVerdict.question


def verdict(compared: Compared, generator: str) -> BottleneckVerdict | TooFewTrials:
    everything = chain.from_iterable(comparison.cells for comparison in compared.values())
    disturbance = worst(trials.core_wait for trials in everything)
    if disturbance is not None:
        return Disturbed(disturbance)
    others, server = compared[Factor.TOOL], (compared[Factor.THREADS], compared[Factor.SERVERS])
    votes = [trials.generator_bound for trials in compared[Factor.USERS].cells]
    bound, free = votes.count(True), votes.count(False)
    if (change := others.strongest) and change.effect == "more":
        return GeneratorIsBottleneck(generator, gain=change.ratio)
    for comparison in server:
        if (change := comparison.strongest) and change.effect == "more":
            return ServerIsBottleneck(generator, gain=change.ratio, unbeaten=None)
    if bound > free:
        return GeneratorIsBottleneck(generator, gain=None)
    if free and others.changes and all(c.effect in ("less", "none") for c in others.changes):
        return ServerIsBottleneck(generator, gain=None, unbeaten=generator)
    few = not any(comparison.effect for comparison in (others, *server))
    compares = any(comparison.groups for comparison in compared.values())
    return TooFewTrials(factor=None) if few and compares else NoBottleneckFound()


class CoresUsed(Finding):
    """with {users:# user}[[, {generator} used {generator_cores:.2f} cores]]
    [[, the server used {server_cores:.2f} cores]]"""

    users: int
    generator: str
    generator_cores: float | None
    server_cores: float | None


def evidence(compared: Compared) -> Iterator[Finding]:
    for trials in compared[Factor.USERS].cells[-1:]:
        yield CoresUsed(
            users=trials.cell.concurrency,
            generator=trials.cell.tool,
            generator_cores=trials.mean("usage.generator_cores"),
            server_cores=trials.mean("usage.server_cores"),
        )
        yield from trials.valid[0].bound_reasons
    for factor in (Factor.THREADS, Factor.SERVERS, Factor.TOOL):
        yield from compared[factor].throughputs


# --- the effect of a factor -----------------------------------------------------------------------


class FactorAnswer(Answer):
    """Of one of the factors."""

    factor: Factor

    @property
    def question(self) -> str:
        return self.factor.question


class CoresMissing(Finding):
    """the generator and the server need {needed} cores; this machine has {available}"""

    needed: int
    available: int


class ThroughputChange(FactorAnswer):
    """{answer}: with {level} instead of {instead_of}[[ at {users:# user}]], throughput is
    {ratio:times} as high{ratio:interval}[[, and each waits {wait_ratio:factor} times as long]]
    [[; the host was {host_busy:percent} busy]][[; {remark}]]."""

    answer: Literal["Yes", "Hardly", "No", "Inconclusive"]
    level: str  # in words
    instead_of: FactorLevel
    users: int | None  # None if they are the factor
    ratio: Ratio
    wait_ratio: float | None  # of the mean response time; None if users are not the factor
    host_busy: float | None  # None if processes of the generator are not the factor
    remark: CoresMissing | str | None


class AlsoDisturbed(FactorAnswer):
    """Inconclusive: these cells, too, had to wait for a core (for up to
    {disturbance.share:percent} of the response time)."""

    disturbance: Disturbance


def effect_of(comparison: Comparison, cores: int | None) -> FactorAnswer | TooFewTrials:
    factor, change = comparison.factor, comparison.strongest
    disturbance = worst(trials.core_wait for trials in comparison.cells)
    if disturbance is not None:
        return AlsoDisturbed(factor, disturbance)
    if change is None:
        return TooFewTrials(factor)
    after = change.after
    missing = cores_missing(after, cores) if factor is Factor.PROCESSES else None
    return ThroughputChange(
        factor=factor,
        answer="Inconclusive" if missing and change.effect != "more" else answer_to(change),
        level=factor.words(factor.level(after.cell)),
        instead_of=factor.level(change.before.cell),
        users=None if factor is Factor.USERS else after.cell.concurrency,
        ratio=change.ratio,
        wait_ratio=change.wait_ratio if factor is Factor.USERS else None,
        host_busy=after.mean("usage.host_busy") if factor is Factor.PROCESSES else None,
        remark=missing if missing and change.effect != "more" else remark_on(change, factor),
    )


def cores_missing(trials: Trials, cores: int | None) -> CoresMissing | None:
    """For the generator's processes and the workers. `cores`: of the machine; None: unknown."""
    server = trials.cell.server
    needed = trials.cell.processes + server.workers * server.instances
    return CoresMissing(needed, cores) if cores is not None and cores < needed else None


def answer_to(change: LevelChange) -> Literal["Yes", "Hardly", "No", "Inconclusive"]:
    if change.effect == "chance":
        return "Inconclusive"
    if change.effect != "more":
        return "No"
    users_ratio = change.after.cell.concurrency / change.before.cell.concurrency
    return "Yes" if change.ratio.value >= KEEPS_UP * users_ratio else "Hardly"


def remark_on(change: LevelChange, factor: Factor) -> str | None:
    if change.effect == "chance":
        return "more --trials would tell whether that is an effect"
    if factor is Factor.TOOL and change.effect == "more":
        return f"what {change.before.cell.tool} measures is a lower bound"
    if factor in (Factor.THREADS, Factor.SERVERS) and change.effect == "more":
        return f"so the number of {factor} was a limit"
    if factor in (Factor.THREADS, Factor.SERVERS) and change.effect == "none":
        percent = f"{100 * (EFFECT - 1):.0f} %"
        return f"a change below {percent} counts as none, so {factor} are not the limit"
    return None


# --- where requests wait --------------------------------------------------------------------------


class TimeInServer(Answer):
    """With {users:# user} a response takes {response_s:duration}; for {inside_s:duration} of it
    ({share:percent}) the request is in the server: accept queue, worker and app."""

    question = "Where is a request while it waits?"

    users: int
    response_s: float
    inside_s: float
    share: float


def time_in_server(trials: Trials) -> TimeInServer | None:
    """None if part of it is unknown, or other programs prolonged it."""
    paths = ("breakdown.accept_queue_s", "breakdown.in_worker_s", "breakdown.service_s")
    parts_s = [part_s for path in paths if (part_s := trials.mean(path)) is not None]
    response_s, inside_s = trials.mean("response.mean"), sum(parts_s)
    if not response_s or len(parts_s) < len(paths) or worst([trials.core_wait]) is not None:
        return None
    return TimeInServer(
        users=trials.cell.concurrency,
        response_s=response_s,
        inside_s=min(inside_s, response_s),  # means over different trials
        share=min(inside_s / response_s, 1.0),
    )
