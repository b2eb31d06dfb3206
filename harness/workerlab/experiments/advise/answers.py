"""The answers of `workerlab advise`, a question each: what is recommended, whether it meets the
target, up to which rate, at what cost, and what they rest on."""

import math
from collections.abc import Iterable

from workerlab.experiments.advise.blocked import blocked
from workerlab.experiments.advise.cautions import cautions
from workerlab.experiments.advise.result import (
    DEFAULT_GRACE_S,
    Result,
    limit_of,
    name_of,
    without_candidates,
)
from workerlab.experiments.advise.search import BEYOND, HOPE, WIDE, launches_at
from workerlab.experiments.advise.standing import LEAST
from workerlab.experiments.advise.study import NOISE, holds
from workerlab.experiments.advise.why import reasons
from workerlab.experiments.document import answer
from workerlab.model import Finding, Server

SAVES = 0.9  # of the memory: from here on it is worth a word


def answers(result: Result) -> Iterable[Finding]:
    """A question each, as far as there is an answer."""
    evidence = tuple(_evidence(result))
    further, untried = _further(result), _untried(result)
    unknown = further or untried or (result.server and _goes_on(result, result.server))
    values = {
        "candidate": name_of(result.server) if result.server else None,
        "rate_rps": result.search.target_rps,
        "voids": result.study.disturbed or None,
        "run": result.study.run,
        "further": further,
        "untried": untried,
        "more": Finding("advise.more", {"run": result.study.run}) if unknown else None,
        "left_out": tuple(left_out(result)) if result.word == "no_class" else None,
    }
    keys = tuple(one.key for one in result.launches)
    yield answer("advise", "which", result.word, values, evidence, keys)
    if promises := tuple(_promises(result)):
        yield answer("advise", "meets", "meets", {"terms": promises}, trials=keys)
    yield from _reach(result)
    if result.word == "recommended":
        yield _costs(result)
    elif _limited(result) and (limit := limit_of(result)):
        yield answer("advise", "limit", "limits", {"limit": limit})
    kept = [one for one in result.launches if holds(one, result.search.terms)]
    if len(kept) > 1:  # in one, anything may happen; of an overload, everything grows
        yield from cautions(kept, result.search.target_rps)
    yield from blocked(result)


def left_out(result: Result) -> Iterable[Finding]:
    """Each reason once, with the classes; what was tried and failed first."""
    classes: dict[str, list[str]] = {}
    reasons: dict[str, Finding] = {}
    limits = Finding("advise.left_out.limits", {"limits": result.limits.flags})
    limited = dict.fromkeys((*result.study.asked.unfit, *without_candidates(result.search)), limits)
    for name, why in {**result.study.left_out, **limited}.items():
        shared = {value: why.values[value] for value in why.values if value != "detail"}
        key = f"{why.code} {sorted(shared.items())}"
        reasons.setdefault(key, why)
        classes.setdefault(key, []).append(name)
    for key in sorted(reasons, key=lambda key: not reasons[key].trials):
        values = {"classes": tuple(classes[key]), "why": reasons[key]}
        yield Finding("advise.left_out", values, reasons[key].trials)


def _limited(result: Result) -> bool:
    """Whether something stands in the way, or by the forecast of every candidate will."""
    foreseen = result.word == "unfinished" and result.search.foreseen and not result.search.able
    return foreseen or result.word in ("nothing", "undecidable", "unsendable")


def _further(result: Result) -> Finding | None:
    """Who went further than what is recommended, and was not launched often enough."""
    mine = result.reach.last or result.search.target_rps
    rows = [row for row in result.rows if (row.reach.last or 0.0) > BEYOND * mine]
    best = max(rows, key=lambda row: row.reach.last or 0.0, default=None)
    if best is None or best.standing.word != "open":
        return None
    values = {"candidate": name_of(best.server), "rps": best.reach.last}
    return Finding("advise.further", values)


def _untried(result: Result) -> Finding | None:
    """Worker classes that were worth a launch, and had none when the budget ended: what is known of
    them is a forecast."""
    search = result.search
    if result.word != "recommended" or search.next() is None:
        return None
    launched = {one.server.variant for one in result.study.launches}
    mark_rps = HOPE * (result.reach.last or search.target_rps)
    worth = {one.variant for one in search.servers
             if search.fits(one) and search.highest(one) >= mark_rps}  # fmt: skip
    classes = tuple(sorted(worth - launched))
    return Finding("advise.untried", {"classes": classes}) if classes else None


def _promises(result: Result) -> Iterable[Finding]:
    """Each term, with its value at the target's rate."""
    for bound in result.standing.bounds:
        values = {
            "term": bound.term,
            "value": _unit(bound.term, bound.mean),
            "bound": _unit(bound.term, bound.bound),
            "launches": bound.n,
            "note": bound.note,
        }
        yield Finding(f"advise.term.{bound.word}", values)
    for outcome in result.standing.unshown:
        yield Finding("advise.term.unshown", {"outcome": outcome})
    for outcome in result.standing.shown:
        names = ("term", "failed", "requests")
        last, target = result.reach.last or 0.0, result.search.target_rps
        rates = {"rate_rps": target, "last_rps": last if last > target else None}
        yield Finding("advise.errors", {**{name: outcome.values[name] for name in names}, **rates})


