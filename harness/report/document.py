"""The Document of a sweep: what analysis found, put into findings, tables and notes."""

from collections.abc import Iterable, Mapping, Sequence

from harness.model import CellResult, ClassResult, Document, Finding, Phase, Report
from harness.report.naming import SETTINGS, Names, by_series, level, setting
from harness.report.open_closed import comparisons
from harness.report.sweep_tables import sweep_tables
from harness.report.values import finite

SWEEP = "sweep"
BRIEF = {"diagnosis.full_queue"}  # diagnoses that are told in short, and in full as evidence


def of_sweep(report: Report) -> Document:
    """`report`: of all the cells of a sweep, in the order of the plan."""
    names, cells_of = Names(report.cells), by_series(report.cells)
    phases = {one.key: one.phases for one in report.timelines}
    reasons = [(cell.reason, cell) for cell in report.cells if cell.verdict == "invalid"]
    notes = [(note, cell) for cell in report.cells for note in dict.fromkeys(cell.notes)]
    return Document(
        run=report.run,
        kind=SWEEP,
        title=title(report.cells, names),
        environment=report.environment,
        findings=(
            *(
                class_finding(group, cells_of.get(group.series, []), phases, names)
                for group in report.classes
            ),
            *_costs(report),
            *_by_places("cells.invalid", reasons, names),
        ),
        tables=tuple(sweep_tables(report, names)),
        notes=(*_by_places("cells.note", notes, names), *report.notes),
        valid=all(cell.verdict != "invalid" for cell in report.cells),
        cells=report.cells,
        classes=report.classes,
        timelines=report.timelines,
        overhead=report.overhead,
        setup_s=report.setup_s,
    )


# --- the title ----------------------------------------------------------------------------


def title(cells: Sequence[CellResult], names: Names) -> Finding:
    """What is the same in all cells, told once."""
    if not cells:
        return Finding("sweep.empty")
    sleeps = {cell.sleep_s for cell in cells}
    classes_by_app: dict[str, dict[str, None]] = {}
    for cell in cells:
        classes_by_app.setdefault(cell.app, {})[cell.trial.cell.server.worker_class] = None
    apps = [
        Finding("sweep.app", {"app": app, "classes": tuple(of) if len(classes_by_app) > 1 else ()})
        for app, of in classes_by_app.items()
    ]
    values = {
        "settings": tuple(_constants(cells, names)),
        "apps": tuple(apps),
        "sleep_s": (sleeps.pop() if len(sleeps) == 1 else None) or None,
    }
    return Finding("sweep.title", values)


def _constants(cells: Sequence[CellResult], names: Names) -> Iterable[Finding]:
    first = cells[0].trial.cell
    threaded = [cell for cell in cells if cell.worker_class.threaded(cell.trial.cell.server)]
    threads = {cell.trial.cell.server.threads for cell in threaded}
    for name in SETTINGS:
        if name == "threads" and len(threads) == 1:
            classes = tuple(dict.fromkeys(cell.worker_class.name for cell in threaded))
            yield Finding("setting.threads_each", {"n": threads.pop(), "classes": classes})
        elif name == "worker_connections" and all(
            "worker_connections" in cell.worker_class.ignores for cell in cells
        ):
            continue
        elif name != "threads" and name not in names.settings:
            yield setting(name, getattr(first.server, name))
    if not names.tools:
        processes = first.processes if first.processes > 1 and not names.processes else None
        yield Finding("setting.load", {"tool": first.tool, "processes": processes})
    if all(cell.trial.cell.keepalive for cell in cells):
        yield Finding("setting.kept_alive")
    yield setting("trials", max(cell.trial.number for cell in cells))


# --- each class ---------------------------------------------------------------------------


