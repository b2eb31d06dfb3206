"""Makes a Plan from command-line arguments. Inspects the machine, but starts nothing.

Each setting is taken from the first source that has it: a flag, the user's Gunicorn file, the lab's
default.
"""

import importlib.util
import os
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import product as combinations
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from msgspec.structs import replace

from workerlab.errors import EnvironmentProblem, UsageError
from workerlab.experiments.environment import chdir_of, interpreters, serves_bundled_app
from workerlab.experiments.jobs import CPU_ENV
from workerlab.experiments.sweep_options import AppOptions, CellOptions, SweepOptions
from workerlab.finding import Finding, Note, stored
from workerlab.load.locust import JOIN_S, PORT, host_command, worker_command
from workerlab.load.registry import BUNDLED, DEFAULT, TOOLS, tool_named
from workerlab.load.tool import Tool
from workerlab.mix import requested_mix
from workerlab.model.plan import App, Arrivals, Cell, Plan, Route, Server
from workerlab.notes import (
    ClientsLinger,
    FlagIgnored,
    RequestsNotFollowed,
    ServerCoresBound,
    SettingIgnored,
    SettingOverridden,
    ToolLeftOut,
    add_notes,
    annotated_only,
)
from workerlab.numbers.units import fill, listed
from workerlab.options import Option, ServedOptions, seconds
from workerlab.paths import target_of
from workerlab.plan import SLEEP_ENV, load_for, product
from workerlab.server import preflight
from workerlab.server.backends import FORCED_SETTINGS, SLOWING_SETTINGS
from workerlab.server.worker_classes import class_named, configured_slots, why_not_served
from workerlab.terminal.console import tell

DEFAULTS: Mapping[Option[Any], int] = {
    CellOptions.workers: 4,
    CellOptions.threads: 2,
    CellOptions.backlog: 2048,
    CellOptions.worker_connections: 1000,
}
SLOW_IMPORT_S = 5.0  # after which the user is told that the app is still being imported
LINGER_S = 5.0  # longer than Gunicorn waits for clients to close
# Options that fix the length of a load
LENGTH_OPTIONS = (
    SweepOptions.requests,
    SweepOptions.rounds,
    SweepOptions.duration,
    SweepOptions.ramp,
    SweepOptions.load_hosts,
)
CPU_APPS = ("@sleep_wsgi", "@sleep_asgi", "@sleep_flask")  # bundled apps that support --cpu
FAST_IS_CHOSEN = (
    "using the load tool `fast`, which supports --rate, --ramp, --duration, --mix, --access-log and"
    " --client lingers"
)
DEFAULT_MISSING = "{default} is not installed, using the embedded load tool `{bundled}` ({hint})"
TAKEN_FOR_WSGI = (
    "{worker_class} is treated as a WSGI class, since its base classes do not show its kind; if it"
    " serves ASGI, add --app @sleep_asgi"
)
GUNICORN_FILE_NOTE = (
    "{config} is a Gunicorn file: besides the app, at most its workers, threads, backlog and"
    " worker_connections affect {servers}"
)
LOAD_HOSTS = (
    "each trial waits up to {join_s} s for the load hosts; run this on {hosts:list} (once for all"
    " trials; Ctrl-C ends it):{command:block}"
)


def apps_of(
    options: AppOptions, interpreter: preflight.Interpreter, mix: tuple[Route, ...]
) -> tuple[App, App]:
    """The app for WSGI classes and the app for ASGI classes. Raises UsageError."""
    common = App(
        path=options.path,
        method=options.method,
        headers=tuple(options.header),
        body_file=options.body_file,
        expect_status=options.expect_status,
        env=tuple(options.env),
        mix=mix,
    )
    if not serves_bundled_app(options, interpreter.settings):
        if options.sleep is not None:
            raise UsageError("--sleep works only with the bundled apps, such as --app @sleep_wsgi")
        target = options.app or str(interpreter.settings["wsgi_app"])
        app = replace(common, target=target, chdir=str(chdir_of(options, interpreter.settings)))
        return app, app
    common = _with_sleep(common, options.sleep)
    return (
        replace(common, target=target_of(options.app or "@sleep_wsgi")),
        replace(common, target=target_of(options.app or "@sleep_asgi")),
    )


