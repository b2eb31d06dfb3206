"""The most that a load tool reaches on this machine, against a server that does nothing.

What comes out of a server is the server's only where its load tool could do a good deal more. So a
sweep measures that, for each tool, its processes, kept connections or not, and about as many
connections: some seconds, once per machine, as the figures are kept in a cache of the user's. Where
no cell came near what even a slow machine's tool does, nothing is measured: which is known once its
trials have ended.

A load in which other programs kept the tool or its server waiting for a core, or in which the whole
machine stood still, says nothing of what the tool can do, and is kept nowhere.

Nothing here stops a sweep but a full disk: where a ceiling cannot be had, the run says why and does
without.
"""

import contextlib
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

from workerlab import codec
from workerlab import run_store as store
from workerlab.analysis.facts import TrialData, unusable
from workerlab.analysis.load_tool import SAFE, Ceiling
from workerlab.analysis.samples import per_second
from workerlab.experiments import trial
from workerlab.experiments.reading import evidence, report_of
from workerlab.load.registry import tool_named
from workerlab.model import Cell, Load, NullServer, Plan, Trial
from workerlab.plan import null_cell, null_plan
from workerlab.report.messages import text
from workerlab.server import preflight
from workerlab.server.worker_classes import configured_slots
from workerlab.user_cache import user_cache

FORMAT = 2  # of what is kept, and of how it is measured: part of its keys
# Connections: a cell is held against the next higher ones, or the highest: beyond them tools only
# grow slower
LEVELS = (16, 64, 256)
# A process or thread per connection: more of them are no faster, but take memory
MOST = {"processes": 16, "threads": 64}
REPEATS, DURATION_S = 3, 1.0
SLOW_START, LONG_S = ("locust", "locust-fast"), 4.0  # seconds to start: once, for longer
SLACK_S = 20.0  # beside the load, until a tool is given up
TRIED = 1000  # requests at least, of a tool that only counts, to see how many take a second
OTHERS, WAITS = 0.25, 0.05  # cores of other programs, and the part of its time that one waits
SERVER_BUSY = 0.9  # of its core: from here on the server that does nothing is the limit
# What a tool reaches on any machine, requests/s: cells that come nowhere near it need no ceiling
FLOORS = {
    "ab": 2000.0,
    "wrk": 5000.0,
    "fast": 3000.0,
    "processes": 100.0,
    "threads": 100.0,
    "coroutines": 300.0,
    "processes-coroutines": 300.0,
    "locust": 100.0,
    "locust-fast": 300.0,
}
Tell = Callable[[str], None]


class CeilingKey(NamedTuple):
    """Which ceiling: a Ceiling before it is measured."""

    tool: str
    keepalive: bool
    processes: int
    connections: int

    @property
    def name(self) -> str:
        kept = " kept" if self.keepalive else ""
        many = f" x{self.processes}" if self.processes > 1 else ""
        return f"{self.tool}{many}, {self.connections}{kept} connections"


def key_of(cell: Cell) -> CeilingKey:
    """Cells are held against the next higher level, or the highest."""
    level = next((level for level in LEVELS if level >= cell.concurrency), LEVELS[-1])
    most = max(MOST.get(cell.tool, level), cell.processes)
    return CeilingKey(cell.tool, cell.keepalive, cell.processes, min(level, most))


def ceilings_needed(plan: Plan) -> list[CeilingKey]:
    """The ceilings that the plan's cells need, each once; none where other hosts send the load, to
    a null server, where each load finds a ceiling itself, or where the app is known to be so slow
    that no load tool is near its limit: X <= min(N, C)/R0 (Denning & Buzen 1978)."""
    found = []
    for cell in () if plan.load_hosts else plan.cells:
        sleep_s, slots = cell.server.app.sleep_s, configured_slots(cell.server)
        together = cell.concurrency if slots is None else min(cell.concurrency, slots)
        wanted = SAFE * together * cell.server.instances
        slow = sleep_s and wanted / sleep_s <= FLOORS.get(cell.tool, 0.0)
        if not slow and not cell.server.null:
            found.append(key_of(cell))
    return list(dict.fromkeys(found))


def near_its_limit(one: CeilingKey, rates: Mapping[CeilingKey, float]) -> bool:
    """Whether what came out may be all that the tool can do."""
    return SAFE * rates.get(one, 0.0) > FLOORS.get(one.tool, 0.0)


def reached(directory: Path) -> Mapping[CeilingKey, float]:
    """Requests/s of the fastest cell that would be held against each ceiling; of those that are
    invalid nothing is said."""
    found: dict[CeilingKey, float] = {}
    for cell in report_of(store.load(directory)).cells:
        key, rps = key_of(cell.trial.cell), cell.throughput_rps or 0.0
        found[key] = max(rps, found.get(key, 0.0))
    return found


def cache() -> Path:
    """Where ceilings are kept between runs."""
    return user_cache("ceilings.json")


