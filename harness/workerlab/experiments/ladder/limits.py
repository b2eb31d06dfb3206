"""What limited a step, and how many users the first configuration serves.

A step is limited by the first of these whose numbers show it:

    load tool   the lab's own judgement of each trial (`workerlab.analysis.load_tool`)
    others      programs, or other machines, that kept the load waiting for a core in half of the
                trials or more (`workerlab.analysis.core_wait`): whatever else looks full may wait
    cache       Redis serves with one thread: 80 % of a core
    storage     80 % of the cores a server of it can use: all of them
    app         80 % of the cores that its workers can use; or a request in each of its slots
    pool        requests wait longer for a free connection to the storage than in any other part,
                and neither the workers' CPU nor the machine explains why
    machine     90 % of all cores: everything on it competes for them, and nothing is to blame alone

A worker that is short of CPU is late in everything, also in taking a free connection: so the pool
comes late. Where none of them is it, the limit is not known.

In a search for the limit, users are doubled until a level breaks: half of its launches break the
target, or one is invalid, or one serves less than STABLE of the best level, while neither the load
tool nor other programs were the limit. Where the load tool was, more users would show no more.
"""

import math
from collections.abc import Iterator
from statistics import fmean
from typing import Any, NamedTuple

from workerlab.analysis.target import word
from workerlab.experiments.document import answer
from workerlab.experiments.ladder.steps import Ladder, Load, Step
from workerlab.model import CellResult, Finding

FULL = 0.8  # of what someone can use
HOST_FULL = 0.9  # of all cores
SLOTS_FULL = 0.9
MOST_TIMES = 8  # the users of the steps are the most that are tried
STABLE = 2 / 3
SPENT = ("pool", "storage", "redis", "serialise", "template")  # what an app metric times
BEFORE = ("breakdown.connect_s", "breakdown.accept_queue_s", "breakdown.in_worker_s")


def limit(step: Step, cores: int | None) -> tuple[Finding, Finding]:
    """What limited the step, and the numbers that show it. `cores`: of the machine."""
    name, why, values = next(_limits(step, cores))
    values["usage"] = tuple(_usage(step, values.pop("others", None)))
    why = f"ladder.limit.{why or name}.why"
    return Finding(f"ladder.limit.{name}", values), Finding(why, values)


def _limits(step: Step, cores: int | None) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """All that limit it, in the order above: its name, that of the reason where it has another, and
    their values; `others`: what other programs used."""
    one, busy = step.configuration, step.mean("usage.host_busy") or 0.0
    if step.tool_bound:
        reasons = [cell.bound_reasons[0] for cell in step.cells if cell.bound_reasons]
        yield "tool", "", {"tool": step.load.tool, "reason": next(iter(reasons), None)}
    if (noise := step.disturbance) is not None:
        yield "others", "", {"noise": noise, "others": step.others_cores}
    for role, kind, usable in (("cache", one.cache, 1), ("storage", one.storage, cores)):
        used = step.metric("cores", role)
        if used is not None and usable and used >= FULL * usable:
            yield "service", "", {"service": one.service(kind), "used": used, "cores": usable}
    used = step.mean("usage.server_cores")
    usable = min(one.server.workers, cores or one.server.workers)
    if used is not None and used >= FULL * usable:
        yield "app", "", {"used": used, "cores": usable}
    share, slots = _slots_busy(step), step.cells[0].slots_configured
    if share is not None and share >= SLOTS_FULL:
        yield "app", "slots", {"slots": slots, "share": min(1.0, share)}
    pool_s = step.metric("spent_s", "pool")
    parts = [step.metric("spent_s", name) for name in SPENT if name != "pool"]
    parts += [*map(step.mean, BEFORE), other_code_s(step)]
    longest_s = max((value for value in parts if value is not None), default=math.inf)
    if pool_s and busy < FULL and pool_s > longest_s:
        yield "pool", "", {"wait_s": pool_s}
    if busy >= HOST_FULL:
        yield "machine", "", {}
    yield "unknown", "", {}


def _slots_busy(step: Step) -> float | None:
    """The share of the time; None where slots are unlimited."""
    shares = [
        (cell.throughput_rps or 0.0) * cell.breakdown.service_s / cell.slots_configured
        for cell in step.cells
        if cell.slots_configured and cell.breakdown.service_s is not None
    ]
    return fmean(shares) if shares else None


