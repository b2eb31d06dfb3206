"""Measures the highest rates of load tools on this machine, against a server that does nothing.

A measured capacity is the server's only if the load tool could send clearly more. So a sweep
measures the ceiling of each tool, per number of processes, keep-alive and approximate number of
connections: after the trials, and only if a cell came close to the rate that the tool reaches on a
slow machine. This takes a few seconds, once per machine; the results are cached per user.

A load is discarded if other programs made the tool or its server wait for a core, or if the whole
machine was paused.

Except for a full disk, no error stops the sweep: if a ceiling is not measured, the run stores why.
"""

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

from workerlab import codec
from workerlab import run_store as store
from workerlab.analysis.checks import contradictions
from workerlab.analysis.facts import Facts, TrialData, why_unusable
from workerlab.analysis.load_tool import SAFE_CEILING_RATIO, Ceiling
from workerlab.analysis.samples import per_second
from workerlab.analysis.stall import reported_rps
from workerlab.experiments.reading import read_trial, trial_data
from workerlab.experiments.trial import discard_attempt, null_task
from workerlab.experiments.trial import run as run_trial
from workerlab.load.registry import tool_named
from workerlab.model.plan import Cell, Load, NullServer, Plan, Trial
from workerlab.paths import user_cache
from workerlab.plan import null_cell, null_plan
from workerlab.report.values import text
from workerlab.server import preflight
from workerlab.server.worker_classes import configured_slots

CACHE_FORMAT = 2  # version of the cache and the method; part of its keys
# Numbers of connections for which ceilings are measured. A cell is compared with the next higher
# level, or else the highest: with more connections, tools only get slower
LEVELS = (16, 64, 256)
REPEATS = 3  # loads per ceiling
DURATION_S = 1.0  # per load
LONG_DURATION_S = 4.0  # for the single load of a tool that takes seconds to start
SLACK_S = 20.0  # from the planned end of the load until the tool is killed
MIN_FIRST_REQUESTS = 1000  # in the load that determines the rate of a tool without timed loads
MIN_OTHERS_CORES = 0.25  # if other programs use more, they may disturb a load
MIN_WAIT_SHARE = 0.05  # of the time: if a process waits longer for a core, the load is disturbed
SERVER_BUSY_SHARE = 0.9  # of its core: above it, the server is the limit, not the tool
Tell = Callable[[str], None]


class CeilingKey(NamedTuple):
    """The key of a ceiling, known before it is measured."""

    tool: str
    keepalive: bool
    processes: int
    connections: int

    @property
    def name(self) -> str:
        keepalive_text = " kept" if self.keepalive else ""
        processes_text = f" x{self.processes}" if self.processes > 1 else ""
        return f"{self.tool}{processes_text}, {self.connections}{keepalive_text} connections"


def ceiling_key(cell: Cell) -> CeilingKey:
    """The ceiling to compare a cell with: that of the next higher level, or of the highest."""
    level = next((level for level in LEVELS if level >= cell.concurrency), LEVELS[-1])
    tool_limit = tool_named(cell.tool).MAX_CEILING_CONNECTIONS or level
    max_connections = max(tool_limit, cell.processes)
    return CeilingKey(cell.tool, cell.keepalive, cell.processes, min(level, max_connections))


def ceilings_needed(plan: Plan) -> list[CeilingKey]:
    """The ceilings for the plan's cells, without duplicates. A cell needs none if other hosts send
    the load, if its server is a null server (such loads measure a ceiling themselves), or if the
    app's sleep keeps the rate below the tool's floor: X <= min(N, C)/R0 (Denning & Buzen 1978)."""
    keys = []
    for cell in () if plan.load_hosts else plan.cells:
        sleep_s, slots = cell.server.app.sleep_s, configured_slots(cell.server)
        in_flight = cell.concurrency if slots is None else min(cell.concurrency, slots)
        safe_in_flight = SAFE_CEILING_RATIO * in_flight * cell.server.instances
        slow = sleep_s and safe_in_flight / sleep_s <= tool_named(cell.tool).FLOOR_RPS
        if not slow and not cell.server.null:
            keys.append(ceiling_key(cell))
    return list(dict.fromkeys(keys))


