"""`workerlab generators`: compares the load generators against a server that does nothing.

The server is not under test. It responds with 12 bytes from a loop pinned to its own core: the last
one, if there are several. Each generator is measured against two servers:

    full speed    responds at once: requests/s at each number of connections
    low rate      responds after 50 ms: 25 connections make 500 requests/s with any tool

A slow server sets the low rate because most generators cannot limit theirs. With `--delay`, the
full-speed server also delays its responses. Each connection then mostly waits, and the rate is at
most connections / delay, however fast the generator is.
"""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Literal, NamedTuple

from msgspec.structs import replace

from workerlab.errors import EnvironmentProblem, UsageError
from workerlab.experiments.generators.options import GeneratorsOptions
from workerlab.experiments.planning import available_tools
from workerlab.experiments.runner import Setup
from workerlab.load.registry import TOOLS, tool_named
from workerlab.model.plan import Cell, Load, NullServer, Plan
from workerlab.numbers.intervals import TRIALS
from workerlab.plan import null_cell, null_plan
from workerlab.server import preflight

LOW_RATE_CONNECTIONS = 25
LOW_RATE_DELAY_S = 0.05  # of the server
MIN_LOW_RATE_S = 3.0  # duration of a load at the low rate
# Assumed requests/s, to size the request count of a tool that needs one (ab): with one
# connection, with several, and with a new connection per request
ASSUMED_RPS = {"one": 30_000, "several": 50_000, "new": 8_000}
SLACK_S = 60.0  # after the planned end of the load, before the tool is killed
MAX_DELAY_SHARE = 0.1  # of the duration: each connection gets at least ten responses


class ComparedGenerator(NamedTuple):
    """A load tool with its number of processes."""

    tool: str
    processes: int = 1

    @property
    def name(self) -> str:
        return f"{self.tool}-p{self.processes}" if self.processes > 1 else self.tool


def generators_of(
    names: Iterable[str], cores: int, processes: Sequence[int] = ()
) -> Iterator[ComparedGenerator]:
    """Each tool with its numbers of processes. `processes` replaces the numbers above one, for
    tools that can send from several processes."""
    for name in names:
        tool = tool_named(name)
        counts = tool.compared_processes(cores)
        if processes:
            single = [count for count in counts if count == 1]
            counts = (*single, *(processes if tool.PROCESSES else ()))
        yield from (ComparedGenerator(name, count) for count in dict.fromkeys(counts))


def cells(
    generators: Sequence[ComparedGenerator],
    levels: Iterable[int],
    duration_s: float,
    keepalive: bool,
    core: int | None,
    delay_s: tuple[float, float] = (0.0, 0.0),
    *,
    per_process: bool = False,
) -> list[Cell]:
    """Low-rate cells first, then level by level: cells to compare run close in time. `delay_s`:
    (shortest, longest), of the full-speed server. `per_process`: levels are per process."""
    full_speed = NullServer(core=core, delay_s=delay_s)
    low_rate = replace(full_speed, delay_s=(LOW_RATE_DELAY_S, LOW_RATE_DELAY_S))
    low_s = max(MIN_LOW_RATE_S, duration_s)
    cell = partial(_cell, keepalive=keepalive)
    candidates = [
        cell(generator, "low", low_rate, connections=LOW_RATE_CONNECTIONS, load_s=low_s)
        for generator in generators
    ]
    for level, generator in product(sorted(set(levels)), generators):
        connections = level * generator.processes if per_process else level
        candidates.append(
            cell(generator, "full", full_speed, connections=connections, load_s=duration_s)
        )
    return list(filter(None, candidates))


def _cell(
    generator: ComparedGenerator,
    rate: Literal["low", "full"],
    null: NullServer,
    *,
    connections: int,
    load_s: float,
    keepalive: bool,
) -> Cell | None:
    """The cell of a generator; None if there are fewer connections than processes."""
    if generator.processes > connections:
        return None
    kind = "new" if not keepalive else "one" if connections == 1 else "several"
    mean_delay_s = sum(null.delay_s) / 2
    delay_rps = connections / mean_delay_s if mean_delay_s else math.inf
    load = Load(
        concurrency=connections,
        requests=max(1 + connections, round(min(ASSUMED_RPS[kind], delay_rps) * load_s)),
        duration_s=load_s,
        deadline_s=load_s + SLACK_S,
        keepalive=keepalive,
        processes=generator.processes,
        timed=True,
        same_body=True,
        summed=True,
    )
    tool_named(generator.tool).check(load)
    return null_cell(f"{rate}-{generator.name}-c{connections}", null, generator.tool, load)


def plan_of(options: GeneratorsOptions) -> Plan:
    """The plan of a comparison. Inspects the machine; starts nothing. Raises UsageError or
    EnvironmentProblem."""
    levels, processes = options.levels, options.processes
    preflight.check_levels([max(levels) * max(processes, default=1), LOW_RATE_CONNECTIONS])
    tools, notes = available_tools(options.tools)
    if not tools:
        raise EnvironmentProblem(" ".join(note.values["why"] for note in notes))
    duration_s, delay_s = options.duration, options.delay
    if duration_s < 1:
        raise UsageError("--duration must be at least 1: measuring CPU time takes that long")
    _check(tools, processes, delay_s, duration_s)
    keepalive, core = options.keepalive, preflight.own_core()
    generators = tuple(generators_of(tools, preflight.cores() or 1, processes))
    all_cells = cells(
        generators,
        levels,
        duration_s=duration_s,
        keepalive=keepalive,
        core=core,
        delay_s=delay_s,
        per_process=bool(processes),
    )
    details = {"server_core": core, "keepalive": keepalive, "delay_s": delay_s}
    plan = null_plan("generators", all_cells, notes, details)
    return replace(
        plan, trials=options.trials or TRIALS, seed=random.SystemRandom().randrange(2**32)
    )


def _check(
    tools: Iterable[str], processes: Sequence[int], delay_s: tuple[float, float], duration_s: float
) -> None:
    """Raises UsageError for unusable `processes`, or a delay that leaves too few responses."""
    supporting = [name for name, tool in TOOLS.items() if tool.PROCESSES]
    if processes and not set(supporting) & set(tools):
        raise UsageError(f"--processes needs a tool that can use several: {', '.join(supporting)}")
    if processes and not 2 <= min(processes) <= max(processes) <= LOW_RATE_CONNECTIONS:
        raise UsageError(f"--processes must be from 2 to {LOW_RATE_CONNECTIONS}")
    if delay_s[1] > duration_s * MAX_DELAY_SHARE:
        raise UsageError("--delay must be at most a tenth of --duration, for enough responses")


def setup(options: GeneratorsOptions, plan: Plan | None) -> Setup:
    return Setup(plan or plan_of(options))
