"""Whose limit it is, computed from comparisons of cells that agree in everything but one factor.

In a closed loop the limit is where the requests wait. A factor of the server (threads, a second
server) that changes nothing speaks for the server; one of the load generator (another one, more
processes) that changes much speaks against the generator. What changes throughput by less than
CHANGES is no effect; whether it does, the interval over the trials of both says (`pooled`).
Nothing is concluded from cells that others kept waiting for a core (`analysis/core_wait`): what
differs between them may be what the others did meanwhile.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from workerlab.analysis.core_wait import worst
from workerlab.experiments.bottleneck.pooled import CHANGES, Effect, Pooled, change, effect
from workerlab.experiments.document import answer
from workerlab.model import Cell, Finding
from workerlab.numbers.intervals import TRIALS, Ratio

HALF_WAY = 0.5  # of as many times the requests/s as there are users
CORE_BUSY = 0.8  # of a core
OF_SERVER = ("threads", "servers")

Groups: TypeAlias = Sequence[Sequence[Pooled]]
_to = partial(answer, "bottleneck")


class Factor(NamedTuple):
    """`level` of a cell; `without` gives cells that differ in nothing else the same value."""

    level: Callable[[Cell], int | str]
    without: Callable[[Cell], Cell]


def _without(cell: Cell, **server: int) -> Cell:
    return replace(cell, server=replace(cell.server, **server))


FACTORS: Mapping[str, Factor] = {
    "users": Factor(lambda cell: cell.concurrency, lambda cell: replace(cell, concurrency=1)),
    "threads": Factor(lambda cell: cell.server.threads, lambda cell: _without(cell, threads=1)),
    "servers": Factor(lambda cell: cell.server.instances, lambda cell: _without(cell, instances=1)),
    "processes": Factor(lambda cell: cell.processes, lambda cell: replace(cell, processes=1)),
    "tool": Factor(lambda cell: cell.tool, lambda cell: replace(cell, tool="")),
}


def generator_of(cells: Sequence[Pooled]) -> str:
    """The generator under suspicion: the one of most cells; "" where there is none."""
    counts = Counter(cell.trial.cell.tool for cell in cells)
    return counts.most_common(1)[0][0] if counts else ""


def comparisons(name: str, cells: Sequence[Pooled], generator: str) -> list[list[Pooled]]:
    """Groups of cells that differ in this factor alone, each by the factor's level, first the
    lowest (of `tool` the generator under suspicion); but for `tool`, of that generator."""
    factor = FACTORS[name]
    groups: dict[Cell, list[Pooled]] = {}
    for cell in cells:
        if name == "tool" or cell.trial.cell.tool == generator:
            groups.setdefault(factor.without(cell.trial.cell), []).append(cell)

    def order(cell: Pooled) -> tuple[bool, str]:
        level = factor.level(cell.trial.cell)
        return level != generator, f"{level:>9}"

    compared = [sorted(group, key=order) for group in groups.values()]
    compared = [group for group in compared if order(group[0]) != order(group[-1])]
    return compared[:1] if name == "users" else compared  # on the usual server


def findings(
    comparisons: Mapping[str, Groups], generator: str, cores: int | None
) -> tuple[Finding, ...]:
    """`comparisons`: by factor, groups of cells that differ in it alone; `cores`: the machine's."""
    known: dict[str, Groups] = {}
    for name, groups in comparisons.items():
        measured = ([cell for cell in group if cell.throughput_rps] for group in groups)
        known[name] = [group for group in measured if len(group) > 1]
    return (
        _verdict(known, generator),
        *_users(known["users"]),
        *_server(known["threads"], "threads"),
        *_server(known["servers"], "servers"),
        *_processes(known["processes"], generator, cores),
        *_tools(known["tool"], generator),
        *_inside(known["users"]),
    )


def rate(cell: Pooled) -> float:
    return cell.throughput_rps or 0.0