def is_near_limit(key: CeilingKey, rates: Mapping[CeilingKey, float]) -> bool:
    """Whether the cells came so close to the tool's floor that the tool may have been the limit."""
    return SAFE_CEILING_RATIO * rates.get(key, 0.0) > tool_named(key.tool).FLOOR_RPS


def highest_rates(directory: Path) -> Mapping[CeilingKey, float]:
    """The highest rate (requests/s) of the valid trials, per ceiling. Their data is kept for the
    report that follows."""
    rates: dict[CeilingKey, float] = {}
    for data in trial_data(store.load(directory), keep=True):
        facts = data.facts
        if isinstance(facts, Facts) and not data.cell.server.null and not contradictions(facts):
            key = ceiling_key(data.cell)
            rates[key] = max(reported_rps(facts), rates.get(key, 0.0))
    return rates


def cache_file() -> Path:
    """The file that caches ceilings between runs."""
    return user_cache("ceilings.json")


def fingerprint(tool: str, environment: Mapping[str, object]) -> str:
    """A hash of everything that a ceiling depends on: cache format, machine, Python, and the
    version of the tool. `environment`: that of the run."""
    machine = [environment.get(name) for name in ("cpu", "cores", "system", "python")]
    versions = environment.get("tools")
    version = versions.get(tool) if isinstance(versions, Mapping) else None
    identity = json.dumps([CACHE_FORMAT, *machine, tool, version], default=str)
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def _cache_key(key: CeilingKey | Ceiling, environment: Mapping[str, object]) -> str:
    load = [key.tool, key.keepalive, key.processes, key.connections]
    return f"{fingerprint(key.tool, environment)} {json.dumps(load)}"


def read_cache(path: Path) -> dict[str, Ceiling]:
    """Cached ceilings by `_cache_key`; empty if the file is missing or damaged."""
    with contextlib.suppress(OSError, ValueError):
        return codec.decode(path.read_bytes(), dict[str, Ceiling])
    return {}


