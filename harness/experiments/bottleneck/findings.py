"""Whose limit it is, computed from comparisons of cells that agree in everything but one factor.

In a closed loop the limit is where the requests wait. A factor of the server (threads, a second
server) that changes nothing speaks for the server; one of the load generator (another one, more
processes) that changes much speaks against the generator. What changes throughput by less than
CHANGES is no effect: two runs of the same cell differ by some percent, on a shared machine by ten.
Nothing is concluded from cells that others kept waiting for a core (`analysis/core_wait`): what
differs between them may be what the others did meanwhile.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from harness.analysis.core_wait import worst
from harness.experiments.document import answer
from harness.model import Cell, CellResult, Finding

HALF_WAY = 0.5  # of as many times the requests/s as there are users
CHANGES = 1.2  # times the requests/s
CORE_BUSY = 0.8  # of a core
OF_SERVER = ("threads", "servers")

Groups: TypeAlias = Sequence[Sequence[CellResult]]
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


def generator_of(cells: Sequence[CellResult]) -> str:
    """The generator under suspicion: the one of most cells; "" where there is none."""
    counts = Counter(cell.trial.cell.tool for cell in cells)
    return counts.most_common(1)[0][0] if counts else ""


def comparisons(name: str, cells: Sequence[CellResult], generator: str) -> list[list[CellResult]]:
    """Groups of cells that differ in this factor alone, each by the factor's level, first the
    lowest (of `tool` the generator under suspicion); but for `tool`, of that generator."""
    factor = FACTORS[name]
    groups: dict[Cell, list[CellResult]] = {}
    for cell in cells:
        if name == "tool" or cell.trial.cell.tool == generator:
            groups.setdefault(factor.without(cell.trial.cell), []).append(cell)

    def order(cell: CellResult) -> tuple[bool, str]:
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
    if (noise := _noise(groups)) is not None:
        return _to(factor, "disturbed", {"noise": noise}, evidence)
    return _to(factor, f"{factor}.{outcome}", values, evidence)


def _noise(groups: Groups) -> Finding | None:
    return worst(cell.core_wait for group in groups for cell in group)


def _users(groups: Groups) -> Iterator[Finding]:
    for group in groups[:1]:
        first, last = group[0], group[-1]
        more = last.trial.cell.concurrency / first.trial.cell.concurrency
        brings = rate(last) / rate(first)
        waits, before = last.response.mean, first.response.mean
        wait = waits / before if waits and before else None
        outcome = "no" if brings <= CHANGES else "hardly" if brings < HALF_WAY * more else "yes"
        values = {"more": more, "brings": brings, "wait": wait}
        yield _answer("users", outcome, values, [group])


def _server(groups: Groups, factor: str) -> Iterator[Finding]:
    """A factor of the server: what helps there speaks against it."""
    if groups:
        least = min(min(map(rate, group)) / max(map(rate, group)) for group in groups)
        brings = gain(groups)
        outcome = "yes" if brings > CHANGES else "less" if 1 / least > CHANGES else "no"
        values = {"brings": brings, "least": least, "change": CHANGES - 1}
        yield _answer(factor, outcome, values, groups)


def _processes(groups: Groups, generator: str, cores: int | None) -> Iterator[Finding]:
    """The cure, where the machine has the cores for it."""
    for group in groups[:1]:
        several = max(group[1:], key=rate)
        asked = several.trial.cell
        needed = asked.processes + asked.server.workers * asked.server.instances
        brings = rate(several) / rate(group[0])
        few = cores is not None and cores < needed
        values = {
            "processes": asked.processes,
            "generator": generator,
            "brings": brings,
            "needed": needed,
            "cores": cores,
            "busy": several.usage.host_busy,
        }
        outcome = "few_cores" if few else "yes" if brings > CHANGES else "no"
        yield _answer("processes", outcome, values, [group])


def _tools(groups: Groups, generator: str) -> Iterator[Finding]:
    """The server under another generator: what it can do at least."""
    if groups:
        group = max(groups, key=lambda one: gain([one]))
        best, brings = max(group[1:], key=rate).trial.cell, gain([group])
        values = {"users": best.concurrency, "brings": brings, "generator": generator}
        outcome = "yes" if brings > CHANGES else "no"
        yield _answer("tool", outcome, {**values, "other": best.tool}, groups)


def _inside(groups: Groups) -> Iterator[Finding]:
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
    if times:
        evidence = (Finding("bottleneck.inside.time", values) for values in times)
        yield _to("inside", "inside", times[-1], evidence)


def _verdict(known: Mapping[str, Groups], generator: str) -> Finding:
    if (noise := _noise([group for groups in known.values() for group in groups])) is not None:
        return _to("verdict", "disturbed", {"noise": noise})
    cells = [cell for group in known["users"] for cell in group]  # its own, on the usual server
    against, acquits = _against(known, cells, generator), _for_generator(known, cells)
    other, server = gain(known["tool"]), max(gain(known[factor]) for factor in OF_SERVER)
    bound = [cell.generator_bound for cell in cells if cell.generator_bound is not None]
    mostly_bound = sum(bound) * 2 > len(bound)
    values = {"generator": generator, "brings": other if other > CHANGES else None}
    if other > CHANGES or (mostly_bound and server <= CHANGES):
        return _to("verdict", "generator", values, against)
    if server > CHANGES:
        return _to("verdict", "server.kept_up", values, acquits)
    if known["tool"] and bound and not mostly_bound:
        return _to("verdict", "server.others", values, acquits)
    return _to("verdict", "inconclusive", {}, (*against, *acquits))


def _against(
    known: Mapping[str, Groups], cells: Sequence[CellResult], generator: str
) -> Sequence[Finding]:
    evidence: list[Finding] = []
    busy = [(c.usage.generator_cores or 0.0, c.usage.server_cores or 0.0) for c in cells]
    own, server = max(busy, default=(0.0, 0.0))
    if own >= CORE_BUSY:
        values = {"generator": generator, "generator_cores": own, "server_cores": server}
        evidence.append(Finding("bottleneck.busy", values))
    for factor in OF_SERVER:
        if known[factor] and gain(known[factor]) <= CHANGES:
            rates = _rates(known[factor][-1], factor)
            evidence.append(Finding(f"bottleneck.{factor}.no_more", {"rates": rates}))
    for group in known["tool"]:
        if gain([group]) > CHANGES:
            evidence.append(_rates((group[0], max(group[1:], key=rate)), "tool"))
    reasons = [reason for cell in cells[-1:] for reason in cell.bound_reasons]
    return [*evidence, *(reason for reason in reasons if isinstance(reason, Finding))]


def _for_generator(known: Mapping[str, Groups], cells: Sequence[CellResult]) -> Sequence[Finding]:
    """What speaks against the server."""
    evidence = [
        _rates(group, factor)
        for factor in OF_SERVER
        for group in known[factor]
        if gain([group]) > CHANGES
    ]
    for usage in [cell.usage for cell in cells[-1:]]:
        if usage.server_cores is not None:
            cores = {"generator": usage.generator_cores, "server": usage.server_cores}
            evidence.append(Finding("bottleneck.cores", cores))
    return [*evidence, *(_rates(group, "tool") for group in known["tool"])]
