"""Whether the load tool, and not the server, set the limit.

In a closed loop the queue stands before the bottleneck. A tool that cannot keep up holds the
requests itself: its figures are then a lower bound of the server, however steady they are. Any of
six witnesses is enough to say so, each with its numbers:

    CPU           80 % and more of a core per thread or process of the tool
    plateau       more connections brought no more, while slots, workers and host are less than
                  90 % busy and less than half of the requests in flight are inside the server
    ceiling       against a server that does nothing it reaches less than three times as much
    second tool   another tool got over 5 % more of the same server with as many connections
    connections   fewer were established than asked for, where they are kept
    own limits    requests that found no local port or no open file: nothing of the server's

A cell that gives all its slots or connections allow (X >= 0.95 * min(N, C)/R0) is not bound by
any of them: nobody can get more. That needs an R0 which is the server's; a lone response of less
than 10 ms is in part the client's own time.

A second tool is no witness where most requests in flight are inside the server: there two runs
differ by how the kernel deals the connections, not by who asked. A tool without any witness is
neither called bound nor cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from harness.analysis.breakdown import split
from harness.analysis.case import Case
from harness.analysis.facts import Facts
from harness.analysis.handshakes import DONE, handshakes
from harness.analysis.knee import BUSY, FLAT
from harness.analysis.r0 import parallel
from harness.analysis.samples import usage
from harness.analysis.spans import NS
from harness.analysis.window import Window, window
from harness.model import Measurement, Usage, Verdict
from harness.numbers.words import number, plural

BOUND: Verdict = "generator-bound"
CEILING = "against a server that does nothing it reaches"
PER_UNIT = 0.8  # of a core, per thread or process of the tool
FULL = 0.9  # of a resource of the server
INSIDE = 0.5  # of the requests in flight: from here on the server holds them
SAFE = 3.0  # times what came out
OWN_S = 0.01  # a lone response from which on the client's part of it hardly counts
STEP = 1.5  # times as many connections: fewer cannot show a plateau
SAMPLED_S, STARTED_S = 0.5, 2.0  # CPU in the steady part; or of a whole load, start of it included
OWN_LIMITS = {
    "no_address": "no local port (errno 99): keep connections, or widen ip_local_port_range",
    "no_files": "no open file (errno 24): raise ulimit -n",
}
SAMPLES = 3  # of connections; fewer say nothing


@dataclass(frozen=True)
class Ceiling:
    """The most that a tool got from a server that does nothing, on this machine, requests/s.
    `at_least`: that server's core was the limit, so the tool may reach more."""

    tool: str
    keepalive: bool
    processes: int
    connections: int
    rps: float
    at_least: bool = False


def ceilings(environment: Mapping[str, object]) -> tuple[Ceiling, ...]:
    """Those a run has kept; what cannot be read as one is left out."""
    kept = environment.get("ceilings")
    found = []
    for one in kept if isinstance(kept, list | tuple) else ():
        try:
            ceiling = Ceiling(**one)
        except TypeError:
            continue
        if isinstance(ceiling.rps, int | float) and ceiling.rps > 0:
            found.append(ceiling)
    return tuple(found)


@dataclass(frozen=True)
class Suspect:
    """One believed trial and what it is held against. `levels`: median requests/s by connections
    of its group; `others`: of other tools with as many connections on the same server, by name."""

    facts: Facts
    lone_s: float
    levels: Mapping[int, float] = field(default_factory=dict)
    others: Mapping[str, float] = field(default_factory=dict)
    ceilings: Sequence[Ceiling] = ()

    @property
    def connections(self) -> int:
        return self.facts.concurrency

    @property
    def rps(self) -> float:
        return self.facts.steady.rps or 0.0

    @property
    def window(self) -> Window | None:
        return window(self.facts.steady)

    @property
    def open_model(self) -> bool:
        return self.facts.evidence.trial.cell.rate is not None


@dataclass(frozen=True)
class Judgement:
    """`bound` None: nobody could tell. `reasons`: why it is bound, each with its numbers."""

    bound: bool | None = None
    reasons: tuple[str, ...] = ()


def judge(suspect: Suspect) -> Judgement:
    """Whether the load tool was the limit of this trial."""
    heard = [said for rule in RULES if (said := rule(suspect)) is not None]
    if not heard or not suspect.rps:
        return Judgement()
    reasons = () if _gives_all(suspect) else tuple(said for said in heard if said)
    if limits := own_limits(suspect):
        reasons = (*reasons, limits)
    return Judgement(bool(reasons), reasons)


