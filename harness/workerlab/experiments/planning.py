"""From the words of the command line to a Plan. Looks at the machine, starts nothing.

What a setting is comes from the first that names it: an explicit flag, the user's own Gunicorn
file, the lab's default.
"""

import argparse
import importlib.util
import os
import random
from collections.abc import Callable, Iterable
from itertools import islice
from itertools import product as combinations
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from msgspec.structs import replace

from workerlab.bundled import target_of
from workerlab.experiments.environment import chdir_of, interpreters, serves_bundled_app
from workerlab.experiments.jobs import CPU_ENV
from workerlab.finding import Finding, Note, stored
from workerlab.load import hosts
from workerlab.load.locust import JOIN_S, PORT, host_command, worker_command
from workerlab.load.registry import TOOLS, tool_named
from workerlab.load.tool import Tool
from workerlab.mix import asked as asked_mix
from workerlab.model import (
    App,
    Arrivals,
    Cell,
    EnvironmentProblem,
    Plan,
    Route,
    Server,
    UsageError,
)
from workerlab.notes import (
    ClientsLinger,
    FlagIgnored,
    RequestsNotFollowed,
    ServerCoresBound,
    SettingIgnored,
    SettingOverridden,
    ToolLeftOut,
    noted,
)
from workerlab.numbers.formats import fill
from workerlab.options import seconds
from workerlab.plan import SLEEP_ENV, load_for, product
from workerlab.server import preflight
from workerlab.server.gunicorn import FORCED
from workerlab.server.worker_classes import class_named, configured_slots

DEFAULTS = {"workers": (4,), "threads": (2,), "backlog": (2048,), "worker_connections": 1000}
MAX_SECONDS = 30.0
LINGER_S = 5.0  # longer than Gunicorn waits for a client to close
FIX_LENGTH = ("requests", "rounds", "duration", "ramp", "load_hosts")  # options
COMPUTING = ("@sleep_wsgi", "@sleep_asgi", "@sleep_flask")  # that --cpu works with: none blocks
FAST_IS_CHOSEN = (
    "the load tool is fast: it sends at a rate, over a ramp, for a time, a mix of requests, or with"
    " clients that linger"
)
NO_AB = "ab is not installed, using the embedded load tool `fast` ({hint})"
TAKEN_FOR_WSGI = (
    "{worker_class} is taken for a WSGI class, since its base classes do not say; if it serves"
    " ASGI, add --app @sleep_asgi"
)
LOAD_HOSTS = (
    "each trial begins when the load hosts have joined, within {join_s} s; run this on {hosts:list}"
    " (it serves all trials; Ctrl-C ends it):{command:block}"
)


def apps_of(
    options: argparse.Namespace, found: preflight.Interpreter, mix: tuple[Route, ...]
) -> tuple[App, App]:
    """The app for WSGI classes, and that for ASGI classes."""
    common = App(
        path=options.path or "/",
        method=options.method or "GET",
        headers=tuple(options.header or ()),
        body_file=options.body_file,
        expect_status=options.expect_status or 200,
        env=tuple(options.env or ()),
        mix=mix,
    )
    if not serves_bundled_app(options, found.settings):
        if options.sleep is not None:
            raise UsageError("--sleep works only with the bundled apps, such as --app @sleep_wsgi")
        target = options.app or str(found.settings["wsgi_app"])
        app = replace(common, target=target, chdir=str(chdir_of(options, found.settings)))
        return app, app
    common = _sleeping(common, options.sleep)
    return (
        replace(common, target=target_of(options.app or "@sleep_wsgi")),
        replace(common, target=target_of(options.app or "@sleep_asgi")),
    )


def _sleeping(app: App, flag_s: float | None) -> App:
    """One of the lab's apps, told how long to sleep: by flag, else by --env, else a second; a
    request's own query wins. Raises UsageError for a value the app will refuse."""
    env = dict(app.env)
    asked = parse_qs(urlsplit(app.path).query).get("sleep")
    try:
        nominal = flag_s if flag_s is not None else seconds(env.get(SLEEP_ENV, "1"))
        sleep_s = seconds(asked[0]) if asked else nominal
    except ValueError as error:
        raise UsageError(f"the app would refuse to sleep so long: {error}") from error
    env[SLEEP_ENV] = f"{nominal:g}"
    # Of a mix each request may say how long
    return replace(app, sleep_s=None if app.mix else sleep_s, env=tuple(env.items()))


