"""A server under test on a free loopback port, as a context manager, for any backend.

It is ready once all workers have loaded the app (each writes a proof from inside) and a request got
the expected response. A listening socket proves neither: it exists before any worker.
"""

import ast
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from workerlab.model.plan import App
from workerlab.paths import bundled_name
from workerlab.server.backends import ACCESS_LOG, BACKENDS, GRACE_S, Backend, Gunicorn
from workerlab.server.process import Guarded
from workerlab.server.running import (
    Launch,
    Running,
    StartupTurn,
    TrialFailed,
    explained,
    importing_at,
    instance_path,
    read_proofs,
)
from workerlab.server.versions import with_version
from workerlab.server.warmup import warm_up
from workerlab.server.worker_classes import why_not_served

BOOT_S = 60.0  # some apps take long to load
POLL_S = 0.01
MAX_RESPAWNS = 3  # of workers that end before they have loaded the app
MIN_FREE_BYTES = 1 << 20  # on disk; less may not hold the span maps
NO_MODULE = re.compile(r"No module named '(?P<name>[\w.]+)'")
NO_ATTRIBUTE = re.compile(r"Failed to find (attribute|application object:) '\w+'")
NOT_CALLABLE = "Application object must be callable"
USUAL_NAMES = ("app", "application", "asgi", "wsgi", "asgi_app", "wsgi_app")  # of an app's callable
NO_VARIABLE = re.compile(r"environment variable '?(?P<name>[A-Z][A-Z0-9_]+)")


def backend_of(launch: Launch) -> Backend:
    """The backend that starts the server: Gunicorn also for the user's own worker classes."""
    return BACKENDS.get(launch.server.worker_class) or Gunicorn()


def _write_launch(launch: Launch, backend: Backend) -> None:
    """Write `launch.json`, which the code in the workers reads."""
    values = {
        **backend.launch_file(launch),
        "cores": launch.server.cores,
        **{name: getattr(launch, name) for name in ("records", "beats", "inside")},
        "named": launch.names_requests,
        "kept": launch.keepalive,
        "routes": [(route.method, route.path) for route in launch.app.mix or (launch.app,)],
    }
    (launch.trial / "launch.json").write_text(json.dumps(values, indent=1))


def _environment(launch: Launch, backend: Backend, listening: Path) -> dict[str, str]:
    """The environment variables of the server."""
    env = {name: value for name, value in os.environ.items()
           if not backend.is_configured_by(name)}  # fmt: skip
    env |= {**dict(launch.app.env), **dict(launch.env), "WORKERLAB_TRIAL": str(launch.trial)}
    env |= with_version(launch.gunicorn, env)
    env |= {"WORKERLAB_METRICS": str(launch.trial), "WORKERLAB_LISTENING": listening.name}
    return backend.env(launch, env)


@contextmanager
def serve(launch: Launch, turn: StartupTurn | None = None) -> Iterator[Running]:
    """A server that is ready and warmed up, with its other instances; all their processes are gone
    afterwards. `turn`: set if servers of other trials start at the same time. Raises TrialFailed:
    "unavailable" if the server does not boot or the app is of the wrong kind, "answer" if it boots
    but does not respond as expected."""
    turn = turn or StartupTurn()
    with ExitStack() as stack:
        stack.callback((launch.trial / ACCESS_LOG).unlink, missing_ok=True)
        turn.wait_to_start()
        _write_launch(launch, backend_of(launch))
        server = stack.enter_context(_instance(launch, 1, frozenset(), turn))
        for number in range(2, launch.server.instances + 1):
            pids = frozenset(server.proofs)
            instance = stack.enter_context(_instance(launch, number, pids, turn))
            server.other_instances.append(instance)
            server.proofs |= instance.proofs
        yield server


@contextmanager
def _instance(
    launch: Launch, number: int, earlier_pids: frozenset[int], turn: StartupTurn
) -> Iterator[Running]:
    """One instance of the server; `earlier_pids`: pids of the workers of earlier instances."""
    began = time.monotonic()
    listening = instance_path(launch.trial, "listening.json", number)
    log = instance_path(launch.trial, "server.log", number)
    backend = backend_of(launch)
    with (
        backend.port(launch) as planned_port,
        Guarded(
            [launch.python, *backend.command(launch, planned_port)],
            cwd=Path(launch.app.chdir or launch.code),
            env=_environment(launch, backend, listening),
            stdout=log,
            grace_s=GRACE_S + 1.0,
        ) as process,
    ):
        turn.started(process)
        address = partial(backend.address, listening=listening)
        proofs, (host, port) = _ready(launch, process, log, address, earlier_pids, turn)
        _check_kind(launch, proofs)
        server = Running(
            launch=launch,
            process=process,
            host=host,
            port=port,
            path=launch.app.path,
            backlog=launch.server.backlog,
            log=log,
            proofs=proofs,
            earlier_pids=earlier_pids,
            start_s=time.monotonic() - began,
        )
        warm_up(server, turn)
        yield server


