"""What is found of a series once its cells have their verdicts: where it stops serving more, and
which of its cells tells most.

A knee is computed before the verdicts (`Series.knee`), which may ask for it, and here again from
the levels that tell something: neither the verdict nor the throughput of an inconclusive cell is
counted. Knee and verdicts stand in one sentence and must not contradict each other:

    a cell beyond the knee had room      there is no knee: where chance deals the connections, or
                                         others take the cores, throughput may level off below what
                                         more connections could get
    the highest level is saturated, but  the knee is between what throughput shows, and the lowest
    throughput was not seen to stop      level that is saturated, or the slots. More connections
                                         are not asked for: what they add is not capacity, since
                                         slots and loops that idle by chance idle less the more
                                         requests there are
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from workerlab.analysis.diagnosis.base import Diagnosis
from workerlab.analysis.diagnosis.cpu import disturbance
from workerlab.analysis.facts import Facts
from workerlab.analysis.knee import FLAT, NEAR, REACHED, Knee, step_below
from workerlab.analysis.prediction.theory import closed_bound
from workerlab.analysis.series import Series, rates_by_level
from workerlab.model import CellResult, ClassResult, Finding

BEYOND = 1.05  # times the knee
# Nothing waits at the highest level, whatever disturbed it; or that is what is in doubt
HOLDS_ANYWAY = frozenset(
    f"knee.{code}"
    for code in ("above", "no_limit", "no_wait_with_all_slots", "above_slots", "chance")
)
VAGUE = 0.25  # half of the 95 % interval of a throughput, as a part of it
Rates = Mapping[int, float]


def class_result(series: Series, cells: Iterable[CellResult]) -> ClassResult:
    """`cells`: those of this series. The most telling of the closed loop is the valid one that lost
    most of what its slots or connections allow, since that is what settings can win back; where
    none lost any, the most loaded. Of several trials the first."""
    closed = (cell for cell in cells if cell.trial.cell.rate is None)
    valid = [cell for cell in closed if cell.verdict != "invalid"]
    doubts = doubts_of(series, series.closed)
    clear = [cell for cell in valid if cell.trial.key not in doubts] or valid
    most, found = max(clear, key=_tells, default=None), agreed(series, valid)
    return ClassResult(
        server=series.key.server,
        tool=series.key.tool,
        slots_configured=series.slots,
        slots_measured=max((facts.open_at_once for facts in series.closed), default=None),
        capacity_rps=series.capacity.rps,
        capacity_ci95=series.capacity.ci95,
        knee=found.connections,
        knee_note=found.note,
        level_rps=_level_rps(found, valid),
        knee_predicted=_predicted(series),
        keepalive=series.key.keepalive,
        processes=series.key.processes,
        diagnosis=most.diagnosis if most else None,
        telling=most.trial.key if most else None,
        worker_class=series.trials[0].worker_class,
    )


def _predicted(series: Series) -> float | None:
    """The knee of an app that waits and computes for known times, Gunicorn's own CPU left out."""
    server, cores = series.key.server, max((facts.cores or 0 for facts in series.closed), default=0)
    wait_s, cpu_s = server.app.sleep_s, server.cpu_s
    if wait_s is None or cpu_s is None or not cores:
        return None
    bound = closed_bound(server.workers, series.slots, cores, wait_s, cpu_s)
    return None if bound is None else bound * (wait_s + cpu_s)


def _tells(cell: CellResult) -> tuple[float, int, int]:
    reached = (cell.throughput_rps or 0.0) / cell.bound_rps if cell.bound_rps else 1.0
    shows = not isinstance(cell.diagnosis, Diagnosis) or cell.diagnosis.shows_loss
    lost = round(1 - reached, 2) if reached < REACHED and shows else 0.0
    return lost, cell.trial.cell.concurrency, -cell.trial.number


def _level_rps(found: Knee, cells: Iterable[CellResult]) -> float | None:
    """What throughput levels off at, as the cells report it: one that stalled reports another."""
    rates: dict[int, list[float]] = defaultdict(list)
    for cell in cells:
        if cell.verdict != "inconclusive" and cell.throughput_rps:
            rates[cell.trial.cell.concurrency].append(cell.throughput_rps)
    levels = {level: median(found) for level, found in rates.items()}
    most = max(levels.values(), default=0.0)
    flat = found.rps is not None and most >= REACHED * found.rps and _flat(levels)
    return most if flat else None


def _flat(rates: Rates) -> bool:
    """Whether throughput was seen to level off: the highest level brought hardly more than a lower
    one."""
    *lower, highest = (rates[level] for level in sorted(rates)) if rates else (0.0,)
    return bool(lower) and highest <= FLAT * max(lower)


# --- the knee -----------------------------------------------------------------------------------


