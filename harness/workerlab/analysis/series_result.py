"""The conclusions of a series once its cells have verdicts: its knee and its most telling cell.

`Series.provisional_knee` is computed before the verdicts, which may depend on it. Here the knee is
computed again from the conclusive cells: neither the verdict nor the throughput of an inconclusive
cell counts. Knee and verdicts appear in one sentence and must not contradict each other:

    a cell beyond the knee is below      there is no knee: if connections are dealt unevenly, or
    capacity                             other programs use the cores, throughput may level off
                                         below what more connections could reach
    the highest level is saturated, but  the knee is between what throughput shows and the lowest
    throughput was not seen to stop      saturated level, or the slots. The note does not suggest
                                         more connections: what they add is not capacity, as slots
                                         and loops that idle by chance idle less under more requests
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple

from msgspec.structs import replace

from workerlab.analysis.diagnosis.base import Diagnosis
from workerlab.analysis.diagnosis.cpu import disturbance
from workerlab.analysis.facts import Facts
from workerlab.analysis.knee import (
    FLAT_RATIO,
    IN_STEP,
    NEAR_RATIO,
    NO_SIGN_OF_ROOM,
    REACHED_SHARE,
    WITHIN_CHANCE,
    Knee,
    KneeAbove,
    KneeAtLeast,
    KneeNote,
    KneeUnknown,
    LastStep,
    ToolLimitFrom,
    max_closed_rps,
    step_below,
)
from workerlab.analysis.load_tool import tool_certainty
from workerlab.analysis.series import Series, rates_by_level
from workerlab.finding import Finding
from workerlab.model import CellResult, ClassResult
from workerlab.numbers.units import fill

BEYOND_KNEE_RATIO = 1.05  # times the knee: a level above this is beyond it
MAX_HALF_SHARE = 0.25  # half of a throughput's 95 % interval, relative to it; above, it is in doubt
REPEAT: Literal["repeat with --trials, or add"] = "repeat with --trials, or add"
LONE_RATE = "requests wait, although throughput is what lone requests allow"
Rates = Mapping[int, float]


def class_result(series: Series, cells: Iterable[CellResult]) -> ClassResult:
    """`cells`: those of this series. The most telling cell is the valid one of the closed loop that
    falls furthest below its bound, as that is what settings can win back; if none does, the one
    with the most connections. Of several trials it is the first. Trials in doubt (`doubts_of`) are
    used only if there are no others."""
    closed = (cell for cell in cells if cell.trial.cell.rate is None)
    valid = [cell for cell in closed if cell.verdict != "invalid"]
    doubts = doubts_of(series, series.closed)
    clear = [cell for cell in valid if cell.trial.key not in doubts] or valid
    telling, knee = max(clear, key=_telling_rank, default=None), final_knee(series, valid)
    return ClassResult(
        server=series.key.server,
        tool=series.key.tool,
        slots_configured=series.slots,
        slots_measured=max((facts.max_in_app for facts in series.closed), default=None),
        capacity_rps=series.capacity.rps,
        capacity_ci95=series.capacity.ci95,
        knee=knee.connections,
        knee_note=knee.note,
        level_rps=_level_rps(knee, valid),
        knee_predicted=_predicted(series),
        keepalive=series.key.keepalive,
        processes=series.key.processes,
        diagnosis=telling.diagnosis if telling else None,
        telling=telling.trial.key if telling else None,
        worker_class=series.trials[0].worker_class,
    )


def _predicted(series: Series) -> float | None:
    """The knee predicted from the app's known wait and CPU time, without Gunicorn's own CPU; None
    if a time or the number of cores is unknown."""
    server, cores = series.key.server, max((facts.cores or 0 for facts in series.closed), default=0)
    wait_s, cpu_s = server.app.sleep_s, server.cpu_s
    if wait_s is None or cpu_s is None or not cores:
        return None
    bound = max_closed_rps(server.workers, series.slots, cores, wait_s, cpu_s)
    return None if bound is None else bound * (wait_s + cpu_s)


def _telling_rank(cell: CellResult) -> tuple[float, int, int]:
    """The share of the bound that is lost, connections, and trial number, negated."""
    reached_share = (cell.throughput_rps or 0.0) / cell.bound_rps if cell.bound_rps else 1.0
    shows = not isinstance(cell.diagnosis, Diagnosis) or cell.diagnosis.shows_loss
    lost_share = round(1 - reached_share, 2) if reached_share < REACHED_SHARE and shows else 0.0
    return lost_share, cell.trial.cell.concurrency, -cell.trial.number


def _level_rps(knee: Knee, cells: Iterable[CellResult]) -> float | None:
    """The throughput at which the series levels off, as its cells report it (a stalled cell reports
    that of its whole load); None if it does not level off."""
    rates: dict[int, list[float]] = defaultdict(list)
    for cell in cells:
        if cell.verdict != "inconclusive" and cell.throughput_rps:
            rates[cell.trial.cell.concurrency].append(cell.throughput_rps)
    levels = {level: median(level_rates) for level, level_rates in rates.items()}
    max_rps = max(levels.values(), default=0.0)
    flat = knee.rps is not None and max_rps >= REACHED_SHARE * knee.rps and _flat(levels)
    return max_rps if flat else None


def _flat(rates: Rates) -> bool:
    """Whether throughput levels off: the highest level gains at most FLAT_RATIO on the best
    lower one."""
    *lower, highest = (rates[level] for level in sorted(rates)) if rates else (0.0,)
    return bool(lower) and highest <= FLAT_RATIO * max(lower)


# --- the knee -----------------------------------------------------------------------------------


class Doubt(NamedTuple):
    """Why a trial's throughput is in doubt. `share` of the response time was lost to others."""

    why: str
    share: float = 0.0


