"""The conclusions of `workerlab generators`, computed from what was measured.

    low rate     least CPU per request among those that kept the rate; those that differ by no more
                 than the kernel's step, or by no more than their trials do, are not told apart
    high rate    most requests/s; a lower bound where the server's own core is busy, or where it
                 answers late and so many connections get no more from it
    GIL          more threads bring nothing while all of them use one core, and processes use more;
                 not seen where others kept it waiting for a core, or there are too few
    machine      the most that this machine's generators reach; a server is measured without doubt
                 up to a third of it (a generator whose ceiling is nearer may be what is measured)
    overhead     whose response times are its own queueing, and not for want of a core

Where the numbers do not allow an answer, the answer says what is missing.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from workerlab.experiments.document import answer
from workerlab.experiments.generators.usage import Usage, disturbed
from workerlab.model import Finding
from workerlab.numbers.intervals import TRIALS, ratio

PYTHON = ("processes", "threads", "coroutines", "processes-coroutines")  # how to write one
KEPT = 0.9  # of the low rate: who sent less did not keep it
ROOM = 3.0  # a ceiling this many times above a server's throughput does not hide it
OFF = 0.5  # of a reported response time: more client overhead than server
GROWS = 1.2  # more units bring more throughput if they bring that many times as much
ONE_CORE = 1.25  # threads that share a GIL use one core, and some of the kernel's work beside it
SEVERAL = 1.3  # cores: more than one is used

Usages = Sequence[Usage]
_answer = partial(answer, "generators")


def findings(full: Usages, low: Usages, cores: int | None) -> tuple[Finding, ...]:
    """`full`: as fast as each can; `low`: at the low rate; `cores` of the machine."""
    full = [usage for usage in full if not usage.doubt]
    low = [usage for usage in low if not usage.doubt]
    return (
        _low_rate(low),
        _high_rate(full),
        _gil([usage for usage in full if not usage.delay_bound], cores),
        _machine(full),
        _overhead([one for one in (*low, *full) if not (one.server_busy or disturbed([one]))]),
    )


def _low_rate(usages: Usages) -> Finding:
    asked = max((usage.rps for usage in usages), default=0.0)
    kept = [usage for usage in usages if usage.rps >= KEPT * asked]
    known = [(usage, s) for usage in kept if (s := usage.cpu_per_request_s) is not None]
    if not known:
        return _answer("low_rate", "low_rate.no_cpu")
    known.sort(key=lambda one: one[1])
    evidence = [
        Finding("generators.low_rate.cpu", {
            "name": usage.name, "rps": usage.rps, "cpu_s": s, "step_s": usage.cpu_step_s or 0.0,
        })
        for usage, s in known
    ]  # fmt: skip
    evidence += [
        Finding("generators.low_rate.slow", {"name": usage.name, "rps": usage.rps})
        for usage in usages
        if usage.rps < KEPT * asked and not usage.stood_still
    ]
    if min(len(usage.costs_s) for usage, _ in known) < 2:
        return _answer("low_rate", "few", {"trials": TRIALS}, evidence)
    least = known[0][0]
    alike = [(usage, s) for usage, s in known if usage is least or not _costs_more(usage, least)]
    values: dict[str, Any] = {
        "rps": asked,
        "names": tuple(usage.name for usage, _ in alike),
        "cpu_s": max(s for _, s in alike),
    }
    python = [one for one in known if one[0].tool in PYTHON]
    if len(python) > 1 and _costs_more(python[1][0], python[0][0]):
        for place, (usage, cpu_s) in zip(("first", "second"), python, strict=False):
            values |= {place: usage.name, f"{place}_s": cpu_s}
    return _answer("low_rate", "low_rate" if len(alike) == 1 else "low_rate.tie", values, evidence)


def _costs_more(usage: Usage, least: Usage) -> bool:
    """By the interval over their trials, and by more than the kernel's clock can tell."""
    step_s = (usage.cpu_step_s or 0.0) + (least.cpu_step_s or 0.0)
    apart_s = (usage.cpu_per_request_s or 0.0) - (least.cpu_per_request_s or 0.0)
    return apart_s > step_s and bool(ratio(usage.costs_s, least.costs_s).differs)


def _high_rate(usages: Usages) -> Finding:
    best = _best(usages)
    if not best:
        return _answer("high_rate", "not_measured")
    if min(len(usage.rates) for usage in best) < 2:
        return _answer("high_rate", "few", {"trials": TRIALS}, map(_reach, best))
    alike = [one.name for one in best[1:] if not ratio(best[0].rates, one.rates).differs]
    values: dict[str, Any] = {"best": _reach(best[0]), "alike": alike}
    python = [usage for usage in best if usage.tool in PYTHON]
    if len(python) > 1 and (more := ratio(python[0].rates, python[1].rates)).differs:
        first, second = python[:2]
        values |= {"python": _reach(first), "second": second.name, "times": more.value}
    return _answer("high_rate", "high_rate", values, map(_reach, best))