def changes(groups: Groups) -> list[Ratio]:
    """What each of the others of a group gets, over what the usual cell does."""
    return [change(group[0], other) for group in groups for other in group[1:]]


def effect_of(groups: Groups) -> Effect:
    return effect(changes(groups))


def gain(groups: Groups) -> Ratio:
    """The most that another gets."""
    return max(changes(groups), key=lambda one: one.value, default=Ratio(1.0))


def _rates(group: Sequence[Pooled], factor: str) -> Finding:
    """Throughput by the factor's level."""
    rates = []
    for cell in group:
        level = {"level": FACTORS[factor].level(cell.trial.cell)}
        level_name = Finding(f"bottleneck.level.{factor}", level)
        rates.append(Finding("bottleneck.rate", {"level": level_name, "rps": rate(cell)}))
    users = None if factor == "users" else group[0].trial.cell.concurrency
    return Finding("bottleneck.rates", {"users": users, "rates": tuple(rates)})


def _answer(
    factor: str, outcome: str, values: Mapping[str, object], groups: Groups, most: Ratio
) -> Finding:
    """`outcome`: of the trials' intervals; "few" and "chance" are told alike of every factor."""
    evidence = (_rates(group, factor) for group in groups)
    if (noise := _noise(groups)) is not None:
        return _to(factor, "disturbed_too", {"noise": noise, **noise.values}, evidence)
    interval = {"brings": most.value, "low": most.low, "high": most.high, "trials": TRIALS}
    code = outcome if outcome in ("few", "chance") else f"{factor}.{outcome}"
    return _to(factor, code, {**values, **interval}, evidence)


def _noise(groups: Groups) -> Finding | None:
    return worst(cell.core_wait for group in groups for cell in group)


def _users(groups: Groups) -> Iterator[Finding]:
    for group in groups[:1]:
        first, last = group[0], group[-1]
        more = last.trial.cell.concurrency / first.trial.cell.concurrency
        brings = change(first, last)
        waits, before = last.response.mean, first.response.mean
        wait = waits / before if waits and before else None
        grows = "hardly" if brings.value < HALF_WAY * more else "yes"
        found = effect([brings])
        outcome = {"more": grows, "less": "no", "same": "no"}.get(found, found)
        yield _answer("users", outcome, {"more": more, "wait": wait}, [group], brings)


def _server(groups: Groups, factor: str) -> Iterator[Finding]:
    """A factor of the server: what helps there speaks against it."""
    if groups:
        found = effect_of(groups)
        outcome = {"more": "yes", "same": "no"}.get(found, found)
        every = changes(groups)
        least = min(every, key=lambda one: one.value)
        values = {"least": least.value, "change": CHANGES - 1}
        most = least if outcome == "less" else gain(groups)
        yield _answer(factor, outcome, values, groups, most)


def _processes(groups: Groups, generator: str, cores: int | None) -> Iterator[Finding]:
    """The cure, where the machine has the cores for it."""
    for group in groups[:1]:
        several = max(group[1:], key=rate)
        asked = several.trial.cell
        needed = asked.processes + asked.server.workers * asked.server.instances
        few = cores is not None and cores < needed
        values = {
            "processes": asked.processes,
            "generator": generator,
            "needed": needed,
            "cores": cores,
            "busy": several.usage.host_busy,
        }
        found = effect([change(group[0], several)])
        outcome = {"more": "yes", "less": "no", "same": "no"}.get(found, found)
        outcome = "few_cores" if few and outcome != "few" else outcome
        yield _answer("processes", outcome, values, [group], change(group[0], several))


def _tools(groups: Groups, generator: str) -> Iterator[Finding]:
    """The server under another generator: what it can do at least."""
    if groups:
        group = max(groups, key=lambda one: gain([one]).value)
        best = max(group[1:], key=rate).trial.cell
        values = {"users": best.concurrency, "generator": generator, "other": best.tool}
        found = effect_of(groups)
        outcome = {"more": "yes", "less": "no", "same": "no"}.get(found, found)
        yield _answer("tool", outcome, values, groups, gain([group]))