class KneeDoubtful(KneeNote):
    """inconclusive: at {levels:list} connections {why}"""

    levels: tuple[int, ...]
    why: str

    @property
    def short(self) -> str:
        return "inconclusive"


def final_knee(series: Series, valid: Sequence[CellResult]) -> Knee:
    """The knee, consistent with the verdicts. `valid`: the valid cells of the closed loop.

    Trials in doubt (`doubts_of`) can only show that nothing waits despite the disturbance. Any
    other knee must follow from the remaining trials alone.
    """
    verdicts = {cell.trial.key: str(cell.verdict) for cell in valid}
    telling = [facts for facts in series.closed if verdicts.get(facts.key) != "inconclusive"]
    measured = [facts for facts in series.closed if facts in telling or disturbance(facts)]
    if series.closed and not measured:
        return Knee(None, KneeUnknown("every cell is inconclusive"))
    knee, doubts = _shown_by(series, valid, telling, verdicts), doubts_of(series, measured)
    if not doubts or (telling and holds_anyway(knee.note)):
        return knee
    clear = [facts for facts in telling if facts.key not in doubts]
    highest = max(facts.connections for facts in measured)
    if clear:
        clear_cells = [cell for cell in valid if cell.trial.key not in doubts]
        knee = _shown_by(series, clear_cells, clear, verdicts)
        if knee.connections is not None or highest in {facts.connections for facts in clear}:
            return knee
    levels = tuple(sorted({facts.connections for facts in measured if facts.key in doubts}))
    # The largest disturbance; an imprecise throughput (share 0) may be its effect
    worst = max(doubts.values(), key=lambda doubt: doubt.share).why
    return Knee(None, KneeDoubtful(levels=levels, why=worst))


def holds_anyway(note: KneeNote) -> bool:
    """Whether the note is true despite the doubts: nothing waits at the highest level, or the note
    itself says that the last gain is within chance."""
    if note.tool_limit is not None:
        return False
    if isinstance(note, KneeAtLeast):
        return note.why == IN_STEP or note.advice == REPEAT
    return isinstance(note, KneeAbove)


def doubts_of(series: Series, trials: Iterable[Facts]) -> dict[str, Doubt]:
    """Why trials show little about their server's throughput, by key of each trial in doubt."""
    doubts: dict[str, Doubt] = {}
    for facts in trials:
        half = series.relative_halves[facts.connections]
        if (others := disturbance(facts)) is not None:
            doubts[facts.key] = Doubt(others.doubt, others.share)
        elif half > MAX_HALF_SHARE:
            doubts[facts.key] = Doubt(f"the throughput is known only to ± {100 * half:.0f} %")
    return doubts


class SlotsReached(KneeNote):
    """throughput is what {slots:# slot} allow, and requests wait"""

    slots: int


class RoomBeyond(Finding):
    """[[throughput levels off at {rps:number} requests/s, although ]]slots were still free with
    {connections:# connection}"""

    rps: float | None
    connections: int


class KneeBetween(KneeNote):
    """between {least:number} and {most}[[: {step}]]"""

    least: float
    most: int
    step: LastStep | None  # to the highest level

    @property
    def short(self) -> str:
        return fill("{least:number} to {most}", self.values)