def _with_sleep(app: App, flag_s: float | None) -> App:
    """The bundled app with the sleep of its requests, from the query in the path, the flag or
    --env; by default one second. Raises UsageError for a value that the app would reject."""
    env = dict(app.env)
    query_sleep = parse_qs(urlsplit(app.path).query).get("sleep")
    try:
        default_s = flag_s if flag_s is not None else seconds(env.get(SLEEP_ENV, "1"))
        sleep_s = seconds(query_sleep[0]) if query_sleep else default_s
    except ValueError as error:
        raise UsageError(f"invalid sleep: {error}") from error
    env[SLEEP_ENV] = f"{default_s:g}"
    # In a mix, each request may have its own sleep
    return replace(app, sleep_s=None if app.mix else sleep_s, env=tuple(env.items()))


def _axis_values(
    options: SweepOptions, interpreter: preflight.Interpreter, option: Option[Any]
) -> tuple[int, ...]:
    """The values of one axis, from the flag, the user's Gunicorn file or the defaults."""
    default = interpreter.settings.get(option.name, DEFAULTS[option])
    value = vars(options).get(option.name, default)
    return value if isinstance(value, tuple) else (int(value),)


def _servers(
    options: SweepOptions, serving: preflight.Interpreters, mix: tuple[Route, ...]
) -> Iterable[Server]:
    """Every server of the sweep: class x workers x threads x backlog x CPU x cores x
    interpreter."""
    interpreter = next(iter(serving.values()))
    axis = {option.name: _axis_values(options, interpreter, option) for option in DEFAULTS}
    wsgi_app, asgi_app = apps_of(options, interpreter, mix)
    for row in map(class_named, options.classes):
        app = asgi_app if interpreter.serves_asgi(row.name) else wsgi_app
        if not row.slots_known and not app.chdir:  # imports the class from the current directory
            path = os.pathsep.join(filter(None, (os.getcwd(), dict(app.env).get("PYTHONPATH"))))
            app = replace(app, env=(*app.env, ("PYTHONPATH", path)))
        # Only gthread has threads: sync with several would become gthread. An unknown class gets
        # the requested number
        has_threads = options.threads is not None if not row.slots_known else row.slots == "threads"
        threads = axis["threads"] if has_threads else (1,)
        cpu, cores = options.cpu or (None,), options.server_cores or (None,)
        workers_axis = (1,) if "workers" in row.ignores else axis["workers"]
        points = combinations(workers_axis, threads, axis["backlog"], cpu, cores, serving)
        for workers, thread_count, backlog, cpu_s, core_count, (python, version) in points:
            yield Server(
                worker_class=row.name,
                workers=workers,
                threads=thread_count,
                backlog=backlog,
                worker_connections=axis["worker_connections"][0],
                app=_with_cpu(app, cpu_s),
                cores=core_count,
                cpu_s=cpu_s,
                python=python,
                gunicorn=version,
            )


def _with_cpu(app: App, cpu_s: float | None) -> App:
    """The bundled app with CPU seconds per request, spent before it sleeps; None: unchanged."""
    if cpu_s is None:
        return app
    return replace(app, env=tuple({**dict(app.env), CPU_ENV: f"{1000 * cpu_s:g}"}.items()))


def _check_cpu(options: SweepOptions, interpreter: preflight.Interpreter) -> None:
    """Raises UsageError if --cpu or --server-cores cannot work."""
    bundled = serves_bundled_app(options, interpreter.settings)
    has_mix = options.mix or options.access_log or "cpu=" in options.path
    if options.cpu and (has_mix or not (bundled and options.app in (None, *CPU_APPS))):
        supported = ", ".join(CPU_APPS)
        raise UsageError(
            f"--cpu works only with {supported}, without a mix and without cpu= in --path"
        )
    bindable_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else 0
    if (max_cores := max(options.server_cores or (0,))) > bindable_cores:
        raise UsageError(
            f"--server-cores {max_cores} is too many: this system can bind a server to at most"
            f" {bindable_cores}"
        )


def _tools(options: SweepOptions) -> tuple[tuple[str, ...], list[Finding]]:
    """The load tools, and a note if `fast` is used although no option names it. Raises
    EnvironmentProblem for a named tool that cannot run here."""
    has_mix = options.mix or options.access_log
    is_timed = options.rate or options.ramp or options.duration
    if options.tool is None and (is_timed or has_mix or options.client == "lingers"):
        return (BUNDLED.NAME,), [Note(FAST_IS_CHOSEN)]
    if options.tool is None:
        if preflight.has_tool(DEFAULT.PROGRAM):
            return (DEFAULT.NAME,), []
        values = {"default": DEFAULT.NAME, "bundled": BUNDLED.NAME, "hint": DEFAULT.INSTALL_HINT}
        return (BUNDLED.NAME,), [Note(DEFAULT_MISSING.format(**values))]
    check_tools(options.tool)
    return options.tool, []


