"""Whose limit it is, computed from experiments that each change one thing.

In a closed loop the limit is where the requests wait. A factor of the server (threads, a second
server) that changes nothing acquits the server; one of the generator (another one, more processes)
that changes much convicts the generator. What changes throughput by less than CHANGES is no effect:
two runs of the same cell differ by some percent, on a shared machine by ten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from harness.model import Answer, CellResult
from harness.numbers.words import number, plural, seconds

HALF_WAY = 0.5  # of as many times the requests/s as there are users
CHANGES = 1.2  # times the requests/s
BUSY = 0.8  # of a core

Groups: TypeAlias = Sequence[Sequence[CellResult]]


def findings(
    experiments: Mapping[str, Groups], hunted: str, cores: int | None
) -> tuple[Answer, ...]:
    """`experiments`: by factor (users, threads, servers, processes, tool), groups of cells that
    differ in it alone, first the usual one. `cores`: of the machine."""
    known = {name: _believed(groups) for name, groups in experiments.items()}
    found = [
        _verdict(known, hunted),
        _users(known["users"]),
        _server(known["threads"], "Do more threads in the server help?", "threads"),
        _server(known["servers"], "Does a second server help?", "servers"),
        _processes(known["processes"], hunted, cores),
        _tools(known["tool"], hunted),
        _inside(known["users"]),
    ]
    return tuple(one for one in found if one is not None)


def _believed(groups: Groups) -> list[list[CellResult]]:
    """Those in which at least two cells can be compared."""
    kept = [[cell for cell in group if cell.throughput_rps] for group in groups]
    return [group for group in kept if len(group) > 1]


def times(ratio: float) -> str:
    """'4', '2.1', '0.71'."""
    return f"{ratio:.2g}" if ratio < 1 else number(ratio).removesuffix(".0")


def rate(cell: CellResult) -> float:
    return cell.throughput_rps or 0.0


def _level(cell: CellResult, factor: str) -> str:
    asked = cell.trial.cell
    levels = {
        "users": plural(asked.concurrency, "user"),
        "threads": plural(asked.server.threads, "thread"),
        "servers": plural(asked.server.instances, "server"),
        "processes": plural(asked.processes, "process").replace("processs", "processes"),
        "tool": asked.tool,
    }
    return levels[factor]


def _told(group: Sequence[CellResult], factor: str) -> str:
    """'500 users: 1 thread 410 requests/s, 6 threads 422'."""
    each = [f"{_level(cell, factor)} {number(rate(cell))} requests/s" for cell in group]
    where = "" if factor == "users" else f"{plural(group[0].trial.cell.concurrency, 'user')}: "
    return where + ", ".join(each)


def most_change(groups: Groups) -> float:
    """The largest ratio between two cells that differ in one factor; 1 where there is none."""
    return max((max(map(rate, group)) / min(map(rate, group)) for group in groups), default=1.0)


def gain(groups: Groups) -> float:
    """How many times the usual cell's throughput the best of the others of its group gets."""
    return max((max(map(rate, group[1:])) / rate(group[0]) for group in groups), default=1.0)


def _users(groups: Groups) -> Answer | None:
    if not groups:
        return None
    group = groups[0]
    first, last = group[0], group[-1]
    more = last.trial.cell.concurrency / first.trial.cell.concurrency
    brings = rate(last) / rate(first)
    answer = f"{times(more)} times as many users bring {times(brings)} times the requests/s"
    waits, before = last.response.mean, first.response.mean
    if waits and before:
        answer += f", and each waits {times(waits / before)} times as long"
    word = "No" if brings <= CHANGES else "Hardly" if brings < HALF_WAY * more else "Yes"
    return Answer("Do more users bring more?", f"{word}: {answer}.", (_told(group, "users"),))


def _server(groups: Groups, question: str, factor: str) -> Answer | None:
    """A factor of the server: what helps there speaks against it."""
    if not groups:
        return None
    evidence = tuple(_told(group, factor) for group in groups)
    brings = gain(groups)
    if brings > CHANGES:
        answer = f"Yes: up to {times(brings)} times the requests/s, so the server had its part."
    elif (most := most_change(groups)) > CHANGES:
        answer = f"No: less comes out, down to {times(1 / most)} times as much."
    else:
        answer = (
            f"No: they differ by less than {100 * (CHANGES - 1):.0f} %. It is not the server's."
        )
    return Answer(question, answer, evidence)


def _processes(groups: Groups, hunted: str, cores: int | None) -> Answer | None:
    """The cure, where the machine has the cores for it."""
    if not groups:
        return None
    single, several = groups[0][0], max(groups[0][1:], key=rate)
    asked = several.trial.cell
    needed = asked.processes + asked.server.workers * asked.server.instances
    brings = rate(several) / rate(single)
    got = f"{asked.processes} processes of {hunted} bring {times(brings)} times the requests/s"
    answer = f"{'Yes' if brings > CHANGES else 'No'}: {got}."
    if cores is not None and cores < needed:
        answer = (
            f"This machine has too few cores to show the cure: {asked.processes} processes and the"
            f" server compute on {needed}, it has {cores}. On these, {got}."
        )
    evidence = [_told(groups[0], "processes")]
    if (busy := several.usage.host_busy) is not None:
        evidence.append(f"with {asked.processes} processes the host was {100 * busy:.0f} % busy")
    return Answer("Do more processes of the generator help?", answer, tuple(evidence))