def _shown_by(
    series: Series,
    valid: Sequence[CellResult],
    telling: Sequence[Facts],
    verdicts: Mapping[str, str],
) -> Knee:
    unbound = [facts for facts in telling if not series.tool_limits.get(facts.key)]
    knee, rates = series.knee_of(unbound), rates_by_level(unbound)
    room, saturated_from = _room_beyond(knee, valid), _saturated_from(unbound, verdicts)
    if room and (_flat(rates) or not saturated_from):
        flat_rps = max(rates.values()) if _flat(rates) else None
        knee = Knee(None, KneeUnknown(RoomBeyond(flat_rps, room)))
    elif (knee.connections is None or room) and rates and saturated_from:
        knee = _between(series, rates, saturated_from)
    else:
        knee = knee._replace(note=with_chance(series, knee.note))
    if isinstance(knee.note, KneeAtLeast) and rates and max(rates) < max(series.levels):
        knee = knee._replace(note=replace(knee.note, add=None))  # higher levels were tried
    if len(unbound) == len(telling):
        return knee
    return _with_tool_limit(series, knee, telling, unbound)


def with_chance(series: Series, note: KneeNote) -> KneeNote:
    """The same note; if the gain of its last step is within chance, it says that instead."""
    if not isinstance(note, KneeAtLeast) or not isinstance(note.why, LastStep):
        return note
    if series.gains(note.why.below, note.why.highest) is not None:
        return note
    return replace(note, why=replace(note.why, meaning=WITHIN_CHANCE), advice=REPEAT)


def _room_beyond(knee: Knee, cells: Iterable[CellResult]) -> int | None:
    """The highest level beyond the knee with a cell below capacity; None if there is none."""
    levels = [cell.trial.cell.concurrency for cell in cells if cell.verdict == "below capacity"]
    if knee.connections is None or max(levels, default=0) <= BEYOND_KNEE_RATIO * knee.connections:
        return None
    return max(levels)


def _saturated_from(trials: Iterable[Facts], verdicts: Mapping[str, str]) -> int | None:
    """The lowest level from which on all trials are saturated; None if the highest is not."""
    levels: dict[int, set[str]] = defaultdict(set)
    for facts in trials:
        levels[facts.connections].add(verdicts[facts.key])
    lowest = None
    for level in sorted(levels, reverse=True):
        if levels[level] != {"saturated"}:
            break
        lowest = level
    return lowest


def _between(series: Series, rates: Rates, saturated_from: int) -> Knee:
    """The knee, or its range, if requests wait at the highest level but throughput still grew."""
    least, highest, slots = max(rates.values()) * series.r0.seconds, max(rates), series.slots
    if slots and highest > NEAR_RATIO * slots and least >= REACHED_SHARE * slots:
        return Knee(float(slots), SlotsReached(slots=slots), max(rates.values()))
    enough = [level for level in rates if level >= max(saturated_from, least)]
    limits = [*enough, *([slots] if slots and slots >= least else [])]
    if not limits:
        return Knee(None, KneeUnknown(LONE_RATE))
    step = last_step(series, rates, saturated_from)
    return Knee(None, KneeBetween(least=least, most=min(limits), step=step))


def last_step(series: Series, rates: Rates, saturated_from: int) -> LastStep | None:
    """The gain of the last step up to a saturated level, and what it means: nothing if it is within
    chance or both levels are saturated. None if there is no lower level."""
    below, highest = step_below(rates), max(rates)
    if below is None or not rates[below]:
        return None
    step = LastStep("grew", below=below, highest=highest, gain=rates[highest] / rates[below] - 1)
    if series.gains(below, highest) is None:
        return replace(step, verb="changed", meaning=WITHIN_CHANCE)
    return step if below < saturated_from else replace(step, meaning=NO_SIGN_OF_ROOM)


def _with_tool_limit(
    series: Series, knee: Knee, telling: Sequence[Facts], unbound: Sequence[Facts]
) -> Knee:
    """The knee, with a note on the level from which the load tool was the limit. If it was in every
    trial, a lower limit of the knee: such trials only show that the server can do more."""
    limits = [(facts.connections, series.tool_limits.get(facts.key)) for facts in telling]
    first = min(connections for connections, reasons in limits if reasons)
    certainty = tool_certainty(reasons for _, reasons in limits)
    tool_limit = ToolLimitFrom(first, series.key.tool, certainty)
    if unbound:
        return knee._replace(note=replace(knee.note, tool_limit=tool_limit))
    least = max(rates_by_level(telling).values(), default=0.0) * series.r0.seconds
    return knee._replace(note=KneeAtLeast(least=least, why=tool_limit))