def agreed(series: Series, valid: Sequence[CellResult]) -> Knee:
    """The knee in the light of the verdicts. `valid`: the valid cells of the closed loop.

    Trials beside other programs that took the cores, or whose throughput is hardly known, show no
    more than that nothing waits in spite of it. The others have to show it without them."""
    words = {cell.trial.key: str(cell.verdict) for cell in valid}
    telling = [facts for facts in series.closed if words.get(facts.key) != "inconclusive"]
    if series.closed and not telling:
        return Knee(None, Finding("knee.inconclusive"))
    of_all, doubts = _shown_by(series, valid, telling, words), doubts_of(series, telling)
    if not doubts or of_all.note.code in HOLDS_ANYWAY:
        return of_all
    clear = [facts for facts in telling if facts.key not in doubts]
    highest = max(facts.connections for facts in telling)
    if clear:
        clear_cells = [cell for cell in valid if cell.trial.key not in doubts]
        of_clear = _shown_by(series, clear_cells, clear, words)
        if of_clear.connections is not None or highest in {facts.connections for facts in clear}:
            return of_clear
    levels = tuple(sorted({facts.connections for facts in telling if facts.key in doubts}))
    # What took most of the cores; before chance, which may be its doing
    worst = max(doubts.values(), key=lambda doubt: doubt.share)
    return Knee(None, Finding("knee.doubtful", {"levels": levels, "why": worst.why}))


class Doubt(NamedTuple):
    """`share`: of the response time, that others took."""

    why: str
    share: float = 0.0


def doubts_of(series: Series, trials: Iterable[Facts]) -> dict[str, Doubt]:
    """By key: why a trial says little of its server's throughput. None that is not in doubt."""
    doubts: dict[str, Doubt] = {}
    for facts in trials:
        half = series.halves[facts.connections]
        if (others := disturbance(facts)) is not None:
            doubts[facts.key] = Doubt(others.doubt, others.share)
        elif half > VAGUE:
            doubts[facts.key] = Doubt(f"the throughput is known to ± {100 * half:.0f} % only")
    return doubts


def _shown_by(
    series: Series, valid: Sequence[CellResult], telling: Sequence[Facts], words: Mapping[str, str]
) -> Knee:
    free = [facts for facts in telling if not series.bound.get(facts.key)]
    found, rates = series.knee_of(free), rates_by_level(free)
    room, from_on = _room_beyond(found, valid), _saturated_from(free, words)
    if room and (_flat(rates) or not from_on):
        flat_rps = max(rates.values()) if _flat(rates) else None
        found = Knee(None, Finding("knee.room_beyond", {**room, "rps": flat_rps}))
    elif (found.connections is None or room) and rates and from_on:
        found = _between(series, rates, from_on)
    elif found.note.code == "knee.still_gains" and _by_chance(series, found.note):
        found = Knee(None, Finding("knee.chance", found.note.values))
    if found.connections is None and rates and max(rates) < max(series.levels):
        found = _without_advice(found)  # higher levels were tried
    return found if len(free) == len(telling) else _beside_tool(series, found, telling, free)


def _room_beyond(found: Knee, cells: Iterable[CellResult]) -> dict[str, int] | None:
    """The highest level beyond the knee that had room all the same."""
    levels = [cell.trial.cell.concurrency for cell in cells if cell.verdict == "below capacity"]
    if found.connections is None or max(levels, default=0) <= BEYOND * found.connections:
        return None
    return {"connections": max(levels)}


def _saturated_from(trials: Iterable[Facts], words: Mapping[str, str]) -> int | None:
    """The lowest level from which on all trials are saturated; None: those of the highest are not,
    or not all."""
    levels: dict[int, set[str]] = defaultdict(set)
    for facts in trials:
        levels[facts.connections].add(words[facts.key])
    lowest = None
    for level in sorted(levels, reverse=True):
        if levels[level] != {"saturated"}:
            break
        lowest = level
    return lowest


def _between(series: Series, rates: Rates, from_on: int) -> Knee:
    """Where requests wait at the highest level and throughput still gained up to it."""
    least, highest, slots = max(rates.values()) * series.r0.seconds, max(rates), series.slots
    if slots and highest > NEAR * slots and least >= REACHED * slots:
        return Knee(
            float(slots), Finding("knee.slots_reached", {"slots": slots}), max(rates.values())
        )
    enough = [level for level in rates if level >= max(from_on, least)]
    limits = [*enough, *([slots] if slots and slots >= least else [])]
    if not limits:
        return Knee(None, Finding("knee.unknown"))
    grew = None
    below = step_below(rates)
    if below is not None and rates[below]:
        step = {"below": below, "highest": highest, "gain": rates[highest] / rates[below] - 1}
        grew = Finding(f"knee.grew.{_kind(series, below, highest, from_on)}", step)
    return Knee(None, Finding("knee.between", {"least": least, "most": min(limits), "grew": grew}))


def _kind(series: Series, below: int, highest: int, from_on: int) -> str:
    """What growth up to a saturated level says: that the knee is in between, or nothing."""
    if series.gains(below, highest) is None:
        return "chance"
    return "until" if below < from_on else "though"


def _by_chance(series: Series, note: Finding) -> bool:
    return series.gains(note.values["below"], note.values["highest"]) is None


def _without_advice(found: Knee) -> Knee:
    values = {name: value for name, value in found.note.values.items() if name != "add"}
    return found._replace(note=Finding(found.note.code, values))


def _beside_tool(
    series: Series, found: Knee, telling: Sequence[Facts], free: Sequence[Facts]
) -> Knee:
    """What the load tool held up says nothing of the knee but that there is more."""
    first = min(facts.connections for facts in telling if series.bound.get(facts.key))
    tool = {"connections": first, "tool": series.key.tool}
    if free:
        note = Finding("knee.tool_is_limit_later", {"knee": found.note, **tool})
    else:
        least = max(rates_by_level(telling).values(), default=0.0) * series.r0.seconds
        note = Finding("knee.tool_is_limit", {"least": least, **tool})
    return found._replace(note=note)