def _axis(options: argparse.Namespace, found: preflight.Interpreter, name: str) -> tuple[int, ...]:
    """An explicit flag wins over the user's file, the file over our default."""
    flag = getattr(options, name)
    value = found.settings.get(name, DEFAULTS[name]) if flag is None else flag
    return value if isinstance(value, tuple) else (int(value),)  # type: ignore[arg-type]


def _servers(
    options: argparse.Namespace, every: preflight.Interpreters, mix: tuple[Route, ...]
) -> Iterable[Server]:
    found = next(iter(every.values()))
    axis = {name: _axis(options, found, name) for name in DEFAULTS}
    wsgi_app, asgi_app = apps_of(options, found, mix)
    for row in map(class_named, options.classes):
        app = asgi_app if found.serves_asgi(row.name) else wsgi_app
        if not row.slots_known and not app.chdir:  # else it is imported from where the app is
            path = os.pathsep.join(filter(None, (os.getcwd(), dict(app.env).get("PYTHONPATH"))))
            app = replace(app, env=(*app.env, ("PYTHONPATH", path)))
        # Others have one thread: sync with more would become gthread. A class that nobody knows
        # has those that were asked for
        threaded = options.threads is not None if not row.slots_known else row.slots == "threads"
        threads = axis["threads"] if threaded else (1,)
        cpu, cores = options.cpu or (None,), options.server_cores or (None,)
        each = combinations(axis["workers"], threads, axis["backlog"], cpu, cores, every)
        for workers, count, backlog, cpu_s, on, (python, version) in each:
            amounts = (workers, count, backlog, axis["worker_connections"][0])
            server = Server(row.name, *amounts, app=_computing(app, cpu_s), cores=on, cpu_s=cpu_s)
            yield replace(server, python=python, gunicorn=version)


def _computing(app: App, cpu_s: float | None) -> App:
    """A bundled app whose requests compute for so long before they sleep; None: as it is."""
    env = {} if cpu_s is None else {CPU_ENV: f"{1000 * cpu_s:g}"}
    return replace(app, env=tuple({**dict(app.env), **env}.items()))


def _check_cpu(options: argparse.Namespace, found: preflight.Interpreter) -> None:
    """Raises UsageError for CPU per request or cores that a server cannot be given."""
    waits = options.app in (None, *COMPUTING) and serves_bundled_app(options, found.settings)
    mixed = options.mix or options.access_log or "cpu=" in (options.path or "")
    if options.cpu and (mixed or not waits):
        able = ", ".join(COMPUTING)
        raise UsageError(f"--cpu works only with {able}, without a mix and without cpu= in --path")
    bindable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else 0
    if (most := max(options.server_cores or (0,))) > bindable:
        raise UsageError(f"--server-cores {most} is too many: this system can bind {bindable}")


def _tools(options: argparse.Namespace) -> tuple[tuple[str, ...], list[Finding]]:
    """The load tools, and a line where the default one is missing and another takes its place."""
    mixed = options.mix or options.access_log
    needs_fast = (options.rate, options.ramp, options.duration, mixed, options.client == "lingers")
    if options.tool is None and any(needs_fast):
        return ("fast",), [Note(FAST_IS_CHOSEN)]
    if options.tool is None:
        if preflight.find_tool(TOOLS["ab"].PROGRAM):
            return ("ab",), []
        return ("fast",), [Note(NO_AB.format(hint=TOOLS["ab"].INSTALL_HINT))]
    check_tools(options.tool)
    return options.tool, []


def lacks(name: str) -> str | None:
    """Why a load tool cannot run here, with what to do about it; None when it can."""
    tool = tool_named(name)
    if not preflight.find_tool(tool.PROGRAM):
        return f"{name} is not installed. {tool.INSTALL_HINT}"
    missing = [package for package in tool.NEEDS if importlib.util.find_spec(package) is None]
    if missing:
        return f"{name} needs {' and '.join(missing)}. {tool.INSTALL_HINT}"
    return None