def _inside(groups: Groups) -> Iterator[Finding]:
    """Where the generator's requests spend their time."""
    times = []
    for cell in (cell for group in groups for cell in group):
        parts, response_s = cell.breakdown, cell.response.mean
        known = [parts.accept_queue_s, parts.in_worker_s, parts.service_s]
        inside = [part for part in known if part is not None]
        if response_s and len(inside) == len(known) and worst([cell.core_wait]) is None:
            values = {"users": cell.trial.cell.concurrency, "response_s": response_s}
            share = min(sum(inside) / response_s, 1.0)
            times.append({**values, "inside_s": sum(inside), "share": share})
    if times:
        evidence = (Finding("bottleneck.inside.time", values) for values in times)
        yield _to("inside", "inside", times[-1], evidence)


def _verdict(known: Mapping[str, Groups], generator: str) -> Finding:
    if (noise := _noise([group for groups in known.values() for group in groups])) is not None:
        return _to("verdict", "disturbed", {"noise": noise})
    cells = [cell for group in known["users"] for cell in group]  # its own, on the usual server
    against, acquits = _against(known, cells, generator), _for_generator(known, cells)
    other, server = effect_of(known["tool"]), [effect_of(known[name]) for name in OF_SERVER]
    bound = [cell.generator_bound for cell in cells if cell.generator_bound is not None]
    mostly_bound = sum(bound) * 2 > len(bound)
    brings = gain(known["tool"]).value if other == "more" else None
    if other == "more" or (mostly_bound and "more" not in server):
        return _to("verdict", "generator", {"generator": generator, "brings": brings}, against)
    if "more" in server:
        return _to("verdict", "server.kept_up", {"generator": generator}, acquits)
    if other in ("same", "less") and bound and not mostly_bound:
        return _to("verdict", "server.others", {"generator": generator}, acquits)
    alone = any(known.values()) and {other, *server} == {"few"}
    code = "few" if alone else "inconclusive"
    return _to("verdict", code, {"trials": TRIALS}, (*against, *acquits))


def _against(
    known: Mapping[str, Groups], cells: Sequence[Pooled], generator: str
) -> Sequence[Finding]:
    evidence: list[Finding] = []
    busy = [(c.usage.generator_cores or 0.0, c.usage.server_cores or 0.0) for c in cells]
    own, server = max(busy, default=(0.0, 0.0))
    if own >= CORE_BUSY:
        values = {"generator": generator, "generator_cores": own, "server_cores": server}
        evidence.append(Finding("bottleneck.busy", values))
    for factor in OF_SERVER:
        if effect_of(known[factor]) in ("same", "less"):
            rates = _rates(known[factor][-1], factor)
            evidence.append(Finding(f"bottleneck.{factor}.no_more", {"rates": rates}))
    for group in known["tool"]:
        if effect_of([group]) == "more":
            evidence.append(_rates((group[0], max(group[1:], key=rate)), "tool"))
    reasons = [reason for cell in cells[-1:] for reason in cell.bound_reasons]
    return [*evidence, *(reason for reason in reasons if isinstance(reason, Finding))]


def _for_generator(known: Mapping[str, Groups], cells: Sequence[Pooled]) -> Sequence[Finding]:
    """What speaks against the server."""
    evidence = [
        _rates(group, factor)
        for factor in OF_SERVER
        for group in known[factor]
        if effect_of([group]) == "more"
    ]
    for usage in [cell.usage for cell in cells[-1:]]:
        if usage.server_cores is not None:
            cores = {"generator": usage.generator_cores, "server": usage.server_cores}
            evidence.append(Finding("bottleneck.cores", cores))
    return [*evidence, *(_rates(group, "tool") for group in known["tool"])]