def _unit(term: str, value: float | None) -> Finding | None:
    if value is None:
        return None
    kind = "rps" if term.startswith("rps") else "errors" if term.startswith("errors") else "time"
    return Finding(f"advise.value.{kind}", {"value": value})


def _reach(result: Result) -> Iterable[Finding]:
    reach, server, first_rps = result.reach, result.server, result.first_rps
    if server is None or (reach.last is None and first_rps is None):
        return
    values = {
        "last": None if reach.last is None else _last(result, server, reach.last),
        "first": None if first_rps is None else _first(result, server, first_rps),
        "gap": Finding("advise.reach.gap") if _gap(result, server) else None,
        "discarded": _discarded(result, reach.last or 0.0),
    }
    code = "none" if reach.last is None else "open" if first_rps is None else "between"
    yield answer("advise", "reach", f"reach.{code}", values)


def _discarded(result: Result, last_rps: float) -> Finding | None:
    """That higher rates were tried, as long as there was hope."""
    above = [one for one in result.study.launches if one.rps > last_rps]
    noise = sum(one.void is not None and one.void.code in NOISE for one in above)
    return Finding("advise.reach.discarded", {"launches": noise}) if noise else None


def _goes_on(result: Result, server: Server) -> bool:
    """Whether the budget left open how far it goes."""
    beyond = result.reach.first is None and result.search.next() is not None
    return beyond or _gap(result, server)


def _gap(result: Result, server: Server) -> bool:
    """Whether nothing is known of the rates between the last and the first."""
    last, first = result.reach.last or math.inf, result.first_rps or 0.0
    between = (one.rps for one in result.study.of(server) if last < one.rps < first)
    return first > WIDE * last and not any(between)


def _last(result: Result, server: Server, rps: float) -> Finding:
    """The highest rate at which the target was kept."""
    launches = result.study.at(server, rps)
    made = [one for one in result.study.launches if one.server == server and one.rps == rps]
    values: dict[str, object] = {"rps": rps, "launches": len(launches)}
    values["voids"] = len(made) - len(launches) or None
    values["but"] = tuple(outcome.values["term"] for outcome in result.standing.unshown)
    code = "advise.reach.last" if len(launches) >= LEAST else "advise.reach.last.few"
    return Finding(code, values, tuple(one.key for one in launches))


def _first(result: Result, server: Server, rps: float) -> Finding:
    """The lowest rate at which it was shown not to be, else was not, and what was busy there."""
    launches = result.study.at(server, rps)
    broke = sum(not holds(one, result.search.terms) for one in launches)
    values = {
        "rps": rps,
        "launches": len(launches),
        "broke": broke,
        "why": tuple(reasons(result, result.breaks)) if result.breaks else (),
    }
    few = "" if result.search.breaks_at(server) == rps else ".few"
    code = f"advise.reach.first{few if broke else '.close'}"
    return Finding(code, values, tuple(one.key for one in launches))


def _costs(result: Result) -> Finding:
    needs = result.needs
    values = {
        "memory_bytes": result.memory_bytes,
        "cores": result.cores,
        "rate_rps": result.search.target_rps,
        "start_s": needs.start_s if needs else None,
        "stop_s": None if result.waits_at_stop else result.stop_s,
        "stop": _stop(result),
        "preload": _preload(result),
    }
    return answer("advise", "costs", "costs", values)


def _stop(result: Result) -> Finding | None:
    """What a stop takes, where it is all the time that there is for it."""
    if not result.waits_at_stop:
        return None
    own = "graceful_timeout" in result.study.asked.config_sets
    values = {"launches": len(result.launches), "grace_s": result.grace_s}
    kind = "own" if own else "mended" if result.grace_s else "default"
    return Finding(f"advise.stop.{kind}", {**values, "default_s": DEFAULT_GRACE_S})


def _preload(result: Result) -> Finding | None:
    """What it would take with the app loaded before the workers are forked; None where that saves
    nothing, or was not measured."""
    preloaded, memory_bytes = result.study.preloaded, result.memory_bytes
    if preloaded is None or preloaded.memory is None or memory_bytes is None or not result.server:
        return None
    found = preloaded.memory.of(result.server.workers)
    if found >= SAVES * memory_bytes:
        return None
    values = {"memory_bytes": found, "workers": preloaded.memory.workers}
    return Finding("advise.preload", values, (preloaded.trial,))


def _evidence(result: Result) -> Iterable[Finding]:
    """What a request needs of each class; each rate that was tried on the recommended one."""
    for name, needs in result.study.needs.items():
        many = len(needs.requests)
        values = {
            "worker_class": name,
            "wait_s": sum(one.wait_s for one in needs.requests) / many,
            "cpu_s": sum(one.cpu_s + one.nogil_s for one in needs.requests) / many,
            "blocked_s": sum(one.blocked_s for one in needs.requests) / many or None,
            "gap_s": needs.gap_s or None,
            "requests": many,
            "start_s": needs.start_s,
            "shared_bytes": needs.memory.shared_bytes if needs.memory else None,
            "private_bytes": needs.memory.private_bytes if needs.memory else None,
        }
        yield Finding("advise.needs", values, (needs.trial,))
    if result.server is not None:
        for rps, launches in launches_at(result.study, result.server).items():
            p95 = tuple(Finding("advise.value.time", {"value": one.response.p95})
                        for one in launches if one.response.p95 is not None)  # fmt: skip
            keys = tuple(one.key for one in launches)
            yield Finding("advise.tried", {"rps": rps, "p95": p95}, keys)