def _tools(groups: Groups, hunted: str) -> Answer | None:
    """The server under another generator: what it can do at least."""
    if not groups:
        return None
    group = max(groups, key=lambda one: max(map(rate, one[1:])) / rate(one[0]))
    own, best = group[0], max(group[1:], key=rate)
    brings, users = rate(best) / rate(own), plural(own.trial.cell.concurrency, "user")
    name = best.trial.cell.tool
    answer = f"No: with {users} {name} gets {times(brings)} times what {hunted} does."
    if brings > CHANGES:
        answer = (
            f"Yes: with the same {users} the same server does {times(brings)} times as much under"
            f" {name}. What {hunted} measured is a lower bound."
        )
    return Answer(
        "Does another generator get more out of the same server?",
        answer,
        tuple(_told(one, "tool") for one in groups),
    )


def _inside(groups: Groups) -> Answer | None:
    """Where the hunted generator's requests spend their time."""
    cells = [cell for group in groups for cell in group]
    told = []
    for cell in cells:
        parts = cell.breakdown
        known = (parts.accept_queue_s, parts.in_worker_s, parts.service_s)
        if cell.response.mean and None not in known:
            inside = sum(part for part in known if part is not None)
            told.append((cell, inside, cell.response.mean))
    if not told:
        return None
    cell, inside_s, response_s = told[-1]
    share = inside_s / response_s
    answer = (
        f"With {plural(cell.trial.cell.concurrency, 'user')} a response takes"
        f" {seconds(response_s)}, of which the request is {seconds(inside_s)} in the server"
        f" ({100 * min(share, 1.0):.2g} %): accept queue, worker and app."
    )
    evidence = tuple(
        f"{plural(one.trial.cell.concurrency, 'user')}: {seconds(spent)} of {seconds(whole)}"
        for one, spent, whole in told
    )
    return Answer("Where is a request while it waits?", answer, evidence)


def _verdict(known: Mapping[str, Groups], hunted: str) -> Answer:
    """The generator, the server, or what is missing to tell."""
    question = "Is it the server or the load generator?"
    against, acquits = _against(known, hunted), _for_generator(known)
    by_others, server = gain(known["tool"]), max(gain(known["threads"]), gain(known["servers"]))
    bound = _bound(known)
    lower = "so its figures are a lower bound of the server"
    if by_others > CHANGES or (bound and server <= CHANGES):
        best = f": it did {times(by_others)} times as much under another one"
        more = best if by_others > CHANGES else ""
        return Answer(
            question, f"The generator, {hunted}, is the bottleneck, {lower}{more}.", (*against,)
        )
    if server > CHANGES:
        return Answer(
            question, f"The server is the bottleneck: {hunted} kept up with more of it.", acquits
        )
    if known["tool"] and bound is False:
        return Answer(
            question,
            f"The server is the bottleneck: no other generator gets more out of it than {hunted}.",
            acquits,
        )
    return Answer(question, "It cannot be told from these cells.", (*against, *acquits))


def _bound(known: Mapping[str, Groups]) -> bool | None:
    """Whether most of the hunted generator's cells are its own limit; None: nobody could tell."""
    cells = [cell for group in known["users"] for cell in group]
    told = [cell.generator_bound for cell in cells if cell.generator_bound is not None]
    return sum(told) * 2 > len(told) if told else None


def _against(known: Mapping[str, Groups], hunted: str) -> list[str]:
    """What speaks against the generator."""
    found = []
    cells = [cell for group in known["users"] for cell in group]
    busy = [(c.usage.generator_cores or 0.0, c.usage.server_cores or 0.0) for c in cells]
    if busy and max(busy)[0] >= BUSY:
        own, server = max(busy)
        found.append(f"{hunted} used {own:.2f} cores, the server {server:.2f}")
    for factor, what in (("threads", "more threads"), ("servers", "a second server")):
        if known[factor] and gain(known[factor]) <= CHANGES:
            found.append(f"{what} brought no more ({_told(known[factor][-1], factor)})")
    for group in known["tool"]:
        best = max(group[1:], key=rate)
        if rate(best) > CHANGES * rate(group[0]):
            found.append(_told((group[0], best), "tool"))
    reasons = [reason for cell in cells[-1:] for reason in cell.bound_reasons]
    return [*found, *reasons]


def _for_generator(known: Mapping[str, Groups]) -> tuple[str, ...]:
    """What speaks against the server."""
    found = [
        _told(group, factor)
        for factor in ("threads", "servers")
        for group in known[factor]
        if gain([group]) > CHANGES
    ]
    cells = [cell for group in known["users"] for cell in group]
    if cells and (used := cells[-1].usage.server_cores) is not None:
        own = cells[-1].usage.generator_cores
        found.append(
            f"the server used {used:.2f} cores, the generator"
            f" {'an unknown share' if own is None else f'{own:.2f}'}"
        )
    found += [_told(group, "tool") for group in known["tool"]]
    return tuple(found)