def _gives_all(suspect: Suspect) -> bool:
    possible = parallel(suspect.connections, suspect.facts.evidence.slots_configured)
    best_rps = possible / suspect.lone_s
    return suspect.lone_s >= OWN_S and suspect.rps >= BUSY * best_rps


# --- the witnesses: None: saw nothing; "": it is not the tool; else why it is ------------------


def busy(suspect: Suspect) -> str | None:
    """Its CPU, in the steady part where that was sampled."""
    used = generator_cores(suspect.facts)
    if used is None or suspect.facts.evidence.elsewhere:
        return None
    cores = suspect.facts.evidence.observations.cores
    units = suspect.facts.evidence.units
    could = min(units, cores) if cores else units
    if used < PER_UNIT * could:
        return ""
    own = "the one core" if could == 1 else f"the {could} cores"
    return f"it used {used:.2f} cores, {100 * used / could:.0f} % of {own} it can use"


def generator_cores(facts: Facts) -> float | None:
    """CPU seconds of the load tool per second while the load was steady; None where it lasted too
    short for the tool's own start not to matter."""
    seen, steady = facts.evidence.observations, window(facts.steady)
    if steady is not None and "processes" not in seen.missing:
        inside = [
            (one.at_ns, one.tool_cpu_s)
            for one in seen.processes
            if one.tool_cpu_s is not None and steady.opens_ns <= one.at_ns <= steady.closes_ns
        ]
        if len(inside) >= 2 and (lasted_ns := inside[-1][0] - inside[0][0]) >= SAMPLED_S * NS:
            return max(0.0, (inside[-1][1] - inside[0][1]) * NS / lasted_ns)
    if facts.record.tool_cpu_s is not None and facts.load_s >= STARTED_S:
        return facts.record.tool_cpu_s / facts.load_s
    return None


def plateau(suspect: Suspect) -> str | None:
    """More connections bring no more, and nothing of the server is busy or waited for."""
    below = _well_below(suspect)
    inside = in_server(suspect.facts)
    resources = _resources(suspect)
    if suspect.open_model or below is None or inside is None or resources is None:
        return None
    n, gain = suspect.connections, suspect.rps / suspect.levels[below]
    waits = suspect.rps * suspect.lone_s / n < BUSY
    if gain > FLAT or not waits or inside >= INSIDE * n or max(resources.values()) >= FULL:
        return ""
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in resources.items())
    return (
        f"from {below} to {n} connections requests/s changed by {100 * (gain - 1):+.0f} %, although"
        f" nothing of the server is busy ({shares}) and only {number(inside)} of {n} requests were"
        " inside it at once"
    )


def _well_below(suspect: Suspect) -> int | None:
    """The highest level that is clearly lower."""
    lower = [level for level in suspect.levels if STEP * level <= suspect.connections]
    return max((level for level in lower if suspect.levels[level] > 0), default=None)


def in_server(facts: Facts) -> float | None:
    """Mean number of requests in the accept queue, in the workers and in the app (Little 1961).
    None where one of these was not seen."""
    parts, _ = split(facts)
    known = (parts.accept_queue_s, parts.in_worker_s, parts.service_s)
    spent_s = [part for part in known if part is not None]
    return sum(spent_s) * (facts.steady.rps or 0.0) if len(spent_s) == len(known) else None


def _resources(suspect: Suspect) -> Mapping[str, float] | None:
    """How busy each of the server's resources is, 0 to 1; None where its CPU is not known."""
    facts = suspect.facts
    seen, server = facts.evidence.observations, facts.evidence.trial.cell.server
    used: Usage = usage(seen, facts.record, facts.load_s)
    if used.server_cores is None or used.host_busy is None or not seen.cores:
        return None
    slots = facts.evidence.slots_configured
    found = {} if slots is None else {"slots": min(1.0, suspect.rps * suspect.lone_s / slots)}
    could = min(server.workers * server.instances, seen.cores)
    return {**found, "workers' CPU": used.server_cores / could, "host": used.host_busy}


