"""`workerlab bottleneck`: is it the server or the load generator? Varies one factor at a time.

The cells are those of a sweep, on a real server with an app that does nothing. Compared cells
differ in one factor; a cell that is in more than one comparison runs once.
"""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from workerlab.experiments.bottleneck.options import BottleneckOptions
from workerlab.experiments.environment import interpreters
from workerlab.experiments.planning import available_tools, gunicorn_plan
from workerlab.experiments.runner import Setup
from workerlab.finding import Note
from workerlab.load.registry import tool_named
from workerlab.model.plan import App, Cell, Load, NullServer, Plan, Server
from workerlab.numbers.intervals import TRIALS
from workerlab.numbers.units import fill
from workerlab.paths import target_of
from workerlab.plan import SLEEP_ENV, null_cell
from workerlab.server import preflight

GENERATORS = ("locust", "fast")  # the first installed one is tested
OTHER_GENERATORS = ("wrk", "fast", "locust-fast")  # compared with it
APP = App(target_of("@sleep_wsgi"), "", env=((SLEEP_ENV, "0"),), sleep_s=0.0)
SERVER = Server("gthread", workers=1, threads=6, backlog=2048, worker_connections=4000, app=APP)
PROCESSES = 4  # of the generator, with the middle number of users
FEWER_PROCESSES = 3  # with the most users, if there is a core for each and one for the server
TOO_FEW_CORES = (
    f"{FEWER_PROCESSES} processes of the generator are not compared with one at {{users:# user}}:"
    f" they and the server need {FEWER_PROCESSES + 1} cores[[; this machine has {{cores}}]]"
)
CLOSING_DELAY_S = (0.1, 0.1)  # shortest and longest delay of the server that closes connections


class Scale(NamedTuple):
    """The size of a run. `requests_per_connection`: the number of requests after which the null
    server closes a connection; `phases`: the load on that server."""

    users: tuple[int, ...]
    threads: tuple[int, ...]
    duration_s: float
    requests_per_connection: int
    phases: Load


PHASES = Load(
    concurrency=50,
    requests=50,
    duration_s=18.0,
    deadline_s=78.0,
    keepalive=True,
    ramp_s=4.0,
    timed=True,
    same_body=True,
)
FULL_SCALE = Scale(
    users=(200, 500, 1000, 1500),
    threads=(1, 6, 200),
    duration_s=4.0,
    requests_per_connection=100,
    phases=PHASES,
)
QUICK_SCALE = Scale(
    users=(50, 200),
    threads=(1, 6),
    duration_s=2.0,
    requests_per_connection=40,  # at 0.1 s each, so that connections close during the load
    phases=replace(PHASES, concurrency=20, duration_s=8.0, ramp_s=2.0),
)


def cells(
    generator: str, others: Iterable[str], scale: Scale, cores: int | None = None
) -> tuple[Cell, ...]:
    """The cells of all comparisons, each once; the first has the default server. `others`: the
    generators to compare; `cores`: of the machine, None if unknown."""
    middle_users, many_users, most_users = scale.users[1], scale.users[:3][-1], scale.users[-1]

    def cell(users: int, tool: str = generator, processes: int = 1, **settings: int) -> Cell:
        return Cell(replace(SERVER, **settings), tool, users, keepalive=True, processes=processes)

    all_cells = [
        *(cell(users) for users in scale.users),
        *(cell(many_users, threads=threads) for threads in scale.threads),
        *(cell(users, instances=2) for users in scale.users[1:]),
    ]
    if tool_named(generator).PROCESSES:
        all_cells.append(cell(middle_users, processes=PROCESSES))
        if has_cores_for_fewer(cores):
            all_cells.append(cell(most_users, processes=FEWER_PROCESSES))
    all_cells += [cell(middle_users, tool) for tool in others if tool != generator]
    return tuple(dict.fromkeys(all_cells))


def has_cores_for_fewer(cores: int | None) -> bool:
    """Whether the machine has a core for each of FEWER_PROCESSES and one for the server."""
    return cores is not None and cores > FEWER_PROCESSES


def setup(options: BottleneckOptions, plan: Plan | None) -> Setup:
    """The plan of a new run with the installed generators, or the plan of a resumed run."""
    if plan is not None:
        return Setup(plan)
    scale = QUICK_SCALE if options.quick else FULL_SCALE
    preflight.check_levels(scale.users)
    serving = interpreters(options)
    tools, notes = available_tools((*GENERATORS, *OTHER_GENERATORS))
    generator = next(name for name in GENERATORS if name in tools)
    cores = preflight.cores()
    others = [name for name in OTHER_GENERATORS if name in tools]
    closing_server = NullServer(
        delay_s=CLOSING_DELAY_S, requests_per_connection=scale.requests_per_connection
    )
    if not has_cores_for_fewer(cores):
        notes = (*notes, Note(fill(TOO_FEW_CORES, {"users": scale.users[-1], "cores": cores})))
    plan = gunicorn_plan(
        "bottleneck",
        (
            *cells(generator, others, scale, cores),
            null_cell("phases", closing_server, generator, scale.phases),
        ),
        serving,
        notes=notes,
        duration_s=scale.duration_s,
        trials=options.trials or TRIALS,
    )
    return Setup(plan, serving)