def _ready(
    launch: Launch,
    process: Guarded,
    log: Path,
    address: Callable[[int | None], tuple[str, int] | None],
    earlier_pids: frozenset[int],
    turn: StartupTurn,
) -> tuple[dict[int, dict[str, object]], tuple[str, int]]:
    """Wait until each worker has loaded the app. Returns the proofs by pid, and the server's
    address. Raises TrialFailed."""
    deadline_s, workers = time.monotonic() + BOOT_S, launch.server.workers
    while True:
        turn.raise_if_ended()
        proofs = read_proofs(launch.trial, excluded=earlier_pids)
        if len(proofs) >= workers and (host_and_port := address(process.pid)):
            return proofs, host_and_port
        if process.wait(POLL_S):
            _check_disk_space(launch.trial)
            why = explained("the server did not boot", log, printed=True)
        elif not proofs and unfinished_imports(launch.trial) > MAX_RESPAWNS * workers:
            why = f"the workers exited {MAX_RESPAWNS} times before loading the app"
            why = explained(why, log, printed=True)
        elif time.monotonic() > deadline_s:
            raise TrialFailed(
                "unavailable", _why_not_ready(launch, len(proofs), log), f"its log: {log}"
            )
        else:
            continue
        raise TrialFailed("unavailable", why + _next_step(launch, why), f"its log: {log}")


def _why_not_ready(launch: Launch, ready: int, log: Path) -> str:
    """The reason why fewer workers than planned are ready after BOOT_S."""
    paths = sorted(launch.trial.glob("import-*.txt"), key=lambda path: path.stat().st_mtime)
    places = filter(None, (importing_at(path.read_text()) for path in reversed(paths)))
    if not ready and (place := next(places, "")):
        return f"{launch.app.target} was not imported within {BOOT_S:.0f} s{place}"
    workers = launch.server.workers
    return explained(f"only {ready} of {workers} workers were ready after {BOOT_S:.0f} s", log)


def unfinished_imports(trial: Path) -> int:
    """The number of processes that have not finished importing the app: each has its dumps."""
    return sum(name.startswith("import-") for name in os.listdir(trial))


def _next_step(launch: Launch, why: str) -> str:
    """Advice if a module, a callable or an environment variable is missing; else ""."""
    if NOT_CALLABLE in why or NO_ATTRIBUTE.search(why):
        return _other_callable(launch.app, is_defined=NOT_CALLABLE in why)
    missing, variable = NO_MODULE.search(why), NO_VARIABLE.search(why)
    if missing is None:
        return f"; set it with --env {variable['name']}=VALUE" if variable else ""
    app, name, module = launch.app, missing["name"], launch.app.target.partition(":")[0]
    if not f"{module}.".startswith(f"{name}."):
        for key, value in app.env:  # such as DJANGO_SETTINGS_MODULE
            if f"{value}.".startswith(f"{name}."):
                return f"; --env {key}={value} names it: correct that name"
        if name.partition(".")[0] == module.partition(".")[0]:
            return f"; the app's own package has no such module: correct its name in {app.chdir}"
        other = ", or name the app's interpreter with --python" if app.chdir else ""
        return f"; install it for {launch.python}{other}"
    bundled = bundled_name(app.target)
    if bundled:
        return f"; the bundled app is {bundled}"
    return (
        f"; {launch.python} looked for it in {app.chdir}: name another directory with --chdir, or"
        " another interpreter with --python"
    )


def _other_callable(app: App, *, is_defined: bool) -> str:
    """Advice on what the app's module defines instead of the requested callable. `is_defined`:
    whether it defines that name. Reads only its source: importing an app may do anything."""
    module, _, name = app.target.partition(":")
    name = name or "application"
    path = Path(app.chdir or ".", *module.split("."))
    try:
        source = next(file for file in (path.with_suffix(".py"), path / "__init__.py")
                      if file.exists())  # fmt: skip
        defined = dict(_definitions(ast.parse(source.read_bytes())))
    except (StopIteration, OSError, SyntaxError, ValueError):
        defined = {}
    is_a = f"; {module}:{name} is {defined.get(name) or 'not callable'}" if is_defined else ""
    other = next((usual for usual in USUAL_NAMES if usual in defined and usual != name), None)
    return is_a + (f"; {source.name} defines {other}: use {module}:{other}" if other else "")


def _definitions(module: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that a module defines at its top level, each with its type if the source shows
    it: 'of type dict', else ""."""
    for statement in module.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name, ""
        elif isinstance(statement, ast.ImportFrom):
            yield from ((alias.asname or alias.name, "") for alias in statement.names)
        elif isinstance(statement, ast.Assign):
            try:
                kind = f"of type {type(ast.literal_eval(statement.value)).__name__}"
            except ValueError:
                kind = ""
            yield from ((node.id, kind) for node in statement.targets if isinstance(node, ast.Name))


def _check_disk_space(directory: Path) -> None:
    """Raises TrialFailed if there is no space for a worker's span map, allocated when it boots."""
    free = shutil.disk_usage(directory).free
    if free < MIN_FREE_BYTES:
        why = f"only {free >> 10} KB are free in {directory.parents[1]}, where the run is stored"
        raise TrialFailed("storage", why)


def _check_kind(launch: Launch, proofs: Mapping[int, Mapping[str, object]]) -> None:
    """Raises TrialFailed for an app of the wrong kind: each request to it would get a 500."""
    kind = str(next(iter(proofs.values()))["app_kind"])
    if why := why_not_served(launch.server.worker_class, launch.app.target, kind):
        raise TrialFailed("unavailable", why)