def ceiling(suspect: Suspect) -> str | None:
    """What it reaches against a server that does nothing."""
    cell = suspect.facts.evidence.trial.cell
    known = sorted(
        (
            one
            for one in suspect.ceilings
            if (one.tool, one.keepalive, one.processes)
            == (cell.tool, cell.keepalive, cell.processes)
        ),
        key=lambda one: one.connections,
    )
    if not known or suspect.facts.evidence.elsewhere:
        return None
    found = next((one for one in known if one.connections >= suspect.connections), known[-1])
    if found.rps >= SAFE * suspect.rps:
        return ""
    if found.at_least or found.rps < suspect.rps:  # or it was measured at a bad moment
        return None
    return (
        f"{CEILING} {number(found.rps)} requests/s"
        f" ({plural(found.connections, 'connection')}), not {SAFE:g} times the"
        f" {number(suspect.rps)} that came out here"
    )


def second_tool(suspect: Suspect) -> str | None:
    """What another tool got."""
    own = suspect.levels.get(suspect.connections)
    if suspect.open_model or not suspect.others or not own:
        return None
    name, most = max(suspect.others.items(), key=lambda pair: pair[1])
    if most <= FLAT * own:
        return ""
    inside = in_server(suspect.facts)
    accepts_first = suspect.facts.evidence.worker_class.accepts_first
    if accepts_first if inside is None else inside >= INSIDE * suspect.connections:
        return ""
    return (
        f"{name} got {number(most)} requests/s of the same server with as many connections,"
        f" {100 * (most / own - 1):.0f} % more"
    )


def connections(suspect: Suspect) -> str | None:
    """How many were established, where the server keeps them."""
    steady, facts = suspect.window, suspect.facts
    if steady is None or suspect.open_model or not _keeps(facts) or handshakes(facts).dropped:
        return None
    seen = facts.evidence.observations
    inside = [
        max(one.client.get(DONE, 0), one.server.get(DONE, 0))
        for one in seen.connections
        if steady.opens_ns <= one.at_ns <= steady.closes_ns
    ]
    if "connections" in seen.missing or len(inside) < SAMPLES:
        return None
    there = round(median(inside[len(inside) // 2 :]))  # a tool may take its time to begin them
    if there >= suspect.connections:
        return ""
    return f"only {there} of {plural(suspect.connections, 'connection')} were established"


def own_limits(suspect: Suspect) -> str | None:
    """What its machine did not give it."""
    found = {cause: suspect.facts.outcome.errors.get(cause, 0) for cause in OWN_LIMITS}
    said = [f"{plural(n, 'request')} found {OWN_LIMITS[cause]}" for cause, n in found.items() if n]
    return " and ".join(said) or None


def _keeps(facts: Facts) -> bool:
    """Connections were asked to be kept and bore several requests each."""
    if not facts.evidence.trial.cell.keepalive:
        return False
    accepts = [(span.pid, span.accept_ns) for span in facts.spans if span.accept_ns is not None]
    return bool(accepts) and 2 * len(set(accepts)) <= len(accepts)


RULES: tuple[Callable[[Suspect], str | None], ...] = (
    busy,
    plateau,
    ceiling,
    second_tool,
    connections,
)


def in_flight(said: Measurement) -> float | None:
    """Mean number of requests in flight as the client counts them: what the tool says, else
    Little's law over its own figures. None where its mean is not one of real requests."""
    if said.achieved_concurrency is not None:
        return said.achieved_concurrency
    if said.response.mean is None or not said.exact_mean or said.duration_s <= 0:
        return None
    return said.requests * said.response.mean / said.duration_s


# --- what is said of it -------------------------------------------------------------------------


def lower_bound(tool: str, rps: float, reasons: Sequence[str]) -> str:
    """Why a cell says nothing of the server's limit, and what it does say."""
    known = any(not reason.startswith(CEILING) for reason in reasons)
    is_it = "is the limit, not the server" if known else "may be the limit, and not the server"
    return (
        f"{tool} {is_it}: {'; '.join(reasons)}; the server can do at least {number(rps)} requests/s"
    )


def load_tool(case: Case) -> str | None:
    """The rule of a diagnosis: whoever reads on would change the server in vain."""
    if not case.cell.generator_bound:
        return None
    tool, host = case.cell.trial.cell.tool, case.cell.usage.host_busy
    said = lower_bound(tool, case.rps, case.cell.bound_reasons)
    if host is not None and host > FULL:
        cure = "A faster load tool (fast, wrk) or a second machine for it shows what it can do:"
        return f"{said}. {cure} the cores of this one are {100 * host:.0f} % busy."
    more = "more processes of it (--tool-processes) or a second machine for it"
    return f"{said}. A faster load tool (fast, wrk), {more} shows what it can do."