def why_unavailable(name: str) -> str | None:
    """The reason why a load tool cannot run here, and advice; None if it can."""
    tool = tool_named(name)
    if not preflight.has_tool(tool.PROGRAM):
        return f"{name} is not installed. {tool.INSTALL_HINT}"
    packages = [package for package in tool.NEEDS if importlib.util.find_spec(package) is None]
    if packages:
        return f"{name} needs {listed(packages)}. {tool.INSTALL_HINT}"
    return None


def available_here(plan: Plan) -> tuple[Plan, preflight.Interpreters]:
    """A saved plan, updated with the variants that are unavailable on this machine now, and the
    interpreters that serve it. Raises EnvironmentProblem for a load tool that cannot run here, and
    the errors of `preflight.interpreters_of`."""
    check_tools(plan.tools)
    serving = preflight.interpreters_of(plan, Path(plan.servers[0].app.chdir or "."))
    unavailable = unavailable_variants(plan.servers, serving, plan.config)
    return replace(plan, unavailable=unavailable), serving


def check_tools(names: Iterable[str]) -> None:
    """Raises EnvironmentProblem for a load tool that cannot run here."""
    for name in names:
        if why := why_unavailable(name):
            raise EnvironmentProblem(why)


def available_tools(names: Iterable[str]) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """The load tools that can run here, and a note on each one that cannot."""
    reasons = {name: why for name in names if (why := why_unavailable(name))}
    notes = tuple(map(ToolLeftOut, reasons.values()))
    return tuple(name for name in dict.fromkeys(names) if name not in reasons), notes


def override_notes(
    options: ServedOptions, interpreter: preflight.Interpreter, **more: str
) -> Iterable[Finding]:
    """A note for each setting of the user's Gunicorn file that is overridden or only annotated.
    `more`: further overridden settings with reasons."""
    settings = interpreter.settings
    for name, assignment in interpreter.assignments.items():
        if assignment["annotated"] and name in interpreter.names:
            line, text = assignment["annotated"]
            yield annotated_only(line, name, text, options.config)
    forced = {name: why for name, (_, why) in FORCED_SETTINGS.items()}
    forced["accesslog"] = "measured requests are logged to a separate file"
    for name, why in {**forced, **more}.items():
        if settings.get(name) not in (None, False, 0, "", FORCED_SETTINGS.get(name, ("",))[0]):
            yield SettingOverridden(
                config=options.config,
                setting=name,
                value=repr(settings[name]),
                why=why,
                may_slow=name in SLOWING_SETTINGS,
            )


def _setting_notes(options: SweepOptions, serving: preflight.Interpreters) -> Iterable[Finding]:
    """Notes on settings that are overridden or have no effect, and on classes treated as WSGI."""
    rows = [class_named(name) for name in options.classes]
    interpreter = next(iter(serving.values()))
    overrides = list(
        override_notes(options, interpreter, worker_class="the sweep names the classes")
    )
    yield from overrides
    overridden = {note.values["setting"] for note in overrides}
    file_settings = interpreter.settings
    flags = {option.name: option.flag for option in options.given_options(*DEFAULTS)}
    ignored_by_class = {row.name: _settings_ignored_by(row.name, serving) for row in rows}
    for setting in dict.fromkeys(name for names in ignored_by_class.values() for name in names):
        # A flag gets a note only if no class uses it; the user's file was written for one class
        names = [name for name, settings in ignored_by_class.items() if setting in settings]
        if setting in flags and len(names) == len(rows):
            yield FlagIgnored(flags[setting], tuple(names))
        value = file_settings.get(setting)
        if value is not None and (setting, value) != ("threads", 1) and setting not in overridden:
            yield SettingIgnored(
                config=options.config, setting=setting, value=value, classes=tuple(names)
            )
    for name in options.classes if options.app is None else ():
        if interpreter.serves_asgi(name) is None:
            yield Note(TAKEN_FOR_WSGI.format(worker_class=name))
    yield from server_notes(options.classes, options.config)
    if options.gunicorn and all(row.alone for row in rows):
        yield FlagIgnored("--gunicorn", tuple(row.name for row in rows))


