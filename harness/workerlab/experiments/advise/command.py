"""`workerlab advise`: from an app and a target to a file that starts the server, with evidence.

    needs      a short closed load per worker class measures the needs of requests
    stacks     if the event loop was blocked, a second load finds the lines that block it
    forecast   every candidate is simulated: at the target's rate, and for its highest rate
    search     the best candidates are launched one by one, with the same schedules of arrivals

The search adds one cell at a time to the plan until it has found the answer or used up the budget.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from workerlab import codec, run_store, slo
from workerlab.durations import ASSUMED_OVERHEAD_S
from workerlab.errors import EnvironmentProblem, UsageError
from workerlab.experiments.advise.candidates import Limits, candidates, kind_of
from workerlab.experiments.advise.document import write_file
from workerlab.experiments.advise.growth import PlanGrowth, launch_s
from workerlab.experiments.advise.options import AdviseOptions, MachineOptions
from workerlab.experiments.advise.search import CLEAR_SHARES
from workerlab.experiments.advise.standing import MIN_LAUNCHES
from workerlab.experiments.advise.study import TOOL, AdviseRequest
from workerlab.experiments.environment import interpreters
from workerlab.experiments.planning import (
    apps_of,
    gunicorn_plan,
    imported_kind,
    override_notes,
    server_notes,
    unavailable_variants,
)
from workerlab.experiments.runner import Setup
from workerlab.mix import requested_mix
from workerlab.model.plan import Cell, Plan, Route, Server
from workerlab.notes import MoreCoresThanHere
from workerlab.numbers.units import counted, listed
from workerlab.server import limits as machine
from workerlab.server import preflight
from workerlab.server.worker_classes import CLASSES, class_named
from workerlab.terminal.console import tell

DEFAULT_BUDGET_S = 300.0
SERVED_SHARE = 0.95  # of the rate: by chance, a launch may serve a few percent less
NEEDS_S = 5.0  # load of a needs trial
NEEDS_WORKERS, NEEDS_CONNECTIONS = 2, 4
NEEDS_TRIAL_S = 8.0  # including start and stop, if the app starts immediately
FACTORY_NOT_CALLED = (
    "{} does not call a factory such as {}, as Gunicorn does: name an app object in a module"
)
MAX_IMPORT_SHARE = 0.5  # of the budget: an app whose import takes longer is not considered


def setup(options: AdviseOptions, plan: Plan | None) -> Setup:
    resumed, began_s = plan is not None, time.monotonic()
    plan, pythons = plan_of(options) if plan is None else (plan, {})
    budget_s = options.budget or AdviseRequest.of(plan).budget_s
    growth = PlanGrowth(budget_s, resumed=resumed, began_s=began_s)
    return Setup(
        plan,
        pythons,
        label="advise",
        display=growth.display,
        grow=growth.grow,
        always_calibrate=True,  # gives the load tool's CPU per request
        finish=finish,
    )


def finish(directory: Path) -> None:
    """Write the file if there is a recommendation. The document reports failures."""
    try:
        write_file(run_store.load(directory))
    except OSError as error:
        tell(f"the configuration cannot be written: {error}")


def plan_of(options: AdviseOptions) -> tuple[Plan, preflight.Interpreters]:
    """The initial plan, with a needs cell per variant, and the interpreters. Starts no server.
    Raises UsageError or EnvironmentProblem."""
    (target, rate_rps), write = target_of(options), check_write(options.write)
    env, classes = dict(options.env), options.classes or CLASSES
    pythons = interpreters(options, classes, env)
    first = next(iter(pythons.values()))
    mix, notes = requested_mix(options)
    limits, machine_cores = limits_of(options), machine.cores()
    kinds = kinds_of(options, pythons, mix, limits)
    request = AdviseRequest(
        slo=target,
        rate_rps=rate_rps,
        budget_s=budget_of(options, kinds, target=target, rate_rps=rate_rps),
        limits=limits,
        left_out=kinds.unavailable,
        unfit=kinds.unfit,
        removed=kinds.removed,
        config_text=_config_text(options.config),
        config_path=str(Path(options.config).absolute()) if options.config else "",
        config_sets=tuple(first.settings),
        python=first.python if options.python else "",
        start=start_of(first.python),
        write=write,
        starts_in=starts_in(options.chdir, write, first.settings, kinds.usable[0].app.chdir),
    )
    if limits.cores > machine_cores:
        notes = (*notes, MoreCoresThanHere(limits.cores, machine_cores))
    plan = gunicorn_plan(
        "advise",
        map(needs_cell, kinds.usable),
        pythons,
        config=options.config,
        notes=(*notes, *override_notes(options, first), *server_notes(classes, options.config)),
        arrivals=options.arrivals,
        details=codec.plain(request),
        app_kind=kinds.app_kind,
        seed=options.seed,
    )
    return plan, pythons


def target_of(options: AdviseOptions) -> tuple[str, float]:
    """The target in canonical form, and the rate in requests/s. Raises UsageError if either
    is missing, the target is invalid or the rate is too low for it."""
    if options.rate is None or options.slo is None:
        raise UsageError(
            "advise needs --rate and --slo, such as: workerlab advise --app shop.wsgi:app"
            " --rate 50 --slo 'p95<300ms,errors<0.1%'"
        )
    try:
        target = slo.canonical(options.slo)
    except slo.TargetSyntaxError as error:
        raise UsageError(f"--slo: {error}") from None
    served_rps = SERVED_SHARE * options.rate
    for term in slo.parse(target):
        if term.kind == "rps" and term.limit > served_rps:
            raise UsageError(
                f"--slo: {term} cannot be shown when {options.rate:g} requests/s arrive, because no"
                f" more are served: omit it, or require at most {served_rps:g}"
            )
    return target, options.rate


class Kinds(NamedTuple):
    """A server of each variant to consider, and the excluded variants."""

    usable: Sequence[Server]
    unavailable: Mapping[str, str]  # variants that cannot run here -> reason
    unfit: tuple[str, ...]  # variants with no settings within the limits
    removed: tuple[str, ...]  # worker classes that later versions of Gunicorn removed
    app_kind: str  # as in `preflight.app_kind`


def kinds_of(
    options: AdviseOptions,
    pythons: preflight.Interpreters,
    mix: tuple[Route, ...],
    limits: Limits,
) -> Kinds:
    """The variants to consider. Raises EnvironmentProblem if none can run, UsageError if none is
    within the limits."""
    first, names = next(iter(pythons.values())), options.classes or CLASSES
    opt_in_names = [name for name in names if not options.classes and class_named(name).removed_in]
    removed = {name for name in opt_in_names if name in first.worker_classes}
    wsgi, asgi = apps_of(options, first, mix)
    app_kind = "unknown"
    kinds = [
        kind_of(name, asgi if first.serves_asgi(name) else wsgi, python, version, first.settings)
        for name in names
        if name not in opt_in_names
        for python, version in pythons
    ]
    if wsgi == asgi:  # the user's app
        limit_s = min(
            preflight.INTROSPECT_TIMEOUT_S, MAX_IMPORT_SHARE * (options.budget or DEFAULT_BUDGET_S)
        )
        app_kind = imported_kind(first, wsgi, options.config, limit_s)
    unavailable = unavailable_variants(kinds, pythons, app_kind=app_kind)
    for kind in kinds:
        if class_named(kind.worker_class).alone and "(" in kind.app.target:
            reason = FACTORY_NOT_CALLED.format(kind.worker_class, kind.app.target)
            unavailable[kind.variant] = reason
    for name in opt_in_names:
        if name not in removed and (why := first.why_unavailable(name)):
            unavailable[name] = why
    available = [kind for kind in kinds if kind.variant not in unavailable]
    if not available:
        raise EnvironmentProblem("; ".join(f"{name}: {why}" for name, why in unavailable.items()))
    unfit = tuple(kind.variant for kind in available if not candidates([kind], limits))
    usable = [kind for kind in available if kind.variant not in unfit]
    if not usable:
        raise UsageError(f"no settings of {listed(unfit)} satisfy {listed(limits.flags)}")
    return Kinds(usable, unavailable, unfit, tuple(sorted(removed)), app_kind)


def budget_of(options: AdviseOptions, kinds: Kinds, *, target: str, rate_rps: float) -> float:
    """The budget in seconds. Raises UsageError if it is too short to measure the needs and to show
    that a single candidate meets the target, unless the app cannot be imported."""
    budget_s = options.budget or DEFAULT_BUDGET_S
    needs_s, min_s = NEEDS_TRIAL_S * len(kinds.usable), budget_s
    # With a larger budget, launches are longer
    while min_s < (total_s := needs_s + shortest_launches_s(rate_rps, target, min_s)):
        min_s = math.ceil(total_s)
    if budget_s < min_s and kinds.app_kind != "unimportable":
        raise UsageError(
            f"--budget: measuring the needs of requests takes about {needs_s:.0f} s for"
            f" {counted(len(kinds.usable), 'worker class/worker classes')}, and the"
            f" {MIN_LAUNCHES} launches that verify the target take"
            f" {total_s - needs_s:.0f} s: allow {min_s:.0f} s"
            + (", or name fewer --classes" if len(kinds.usable) > 1 else "")
        )
    return budget_s


def shortest_launches_s(rate_rps: float, target: str, budget_s: float) -> float:
    """The total seconds of the shortest launches that show that a candidate meets the target."""
    load_s = launch_s(rate_rps, target, budget_s, share=min(CLEAR_SHARES))
    return MIN_LAUNCHES * (load_s + ASSUMED_OVERHEAD_S)


def start_of(python: str) -> str:
    """The shell command for this interpreter's Gunicorn: `gunicorn` if that is first on PATH."""
    command = shutil.which("gunicorn")
    is_own = command and Path(command).parent.absolute() == Path(python).parent.absolute()
    return "gunicorn" if is_own else f"{shlex.quote(python)} -m gunicorn"


