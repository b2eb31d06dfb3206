"""Who was the limit of a rung. The first that the numbers convict:

    load tool   the lab's own judgement of each launch (analyse.generator)
    cache       Redis serves with one thread: 80 % of a core
    storage     80 % of the cores a server of it can use: all of them
    app         80 % of the cores that its workers can use; or a request in each of its slots
    pool        requests wait longer for a free connection to the storage than in any other part,
                and neither the workers' CPU nor the machine explains why
    others      90 % of all cores, of which programs that have no part in this took a good deal
    machine     90 % of all cores: whoever is on it shares them, and nobody is to blame alone

A worker that is short of CPU is late in everything, also in taking a free connection: so the pool
is asked late. Where all are asked and none is it, it is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.experiments.ladder.steps import Step, held_up
from harness.experiments.words import listed, percent
from harness.model import CellResult
from harness.numbers.units import format_duration

FULL = 0.8  # of what someone can use
HOST_FULL = 0.9  # of all cores
SLOTS_FULL = 0.9
DISTURBED = 0.4  # cores that others used; the kernel's own work for the network is less
KIND = {"redis": "Redis", "postgresql": "PostgreSQL", "mongodb": "MongoDB", "sqlite": "SQLite"}
SPENT = ("pool", "storage", "redis", "serialise", "template")
UNKNOWN = "not known"


@dataclass(frozen=True)
class Limit:
    """`who`: for a table; `why`: with the numbers."""

    who: str
    why: str


def limit(step: Step, cores: int | None) -> Limit:
    """`cores`: of the machine."""
    for rule in RULES:
        if found := rule(step, cores):
            return found
    return Limit(UNKNOWN, f"nobody was near a limit: {shares(step)}")


def shares(step: Step, others: float | None = None) -> str:
    """Who used how much of the machine."""
    host = step.mean(lambda cell: cell.usage.host_busy)
    used = (
        ("app", step.mean(lambda cell: cell.usage.server_cores)),
        ("storage", step.cores("storage")),
        ("cache", step.cores("cache")),
        ("load tool", step.mean(lambda cell: cell.usage.generator_cores)),
        ("others", others),
    )
    known = [f"{name} {value:.2f}" for name, value in used if value is not None]
    busy = f"host {percent(host)} busy"
    return f"{busy}; cores: {', '.join(known)}" if known else busy


def _tool(step: Step, _cores: int | None) -> Limit | None:
    if not held_up(step):
        return None
    reasons = dict.fromkeys(one.bound_reasons[0] for one in step.cells if one.bound_reasons)
    why = next(iter(reasons), "the lab's judgement of most launches")
    return Limit("load tool", f"{step.load.tool}: {why} ({shares(step)})")


def _cache(step: Step, _cores: int | None) -> Limit | None:
    return _component(step, "cache", step.rung.cache, 1)


def _storage(step: Step, cores: int | None) -> Limit | None:
    return None if cores is None else _component(step, "storage", step.rung.storage, cores)


def _component(step: Step, name: str, kind: str, could: int) -> Limit | None:
    used = step.cores(name)
    if used is None or used < FULL * could:
        return None
    who = KIND.get(kind, kind or name)
    return Limit(who, f"{who} used {used:.2f} of the {_cores(could)} it can use ({shares(step)})")


def _app(step: Step, cores: int | None) -> Limit | None:
    workers = step.rung.server.workers
    could = workers if cores is None else min(workers, cores)
    used = step.mean(lambda cell: cell.usage.server_cores)
    if used is None or used < FULL * could:
        return None
    why = f"its workers used {used:.2f} of the {_cores(could)} they can use ({shares(step)})"
    return Limit("app", why)


def _slots(step: Step, _cores: int | None) -> Limit | None:
    def busy(cell: CellResult) -> float | None:
        if not cell.slots_configured or cell.breakdown.service_s is None:
            return None
        return (cell.throughput_rps or 0.0) * cell.breakdown.service_s / cell.slots_configured

    share = step.mean(busy)
    if share is None or share < SLOTS_FULL:
        return None
    slots = step.cells[0].slots_configured
    held = "its one slot was" if slots == 1 else f"its {slots} slots were"
    return Limit("app", f"{held} busy for {percent(min(1.0, share))} of the time ({shares(step)})")


def _pool(step: Step, _cores: int | None) -> Limit | None:
    pool_s = step.spent_s("pool")
    others = [step.spent_s(name) for name in SPENT if name != "pool"]
    others += [
        step.mean(lambda cell: cell.breakdown.connect_s),
        step.mean(lambda cell: cell.breakdown.accept_queue_s),
        step.mean(lambda cell: cell.breakdown.in_worker_s),
        inside_s(step),
    ]
    known = [value for value in others if value is not None]
    if not pool_s or not known or pool_s <= max(known) or _crowded(step, FULL):
        return None
    why = f"a request waits {format_duration(pool_s)} for a free connection to the storage,"
    return Limit("pool", f"{why} longer than for anything else ({shares(step)})")


def others_cores(step: Step, cores: int | None) -> float | None:
    """What no part of this used of the cores that were busy; None where a part was not seen."""
    host = step.mean(lambda cell: cell.usage.host_busy)
    kinds = {"storage": step.rung.storage, "cache": step.rung.cache}
    used = [step.cores(name) for name, kind in kinds.items() if kind not in ("", "sqlite")]
    used += [step.mean(lambda cell: cell.usage.server_cores)]
    used += [step.mean(lambda cell: cell.usage.generator_cores)]
    known = [value for value in used if value is not None]
    if host is None or cores is None or len(known) < len(used):
        return None
    return max(0.0, host * cores - sum(known))


def _others(step: Step, cores: int | None) -> Limit | None:
    used = others_cores(step, cores)
    if used is None or used < DISTURBED or not _crowded(step):
        return None
    return Limit("other programs", f"they took {used:.2f} cores: {shares(step, used)}")


def _machine(step: Step, _cores: int | None) -> Limit | None:
    return Limit("machine", f"all of it is busy: {shares(step)}") if _crowded(step) else None


def _crowded(step: Step, full: float = HOST_FULL) -> bool:
    host = step.mean(lambda cell: cell.usage.host_busy)
    return host is not None and host >= full


def inside_s(step: Step) -> float | None:
    """What is spent in the app and in none of its parts; None where either is not known."""
    service_s = step.mean(lambda cell: cell.breakdown.service_s)
    known = [value for name in SPENT if (value := step.spent_s(name)) is not None]
    return None if service_s is None or not known else service_s - sum(known)


def _cores(count: int) -> str:
    return "one core" if count == 1 else f"{count} cores"


RULES: tuple[Callable[[Step, int | None], Limit | None], ...] = (
    _tool,
    _cache,
    _storage,
    _app,
    _slots,
    _pool,
    _others,
    _machine,
)


def grouped(found: list[tuple[str, Limit]]) -> str:
    """'the load tool in a and b; the machine in c'."""
    by_who: dict[str, list[str]] = {}
    for name, one in found:
        by_who.setdefault(one.who, []).append(name)
    return "; ".join(f"{who}: {listed(names)}" for who, names in by_who.items())