def _best(usages: Usages) -> list[Usage]:
    """Each generator where it sends most; the fastest first."""
    best: dict[str, Usage] = {}
    for usage in sorted(usages, key=lambda usage: -usage.rps):
        if usage.rps > 0:
            best.setdefault(usage.name, usage)
    return list(best.values())


def _reach(usage: Usage) -> Finding:
    values = {
        "name": usage.name,
        "rps": usage.rps,
        "connections": usage.connections,
        "cores": usage.cores,
        "busy": usage.server_cores if usage.server_busy else None,
        "delay_rps": usage.delay_rps if usage.delay_bound else None,
    }
    return Finding("generators.reach", values)


def _gil(usages: Usages, cores: int | None) -> Finding:
    threads, processes = (
        sorted((one for one in usages if one.tool == tool), key=lambda one: one.connections)
        for tool in ("threads", "processes")
    )
    if len(threads) < 2 or not processes:
        return _answer("gil", "gil.few_levels")
    few, many = threads[0], max(threads[1:], key=lambda usage: usage.rps)
    thread_cores = max((one.cores for one in threads if one.cores is not None), default=None)
    process_cores = max((one.cores for one in processes if one.cores is not None), default=None)
    evidence = [_reach(usage) for usage in (*threads, *processes)]
    if thread_cores is None or process_cores is None or not few.rps:
        return _answer("gil", "gil.no_cpu", evidence=evidence)
    growth, noise = ratio(many.rates, few.rates), disturbed((*threads, *processes))
    if growth.low is None or growth.high is None:
        return _answer("gil", "few", {"trials": TRIALS}, evidence)
    verdicts = {
        "disturbed": noise is not None,
        "grows": growth.low >= GROWS,
        "chance": growth.high >= GROWS,
        "several_cores": thread_cores > ONE_CORE,
        "few_cores": process_cores < SEVERAL,
        "shows": True,
    }
    values = {
        "growth": growth.value,
        "low": growth.low,
        "high": growth.high,
        "few": few.connections,
        "many": many.connections,
        "thread_cores": thread_cores,
        "process_cores": process_cores,
        "noise": noise,
        "cores": cores,
    }
    verdict = next(name for name, true in verdicts.items() if true)
    return _answer("gil", f"gil.{verdict}", values, evidence)


def _machine(usages: Usages) -> Finding:
    best = _best(usages)
    if not best:
        return _answer("machine", "not_measured")
    ceilings = [{"name": one.name, "rps": one.rps, "safe_rps": one.rps / ROOM} for one in best]
    lower = None
    if best[0].server_busy:
        lower = Finding("generators.machine.server_busy")
    elif best[0].delay_bound:
        lower = Finding("generators.machine.delay_bound")
    elif disturbed(best[:1]) is not None:
        lower = Finding("generators.machine.others_busy")
    evidence = [Finding("generators.machine.ceiling", values) for values in ceilings]
    for usage in best:
        if usage.server_busy:
            load = {"name": usage.name, "connections": usage.connections}
            busy = {**load, "busy": usage.server_cores}
            evidence.append(Finding("generators.machine.busy", busy))
    values = {name: ceilings[0][name] for name in ("rps", "safe_rps", "name")}
    return _answer("machine", "machine", {**values, "lower": lower}, evidence)


def _overhead(usages: Usages) -> Finding:
    """`usages`: of servers that are not busy, on a machine that others leave alone."""
    known = [(s, usage) for usage in usages if (s := usage.overhead_s("p50")) is not None]
    if not known:
        return _answer("overhead", "overhead.unknown")
    known.sort(key=lambda pair: -pair[0] / (pair[1].measured.response.p50 or pair[0]))
    values = {
        "off": sum(s > OFF * (usage.measured.response.p50 or 0.0) for s, usage in known),
        "loads": len(known),
        "worst": _overhead_of(known[0][1], "generators.overhead.of"),
        "least": _overhead_of(known[-1][1], "generators.overhead.of"),
    }
    worst: dict[str, Usage] = {}
    for _, usage in known:
        worst.setdefault(usage.name, usage)
    evidence = [_overhead_of(usage, "generators.overhead.times") for usage in worst.values()]
    return _answer("overhead", "overhead", values, evidence)


def _overhead_of(usage: Usage, code: str) -> Finding:
    values = {
        "name": usage.name,
        "connections": usage.connections,
        "low": Finding("generators.low_rate.short") if usage.low else None,
        "overhead_s": usage.overhead_s("p50"),
        "reported_s": usage.measured.response.p50,
        "server_s": usage.server_side.p50,
    }
    return Finding(code, values)