def starts_in(
    chdir: str | None, write: str, settings: Mapping[str, object], app_chdir: str
) -> str | None:
    """The value of `AdviseRequest.starts_in`. `chdir`, `write`: the options; `settings`: of the
    app's own Gunicorn file; `app_chdir`: the directory from which the app is imported, "" for a
    bundled one."""
    if app_chdir and not chdir and (own := settings.get("chdir")):
        return "" if Path(str(own)).is_absolute() else os.getcwd()
    directories = [Path(), *([Path(write).parent] if write else [])]
    is_start_dir = Path(app_chdir).resolve() in [directory.resolve() for directory in directories]
    return app_chdir if app_chdir and is_start_dir else None


def _config_text(path: str | None) -> str:
    """The text of the app's own Gunicorn file; "" without one. Raises UsageError."""
    try:
        return Path(path).read_text() if path else ""
    except (OSError, ValueError) as error:
        raise UsageError(f"--config: {path} cannot be read: {error}") from None


def check_write(path: str | None) -> str:
    """The absolute path; "" for None. Raises UsageError if the file exists (it is never
    overwritten) or its directory does not."""
    if path is None:
        return ""
    target = Path(path).expanduser().absolute()
    if target.exists():
        raise UsageError(f"--write: {path} exists: name another file, or move it away")
    if not target.parent.is_dir():
        raise UsageError(f"--write: no such directory: {target.parent}")
    return str(target)


def limits_of(options: MachineOptions) -> Limits:
    """The limits of the target machine; by default those of this machine and its control group.
    Fewer cores are emulated by confining the launches; for more cores there is only a forecast."""
    machine_cores = machine.cores()
    cores = options.cores or machine_cores
    return Limits(
        cores=cores,
        memory_bytes=options.memory or machine.memory_bytes(),
        confined=max(1, math.floor(cores)) if cores < machine_cores else None,
        max_workers=options.max_workers,
        max_in_flight=options.max_in_flight,
        thread_safe=not options.not_thread_safe,
    )


def needs_cell(kind: Server) -> Cell:
    """The cell that measures needs. It has more connections than workers: with one slot per worker,
    a request always waits for a slot (see `analysis/needs.py`). Two workers show how much memory
    they share."""
    one_process = "workers" in class_named(kind.worker_class).ignores
    server = replace(kind, workers=1 if one_process else NEEDS_WORKERS)
    return Cell(server, TOOL, NEEDS_CONNECTIONS, inside="needs", duration_s=NEEDS_S)
