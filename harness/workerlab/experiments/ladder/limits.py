"""What limited a step, and how many users the first configuration serves.

The limit of a step is the first of these that its measurements show:

    load tool   it was the limit in at least half of the trials that show it (`analysis.load_tool`)
    others      other programs or machines kept the load waiting for a core in at least half of the
                trials (`workerlab.analysis.core_wait`); what looks busy may then only be waiting
    cache       80 % of one core: Redis serves with one thread
    storage     80 % of all cores: its server can use them all
    app         80 % of the cores that its workers can use, or 90 % of its slots busy
    pool        requests wait for a free connection to the storage longer than any other part takes,
                and neither the workers' CPU nor the machine explains it
    machine     90 % of all cores: all compete for them, and no single component is the limit

A worker short of CPU is late in everything, including taking a free connection, so the pool is
checked after the CPU. If none applies, the limit is unknown.

In a search for the limit, users are doubled until a level fails: at least half of its launches miss
the target, or one is invalid, or one serves less than STABLE_SHARE of the best level although
neither the load tool nor other programs were the limit. The search also ends if the load tool is
the limit, since more users would show nothing new, and at MAX_USERS_MULTIPLE.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from workerlab.analysis.cell_targets import outcomes
from workerlab.analysis.diagnosis.cpu import Disturbance
from workerlab.analysis.diagnosis.slots import mean_service_s
from workerlab.analysis.target import TermOutcome
from workerlab.analysis.trials import by_cell, valid_results
from workerlab.experiments.ladder.steps import ConfigurationStep, Ladder, UserLoad
from workerlab.finding import Answer, Finding
from workerlab.model.result import Invalid, Result, TrialResult

FULL_CPU_SHARE = 0.8  # of the cores that a component can use
FULL_HOST_SHARE = 0.9  # of all cores
FULL_SLOTS_SHARE = 0.9  # of the app's slots
MAX_USERS_MULTIPLE = 8  # a search ends at this multiple of the users of the steps
STABLE_SHARE = 2 / 3  # of the throughput of the best level
APP_PARTS = ("pool", "storage", "redis", "serialise", "template")  # parts that the app times itself
CORES = {
    "app": "usage.server_cores",
    "storage": "app_metrics.cores.storage",
    "cache": "app_metrics.cores.cache",
    "load tool": "usage.generator_cores",
}  # paths in a result to the cores that each component used
PARTS_BEFORE_APP = ("breakdown.connect_s", "breakdown.accept_queue_s", "breakdown.in_worker_s")


class MachineUsage(Finding):
    """How busy the machine was, and how many cores each component used; None: unknown."""

    host_busy: float | None
    cores: Mapping[str, float]  # by component

    def __str__(self) -> str:
        busy = [] if self.host_busy is None else [f"host {100 * self.host_busy:.0f} % busy"]
        cores = ", ".join(f"{name} {used:.2f}" for name, used in self.cores.items())
        return "; ".join([*busy, f"cores: {cores}"] if cores else busy)


def usage_of(step: ConfigurationStep, others_cores: float | None = None) -> MachineUsage | None:
    """The usage in a step; None if it is unknown. `others_cores`: used by other programs."""
    used = {name: step.mean(path) for name, path in CORES.items()}
    used["other processes"] = others_cores
    cores = {name: value for name, value in used.items() if value is not None}
    host_busy = step.mean("usage.host_busy")
    return None if host_busy is None and not cores else MachineUsage(host_busy, cores)


class StepLimit(Finding, kw_only=True):
    """[[{usage}]]"""

    usage: MachineUsage | None = None

    @property
    def name(self) -> str:
        """The name of the limit in tables."""
        raise NotImplementedError


class ToolLimit(StepLimit):
    """{tool}[[: {reason}]][[ ({usage})]]"""

    name = "load tool"
    tool: str
    reason: str | Finding | None


class OthersLimit(StepLimit):
    """{disturbance}[[ ({usage})]]"""

    name = "other programs"
    disturbance: Disturbance


class CpuLimit(StepLimit):
    """{component} used {used:.2f} of the {cores:# core} it can use[[ ({usage})]]"""

    component: str  # the app, or a service
    used: float
    cores: int

    @property
    def name(self) -> str:
        return self.component


class SlotsLimit(StepLimit):
    """the app's {slots:# slot was/slots were} busy {busy:percent} of the time[[ ({usage})]]"""

    name = "app"
    slots: int
    busy: float


class PoolLimit(StepLimit):
    """a request waits {wait_s:duration} for a free connection to the storage, longer than for
    anything else[[ ({usage})]]"""

    name = "pool"
    wait_s: float


class MachineLimit(StepLimit):
    """all cores are busy[[ ({usage})]]"""

    name = "machine"


class UnknownLimit(StepLimit):
    """nothing is near a limit[[ ({usage})]]"""

    name = "unknown"


def limit(step: ConfigurationStep, cores: int | None) -> StepLimit:
    """What limited the step, with the numbers that show it. `cores`: of the machine."""
    first_limit = next(limits(step, cores))
    by_others = isinstance(first_limit, OthersLimit)
    others_cores = step.mean("core_wait.others_cores") if by_others else None
    return replace(first_limit, usage=usage_of(step, others_cores))


def limits(step: ConfigurationStep, cores: int | None) -> Iterator[StepLimit]:
    """All limits that the step's numbers show, in the order above; UnknownLimit is last."""
    if step.generator_bound:
        reasons = [result.bound_reasons[0] for result in step.valid if result.bound_reasons]
        yield ToolLimit(step.load.tool, next(iter(reasons), None))
    if (disturbance := step.disturbance) is not None:
        yield OthersLimit(disturbance)
    yield from cpu_limits(step, cores)
    slots, busy = step.valid[0].slots_configured, step.mean(slots_busy)
    if slots and busy is not None and busy >= FULL_SLOTS_SHARE:
        yield SlotsLimit(slots, min(1.0, busy))
    host_busy, pool_s = step.mean("usage.host_busy") or 0.0, step.spent_s(["pool"])
    if pool_s and host_busy < FULL_CPU_SHARE and pool_s > longest_other_part_s(step):
        yield PoolLimit(pool_s)
    if host_busy >= FULL_HOST_SHARE:
        yield MachineLimit()
    yield UnknownLimit()


def cpu_limits(step: ConfigurationStep, cores: int | None) -> Iterator[CpuLimit]:
    configuration = step.configuration
    workers, app = configuration.server.workers, step.mean("usage.server_cores")
    cache, storage = (step.mean(f"app_metrics.cores.{role}") for role in ("cache", "storage"))
    for component, used, usable in (
        (configuration.service(configuration.cache), cache, 1),
        (configuration.service(configuration.storage), storage, cores),
        ("app", app, min(workers, cores or workers)),
    ):
        if used is not None and usable and used >= FULL_CPU_SHARE * usable:
            yield CpuLimit(component=component, used=used, cores=usable)


def slots_busy(result: Result) -> float | None:
    """Mean share of busy slots, by Little's law; None if slots are unlimited or unknown."""
    slots, service_s = result.slots_configured, mean_service_s(result)
    if not slots or not service_s:
        return None
    return result.throughput_rps * service_s / slots


def longest_other_part_s(step: ConfigurationStep) -> float:
    """The longest part of a request other than the wait for the pool; infinite if none is known."""
    parts = [step.spent_s([name]) for name in APP_PARTS if name != "pool"]
    parts += [*map(step.mean, PARTS_BEFORE_APP), other_code_s(step)]
    return max((part for part in parts if part is not None), default=math.inf)


def other_code_s(step: ConfigurationStep) -> float | None:
    """Service time minus the parts that the app times itself; None if either is unknown."""
    service_s, timed_s = step.mean("breakdown.service_s"), step.spent_s(APP_PARTS)
    return None if service_s is None or timed_s is None else service_s - timed_s


# --- how many users -----------------------------------------------------------------------------


class TargetBroken(Finding):
    """{terms:; } (in {broken} of {launches:# launch/launches})"""

    launches: int
    broken: int
    terms: tuple[TermOutcome, ...]


class InvalidLaunches(Finding):
    """{invalid} of {launches:# launch/launches} {invalid:was/were} invalid: {reason}"""

    launches: int
    invalid: int
    reason: str | Finding


class UnstableThroughput(Finding):
    """a launch serves only {lowest_rps:number} of the {best_rps:number} req/s reached"""

    lowest_rps: float
    best_rps: float


class NothingBroke(Finding):
    """neither happens{remark}"""

    remark: str


NOT_TRIED = ", and more users were not tried"
TOOL_IS_LIMIT = "; more would show the load tool's limit, not the server's"
LevelFailure = TargetBroken | InvalidLaunches | UnstableThroughput


class UserLevel(Struct, frozen=True):
    """A number of users. `step`: the valid launches, None if there are none; `failure`: why the
    level fails, None if it does not."""

    load: UserLoad
    cells: tuple[TrialResult, ...]
    step: ConfigurationStep | None
    failure: LevelFailure | None = None


def levels(ladder: Ladder) -> list[UserLevel]:
    """The levels of the search, fewest users first; empty without a search or a valid step."""
    levels: list[UserLevel] = []
    tool = next((step.load.tool for step in ladder.conclusive), "")
    first_name, min_users = next(iter(ladder.removed), ""), ladder.usual_users or math.inf
    by_users = sorted(by_cell(ladder.cells).items(), key=lambda item: item[0].concurrency)
    for cell, trials in by_users:
        if (cell.server.name, cell.tool) == (first_name, tool) and cell.concurrency >= min_users:
            load = UserLoad(tool, cell.concurrency)
            steps = (step for step in ladder.steps.get(load, ()) if step.cell == cell)
            level = UserLevel(load, (*trials.valid, *trials.left_out), next(steps, None))
            levels.append(replace(level, failure=why_failed([*levels, level])))
    return levels


def why_failed(levels: Sequence[UserLevel]) -> LevelFailure | None:
    """Why the last level fails; None if it does not."""
    cells, step = levels[-1].cells, levels[-1].step
    invalid = [result.reason for result in cells if isinstance(result, Invalid)]
    if invalid:
        return InvalidLaunches(launches=len(cells), invalid=len(invalid), reason=invalid[0])
    missed_terms = [
        terms
        for result in cells
        if (terms := tuple(term for term in outcomes(result) if term.result == "broken"))
    ]
    if 2 * len(missed_terms) >= len(cells):
        return TargetBroken(launches=len(cells), broken=len(missed_terms), terms=missed_terms[0])
    if step and not step.generator_bound and step.disturbance is None:
        lowest_rps = min(step.rates)
        best_rps = max(level.step.rps for level in levels if level.step)
        if lowest_rps < STABLE_SHARE * best_rps:
            return UnstableThroughput(lowest_rps=lowest_rps, best_rps=best_rps)
    return None


def next_load(ladder: Ladder) -> UserLoad | None:
    """The load of the next level to measure; None if the search has ended."""
    for level in levels(ladder)[-1:]:
        users = 2 * level.load.users
        tool_bound = level.step and level.step.generator_bound
        if level.failure or tool_bound or users > MAX_USERS_MULTIPLE * (ladder.usual_users or 0):
            return None
        return UserLoad(level.load.tool, users)
    return None


class UsersServed(Answer):
    """[[With {users_before:count} users, neither happens. ]]With {load}, {outcome}.[[ Throughput:
    {rps_before:number} req/s, then {rps:number}; where it does not grow, response times grow with
    the users (Little's law).]][[ {dropped:count} handshakes were dropped: the accept queue was
    full.]][[ The limit with {users_held:count} users: {limit}.]]"""

    question = "How many users does it serve before it misses its target or becomes unstable?"

    users_before: int | None  # the level before the one that fails
    rps_before: float | None
    load: str
    rps: float | None
    outcome: LevelFailure | NothingBroke
    users_held: int | None
    dropped: int | None
    limit: StepLimit | None


def how_many_users(ladder: Ladder) -> UsersServed:
    """The outcome of the last level, and the limit at the last level that did not fail. At least
    one level must exist."""
    *_, before, last = None, *levels(ladder)
    passed_step = (before if before and last.failure else last).step
    tool_bound = passed_step and passed_step.generator_bound
    return UsersServed(
        users_before=before.load.users if before and last.failure else None,
        rps_before=before.step.rps if before and before.step else None,
        load=last.load.text,
        rps=last.step.rps if last.step else None,
        outcome=last.failure or NothingBroke(TOOL_IS_LIMIT if tool_bound else NOT_TRIED),
        users_held=passed_step.load.users if passed_step else None,
        dropped=sum(cell.counters.listen_drops or 0 for cell in valid_results(last.cells)) or None,
        limit=limit(passed_step, ladder.cores) if passed_step else None,
    )