def check_tools(names: Iterable[str]) -> None:
    """Raises EnvironmentProblem for a load tool that cannot run here."""
    for name in names:
        if why := lacks(name):
            raise EnvironmentProblem(why)


def installed(names: Iterable[str]) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """The load tools that can run here, and a note for each of the others."""
    missing = {name: why for name in names if (why := lacks(name))}
    notes = tuple(map(ToolLeftOut, missing.values()))
    return tuple(name for name in dict.fromkeys(names) if name not in missing), notes


def overridden(
    options: argparse.Namespace, found: preflight.Interpreter, **more: str
) -> Iterable[Finding]:
    """A note for each setting of the user's file that is not heeded. `more`: others, and why."""
    own = found.settings
    forced = {name: why for name, (_, why) in FORCED.items()}
    for name, why in {**forced, **more}.items():
        if own.get(name) not in (None, False, 0, ""):
            yield SettingOverridden(
                config=options.config, setting=name, value=repr(own[name]), why=why
            )
    log = str(own.get("accesslog"))
    if log in ("-", "/dev/stdout", "/dev/stderr") or Path(log).is_fifo():
        yield Note(f"{options.config}: accesslog is overridden: a log into a pipe stalls")


def _warnings(options: argparse.Namespace, every: preflight.Interpreters) -> Iterable[Finding]:
    """A note for each setting without effect, and each class that serves nobody knows what."""
    rows, found = [class_named(name) for name in options.classes], next(iter(every.values()))
    yield from overridden(options, found, worker_class="the sweep names the classes")
    own = found.settings
    ignored = {row.name: _ignored_by_all(row.name, every) for row in rows}
    for setting in dict.fromkeys(name for names in ignored.values() for name in names):
        # A flag is worth a word where no class heeds it; the user's file was made for one class
        names = [name for name, its in ignored.items() if setting in its]
        asked = setting in DEFAULTS and getattr(options, setting) is not None
        if asked and len(names) == len(rows):
            flag = f"--{setting.replace('_', '-')}"
            yield FlagIgnored(flag, tuple(names))
        value = own.get(setting)
        if value is not None and (setting, value) != ("threads", 1):
            yield SettingIgnored(
                config=options.config, setting=setting, value=value, classes=tuple(names)
            )
    for name in options.classes if options.app is None else ():
        if found.serves_asgi(name) is None:
            yield Note(TAKEN_FOR_WSGI.format(worker_class=name))


def _ignored_by_all(name: str, every: preflight.Interpreters) -> list[str]:
    """Settings that change nothing for this class in any of the versions."""
    first, *others = (found.ignores(name) for found in every.values())
    return [one for one in first if all(one in its for its in others)]


def _drops(servers: Iterable[Server], most: int) -> Iterable[Finding]:
    """Where a cell may take minutes: more connections than slots and queue hold."""
    for server in servers:
        slots = configured_slots(server)
        if slots is not None and most > slots + server.backlog + 1:
            yield Note(
                f"{most} connections are more than {slots} slots and a backlog of {server.backlog}"
                " hold; clients repeat a dropped SYN ever more slowly, so such a cell may take"
                " minutes"
            )


def _estimates(options: argparse.Namespace, tools: Iterable[str]) -> Iterable[Finding]:
    """A load tool that would follow each request, but not for a time."""
    mixed = options.mix or options.access_log
    if options.duration and not options.ramp and not mixed:
        for name in tools:
            if tool_named(name).NAMES_REQUESTS:
                yield RequestsNotFollowed(name)


def _lingers(options: argparse.Namespace) -> Iterable[Finding]:
    if options.server_cores:
        yield ServerCoresBound(preflight.cores())
    if options.client == "lingers":
        yield ClientsLinger(LINGER_S)


def lacking(servers: Iterable[Server], found: preflight.Interpreters) -> dict[str, str]:
    """Variants that cannot run in their interpreters, and why."""
    every = {one.variant: (one, found[one.python, one.gunicorn])
             for one in servers if one.null is None}  # fmt: skip
    return {name: why for name, (one, its) in every.items() if (why := its.lacks(one.worker_class))}


