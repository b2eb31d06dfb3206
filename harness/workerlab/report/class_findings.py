"""What a sweep found of each series: where it stops serving more and why, with the evidence: what
is so of each level, how its cells at a rate compare with the others, phases of loads, ab's sums.

An inconclusive cell says nothing of where its class stops: neither its verdict nor its throughput
is counted, and the sentence names its level."""

from collections.abc import Iterable, Mapping, Sequence

from workerlab.analysis.ab_identities import identities
from workerlab.analysis.open_closed import comparisons, conclusive
from workerlab.model import CellResult, ClassResult, Finding, Phase
from workerlab.report.naming import Names, level
from workerlab.report.values import finite

DISTURBED = ("diagnosis.core_wait", "diagnosis.steal")  # told of all cells together
BRIEF = {"diagnosis.full_queue"}  # diagnoses that are told in short, and in full as evidence
EXPLAINS = 0.5  # of what the knee is below the slots: a share of requests or of their time
# What can make throughput level off before all slots are of use, the most important first
BELOW = ("blocked_loop", "busy_machine", "busy_workers", "shared", "uneven", "drift", "slow_first",
         "shedding", "failing", "core_wait", "steal")  # fmt: skip


def class_finding(
    group: ClassResult,
    mine: Sequence[CellResult],
    phases: Mapping[str, tuple[Phase, ...]],
    names: Names,
) -> Finding:
    """`mine`: all cells of the series; `phases`: by trial."""
    closed = [c for c in mine if c.trial.cell.rate is None and c.verdict != "invalid"]
    closed_conclusive = list(filter(conclusive, closed))
    at_rate = any(c.trial.cell.rate is not None and conclusive(c) for c in mine)
    telling = next((cell for cell in closed_conclusive if cell.trial.key == group.telling), None)
    limited = telling if telling is not None and _is_limited(telling) else None
    times = (*_phases(mine, phases), *_identities(closed))
    evidence = (*_of_levels(closed), *comparisons(mine), *times)
    values: dict[str, object] = {"name": names.series(group)}
    code = "class.no_valid_cell"
    if any(finite(cell.throughput_rps) is not None for cell in closed_conclusive):
        code = "class.limits"
        values |= _limits(group, closed_conclusive) | _why(limited)
        values["inconclusive"] = _untold(closed)
    elif closed:
        code = "class.inconclusive"
        values["slots"] = _slots(group)
        values["of"] = Finding("class.of_closed_loop") if at_rate else None
    trials = tuple(cell.trial.key for cell in mine)
    return Finding(code, values, trials, evidence)


def _identities(cells: Iterable[CellResult]) -> Iterable[Finding]:
    """Of each cell that ab loaded, and that took any time."""
    for cell in cells:
        if cell.ab is not None and (values := identities(cell.ab)) is not None:
            load = level(cell.trial.cell, "load")
            yield Finding("ab.identities", {**values, "load": load}, (cell.trial.key,))


def _limits(group: ClassResult, cells: Sequence[CellResult]) -> dict[str, object]:
    """Slots, knee and capacity. `cells`: of the closed loop, those that tell something."""
    knee, (low_rps, high_rps) = finite(group.knee), group.capacity_ci95 or (None, None)
    values: dict[str, object] = {
        "slots": _slots(group),
        "saturated_from": _lowest(cells, "saturated"),
        "capacity_rps": finite(group.capacity_rps) if group.capacity_ci95 else None,
        "low_rps": low_rps,
        "high_rps": high_rps,
    }
    if knee is None:
        return values | {"knee_note": group.knee_note}
    slots = max((cell.slots_measured or 0 for cell in cells), default=0)
    below = _below(knee, slots, cells) if knee < 0.95 * slots else None
    return values | {
        "knee": round(knee, 1),  # nobody trusts its second decimal
        "slots_used": slots if below else None,
        "because": below,
        "level_rps": finite(group.level_rps),
        "tool": group.tool,
        "tool_limit_from": _lowest(cells, "generator-bound"),
    }