def server_notes(names: Iterable[str], config: str | None) -> Iterable[Finding]:
    """Notes on other servers: missing data, and effective settings of the user's Gunicorn file."""
    rows = [class_named(name) for name in names]
    yield from (Note(row.unmeasured) for row in rows if row.unmeasured)
    if config and (others := [row.name for row in rows if row.alone]):
        yield Note(GUNICORN_FILE_NOTE.format(config=config, servers=listed(others)))


def _settings_ignored_by(name: str, serving: preflight.Interpreters) -> list[str]:
    """The settings that have no effect on this class in any of the interpreters' Gunicorns."""
    first, *others = (interpreter.ignores(name) for interpreter in serving.values())
    return [setting for setting in first if all(setting in names for names in others)]


def _drop_notes(servers: Iterable[Server], connections: int) -> Iterable[Finding]:
    """A note on the first server that may drop connections, so its cells may take minutes."""
    for server in servers:
        slots = configured_slots(server)
        if slots is not None and connections > slots + server.backlog + 1:
            yield Note(
                f"{connections} connections exceed {slots} slots and a backlog of {server.backlog};"
                " clients repeat a dropped SYN after ever longer pauses, so such a cell may take"
                " minutes"
            )
            return


def unavailable_variants(
    servers: Iterable[Server],
    serving: preflight.Interpreters,
    config: str | None = None,
    app_kind: str = "",
) -> dict[str, str]:
    """The variants that cannot run in their interpreters, or cannot serve any of their apps, with
    reasons. `config`: the user's Gunicorn file; `app_kind`: the kind of the app; "": unknown."""
    servers = [server for server in servers if server.null is None]
    reasons = {
        server.variant: why
        for server in servers
        if (why := serving[server.python, server.gunicorn].why_unavailable(server.worker_class))
    }
    # The kind takes precedence: no package would let the class serve an app of another kind
    return reasons | _mismatched_variants(servers, serving, config, app_kind)


def _mismatched_variants(
    servers: Iterable[Server], serving: preflight.Interpreters, config: str | None, app_kind: str
) -> dict[str, str]:
    """The variants that cannot serve any of their apps, with reasons. The user's app is imported if
    the classes serve different kinds; otherwise the first launch shows whether they can."""
    servers = [server for server in servers if server.app.chdir]
    if len({class_named(server.worker_class).serves for server in servers}) < 2:
        return {}

    @cache
    def kind_of(python: str, gunicorn: str, app: App) -> str:
        return app_kind or imported_kind(serving[python, gunicorn], app, config)

    reasons: dict[str, list[str | None]] = {}
    for server in servers:
        kind = kind_of(server.python, server.gunicorn, server.app)
        why = why_not_served(server.worker_class, server.app.target, kind)
        reasons.setdefault(server.variant, []).append(why)
    return {name: whys[0] for name, whys in reasons.items() if whys[0] and all(whys)}


def imported_kind(
    interpreter: preflight.Interpreter,
    app: App,
    config: str | None,
    limit_s: float = preflight.INTROSPECT_TIMEOUT_S,
) -> str:
    """The result of `preflight.app_kind`, with a message if it takes long."""
    note = f"still importing {app.target}, for up to {limit_s:.0f} s"
    timer = threading.Timer(SLOW_IMPORT_S, tell, (note,))
    timer.start()
    try:
        return preflight.app_kind(interpreter, app, config, limit_s)
    finally:
        timer.cancel()


def notes_on_gunicorn(serving: preflight.Interpreters) -> tuple[Finding, ...]:
    """Notes on the Gunicorn that serves, without duplicates."""
    notes = (interpreter.note for interpreter in serving.values())
    return tuple(dict.fromkeys(filter(None, notes)))


def common_version(serving: preflight.Interpreters) -> str:
    """The requested version of Gunicorn that all interpreters share; "" if versions differ (each
    server then names its own), or if none was requested."""
    versions = {interpreter.requested for interpreter in serving.values()}
    return versions.pop() if len(versions) == 1 else ""