def notes_on_gunicorn(found: preflight.Interpreters) -> tuple[Finding, ...]:
    """Which one serves, where that is worth a line."""
    return tuple(dict.fromkeys(one.note for one in found.values() if one.note is not None))


def version_of(found: preflight.Interpreters) -> str:
    """A plan's version of Gunicorn: that of all, else "", and each server names its own."""
    asked = {one.asked for one in found.values()}
    return asked.pop() if len(asked) == 1 else ""


def gunicorn_plan(
    kind: str, cells: Iterable[Cell], found: preflight.Interpreters, **more: Any
) -> Plan:
    """Of cells on Gunicorn. `more`: of the Plan. Raises UsageError for what cannot be measured."""
    usual: dict[str, Any] = {"trials": 1, "rounds": 5, "config": None, "notes": ()}
    cells, seed = tuple(cells), random.SystemRandom().randrange(2**32)
    unavailable = lacking((cell.server for cell in cells), found)
    first = next(iter(found.values()))
    common = {"kind": kind, "cells": cells, "seed": seed}
    common |= {"python": first.python, "gunicorn": version_of(found), "unavailable": unavailable}
    values = {**common, **usual, **more}
    values["notes"] = tuple(map(stored, (*notes_on_gunicorn(found), *values["notes"])))
    plan = Plan(**values)
    _check_times(plan)
    plan = _with_hosts(plan)
    for cell in cells:
        _check(plan, cell)
    return plan


def plan_of(options: argparse.Namespace) -> tuple[Plan, preflight.Interpreters]:
    """Raises UsageError or EnvironmentProblem; starts nothing but looks."""
    if options.classes is None or options.levels is None:
        raise UsageError("sweep needs CLASSES and LEVELS, such as: workerlab sweep sync 4,8,16")
    preflight.check_levels(options.levels)
    tools, notes = _tools(options)
    mix, mix_notes = asked_mix(options)
    every = interpreters(options, options.classes, options.config)
    found = next(iter(every.values()))
    for name, one in found.classes.items():
        if one.get("error"):
            raise UsageError(found.lacks(name))
    _check_cpu(options, found)
    servers = tuple(_servers(options, every, mix))
    drops = _drops(servers, max(options.levels))
    plan = gunicorn_plan(
        "sweep",
        product(
            servers,
            tools,
            options.levels,
            keepalive=options.keepalive or (False,),
            processes=options.tool_processes or (1,),
            rates=options.rate or (),
            requests=_requests(options),
        ),
        every,
        trials=options.trials or 1,
        rounds=options.rounds or 5,
        config=options.config,
        notes=(
            *notes,
            *mix_notes,
            *_warnings(options, every),
            *_estimates(options, tools),
            *_lingers(options),
            *islice(drops, 1),
        ),
        duration_s=options.duration,
        ramp_s=options.ramp or 0.0,
        linger_s=LINGER_S if options.client == "lingers" else 0.0,
        load_hosts=options.load_hosts or (),
        max_seconds=_max_seconds(options),
        arrivals=_arrivals(options),
        slo=options.slo or "",
        **({} if options.seed is None else {"seed": options.seed}),
    )
    return plan, every


def _arrivals(options: argparse.Namespace) -> Arrivals:
    """Raises UsageError for a kind of arrivals where none are planned."""
    if options.arrivals and not options.rate:
        raise UsageError("--arrivals needs --rate: without it, each client waits for its answer")
    return options.arrivals or ("poisson" if options.rate else "even")


def _requests(options: argparse.Namespace) -> int | None:
    """Raises UsageError for so few that not every connection sends two, or another length."""
    if options.requests is None:
        return None
    if other := next((name for name in ("rounds", "duration") if getattr(options, name)), None):
        raise UsageError(f"--requests and --{other} both say how long a load is: choose one")
    if options.requests < 2 * max(options.levels):
        least = 2 * max(options.levels)
        raise UsageError(f"--requests must be at least {least}: two for each connection")
    return int(options.requests)