def class_finding(
    group: ClassResult,
    mine: Sequence[CellResult],
    phases: Mapping[str, tuple[Phase, ...]],
    names: Names,
) -> Finding:
    """Where a class stops serving more and why; as evidence the whole diagnosis, how its cells at a
    rate compare with the others, and the phases of its loads."""
    closed = [c for c in mine if c.trial.cell.rate is None and c.verdict != "invalid"]
    telling = next((cell for cell in closed if cell.trial.key == group.telling), None)
    limited = telling if telling is not None and _is_limited(telling) else None
    full = limited and limited.diagnosis
    diagnosis = (full,) if full and full.code in BRIEF else ()
    evidence = (*diagnosis, *comparisons(mine), *_phases(mine, phases))
    values: dict[str, object] = {"name": names.series(group)}
    code = "class.no_valid_cell"
    if any(finite(cell.throughput_rps) is not None for cell in closed):
        code = "class.limits"
        values |= _limits(group, closed) | _why(limited)
    trials = tuple(cell.trial.key for cell in mine)
    return Finding(code, values, trials, evidence)


def _limits(group: ClassResult, cells: Sequence[CellResult]) -> dict[str, object]:
    """Slots, knee and capacity. `cells`: the valid ones of the closed loop."""
    knee, (low_rps, high_rps) = finite(group.knee), group.capacity_ci95 or (None, None)
    rates = [rps for cell in cells if (rps := finite(cell.throughput_rps)) is not None]
    values: dict[str, object] = {
        "slots": _slots(group),
        "saturated_from": _lowest(cells, "saturated"),
        "capacity_rps": finite(group.capacity_rps) if group.capacity_ci95 else None,
        "low_rps": low_rps,
        "high_rps": high_rps,
    }
    if knee is None:
        return values | {"knee_note": group.knee_note}
    slots = group.slots_measured
    return values | {
        "knee": round(knee, 1),  # nobody trusts its second decimal
        "slots_used": slots if slots is not None and knee < 0.95 * slots else None,
        "highest_rps": max(rates),
        "tool": group.tool,
        "tool_limit_from": _lowest(cells, "generator-bound"),
    }


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
    if why.code in BRIEF:
        why = Finding(f"{why.code}.brief", why.values)
    return {"connections": limited.trial.cell.concurrency, "why": why}


def _is_limited(cell: CellResult) -> bool:
    reached, bound = finite(cell.throughput_rps), finite(cell.bound_rps)
    below = reached is not None and bound is not None and reached < 0.95 * bound
    return cell.verdict in ("saturated", "generator-bound") or below


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


# --- what the run cost, what is invalid, what else there is to know ---------------------------


def _costs(report: Report) -> Iterable[Finding]:
    """How much longer than ideal the load took, and what a cell costs beside it."""
    factor = finite(report.overhead)
    each = {name: v for name, value in report.setup_s.items() if (v := finite(value)) is not None}
    evidence = []
    if classes := _overheads(report.cells):
        evidence.append(Finding("overhead.by_class", {"classes": classes}))
    if each:
        stages = tuple(Finding(f"setup.{name}", {"seconds": v}) for name, v in each.items())
        evidence.append(Finding("setup.stages", {"stages": stages}))
    values = {"factor": factor, "beside_s": sum(each.values()) if each else None}
    if factor is not None or each:
        code = "sweep.overhead" if factor is not None else "sweep.setup"
        yield Finding(code, values, evidence=tuple(evidence))


def _overheads(cells: Iterable[CellResult]) -> tuple[Finding, ...]:
    """The factor of each class: where connections are dealt unevenly, slots idle by nature."""
    times: dict[str, list[tuple[float, float]]] = {}
    for cell in cells:
        load_s, ideal_s = finite(cell.load_s), finite(cell.ideal_s)
        if load_s is not None and ideal_s and not cell.generator_bound:
            times.setdefault(cell.trial.cell.server.worker_class, []).append((load_s, ideal_s))
    factors = {
        name: sum(t for t, _ in mine) / sum(t for _, t in mine) for name, mine in times.items()
    }
    return tuple(
        Finding("overhead.of_class", {"worker_class": name, "factor": factor})
        for name, factor in factors.items()
        if len(factors) > 1 and finite(factor) is not None
    )


def _by_places(
    code: str, findings: Iterable[tuple[Finding, CellResult]], names: Names
) -> Iterable[Finding]:
    """Every text once, with the cells it is about."""
    about: dict[Finding, list[CellResult]] = {}
    for finding, cell in findings:
        about.setdefault(finding, []).append(cell)
    for finding, cells in about.items():
        keys = tuple(cell.trial.key for cell in cells)
        yield Finding(code, {"cells": names.places(cells), "text": finding}, keys)