def gunicorn_plan(
    kind: str,
    cells: Iterable[Cell],
    serving: preflight.Interpreters,
    app_kind: str = "",
    seed: int | None = None,
    **more: Any,
) -> Plan:
    """A plan of cells on Gunicorn. `app_kind`: as in `unavailable_variants`; `seed`: None: random;
    `more`: further fields of the Plan. Raises UsageError for cells that cannot be measured."""
    cells = tuple(cells)
    notes = (*notes_on_gunicorn(serving), *more.pop("notes", ()))
    defaults = {
        "trials": 1,
        "rounds": 5,
        "config": None,
        "seed": random.SystemRandom().randrange(2**32) if seed is None else seed,
    }
    plan = Plan(
        kind=kind,
        cells=cells,
        python=next(iter(serving.values())).python,
        gunicorn=common_version(serving),
        unavailable=unavailable_variants(
            (cell.server for cell in cells), serving, more.get("config"), app_kind
        ),
        notes=tuple(map(stored, notes)),
        **{**defaults, **more},
    )
    _check_load_support(plan)
    plan = _with_host_note(plan)
    for cell in cells:
        _check_cell(plan, cell)
    return plan


def plan_of(options: SweepOptions) -> tuple[Plan, preflight.Interpreters]:
    """The plan of a sweep and the interpreters that serve it. Raises UsageError or
    EnvironmentProblem."""
    if not options.classes or not options.levels:
        raise UsageError("sweep needs CLASSES and LEVELS, such as: workerlab sweep sync 4,8,16")
    preflight.check_levels(options.levels)
    tools, notes = _tools(options)
    mix, mix_notes = requested_mix(options)
    serving = interpreters(options, options.classes)
    interpreter = next(iter(serving.values()))
    _check_classes(interpreter)
    _check_cpu(options, interpreter)
    servers = tuple(_servers(options, serving, mix))
    plan = gunicorn_plan(
        "sweep",
        product(
            servers,
            tools,
            options.levels,
            keepalive=options.keepalive,
            processes=options.tool_processes,
            rates=options.rate,
            requests=_requests(options),
        ),
        serving,
        trials=options.trials,
        rounds=options.rounds,
        config=options.config,
        notes=(*notes, *mix_notes, *_notes(options, serving, tools, servers)),
        duration_s=options.duration,
        ramp_s=options.ramp,
        linger_s=LINGER_S if options.client == "lingers" else 0.0,
        load_hosts=options.load_hosts,
        max_seconds=_max_seconds(options),
        arrivals=_arrivals(options),
        slo=options.slo or "",
        seed=options.seed,
    )
    return plan, serving


def _check_classes(interpreter: preflight.Interpreter) -> None:
    """Raises UsageError for a worker class that cannot be imported."""
    for name, worker_class in interpreter.classes.items():
        if worker_class.get("error"):
            raise UsageError(interpreter.why_unavailable(name))


def _notes(
    options: SweepOptions,
    serving: preflight.Interpreters,
    tools: Iterable[str],
    servers: Iterable[Server],
) -> Iterable[Finding]:
    yield from _setting_notes(options, serving)
    if options.duration and not (options.ramp or options.mix or options.access_log):
        # These tools trace individual requests, but not in this timed load
        tracing_tools = [name for name in tools if tool_named(name).NUMBERS_REQUESTS]
        yield from map(RequestsNotFollowed, tracing_tools)
    if options.server_cores:
        yield ServerCoresBound(preflight.cores())
    if options.client == "lingers":
        yield ClientsLinger(LINGER_S)
    yield from _drop_notes(servers, max(options.levels))


def _arrivals(options: SweepOptions) -> Arrivals:
    """The spacing of arrivals. Raises UsageError for --arrivals without --rate."""
    if options.arrivals and not options.rate:
        raise UsageError("--arrivals needs --rate: without it, clients wait for each response")
    return options.arrivals or ("poisson" if options.rate else "even")


def _requests(options: SweepOptions) -> int | None:
    """The number of requests per load; None if rounds determine it. Raises UsageError for fewer
    than two per connection, or if another option also fixes the length."""
    if options.requests is None:
        return None
    for conflict in options.given_options(SweepOptions.rounds, SweepOptions.duration):
        raise UsageError(
            f"--requests and {conflict.flag} cannot be combined: both set the length of a load"
        )
    if options.requests < 2 * max(options.levels):
        minimum = 2 * max(options.levels)
        raise UsageError(f"--requests must be at least {minimum}: two for each connection")
    return options.requests


