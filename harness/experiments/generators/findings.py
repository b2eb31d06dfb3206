"""The conclusions of `workerlab generators`, computed from what was measured.

    low rate     least CPU per request among those that kept the rate; those within the kernel's
                 step of the least are not told apart
    high rate    most requests/s; a lower bound where the server's own core is busy
    GIL          more threads bring nothing while all of them use one core, and processes use more;
                 not seen where other programs took the cores, or there are too few
    machine      the most that this machine's generators reach; a server is measured without doubt
                 up to a third of it (a generator whose ceiling is nearer may be what is measured)
    overhead     whose response times are its own queueing

Where the numbers do not allow an answer, the answer says what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.experiments.generators.usage import BUSY, DISTURBED, Usage, others_most
from harness.model import Finding

PYTHON = ("processes", "threads", "coroutines", "processes-coroutines")  # how to write one
KEPT = 0.9  # of the low rate: who sent less did not keep it
ROOM = 3.0  # a ceiling this many times above a server's throughput does not hide it
OFF = 0.5  # of a reported response time: more client overhead than server
GROWS = 1.2  # more units bring more throughput if they bring that many times as much
ONE_CORE = 1.25  # threads that share a GIL use one core, and some of the kernel's work beside it
SEVERAL = 1.3  # cores: more than one is used

Usages = Sequence[Usage]


def findings(full: Usages, low: Usages, cores: int | None) -> tuple[Finding, ...]:
    """`full`: as fast as each can; `low`: at the low rate; `cores` of the machine."""
    full = [usage for usage in full if not usage.doubt]
    low = [usage for usage in low if not usage.doubt]
    return (
        _low_rate(low),
        _high_rate(full),
        _gil(full, cores),
        _machine(full),
        _overhead([usage for usage in (*low, *full) if not usage.server_busy]),
    )


def _answer(question: str, code: str, values: Any = None, evidence: Any = ()) -> Finding:
    return Finding(
        code=f"generators.{code}",
        values=values or {},
        evidence=tuple(evidence),
        question=f"generators.question.{question}",
    )


# --- at a low rate ------------------------------------------------------------------------------


def _low_rate(usages: Usages) -> Finding:
    asked = max((usage.rps for usage in usages), default=0.0)
    kept = [
        usage
        for usage in usages
        if usage.rps >= KEPT * asked and usage.cpu_per_request_s is not None
    ]
    if not kept:
        return _answer("low_rate", "low_rate.no_cpu")
    kept.sort(key=_cpu_s)
    least = kept[0]
    alike = [one for one in kept if _cpu_s(one) - _step_s(one) <= _cpu_s(least) + _step_s(least)]
    values: dict[str, Any] = {
        "rps": asked,
        "names": tuple(usage.name for usage in alike),
        "cpu_s": max(map(_cpu_s, alike)),
    }
    python = [usage for usage in kept if usage.tool in PYTHON][:2]
    if len(python) == 2:
        first, second = python
        values |= {"first": first.name, "first_s": _cpu_s(first)}
        values |= {"second": second.name, "second_s": _cpu_s(second)}
    evidence = [
        *(Finding("generators.low_rate.cpu", _cpu_of(usage)) for usage in kept),
        *(
            Finding("generators.low_rate.slow", {"name": usage.name, "rps": usage.rps})
            for usage in usages
            if usage.rps < KEPT * asked
        ),
    ]
    return _answer("low_rate", "low_rate" if len(alike) == 1 else "low_rate.tie", values, evidence)


def _cpu_of(usage: Usage) -> dict[str, Any]:
    cpu_s, step_s = _cpu_s(usage), _step_s(usage)
    return {"name": usage.name, "rps": usage.rps, "cpu_s": cpu_s, "step_s": step_s}


def _cpu_s(usage: Usage) -> float:
    return usage.cpu_per_request_s or 0.0


def _step_s(usage: Usage) -> float:
    return usage.cpu_step_s or 0.0


# --- at a high rate -----------------------------------------------------------------------------


def _high_rate(usages: Usages) -> Finding:
    best = _best(usages)
    if not best:
        return _answer("high_rate", "not_measured")
    values: dict[str, Any] = {"best": _reach(best[0])}
    python = [usage for usage in best if usage.tool in PYTHON][:2]
    if len(python) == 2:
        first, second = python
        values |= {"python": _reach(first), "second": second.name, "times": first.rps / second.rps}
    return _answer("high_rate", "high_rate", values, map(_reach, best))


def _best(usages: Usages) -> list[Usage]:
    """Each generator where it sends most; the fastest first."""
    best: dict[str, Usage] = {}
    for usage in usages:
        if usage.rps > 0 and (usage.name not in best or usage.rps > best[usage.name].rps):
            best[usage.name] = usage
    return sorted(best.values(), key=lambda usage: -usage.rps)


def _reach(usage: Usage) -> Finding:
    values = {
        "name": usage.name,
        "rps": usage.rps,
        "connections": usage.connections,
        "cores": usage.cores,
        "busy": usage.server_cores if usage.server_busy else None,
    }
    return Finding("generators.reach", values)


# --- the GIL ------------------------------------------------------------------------------------


def _gil(usages: Usages, cores: int | None) -> Finding:
    threads, processes = _levels(usages, "threads"), _levels(usages, "processes")
    if len(threads) < 2 or not processes:
        return _answer("gil", "gil.few_levels")
    few, many = threads[0], max(threads[1:], key=lambda usage: usage.rps)
    thread_cores = [usage.cores for usage in threads if usage.cores is not None]
    process_cores = [usage.cores for usage in processes if usage.cores is not None]
    evidence = [_reach(usage) for usage in (*threads, *processes)]
    if not thread_cores or not process_cores or not few.rps:
        return _answer("gil", "gil.no_cpu", evidence=evidence)
    values = {
        "growth": many.rps / few.rps,
        "few": few.connections,
        "many": many.connections,
        "thread_cores": max(thread_cores),
        "process_cores": max(process_cores),
        "others_cores": others_most((*threads, *processes)),
        "cores": cores,
    }
    return _answer("gil", f"gil.{_gil_verdict(values)}", values, evidence)


def _gil_verdict(values: dict[str, Any]) -> str:
    if values["others_cores"] > DISTURBED:
        return "disturbed"
    if values["growth"] >= GROWS:
        return "grows"
    if values["thread_cores"] > ONE_CORE:
        return "several_cores"
    return "few_cores" if values["process_cores"] < SEVERAL else "shows"


def _levels(usages: Usages, tool: str) -> list[Usage]:
    those = (usage for usage in usages if usage.tool == tool)
    return sorted(those, key=lambda usage: usage.connections)


# --- a second machine ---------------------------------------------------------------------------


def _machine(usages: Usages) -> Finding:
    best = _best(usages)
    if not best:
        return _answer("machine", "not_measured")
    first = best[0]
    lower = None
    if first.server_busy:
        lower = Finding("generators.machine.server_busy")
    elif others_most([first]) > DISTURBED:
        lower = Finding("generators.machine.others_busy")
    values = {"rps": first.rps, "safe_rps": first.rps / ROOM, "name": first.name, "lower": lower}
    evidence = [
        Finding(
            "generators.machine.ceiling",
            {"name": usage.name, "rps": usage.rps, "safe_rps": usage.rps / ROOM},
        )
        for usage in best
    ]
    evidence += [
        Finding(
            "generators.machine.busy",
            {"name": usage.name, "connections": usage.connections, "busy": usage.server_cores},
        )
        for usage in best
        if usage.server_cores is not None and usage.server_cores >= BUSY
    ]
    return _answer("machine", "machine", values, evidence)


# --- what is reported ---------------------------------------------------------------------------


def _overhead(usages: Usages) -> Finding:
    """`usages`: of servers that are not busy."""
    known = [(s, usage) for usage in usages if (s := usage.overhead_s("p50")) is not None]
    if not known:
        return _answer("overhead", "overhead.unknown")
    known.sort(key=lambda pair: -pair[0] / (pair[1].reported.p50 or pair[0]))
    most = [usage for s, usage in known if s > OFF * (usage.reported.p50 or 0.0)]
    values = {
        "off": len(most),
        "loads": len(known),
        "worst": _overhead_of(known[0][1], "generators.overhead.of"),
        "least": _overhead_of(known[-1][1], "generators.overhead.of"),
    }
    worst = {usage.name: usage for _, usage in reversed(known)}  # of each its worst comes last
    evidence = [
        _overhead_of(usage, "generators.overhead.times")
        for _, usage in known
        if worst[usage.name] is usage
    ]
    return _answer("overhead", "overhead", values, evidence)


def _overhead_of(usage: Usage, code: str) -> Finding:
    values = {
        "name": usage.name,
        "connections": usage.connections,
        "low": Finding("generators.low_rate.short") if usage.low else None,
        "overhead_s": usage.overhead_s("p50"),
        "reported_s": usage.reported.p50,
        "server_s": usage.server_side.p50,
    }
    return Finding(code, values)
