"""Whose limit it is, computed from comparisons that each change one thing.

In a closed loop the limit is where the requests wait. A factor of the server (threads, a second
server) that changes nothing speaks for the server; one of the load generator (another one, more
processes) that changes much speaks against the generator. What changes throughput by less than
CHANGES is no effect: two runs of the same cell differ by some percent, on a shared machine by ten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

from harness.experiments.bottleneck.factors import FACTORS
from harness.experiments.document import answer
from harness.model import CellResult, Finding

HALF_WAY = 0.5  # of as many times the requests/s as there are users
CHANGES = 1.2  # times the requests/s
BUSY = 0.8  # of a core

Groups: TypeAlias = Sequence[Sequence[CellResult]]
_to = partial(answer, "bottleneck")


def findings(
    comparisons: Mapping[str, Groups], generator: str, cores: int | None
) -> tuple[Finding, ...]:
    """`comparisons`: by factor (users, threads, servers, processes, tool), groups of cells that
    differ in it alone, first the usual one. `cores`: of the machine."""
    known = {name: _comparable(groups) for name, groups in comparisons.items()}
    answers = (
        _verdict(known, generator),
        _users(known["users"]),
        _server(known["threads"], "threads"),
        _server(known["servers"], "servers"),
        _processes(known["processes"], generator, cores),
        _tools(known["tool"], generator),
        _inside(known["users"]),
    )
    return tuple(one for one in answers if one is not None)


def _comparable(groups: Groups) -> list[list[CellResult]]:
    """Those in which at least two cells are known."""
    known = [[cell for cell in group if cell.throughput_rps] for group in groups]
    return [group for group in known if len(group) > 1]


def rate(cell: CellResult) -> float:
    return cell.throughput_rps or 0.0


def gain(groups: Groups) -> float:
    """How many times the usual cell's throughput the best of the others of its group gets."""
    return max((max(map(rate, group[1:])) / rate(group[0]) for group in groups), default=1.0)


def _rates(group: Sequence[CellResult], factor: str) -> Finding:
    """Throughput by the factor's level."""
    rates = []
    for cell in group:
        level = {"level": FACTORS[factor].level(cell.trial.cell)}
        level_name = Finding(f"bottleneck.level.{factor}", level)
        rates.append(Finding("bottleneck.rate", {"level": level_name, "rps": rate(cell)}))
    users = None if factor == "users" else group[0].trial.cell.concurrency
    return Finding("bottleneck.rates", {"users": users, "rates": tuple(rates)})


def _answer(factor: str, outcome: str, values: Mapping[str, object], groups: Groups) -> Finding:
    evidence = (_rates(group, factor) for group in groups)
    return _to(factor, f"{factor}.{outcome}", values, evidence)


# --- one factor ---------------------------------------------------------------------------------


def _users(groups: Groups) -> Finding | None:
    if not groups:
        return None
    first, last = groups[0][0], groups[0][-1]
    more = last.trial.cell.concurrency / first.trial.cell.concurrency
    brings = rate(last) / rate(first)
    waits, before = last.response.mean, first.response.mean
    values = {"more": more, "brings": brings, "wait": waits / before if waits and before else None}
    outcome = "no" if brings <= CHANGES else "hardly" if brings < HALF_WAY * more else "yes"
    return _answer("users", outcome, values, groups[:1])


def _server(groups: Groups, factor: str) -> Finding | None:
    """A factor of the server: what helps there speaks against it."""
    if not groups:
        return None
    least = min(min(map(rate, group)) / max(map(rate, group)) for group in groups)
    brings = gain(groups)
    outcome = "yes" if brings > CHANGES else "less" if 1 / least > CHANGES else "no"
    values = {"brings": brings, "least": least, "change": CHANGES - 1}
    return _answer(factor, outcome, values, groups)


def _processes(groups: Groups, generator: str, cores: int | None) -> Finding | None:
    """The cure, where the machine has the cores for it."""
    if not groups:
        return None
    single, several = groups[0][0], max(groups[0][1:], key=rate)
    asked = several.trial.cell
    needed = asked.processes + asked.server.workers * asked.server.instances
    brings = rate(several) / rate(single)
    outcome = "yes" if brings > CHANGES else "no"
    if cores is not None and cores < needed:
        outcome = "few_cores"
    values = {
        "processes": asked.processes,
        "generator": generator,
        "brings": brings,
        "needed": needed,
        "cores": cores,
        "busy": several.usage.host_busy,
    }
    return _answer("processes", outcome, values, groups[:1])