def fingerprint(tool: str, environment: Mapping[str, object]) -> str:
    """Of what a ceiling depends on. `environment`: of the run, with the versions of its tools."""
    machine = [environment.get(name) for name in ("cpu", "cores", "system", "python")]
    versions = environment.get("tools")
    version = versions.get(tool) if isinstance(versions, Mapping) else None
    text = json.dumps([FORMAT, *machine, tool, version], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _key(one: CeilingKey | Ceiling, environment: Mapping[str, object]) -> str:
    asked = [one.keepalive, one.processes, one.connections]
    return f"{fingerprint(one.tool, environment)} {json.dumps([one.tool, *asked])}"


def read_cache(path: Path) -> dict[str, Ceiling]:
    """What is kept, by key; empty where it is missing or damaged."""
    with contextlib.suppress(OSError, ValueError):
        return codec.decode(path.read_bytes(), dict[str, Ceiling])
    return {}


def write_cache(path: Path, kept: Mapping[str, Ceiling]) -> None:
    """Whole or not at all; not at all where the disk does not let us."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        store.write_synced(path, kept)


def calibrate(directory: Path, plan: Plan, tell: Tell, *, anyway: bool = False) -> None:
    """Put down, in the run, the `ceilings` that its cells need, now that they are measured, and
    `ceilings_missing`: why some are not known, by name. Not again in a run that has them; what is
    measured stays in the run. `anyway`: however slow the cells were."""
    if store.learned(directory) is not None or all(cell.server.null for cell in plan.cells):
        return
    environment = store.load(directory).environment
    path = cache()
    kept, wanted = read_cache(path), ceilings_needed(plan)
    known = {one: kept.get(_key(one, environment)) for one in wanted}
    if not anyway and None in known.values():
        rates = reached(directory)
        wanted = [one for one in wanted if known[one] or near_its_limit(one, rates)]
    found, missing = list[Ceiling](), dict[str, str]()
    for number, one in enumerate(wanted, 1):
        ceiling: Ceiling | str | None = known[one]
        if ceiling is None:
            tell(f"measuring what {one.name} can do here, once for this machine")
            ceiling = measure(one, directory / "calibration" / f"{number}-{one.tool}")
            if isinstance(ceiling, Ceiling):
                write_cache(path, {**read_cache(path), _key(one, environment): ceiling})
        if isinstance(ceiling, Ceiling):
            found.append(ceiling)
        else:
            missing[one.name] = ceiling
            tell(f"the ceiling of {one.name} is not known: {ceiling}")
    store.learn(directory, {"ceilings": found, "ceilings_missing": missing})


def measure(one: CeilingKey, place: Path) -> Ceiling | str:
    """The median of some short loads, kept in `place`, or why there is none."""
    shutil.rmtree(place, ignore_errors=True)  # of an attempt that was interrupted
    try:
        return _measure(one, place)
    except OSError as error:
        return str(error)


def _measure(one: CeilingKey, place: Path) -> Ceiling | str:
    requests = TRIED + one.connections
    rates, busy = list[float](), list[float]()
    timed = tool_named(one.tool).TIMED
    repeats = 1 if one.tool in SLOW_START else REPEATS
    others = 0.0
    for number in range(1, repeats + 1 + (not timed)):
        data = _load(one, requests, number, place)
        measured, counted = data.measurement, data.null
        if measured is None:
            return text(unusable(data))
        if measured.failed:
            return f"{measured.failed} of its requests failed"
        if not measured.rps:
            return "it says no rate"
        if data.observations.pauses:
            continue
        if (cores := disturbance(data)) is not None:
            others = max(others, cores)
        elif timed or number > 1:
            rates.append(measured.rps)
            # Of its core; 0 where that is not known
            known = counted is not None and measured.duration_s > 0
            busy.append(counted.cpu_s / measured.duration_s if counted and known else 0.0)
        else:  # the first one shows how many requests take a second
            requests = max(requests, math.ceil(measured.rps * DURATION_S))
    if not rates and not others:
        return "the machine stood still meanwhile; the next run measures it"
    if not rates:
        return f"other programs used {others:.1f} cores during it; close them before the next run"
    return Ceiling(*one, rps=median(rates), at_least=median(busy) >= SERVER_BUSY)


def disturbance(data: TrialData) -> float | None:
    """Cores that other programs used, where these kept the load tool or the server waiting for one:
    what comes out then says little of what the tool can do. None for a quiet load."""
    names = ("tool_cpu", "tool_wait", "server_cpu", "server_wait", "host_busy", "host_irq")
    rates = {
        name: per_second(
            (one.at_ns, getattr(one, f"{name}_s")) for one in data.observations.processes
        )
        for name in (*names, "lab_cpu")
    }
    if rates["host_busy"] is None:
        return None
    ours = sum(rates[name] or 0.0 for name in ("tool_cpu", "server_cpu", "host_irq", "lab_cpu"))
    others = rates["host_busy"] - ours
    waits = [
        wait / (wait + cpu)
        for who in ("tool", "server")
        if (wait := rates[f"{who}_wait"]) is not None and (cpu := rates[f"{who}_cpu"])
    ]
    return others if others >= OTHERS and max(waits, default=1.0) >= WAITS else None


def _load(one: CeilingKey, requests: int, number: int, place: Path) -> TrialData:
    duration_s = LONG_S if one.tool in SLOW_START else DURATION_S
    load = Load(
        concurrency=one.connections,
        requests=requests,
        duration_s=duration_s,
        deadline_s=duration_s + SLACK_S,
        keepalive=one.keepalive,
        processes=one.processes,
        timed=tool_named(one.tool).TIMED,
        summed=True,
    )
    cell = null_cell("ceiling", NullServer(core=preflight.own_core()), one.tool, load)
    asked = Trial(cell, number)
    record = trial.run(trial.null_task(asked, place), lambda _: None)
    return evidence(asked, record, null_plan("ceilings", [cell]), place)
