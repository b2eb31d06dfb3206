"""The headline of a sweep, in one or two sentences: the series with the highest and the lowest
throughput, and where requests wait."""

from collections.abc import Iterable, Mapping
from math import hypot, inf, isfinite
from typing import Literal

from workerlab.analysis.trials import Replicates, conclusive, valid_results
from workerlab.finding import Finding, Note
from workerlab.model.result import Result, TrialResult

SIMILAR_RATIO = 1.05  # single launches tie if throughputs differ by a smaller factor
NOTABLE_SHARE = 0.05  # of a response time; a shorter wait is not mentioned
MAX_HEADLINE_CHARS = 160  # a longer headline omits where requests wait
WAIT_PLACES = {
    "connect": "until connected",
    "accept_queue": "in the accept queue",
    "in_worker": "inside a worker",
}

LevelTrials = Replicates[Result]  # the trials of one number of connections


NOTHING_VALID = Note("This run has no valid cell, so it has no result; the reasons are below.")
ALL_INCONCLUSIVE = Note(
    "Every cell of this run is inconclusive or was disturbed by other programs; the reasons are"
    " below."
)


class LevelRate(Finding):
    """{rate_rps:number} requests/s[[, each in {response_s:duration}]]
    [[, {wait_s:duration} of it waiting {where}]]"""

    rate_rps: float
    response_s: float | None
    wait_s: float | None  # if it is a notable part
    where: str


class Leads(Finding):
    """{verb} {rate}"""

    verb: Literal["answers", "tie at about"]
    rate: LevelRate


class LeadsByChance(Finding):
    """answer {least_rps:number} to {most_rps:number} requests/s, a difference that may be chance"""

    least_rps: float
    most_rps: float


class Headline(Finding):
    """With {connections:# connection}, {best:list} {lead}[[; {worst} {worst_rate}]]
    [[ ({launches:# trial} each)]]."""

    connections: int
    best: tuple[str, ...]  # the best series and those without a proven difference from it
    lead: Leads | LeadsByChance
    worst: str | None
    worst_rate: LevelRate
    launches: int | None  # 1 if trials are not repeated


def headline(
    series: Mapping[str, Mapping[int, LevelTrials]], cells: Iterable[TrialResult]
) -> Finding:
    """The best and the worst series at the highest level that all series with a conclusive cell
    share, else at the highest of any. `series`: trials by name and number of connections; `cells`:
    all cells of the run."""
    conclusive_levels = {
        name: {n: level for n, trials in levels.items() if (level := _reliable(trials)).valid}
        for name, levels in series.items()
    }
    levels = [set(by_level) for by_level in conclusive_levels.values() if by_level]
    if not levels:
        unreliable = any(not conclusive(cell) or cell.is_disturbed for cell in valid_results(cells))
        return ALL_INCONCLUSIVE if unreliable else NOTHING_VALID
    n = max(set.intersection(*levels) or set.union(*levels))
    rivals = {name: levels[n] for name, levels in conclusive_levels.items() if n in levels}
    full = headline_at(n, rivals, waits=True)
    short = len(rivals) == 1 or len(str(full)) <= MAX_HEADLINE_CHARS
    return full if short else headline_at(n, rivals, waits=False)


def headline_at(connections: int, rivals: Mapping[str, LevelTrials], *, waits: bool) -> Headline:
    """The headline for one number of connections. `rivals`: the series with that level, by name;
    `waits`: whether to say where requests wait."""
    names = sorted(rivals, key=lambda name: -_rps(rivals[name]))
    most, least = rivals[names[0]], rivals[names[-1]]
    best = tuple(name for name in names if rivals[name] is most or is_tie(most, rivals[name]))
    least_rps, most_rps = min(_rps(rivals[name]) for name in best), _rps(most)
    close = most_rps < SIMILAR_RATIO * least_rps
    lead: Leads | LeadsByChance
    if len(best) > 1 and not close:
        lead = LeadsByChance(least_rps, most_rps)
    else:
        lead = Leads("tie at about" if len(best) > 1 else "answers", level_rate(most, waits))
    single = len(names) > 1 and all(len(trials.valid) == 1 for trials in rivals.values())
    return Headline(
        connections=connections,
        best=best,
        lead=lead,
        worst=names[-1] if names[-1] not in best else None,
        worst_rate=level_rate(least, waits),
        launches=1 if single else None,
    )


def is_tie(level: LevelTrials, other: LevelTrials) -> bool:
    """Whether two throughputs do not differ, by the interval of their ratio over trials. Without
    repeated trials, they tie if they differ by less than SIMILAR_RATIO, because launches vary more
    than a single load shows, or if the intervals of the single loads explain the difference. All
    trials must have a throughput above 0."""
    compared = level.ratio(other)
    if compared.differs is not None:
        return not compared.differs
    halves = (each.valid[0].throughput_half_rps or 0.0 for each in (level, other))
    similar = 1 / SIMILAR_RATIO < compared.value < SIMILAR_RATIO
    return similar or abs(_rps(level) - _rps(other)) <= hypot(*halves)


def level_rate(level: LevelTrials, waits: bool) -> LevelRate:
    """Throughput and response time of a level; with `waits`, also the longest notable wait."""
    response_s = level.mean_of_all(_response_s)
    parts = {part: level.mean_of_all(f"breakdown.{part}_s") or 0.0 for part in WAIT_PLACES}
    longest_s, where = max((time_s, part) for part, time_s in parts.items())
    notable = waits and response_s is not None and longest_s >= NOTABLE_SHARE * response_s
    return LevelRate(
        rate_rps=_rps(level),
        response_s=response_s,
        wait_s=longest_s if notable else None,
        where=WAIT_PLACES[where],
    )


def _reliable(trials: LevelTrials) -> LevelTrials:
    """The conclusive trials with a throughput that were not disturbed by other programs."""
    return Replicates(
        tuple(
            cell
            for cell in trials.valid
            if conclusive(cell) and not cell.is_disturbed and 0 < cell.throughput_rps < inf
        )
    )


def _rps(level: LevelTrials) -> float:
    return level.mean("throughput_rps") or 0.0


def _response_s(cell: Result) -> float | None:
    times = (cell.breakdown.response_s, cell.response.mean)
    return next((time_s for time_s in times if time_s and isfinite(time_s)), cell.response.mean)