def _below(knee: float, slots: int, cells: Sequence[CellResult]) -> Finding | None:
    """What shows why slots beyond the knee bring nothing. None: nothing does, and no more is said
    than where the knee is."""
    beyond = [cell for cell in cells if cell.trial.cell.concurrency > knee]
    codes = {
        one.code.removeprefix("diagnosis.")
        for cell in beyond
        for one in cell.findings
        if one.values.get("share", 1.0) >= EXPLAINS * (1 - knee / slots)
    }
    return next((Finding(f"below.{code}") for code in BELOW if code in codes), None)


def _untold(cells: Iterable[CellResult]) -> tuple[str, ...]:
    """Levels of which no trial tells anything."""
    levels: dict[int, set[str]] = {}
    for cell in cells:
        levels.setdefault(cell.trial.cell.concurrency, set()).add(cell.verdict)
    return tuple(str(at) for at in sorted(levels) if levels[at] == {"inconclusive"})


def _lowest(cells: Iterable[CellResult], verdict: str) -> int | None:
    """The lowest concurrency with this verdict."""
    return min((c.trial.cell.concurrency for c in cells if c.verdict == verdict), default=None)


def _slots(group: ClassResult) -> Finding:
    """Configured, and used where that is not the same."""
    configured, used = group.slots_configured, group.slots_measured
    name = "unlimited" if group.worker_class.slots_known else "unknown"
    values = {"slots": configured, "used": None if configured == used else used}
    return Finding(f"class.slots.{name if configured is None else 'configured'}", values)


def _why(limited: CellResult | None) -> dict[str, object]:
    """What limits the cell that says most about its class; None: nothing does."""
    if limited is None:
        return {}
    why = limited.diagnosis or Finding("class.reason", {"reason": limited.reason})
    if why.code in DISTURBED:
        return {}
    if why.code in BRIEF:
        why = Finding(f"{why.code}.brief", why.values)
    return {"connections": limited.trial.cell.concurrency, "why": why}


def _is_limited(cell: CellResult) -> bool:
    reached, bound = finite(cell.throughput_rps), finite(cell.bound_rps)
    below = reached is not None and bound is not None and reached < 0.95 * bound
    return cell.verdict in ("saturated", "generator-bound") or below


# --- evidence -----------------------------------------------------------------------------


def _of_levels(cells: Sequence[CellResult]) -> Iterable[Finding]:
    """All that is so of each level, each finding once: in the words of the first trial that has it,
    and how many of several have it."""
    levels: dict[int, list[CellResult]] = {}
    for cell in cells:
        levels.setdefault(cell.trial.cell.concurrency, []).append(cell)
    for trials in levels.values():
        found: dict[str, list[Finding]] = {}
        for cell in trials:
            for one in cell.findings:
                found.setdefault(one.code, []).append(one)
        each = [
            first if len(have) == len(trials) else _in_trials(first, len(have), len(trials))
            for have in found.values()
            for first in have[:1]
        ]
        if each:
            values = {"load": level(trials[0].trial.cell, "load"), "findings": tuple(each)}
            yield Finding("cells.findings", values, tuple(cell.trial.key for cell in trials))


def _in_trials(finding: Finding, have: int, trials: int) -> Finding:
    values = {"text": finding, "have": have, "trials": trials}
    return Finding("cells.findings.trials", values)


def _phases(
    cells: Sequence[CellResult], phases: Mapping[str, tuple[Phase, ...]]
) -> Iterable[Finding]:
    """Of loads on kept connections. `phases`: by trial."""
    for cell in cells:
        found = phases.get(cell.trial.key, ())
        if changing(found):
            values = {
                "load": level(cell.trial.cell, "load"),
                "phases": tuple(map(phase_finding, found)),
            }
            yield Finding("phases.cell", values, (cell.trial.key,))


def changing(phases: Iterable[Phase]) -> bool:
    """Whether there is more to see than that nothing changes."""
    return bool({phase.name for phase in phases} & {"ramp-up", "drain"})


def phase_finding(phase: Phase) -> Finding:
    values = {"start_s": phase.start_s, "end_s": phase.end_s, "why": phase.why}
    return Finding(f"phases.{phase.name}", values)