def write_cache(path: Path, ceilings: Mapping[str, Ceiling]) -> None:
    """Write the cache atomically; do nothing if the disk does not allow it."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        store.write_synced(path, ceilings)


def calibrate(directory: Path, plan: Plan, tell: Tell, *, always: bool = False) -> None:
    """Store in the run the `ceilings` that its cells need, and `ceilings_missing`: the reasons by
    name. A run that already has them is not changed. `always`: even if all cells were slow."""
    has_tool = any(cell.tool and not cell.server.null for cell in plan.cells)
    if not has_tool or store.saved_machine(directory) is not None:
        return
    environment = store.load(directory).environment
    path = cache_file()
    cache, keys = read_cache(path), ceilings_needed(plan)
    cached_ceilings = {key: cache.get(_cache_key(key, environment)) for key in keys}
    if not always and None in cached_ceilings.values():
        rates = highest_rates(directory)
        keys = [key for key in keys if cached_ceilings[key] or is_near_limit(key, rates)]
    ceilings, reasons = list[Ceiling](), dict[str, str]()
    for number, key in enumerate(keys, 1):
        ceiling: Ceiling | str | None = cached_ceilings[key]
        if ceiling is None:
            tell(f"measuring the highest rate of {key.name}, once for this machine")
            ceiling = measure(key, directory / "calibration" / f"{number}-{key.tool}")
            if isinstance(ceiling, Ceiling):
                write_cache(path, {**read_cache(path), _cache_key(key, environment): ceiling})
        if isinstance(ceiling, Ceiling):
            ceilings.append(ceiling)
        else:
            reasons[key.name] = ceiling
            tell(f"no ceiling for {key.name}: {ceiling}")
    store.save_machine(directory, {"ceilings": ceilings, "ceilings_missing": reasons})


def measure(key: CeilingKey, directory: Path) -> Ceiling | str:
    """The ceiling as the median of a few short loads, or the reason why there is none, as text."""
    discard_attempt(directory)
    try:
        return _measure(key, directory)
    except OSError as error:
        return str(error)


def _measure(key: CeilingKey, directory: Path) -> Ceiling | str:
    requests = MIN_FIRST_REQUESTS + key.connections
    rates, busy_shares = list[float](), list[float]()
    tool = tool_named(key.tool)
    is_size_known, others_cores = tool.TIMED, 0.0  # whether the size for about a second is known
    repeats = 1 if tool.START_S else REPEATS
    for number in range(1, repeats + 1 + (not is_size_known)):
        data = _measure_load(key, requests, number, directory)
        measurement, counts = data.measurement, data.null
        if measurement is None:
            return text(why_unusable(data))
        if measurement.failed:
            return f"{measurement.failed} of its requests failed"
        if not measurement.rps:
            return "its output has no rate"
        if data.observations.pauses:
            continue
        if (cores := disturbance(data)) is not None:
            others_cores = max(others_cores, cores)
        elif is_size_known:
            rates.append(measurement.rps)
            # The server's CPU as a share of its core; 0 if unknown
            cpu_s = counts.cpu_s if counts and measurement.duration_s > 0 else 0.0
            busy_shares.append(cpu_s / measurement.duration_s if cpu_s else 0.0)
        else:  # the first undisturbed load shows how many requests take a second
            is_size_known = True
            requests = max(requests, math.ceil(measurement.rps * DURATION_S))
    if not rates and not others_cores:
        return "the machine was paused during the measurement; the next run will repeat it"
    if not rates:
        return f"other programs used {others_cores:.1f} cores; stop them before the next run"
    return Ceiling(*key, rps=median(rates), at_least=median(busy_shares) >= SERVER_BUSY_SHARE)


def disturbance(data: TrialData) -> float | None:
    """The cores that other programs used if the load tool or the server waited for a core (assumed
    if unknown); None if the load was undisturbed, or the CPU usage of the host is unknown."""
    names = ("tool_cpu", "tool_wait", "server_cpu", "server_wait", "host_busy", "host_irq")
    rates = {
        name: per_second(data.observations.processes, f"{name}_s") for name in (*names, "lab_cpu")
    }
    if rates["host_busy"] is None:
        return None
    ours = sum(rates[name] or 0.0 for name in ("tool_cpu", "server_cpu", "host_irq", "lab_cpu"))
    others_cores = rates["host_busy"] - ours
    wait_shares = [
        wait / (wait + cpu)
        for process in ("tool", "server")
        if (wait := rates[f"{process}_wait"]) is not None and (cpu := rates[f"{process}_cpu"])
    ]
    has_waited = max(wait_shares, default=1.0) >= MIN_WAIT_SHARE
    return others_cores if has_waited and others_cores >= MIN_OTHERS_CORES else None


def _measure_load(key: CeilingKey, requests: int, number: int, directory: Path) -> TrialData:
    tool = tool_named(key.tool)
    duration_s = LONG_DURATION_S if tool.START_S else DURATION_S
    load = Load(
        concurrency=key.connections,
        requests=requests,
        duration_s=duration_s,
        deadline_s=duration_s + SLACK_S,
        keepalive=key.keepalive,
        processes=key.processes,
        timed=tool.TIMED,
        summed=True,
    )
    cell = null_cell("ceiling", NullServer(core=preflight.own_core()), key.tool, load)
    trial = Trial(cell, number)
    record = run_trial(null_task(trial, directory))
    return read_trial(trial, record, null_plan("ceilings", [cell]), directory)