def _max_seconds(options: argparse.Namespace) -> float | None:
    """None where an option fixes the length of the loads. Raises UsageError where two do."""
    fixed = [name for name in FIX_LENGTH if getattr(options, name)]
    if fixed and options.max_seconds:
        flag = f"--{fixed[0].replace('_', '-')}"
        raise UsageError(f"--max-seconds has no effect with {flag}, which fixes the load's length")
    return None if fixed else options.max_seconds or MAX_SECONDS


def _say(can: Callable[[Tool], bool]) -> str:
    """Which load tools can do that."""
    return f"say {' or '.join(f'--tool {name}' for name, tool in TOOLS.items() if can(tool))}"


def _with_hosts(plan: Plan) -> Plan:
    """The plan, and what to do on each of the hosts that send the load. Raises UsageError for hosts
    that nobody can reach, or a tool that cannot send from others."""
    if not plan.load_hosts:
        return plan
    for name in plan.tools:
        if not tool_named(name).DISTRIBUTES:
            able = _say(lambda tool: tool.DISTRIBUTES)
            raise UsageError(f"{name} cannot send from other hosts; {able}")
    if len({cell.processes for cell in plan.cells}) > 1:
        raise UsageError("--load-hosts needs one number of --tool-processes: each host runs them")
    hosts.check(plan.load_hosts, PORT)
    here, cell = hosts.reached_at(plan.load_hosts), plan.cells[0]
    command = host_command(worker_command(load_for(plan, cell, 1.0), here))
    values = {"join_s": JOIN_S, "hosts": plan.load_hosts, "command": command}
    return noted(plan, [Note(fill(LOAD_HOSTS, values))])


def _check_times(plan: Plan) -> None:
    """Raises UsageError, in one sentence, for a rate, ramp, time or mix that no tool can keep."""
    for asked, can, words in (
        (any(cell.rate for cell in plan.cells), "OPEN_MODEL", "send at a rate (--rate)"),
        (plan.ramp_s, "RAMPS", "begin its connections one after the other (--ramp)"),
        (plan.duration_s, "TIMED", "load for a time (--duration)"),
        (plan.linger_s, "LINGERS", "close its connections late (--client lingers)"),
        (
            any(cell.server.app.mix for cell in plan.cells),
            "MIX",
            "send requests of several kinds (--mix, --access-log)",
        ),
    ):
        able = [name for name, tool in TOOLS.items() if getattr(tool, can, False)]
        for name in plan.tools if asked else ():
            if name not in able:
                raise UsageError(f"{name} cannot {words}; say --tool {' or '.join(able)}")
    if plan.linger_s and any(cell.keepalive for cell in plan.cells):
        raise UsageError("--client lingers needs --keepalive off: kept connections are not closed")
    if plan.ramp_s and not all(cell.keepalive for cell in plan.cells):
        raise UsageError(
            "--ramp needs --keepalive on: with a new connection per request, connections come and"
            " go all the time"
        )
    if plan.duration_s is not None and plan.ramp_s >= plan.duration_s:
        raise UsageError(
            f"a ramp of {plan.ramp_s:g} s leaves nothing of --duration {plan.duration_s:g}:"
            " make the duration longer"
        )
    opened = [cell for cell in plan.cells if cell.rate is not None]
    known = [load_for(plan, cell, s) for cell in opened if (s := cell.server.app.sleep_s)]
    preflight.check_levels(
        [*(cell.concurrency for cell in plan.cells), *(load.concurrency for load in known)]
    )


def _check(plan: Plan, cell: Cell) -> None:
    """Raises UsageError, in one sentence, for a cell that cannot be measured."""
    tool, name = tool_named(cell.tool), cell.server.worker_class
    if cell.processes > 1 and not tool.PROCESSES:
        able = _say(lambda other: other.PROCESSES)
        raise UsageError(f"{cell.tool} sends from one process only (--tool-processes): {able}")
    tool.check(load_for(plan, cell, 1.0))
    if cell.keepalive and (why := tool.NO_KEEPALIVE.get(name)):
        able = _say(lambda other: name not in other.NO_KEEPALIVE)
        raise UsageError(f"{cell.tool} cannot keep connections to {name} alive: {why}; {able}")