def _usage(step: Step, others: float | None) -> Iterator[Finding]:
    """How busy the machine was, and who used how many cores of it."""
    used = {
        "app": step.mean("usage.server_cores"),
        "storage": step.metric("cores", "storage"),
        "cache": step.metric("cores", "cache"),
        "tool": step.mean("usage.generator_cores"),
        "others": others,
    }
    cores = tuple(
        Finding(f"ladder.cores.{name}", {"cores": one})
        for name, one in used.items()
        if one is not None
    )
    if (busy := step.mean("usage.host_busy")) is not None:
        yield Finding("ladder.usage.host", {"busy": busy})
    if cores:
        yield Finding("ladder.usage.cores", {"cores": cores})


def other_code_s(step: Step) -> float | None:
    """What is spent in the app and in nothing that it times; None where either is not known."""
    service_s = step.mean("breakdown.service_s")
    timed = [value for name in SPENT if (value := step.metric("spent_s", name)) is not None]
    return None if service_s is None or not timed else service_s - sum(timed)


# --- how many users -----------------------------------------------------------------------------


class UserLevel(NamedTuple):
    """`step`: of the valid launches, if there are any; `why` it breaks, if it does."""

    load: Load
    cells: list[CellResult]
    step: Step | None
    why: Finding | None = None


def levels(ladder: Ladder) -> list[UserLevel]:
    """The fewest users first; none without a search, or without a valid step."""
    levels: list[UserLevel] = []
    tool, first = next((step.load.tool for step in ladder.conclusive), ""), list(ladder.removed)[:1]
    cells_of_first = [
        cell
        for cell in ladder.cells
        if cell.trial.cell.server.name in first and cell.trial.cell.tool == tool
    ]
    counts = {cell.trial.cell.concurrency for cell in cells_of_first}
    for users in sorted(users for users in counts if users >= (ladder.usual_users or math.inf)):
        load = Load(tool, users)
        cells = [cell for cell in cells_of_first if cell.trial.cell.concurrency == users]
        steps = [step for step in ladder.steps.get(load, ()) if step.configuration.name in first]
        level = UserLevel(load, cells, steps[0] if steps else None)
        levels.append(level._replace(why=_why([*levels, level])))
    return levels


def _why(levels: list[UserLevel]) -> Finding | None:
    """Why the last of them breaks."""
    _, cells, step, _ = levels[-1]
    values: dict[str, Any] = {"launches": len(cells)}
    if invalid := [cell.reason for cell in cells if cell.verdict == "invalid"]:
        values |= {"invalid": len(invalid), "reason": invalid[0]}
        return Finding("ladder.users.invalid", values)
    outcomes = ([term for term in cell.target if word(term) == "broken"] for cell in cells)
    broken = [terms for terms in outcomes if terms]
    if 2 * len(broken) >= len(cells):
        return Finding("ladder.users.target", {**values, "broken": len(broken), "terms": broken[0]})
    if step and not step.tool_bound and step.disturbance is None:
        lowest, best = min(step.rates), max(level.step.rps for level in levels if level.step)
        if lowest < STABLE * best:
            return Finding("ladder.users.unstable", {"lowest": lowest, "best": best})
    return None


def next_load(ladder: Ladder) -> Load | None:
    """Of the level that is to be measured; None where the search has ended."""
    for load, _, step, why in levels(ladder)[-1:]:
        if not why and not (step and step.tool_bound):
            most = MOST_TIMES * (ladder.usual_users or 0)
            return Load(load.tool, 2 * load.users) if 2 * load.users <= most else None
    return None


def how_many_users(ladder: Ladder) -> Finding:
    """By the last level, and what limited the last that did not break."""
    *_, before, last = None, *levels(ladder)
    held = (before if before and last.why else last).step
    ended = "tool" if held and held.tool_bound else "most"
    return answer("ladder", "users", "users", {
        "before": before and last.why and before.load.users,
        "before_rps": before and before.step and before.step.rps,
        "load": last.load.text,
        "rps": last.step and last.step.rps,
        "why": last.why or Finding(f"ladder.users.{ended}"),
        "held": held and held.load.users,
        "dropped": sum(cell.counters.listen_drops or 0 for cell in last.cells) or None,
        "limit": held and limit(held, ladder.cores)[1],
    })  # fmt: skip