def _tools(groups: Groups, generator: str) -> Finding | None:
    """The server under another generator: what it can do at least."""
    if not groups:
        return None
    group = max(groups, key=lambda one: gain([one]))
    best = max(group[1:], key=rate)
    values = {
        "users": best.trial.cell.concurrency,
        "brings": gain([group]),
        "generator": generator,
        "other": best.trial.cell.tool,
    }
    return _answer("tool", "yes" if gain([group]) > CHANGES else "no", values, groups)


def _inside(groups: Groups) -> Finding | None:
    """Where the generator's requests spend their time."""
    times = []
    for cell in (cell for group in groups for cell in group):
        parts, response_s = cell.breakdown, cell.response.mean
        known = [parts.accept_queue_s, parts.in_worker_s, parts.service_s]
        inside = [part for part in known if part is not None]
        if response_s and len(inside) == len(known):
            values = {"users": cell.trial.cell.concurrency, "response_s": response_s}
            share = min(sum(inside) / response_s, 1.0)
            times.append({**values, "inside_s": sum(inside), "share": share})
    if not times:
        return None
    evidence = (Finding("bottleneck.inside.time", values) for values in times)
    return _to("inside", "inside", times[-1], evidence)


# --- the verdict --------------------------------------------------------------------------------


def _verdict(known: Mapping[str, Groups], generator: str) -> Finding:
    """The generator, the server, or inconclusive."""
    against, acquits = _against(known, generator), _for_generator(known)
    other, server = gain(known["tool"]), max(gain(known["threads"]), gain(known["servers"]))
    bound = _bound(known)
    values = {"generator": generator, "brings": other if other > CHANGES else None}
    if other > CHANGES or (bound and server <= CHANGES):
        return _to("verdict", "generator", values, against)
    if server > CHANGES:
        return _to("verdict", "server.kept_up", values, acquits)
    if known["tool"] and bound is False:
        return _to("verdict", "server.others", values, acquits)
    return _to("verdict", "inconclusive", {}, (*against, *acquits))


def _cells(known: Mapping[str, Groups]) -> list[CellResult]:
    """The generator's, on the usual server."""
    return [cell for group in known["users"] for cell in group]


def _bound(known: Mapping[str, Groups]) -> bool | None:
    """Whether most of the generator's cells are its own limit; None: not known of any."""
    bound = [c.generator_bound for c in _cells(known) if c.generator_bound is not None]
    return sum(bound) * 2 > len(bound) if bound else None


def _against(known: Mapping[str, Groups], generator: str) -> tuple[Finding, ...]:
    """What speaks against the generator."""
    evidence: list[Finding] = []
    cells = _cells(known)
    busy = [(c.usage.generator_cores or 0.0, c.usage.server_cores or 0.0) for c in cells]
    if busy and max(busy)[0] >= BUSY:
        own, server = max(busy)
        values = {"generator": generator, "generator_cores": own, "server_cores": server}
        evidence.append(Finding("bottleneck.busy", values))
    for factor in ("threads", "servers"):
        if known[factor] and gain(known[factor]) <= CHANGES:
            values = {"rates": _rates(known[factor][-1], factor)}
            evidence.append(Finding(f"bottleneck.{factor}.no_more", values))
    for group in known["tool"]:
        best = max(group[1:], key=rate)
        if rate(best) > CHANGES * rate(group[0]):
            evidence.append(_rates((group[0], best), "tool"))
    reasons = [reason for cell in cells[-1:] for reason in cell.bound_reasons]
    evidence += [reason for reason in reasons if isinstance(reason, Finding)]
    return tuple(evidence)


def _for_generator(known: Mapping[str, Groups]) -> tuple[Finding, ...]:
    """What speaks against the server."""
    evidence = [
        _rates(group, factor)
        for factor in ("threads", "servers")
        for group in known[factor]
        if gain([group]) > CHANGES
    ]
    for usage in [cell.usage for cell in _cells(known)[-1:]]:
        if usage.server_cores is not None:
            cores = {"generator": usage.generator_cores, "server": usage.server_cores}
            evidence.append(Finding("bottleneck.cores", cores))
    return (*evidence, *(_rates(group, "tool") for group in known["tool"]))
