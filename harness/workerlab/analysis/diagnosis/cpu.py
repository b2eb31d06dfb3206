"""Diagnoses of CPU limits (of the load tool, the machine, the workers), and of disturbance by other
programs or machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Self

from workerlab.analysis.breakdown import mean_in_server
from workerlab.analysis.core_wait import core_wait
from workerlab.analysis.diagnosis.base import Advised, Diagnosis
from workerlab.analysis.diagnosis.drift import ChangingTimes
from workerlab.analysis.diagnosis.shared import BUSY_MACHINE_SHARE, Shared
from workerlab.analysis.diagnosis.slots import UnevenDealing, WaitingForSlots
from workerlab.analysis.facts import Facts
from workerlab.finding import Finding
from workerlab.model.result import MIN_OTHERS_CORES, CoreWait, Result
from workerlab.numbers.units import FORMATS, fill

COMPUTING_SHARE = 0.85  # of a core per worker; GIL handovers and accepting take the rest
MOSTLY_CPU_SHARE = 0.7  # CPU time / lone response
PARTLY_CPU_SHARE = 0.25  # likewise
MIN_MACHINE_SHARE = 0.25  # of all cores; a smaller share does not exhaust the machine
MIN_OCCUPANCY = 0.5  # below it, a wait for cores hardly limits the workers
MIN_IN_SERVER_SHARE = 0.5  # of the requests in flight

# Workers without a core hold their slots longer while other slots idle. More slots or an even
# distribution of connections would not help, requests need not share anything but cores, and a
# machine with varying speed looks like drift
EXPLAINED_BY_CPU = (UnevenDealing, Shared, WaitingForSlots, ChangingTimes)

PROCESSES_OF_FAST = "more processes of fast (--tool-processes)"
MORE_CORES = "faster code or more cores would raise the throughput"
MORE_WORKERS = "faster code or more workers, up to one per core, would raise the throughput"
TOOL_ELSEWHERE = "a load tool on another machine would leave all cores to the server"
CLOSE_OTHER_PROGRAMS = "close the other programs and measure again"
MEASURE_AGAIN = "measure again when the host is quieter, or on a dedicated machine"


# --- disturbance ----------------------------------------------------------------------------------


class Disturbance(Diagnosis):
    """Other programs, or other machines on the same host, used the cores so much that the figures
    are unreliable."""

    rank = 130
    seen_in = "cpu"
    shows_loss = False
    at_rate = True

    share: float  # of the response time
    wait: CoreWait

    others: ClassVar[str] = ""
    cause: ClassVar[str] = ""

    @classmethod
    def diagnose(cls, facts: Facts, *_: object) -> Disturbance | None:
        return disturbance(facts)

    @property
    def brief(self) -> str:
        return fill(self.cause, self.values)

    @property
    def doubt(self) -> str:
        """Why the throughput is unreliable."""
        share = FORMATS["percent"](self.share)
        return f"up to {share} of the response time was lost to {self.others}"


class CoresTaken(Disturbance):
    """Other programs used {wait.others_cores:.2f} of {wait.cores:# core}, so workers and load tool
    waited for a core for up to {share:percent} of the response time: the figures are unreliable"""

    advice = (CLOSE_OTHER_PROGRAMS,)
    below_slots = "other programs used the cores"
    others = "other programs"
    cause = "other programs used {wait.others_cores:.2f} of {wait.cores:# core}"


class CoresStolen(Disturbance):
    """The host gave {wait.steal_cores:.2f} of {wait.cores:# core} to other machines, which cost
    up to {share:percent} of the response time: the figures are unreliable"""

    rank, advice = 140, (MEASURE_AGAIN,)
    below_slots = "other machines on this host used the cores"
    others = "other machines on this host"
    cause = "the host gave {wait.steal_cores:.2f} of {wait.cores:# core} to other machines"


def disturbance_of(wait: CoreWait | None) -> Disturbance | None:
    """The disturbance; None if the wait is unknown or too short to distort the figures."""
    if wait is None or not wait.disturbed:
        return None
    if wait.disturbed_by_programs:
        return CoresTaken(wait.share_lost_to_programs, wait)
    return CoresStolen(wait.share_lost, wait)


def disturbance(facts: Facts) -> Disturbance | None:
    return disturbance_of(core_wait(facts))


def worst_disturbance(waits: Iterable[CoreWait | None]) -> Disturbance | None:
    """The most costly disturbance of these trials; None if none was disturbed."""
    disturbances = filter(None, map(disturbance_of, waits))
    return max(disturbances, key=lambda disturbance: disturbance.share, default=None)


# --- the server computes --------------------------------------------------------------------------


class Computing(Advised):
    """CPU is the limit, as its use shows (`how`) or, if other programs or machines used the cores,
    the CPU need of the requests (`need`)."""

    explains = EXPLAINED_BY_CPU
    below_slots = "CPU is the limit"
    seen_in = "cpu"
    at_rate = True

    connections: int
    rps: float
    how: str = ""
    need: str = ""

    @classmethod
    def of(cls, facts: Facts, how: str, need: str, advice: tuple[str, ...]) -> Self | None:
        """The diagnosis; None without evidence."""
        if not how and not need:
            return None
        return cls(facts.connections, facts.throughput_rps, how, need, advice=advice)


class BusyMachine(Computing):
    """The machine is the limit[[: {connections:# connection} reached {rps:number} requests/s while
    {how}]][[, even with all cores free for the server: {need}]]"""

    rank = 40

    @classmethod
    def diagnose(cls, facts: Facts, cell: Result, *_: object) -> BusyMachine | None:
        """Diagnosed if the server, its load tool and the app's services use nearly all cores; or,
        if other programs used cores, if the requests need more CPU than the machine has. CPU used
        by other programs is not a limit of this server: `disturbance` reports its cost."""
        cores, workers = facts.observations.cores, facts.workers
        usage = facts.usage
        server, tool = usage.server_cores, usage.generator_cores or 0.0
        if not cores or server is None or facts.connections < 2:
            return None
        using = {"the server": server} | ({"the load tool": tool} if tool else {})
        using |= cell.app_metrics.cores if cell.app_metrics else {}
        how = needed = ""
        wait, busy_cores = core_wait(facts), BUSY_MACHINE_SHARE * cores
        others = (wait.others_cores or 0.0) if wait else 0.0
        if sum(using.values()) < busy_cores and 0 < others < MIN_OTHERS_CORES:
            # Too little for a disturbance: without them, the lab would use all cores
            using["other programs"] = others
        fills_machine = server >= MIN_MACHINE_SHARE * cores and sum(using.values()) >= busy_cores
        if fills_machine:
            used_by = [f"{name} {FORMATS['cores'](amount)}" for name, amount in using.items()]
            busy = "its {cores:# core} {cores:was/were} [[{host:percent} ]]busy ({used_by:, })"
            how = fill(busy, {"cores": cores, "host": usage.host_busy, "used_by": used_by})
        elif (need := _cpu_need(facts, cell)) and min(facts.connections, workers) > cores:
            too_much = "{workers:# worker} together would need more than {cores:# core}"
            needed = f"{need}, and {fill(too_much, {'workers': workers, 'cores': cores})}"
        noise = () if fills_machine else (CLOSE_OTHER_PROGRAMS,)
        elsewhere = (TOOL_ELSEWHERE,) if tool >= MIN_MACHINE_SHARE * cores else ()
        return cls.of(facts, how, needed, (*noise, MORE_CORES, *elsewhere))


class BusyWorkers(Computing):
    """The workers' CPU is the limit[[: {connections:# connection} reached no more than {rps:number}
    requests/s, because {how}]][[, even with all cores free for the server: {need}]]"""

    rank = 50

    @classmethod
    def diagnose(cls, facts: Facts, cell: Result, *_: object) -> BusyWorkers | None:
        """Diagnosed if each worker, or each core that the server is bound to, computes all the
        time, and there are more requests than workers: a Python process computes on one core at a
        time. If other programs used cores, the CPU need of the requests decides."""
        used, workers, cores = _cores_while_serving(facts), facts.workers, facts.cores
        fewer_cores = (facts.cell.server.cores or workers) < workers
        if used is None or facts.connections <= workers:
            return None
        how = needed = ""
        if used >= COMPUTING_SHARE * (cores if cores and fewer_cores else workers):
            all_the_time = "{workers:# worker} computed all the time ({used:cores}[[ of {cores}]])"
            how = fill(all_the_time, {"workers": workers, "used": used, "cores": cores})
        elif (need := _cpu_need(facts, cell)) and workers <= (cores or 0):
            needed = f"{need}, and a worker computes for one request at a time"
        return cls.of(facts, how, needed, (MORE_CORES if fewer_cores else MORE_WORKERS,))


def _cores_while_serving(facts: Facts) -> float | None:
    """Cores that the workers used while they had requests; None if unknown. The load tool's
    start-up is part of a short load, so the mean over all samples is too low."""
    used, samples, finished = facts.usage.server_cores, facts.observations.processes, facts.finished
    if used is None:
        return None
    served_ns = max(span.end_ns or 0 for span in finished) - finished[0].start_ns
    return used * max(1.0, (samples[-1].at_ns - samples[0].at_ns) / served_ns)


class CpuNeed(Finding):
    """each request takes {cpu_s:duration} of CPU time
    [[ (the fastest lone one {lone_s:duration} in total)]]"""

    cpu_s: float
    # None if shorter: under load, requests share the caches of a core, and may compute for longer
    lone_s: float | None


def _cpu_need(facts: Facts, cell: Result) -> CpuNeed | None:
    """The CPU need if other programs used cores: then the cores that the workers used show no
    limit. None unless CPU time is most of a lone response, or a part of it (PARTLY_CPU_SHARE) and
    the workers computed or waited for a core all the time."""
    used, lone_s = facts.usage.server_cores, min(facts.record.alone_s, default=0.0)
    workers, wait = facts.workers, core_wait(facts)
    if used is None or not lone_s or not wait or not wait.disturbed:
        return None
    if cell.verdict == "below capacity":
        return None  # more connections raise throughput: CPU is not the limit
    inside = mean_in_server(facts)
    if inside is not None and inside < MIN_IN_SERVER_SHARE * facts.connections:
        return None  # most requests are in the load tool
    cpu_s, busy = used / facts.rps, used + wait.worker_s * facts.rps
    idle = (cell.occupancy if cell.occupancy is not None else 1.0) < MIN_OCCUPANCY
    always_busy = busy >= COMPUTING_SHARE * workers and not idle
    min_share = PARTLY_CPU_SHARE if always_busy else MOSTLY_CPU_SHARE
    if cpu_s < min_share * lone_s:
        return None
    return CpuNeed(cpu_s, lone_s if lone_s >= cpu_s else None)


# --- the load tool --------------------------------------------------------------------------------


class LoadToolIsLimit(Advised):
    """{limit}"""

    rank = 0  # no change to the server would help
    # The load tool delays requests and uses cores, so these are not the server's limits
    explains = (*EXPLAINED_BY_CPU, BusyMachine, BusyWorkers)
    seen_in = "cpu"

    limit: Finding

    @classmethod
    def diagnose(cls, facts: Facts, cell: Result, *_: object) -> LoadToolIsLimit | None:
        if not cell.generator_bound:
            return None
        host = facts.usage.host_busy
        busy = host if host is not None and host > BUSY_MACHINE_SHARE else None
        return cls(limit=cell.reason, advice=(more_load(facts.data.faster_tools, busy),))


def more_load(faster: Sequence[str], busy: float | None) -> str:
    """Advice on how to load the server more. `faster`: faster load tools. `busy`: the busy share of
    this machine's cores if none are free for more processes of fast; wrk is faster than many."""
    options = (
        f"a faster load tool ({', '.join(faster)})" if faster else "",
        PROCESSES_OF_FAST if faster and busy is None else "",
        "a second machine for the load tool",
    )
    return fill(
        "{options: or } would show what the server can do[[: the cores of this machine"
        " are {busy:percent} busy]]",
        {"options": [option for option in options if option], "busy": busy},
    )