def _max_seconds(options: SweepOptions) -> float | None:
    """The maximum duration of a trial's loads in seconds; None if an option fixes their length.
    Raises UsageError if --max-seconds is given with such an option."""
    fixing_options = options.given_options(*LENGTH_OPTIONS)
    if fixing_options and options.given_options(SweepOptions.max_seconds):
        flag = fixing_options[0].flag
        raise UsageError(f"--max-seconds has no effect with {flag}, which fixes the load's length")
    return None if fixing_options else options.max_seconds


def _tool_advice(supports: Callable[[Tool], bool]) -> str:
    """Advice to use one of the load tools for which `supports` is true."""
    names = [f"--tool {name}" for name, tool in TOOLS.items() if supports(tool)]
    return f"use {' or '.join(names)}"


def _with_host_note(plan: Plan) -> Plan:
    """The plan with a note on the command to run on each load host. Raises UsageError for
    unreachable hosts, or for a tool that cannot send from several hosts."""
    if not plan.load_hosts:
        return plan
    for name in plan.tools:
        if not tool_named(name).DISTRIBUTES:
            advice = _tool_advice(lambda tool: tool.DISTRIBUTES)
            raise UsageError(f"{name} cannot send from other hosts; {advice}")
    if len({cell.processes for cell in plan.cells}) > 1:
        raise UsageError("--load-hosts needs one value of --tool-processes, used on each host")
    preflight.check_load_hosts(plan.load_hosts, PORT)
    address, cell = preflight.address_facing(plan.load_hosts), plan.cells[0]
    command = host_command(worker_command(load_for(plan, cell, 1.0), address))
    values = {"join_s": JOIN_S, "hosts": plan.load_hosts, "command": command}
    return add_notes(plan, [Note(fill(LOAD_HOSTS, values))])


def _check_load_support(plan: Plan) -> None:
    """Raises UsageError for a load that a load tool does not support, or conflicting options."""
    for is_planned, capability, purpose in (
        (any(cell.rate for cell in plan.cells), "OPEN_MODEL", "send at a rate (--rate)"),
        (plan.ramp_s, "RAMPS", "open its connections one after the other (--ramp)"),
        (plan.duration_s, "TIMED", "run for a fixed time (--duration)"),
        (plan.linger_s, "LINGERS", "close its connections late (--client lingers)"),
        (
            any(cell.server.app.mix for cell in plan.cells),
            "MIX",
            "send requests of several kinds (--mix, --access-log)",
        ),
    ):
        for name in plan.tools if is_planned else ():
            if not getattr(tool_named(name), capability):
                advice = _tool_advice(attrgetter(capability))
                raise UsageError(f"{name} cannot {purpose}; {advice}")
    if plan.linger_s and any(cell.keepalive for cell in plan.cells):
        raise UsageError("--client lingers needs --keepalive off: kept-alive connections stay open")
    if plan.ramp_s and not all(cell.keepalive for cell in plan.cells):
        raise UsageError(
            "--ramp needs --keepalive on: otherwise connections open and close with every request"
        )
    if plan.duration_s is not None and plan.ramp_s >= plan.duration_s:
        raise UsageError(
            f"--ramp {plan.ramp_s:g} takes all of --duration {plan.duration_s:g}: make the duration"
            " longer"
        )
    open_cells = [cell for cell in plan.cells if cell.rate is not None]
    loads = [load_for(plan, cell, s) for cell in open_cells if (s := cell.server.app.sleep_s)]
    preflight.check_levels(
        [*(cell.concurrency for cell in plan.cells), *(load.concurrency for load in loads)]
    )


def _check_cell(plan: Plan, cell: Cell) -> None:
    """Raises UsageError for a cell that cannot be measured."""
    tool, name = tool_named(cell.tool), cell.server.worker_class
    if cell.processes > 1 and not tool.PROCESSES:
        advice = _tool_advice(lambda other: other.PROCESSES)
        raise UsageError(f"{cell.tool} sends from one process only (--tool-processes): {advice}")
    tool.check(load_for(plan, cell, 1.0))
    closes = class_named(name).closes_http_1_0
    if cell.keepalive and tool.HTTP_1_0 and closes:
        advice = _tool_advice(lambda other: not other.HTTP_1_0)
        raise UsageError(f"{cell.tool} cannot keep connections to {name} alive: it sends HTTP/1.0,"
                         f" and {name} {closes}; {advice}")  # fmt: skip
