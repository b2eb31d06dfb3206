"""The conclusions of `workerlab bottleneck`: is it the server or the load generator?

In a closed loop, requests wait at the bottleneck. If more server capacity (more threads, a second
server) changes nothing, the server is not the limit; if another generator, or more processes of the
same one, change the throughput considerably, the generator is. A change counts if its whole
interval over the trials is beyond a factor of MIN_EFFECT_RATIO. Only cells that differ in a single
factor are compared. Cells that had to wait for a core used by other programs
(`analysis/core_wait.py`) prove nothing: those programs may have caused the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from workerlab.analysis.diagnosis.cpu import Disturbance, worst_disturbance
from workerlab.analysis.trials import Trials, grouped
from workerlab.finding import Answer, Finding
from workerlab.model.plan import Cell
from workerlab.numbers.intervals import TRIALS, Effect, Ratio
from workerlab.numbers.units import amount, counted

MIN_EFFECT_RATIO = 1.2  # of throughputs: a smaller change does not count
STRONGEST_FIRST: tuple[Effect, ...] = ("more", "less", "chance", "none")

FactorLevel = int | str  # a number, or a name


class Factor(Enum):
    """A factor that is varied while everything else stays the same. `path`: of its level in a Cell;
    `noun`: the unit of a level, "" if the level is a name; `title`: of its table."""

    # fmt: off
    USERS = ("concurrency", "user", "More users",
             "Do more users bring more throughput?")
    THREADS = ("server.threads", "thread", "More threads in the server",
               "Do more threads in the server help?")
    SERVERS = ("server.instances", "server", "A second server, on its own port",
               "Does a second server help?")
    PROCESSES = ("processes", "process/processes", "More processes of the generator",
                 "Do more processes of the generator help?")
    TOOL = ("tool", "", "Another generator",
            "Does another generator get more out of the same server?")
    # fmt: on

    def __init__(self, path: str, noun: str, title: str, question: str) -> None:
        self.path, self.noun, self.title, self.question = path, noun, title, question

    def level(self, cell: Cell) -> FactorLevel:
        level: FactorLevel = attrgetter(self.path)(cell)
        return level

    def without(self, cell: Cell) -> Cell:
        """The cell without this factor: a key, equal for cells that differ in nothing else."""
        name, _, inner = self.path.partition(".")
        rest: Any = replace(getattr(cell, name), **{inner: None}) if inner else None
        return replace(cell, **{name: rest})

    def level_text(self, level: FactorLevel) -> str:
        """The level as text: '6 threads', 'wrk'."""
        return level if isinstance(level, str) else counted(level, self.noun)

    def __str__(self) -> str:
        return self.name.lower()


LIMIT_FACTORS = (Factor.TOOL, Factor.THREADS, Factor.SERVERS)  # their effects show the limit


class LevelChange(Struct, frozen=True):
    """The change from one level of a factor to another."""

    before: Trials
    after: Trials

    @property
    def ratio(self) -> Ratio:
        """The ratio of the throughputs, after over before."""
        return self.after.ratio(self.before)

    @property
    def effect(self) -> Effect | None:
        """The effect on throughput; None without an interval."""
        return self.ratio.effect(MIN_EFFECT_RATIO)

    @property
    def wait_ratio(self) -> float | None:
        """The ratio of the mean response times, after over before."""
        before_s, after_s = (side.mean("response.mean") for side in (self.before, self.after))
        return after_s / before_s if before_s and after_s else None


class Throughputs(Finding):
    """Evidence: '500 users: locust 544 req/s, wrk 4690 req/s'."""

    factor: Factor
    levels: tuple[FactorLevel, ...]
    rps: tuple[float, ...]
    users: int | None  # None if users are the factor

    def __str__(self) -> str:
        users = f"{Factor.USERS.level_text(self.users)}: " if self.users else ""
        levels = zip(map(self.factor.level_text, self.levels), self.rps, strict=True)
        return users + ", ".join(f"{level} {amount(rps)} req/s" for level, rps in levels)


class Comparison(Struct, frozen=True):
    """Groups of cells that differ in one factor only, in order of its level. Each group is compared
    with its first cell, which has the lowest level or the tested generator."""

    factor: Factor
    generator: str
    groups: tuple[tuple[Trials, ...], ...]

    @classmethod
    def of(cls, factor: Factor, cells: Iterable[Trials], generator: str) -> Comparison:
        """Group the cells by everything but the factor. Cells of other generators are used only to
        compare generators."""
        usable = (
            trials for trials in cells if factor is Factor.TOOL or trials.cell.tool == generator
        )
        groups = grouped(usable, lambda trials: factor.without(trials.cell))

        def order(trials: Trials) -> FactorLevel:
            level = factor.level(trials.cell)
            return level != generator if factor is Factor.TOOL else level

        varied = [tuple(sorted(group, key=order)) for group in groups.values() if len(group) > 1]
        if factor is Factor.USERS:
            varied = varied[:1]  # on the default server
        return cls(factor, generator, tuple(varied))

    @property
    def valid(self) -> Comparison:
        """The comparison of cells with a valid trial. Other generators are compared only with the
        tested one."""
        groups = (tuple(trials for trials in group if trials.valid) for group in self.groups)
        comparable = [group for group in groups if len(group) > 1]
        if self.factor is Factor.TOOL:
            comparable = [group for group in comparable if group[0].cell.tool == self.generator]
        return replace(self, groups=tuple(comparable))

    @property
    def cells(self) -> list[Trials]:
        return [trials for group in self.groups for trials in group]

    @property
    def changes(self) -> list[LevelChange]:
        """The changes to the most users, to the best number of processes, else to every level."""
        return [
            LevelChange(group[0], trials)
            for group in self.groups
            for trials in self._levels_after(group)
        ]

    def _levels_after(self, group: Sequence[Trials]) -> Sequence[Trials]:
        if self.factor is Factor.USERS:
            return group[-1:]
        if self.factor is Factor.PROCESSES:
            return [max(group[1:], key=lambda trials: trials.throughput_rps or 0.0)]
        return group[1:]

    @property
    def strongest_change(self) -> LevelChange | None:
        """The largest change with the strongest effect (see STRONGEST_FIRST) that any change has;
        None if none has an interval."""
        by_effect = {
            effect: [change for change in self.changes if change.effect == effect]
            for effect in STRONGEST_FIRST
        }
        effect: Effect = next((effect for effect in STRONGEST_FIRST if by_effect[effect]), "none")
        changes, best = by_effect[effect], min if effect == "less" else max
        if effect == "less" and self.factor is Factor.TOOL:
            changes, best = changes + by_effect["none"], max  # the best other generator
        return best(changes, key=lambda change: change.ratio.value, default=None)

    @property
    def throughputs(self) -> tuple[Throughputs, ...]:
        return tuple(
            Throughputs(
                factor=self.factor,
                levels=tuple(self.factor.level(trials.cell) for trials in group),
                rps=tuple(trials.throughput_rps or 0.0 for trials in group),
                users=None if self.factor is Factor.USERS else group[0].cell.concurrency,
            )
            for group in self.groups
        )


MIN_GROWTH_PER_USERS = 0.5  # throughput ratio over users ratio: below it, users hardly help

Comparisons = Mapping[Factor, Comparison]


def conclusions(comparisons: Comparisons, generator: str, cores: int | None) -> Iterator[Answer]:
    """The verdict, the effect of each factor, and where requests wait. `comparisons`: of valid
    cells; `generator`: the tested one; `cores`: number of cores, None if unknown."""
    answer = verdict(comparisons, generator)
    is_disturbed = isinstance(answer, Disturbed)
    yield replace(answer, evidence=() if is_disturbed else tuple(verdict_evidence(comparisons)))
    for factor, comparison in comparisons.items():
        if factor is Factor.PROCESSES:  # the group with the most users is only in the table
            comparison = replace(comparison, groups=comparison.groups[:1])
        if comparison.groups:
            yield replace(effect_of(comparison, cores), evidence=comparison.throughputs)
    cells = comparisons[Factor.USERS].cells
    times = [time for trials in cells if (time := time_in_server(trials))]
    if times:
        yield replace(times[-1], evidence=tuple(times[:-1]))


# --- the verdict ----------------------------------------------------------------------------------


class BottleneckVerdict(Answer):
    """The verdict on the whole run."""

    question = "Is it the server or the load generator?"


class GeneratorIsBottleneck(BottleneckVerdict):
    """The generator, {generator}, is the bottleneck, so its figures are a lower bound for the
    server[[: another one gets {gain:times} the throughput{gain:interval}]]."""

    generator: str
    gain: Ratio | None  # with another generator; None if the load itself shows the limit


class ServerIsBottleneck(BottleneckVerdict):
    """The server is the bottleneck:
    [[ with more threads or servers {generator} gets {gain:times} the throughput{gain:interval}]]
    [[ no other generator gets more out of it than {unbeaten}]]."""

    generator: str
    gain: Ratio | None  # with more threads or servers
    unbeaten: str | None  # the generator, if other generators reach no more


class NoBottleneckFound(BottleneckVerdict):
    """Inconclusive: neither the server nor the generator is shown to be the limit in these
    cells."""


class Disturbed(BottleneckVerdict):
    """Inconclusive: {disturbance}"""

    disturbance: Disturbance


class FactorAnswer(Answer):
    """An answer about one factor, or about all if it is None."""

    factor: Factor | None

    @property
    def question(self) -> str:
        return self.factor.question if self.factor else BottleneckVerdict.question


class TooFewTrials(FactorAnswer):
    """Inconclusive: too few valid trials to compare; repeat with --trials {needed}."""

    needed: int = TRIALS


def verdict(comparisons: Comparisons, generator: str) -> BottleneckVerdict | TooFewTrials:
    cells = [trials for comparison in comparisons.values() for trials in comparison.cells]
    disturbance = worst_disturbance(trials.core_wait for trials in cells)
    if disturbance is not None:
        return Disturbed(disturbance)
    tools, *servers = (comparisons[factor] for factor in LIMIT_FACTORS)
    generator_bound = [trials.generator_bound for trials in comparisons[Factor.USERS].cells]
    bound, not_bound = generator_bound.count(True), generator_bound.count(False)
    if (change := tools.strongest_change) and change.effect == "more":
        return GeneratorIsBottleneck(generator, gain=change.ratio)
    for comparison in servers:
        if (change := comparison.strongest_change) and change.effect == "more":
            return ServerIsBottleneck(generator, gain=change.ratio, unbeaten=None)
    if bound > not_bound:
        return GeneratorIsBottleneck(generator, gain=None)
    effects = {change.effect for change in tools.changes}
    if not_bound and effects and effects <= {"less", "none"}:
        return ServerIsBottleneck(generator, gain=None, unbeaten=generator)
    has_interval = any(comparison.strongest_change for comparison in (tools, *servers))
    return NoBottleneckFound() if has_interval or not cells else TooFewTrials(factor=None)


class CoresUsed(Finding):
    """with {users:# user}[[, {generator} used {generator_cores:.2f} cores]]
    [[, the server used {server_cores:.2f} cores]]"""

    users: int
    generator: str
    generator_cores: float | None
    server_cores: float | None


def verdict_evidence(comparisons: Comparisons) -> Iterator[Finding]:
    for trials in comparisons[Factor.USERS].cells[-1:]:
        yield CoresUsed(
            users=trials.cell.concurrency,
            generator=trials.cell.tool,
            generator_cores=trials.mean("usage.generator_cores"),
            server_cores=trials.mean("usage.server_cores"),
        )
        yield from trials.valid[0].bound_reasons
    for factor in (*LIMIT_FACTORS[1:], Factor.TOOL):
        yield from comparisons[factor].throughputs


# --- the effect of a factor -----------------------------------------------------------------------


class CoresMissing(Finding):
    """the generator and the server need {needed} cores; this machine has {available}"""

    needed: int
    available: int


class ThroughputChange(FactorAnswer):
    """{answer}: with {level} instead of {instead_of}[[ at {users:# user}]], throughput is
    {ratio:times} as high{ratio:interval}[[, and each waits {wait_ratio:factor} times as long]]
    [[; the host was {host_busy:percent} busy]][[; {remark}]]."""

    answer: Literal["Yes", "Hardly", "No", "Inconclusive"]
    level: str  # as text
    instead_of: FactorLevel
    users: int | None  # None if users are the factor
    ratio: Ratio
    wait_ratio: float | None  # of mean response times; None unless users are the factor
    host_busy: float | None  # None unless processes of the generator are the factor
    remark: CoresMissing | str | None


class AlsoDisturbed(FactorAnswer):
    """Inconclusive: these cells also had to wait for a core (for up to
    {disturbance.share:percent} of the response time)."""

    disturbance: Disturbance


def effect_of(comparison: Comparison, cores: int | None) -> FactorAnswer:
    factor, change = comparison.factor, comparison.strongest_change
    disturbance = worst_disturbance(trials.core_wait for trials in comparison.cells)
    if disturbance is not None:
        return AlsoDisturbed(factor, disturbance)
    if change is None:
        return TooFewTrials(factor)
    after, varies_users = change.after, factor is Factor.USERS
    varies_processes = factor is Factor.PROCESSES
    missing = cores_missing(change, cores) if varies_processes else None
    return ThroughputChange(
        factor=factor,
        answer="Inconclusive" if missing else effect_word(change),
        level=factor.level_text(factor.level(after.cell)),
        instead_of=factor.level(change.before.cell),
        users=None if varies_users else after.cell.concurrency,
        ratio=change.ratio,
        wait_ratio=change.wait_ratio if varies_users else None,
        host_busy=after.mean("usage.host_busy") if varies_processes else None,
        remark=missing or effect_remark(change, factor),
    )


def cores_missing(change: LevelChange, cores: int | None) -> CoresMissing | None:
    """A finding if more processes bring no more throughput, and there are too few `cores` for them
    and the workers; None if there are enough, or `cores` is None."""
    cell = change.after.cell
    processes = cell.processes + cell.server.workers * cell.server.instances
    if change.effect == "more" or cores is None or cores >= processes:
        return None
    return CoresMissing(processes, cores)


def effect_word(change: LevelChange) -> Literal["Yes", "Hardly", "No", "Inconclusive"]:
    if change.effect == "chance":
        return "Inconclusive"
    if change.effect != "more":
        return "No"
    users_ratio = change.after.cell.concurrency / change.before.cell.concurrency
    return "Yes" if change.ratio.value >= MIN_GROWTH_PER_USERS * users_ratio else "Hardly"


def effect_remark(change: LevelChange, factor: Factor) -> str | None:
    if change.effect == "chance":
        return "more --trials would show whether this is an effect"
    if factor is Factor.TOOL and change.effect == "more":
        return f"the figures of {change.before.cell.tool} are a lower bound"
    if factor not in (Factor.THREADS, Factor.SERVERS):
        return None
    if change.effect == "more":
        return f"so the number of {factor} was a limit"
    if change.effect == "none":
        percent = f"{100 * (MIN_EFFECT_RATIO - 1):.0f} %"
        return f"a change below {percent} does not count, so {factor} are not the limit"
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
    """The share of the response time spent in the server; None if a part of it is unknown, or if
    other programs prolonged it."""
    names = ("accept_queue_s", "in_worker_s", "service_s")
    parts_s = [part_s for name in names if (part_s := trials.mean(f"breakdown.{name}")) is not None]
    response_s = trials.mean("response.mean")
    if not response_s or len(parts_s) < len(names) or worst_disturbance([trials.core_wait]):
        return None
    inside_s = min(sum(parts_s), response_s)  # the means may be over different trials
    return TimeInServer(
        users=trials.cell.concurrency,
        response_s=response_s,
        inside_s=inside_s,
        share=inside_s / response_s,
    )
