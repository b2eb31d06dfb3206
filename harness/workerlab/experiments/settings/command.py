"""`workerlab settings`: what each worker class does with each of Gunicorn's settings.

    options ─► classes x versions x the launches that prove what is asked ─► two lanes ─► effects

A cell is a launch. No load tool loads it: the experiment itself is the client, and looks at the
server from outside, in the kernel, in /proc and on the wire.
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from workerlab import codec
from workerlab.experiments.environment import interpreters
from workerlab.experiments.planning import lacking, notes_on_gunicorn, version_of
from workerlab.experiments.runner import Setup
from workerlab.experiments.settings.effects import SETTINGS
from workerlab.experiments.settings.gunicorn_file import Line, class_of, lines_of, strange
from workerlab.experiments.settings.lanes import perform
from workerlab.experiments.settings.launches import LAUNCHES
from workerlab.experiments.settings.launches.launch import Launch
from workerlab.finding import stored
from workerlab.model import App, Cell, EnvironmentProblem, Plan, Server, UsageError
from workerlab.options import Refused, names_of
from workerlab.server import preflight
from workerlab.server.worker_classes import class_named

# Of what Gunicorn is to serve, where and by which class: nothing that a class could ignore
SERVER = ("bind", "worker_class", "wsgi_app", "proc_name", "pidfile", "daemon", "user", "group")


class Asked(Struct, frozen=True):
    """What the user asked for; the Plan's details. `config`: the Gunicorn file, "" for none;
    `lines`: what it sets, `values`: to what, where that is a plain value; `unknown`: settings of
    Gunicorn among them that no experiment is about; `strange`: names that mean nothing to it, and
    what each may be meant for; `unset`: settings that the file only annotates; `left_out`: those
    that --quick cannot prove."""

    settings: tuple[str, ...]
    config: str = ""
    lines: tuple[Line, ...] = ()
    left_out: tuple[str, ...] = ()
    values: Mapping[str, Any] = {}
    unknown: tuple[str, ...] = ()
    strange: Mapping[str, str] = {}
    unset: tuple[str, ...] = ()
    gunicorns: Mapping[str, str] = {}  # of several interpreters, the version that each of them has

    @classmethod
    def of(cls, plan: Plan) -> "Asked":
        return codec.convert(plan.details, cls)

    def version_of(self, server: Server) -> str:
        """What serves it, where several do."""
        version = server.gunicorn or self.gunicorns.get(server.python, "")
        return ", ".join(filter(None, (version, server.python)))


@contextmanager
def setup(options: argparse.Namespace, plan: Plan | None) -> Iterator[Setup]:
    found: preflight.Interpreters = {}
    if plan is None:
        plan, found = first_plan(options)
    yield Setup(plan, found, label="settings", perform=perform)


def first_plan(options: argparse.Namespace) -> tuple[Plan, preflight.Interpreters]:
    """Raises UsageError or EnvironmentProblem; starts nothing but looks."""
    if not Path("/proc/self").exists():
        raise EnvironmentProblem(
            "settings looks at servers from outside, in /proc: that takes a Linux"
        )
    lines = lines_of(Path(options.config)) if options.config else ()
    classes = options.classes
    its: preflight.Interpreter | None = None
    if options.config:
        # A file of the user's is read, and examined, in the environment of the app
        its = next(iter(interpreters(options, (), options.config, bundled=False).values()))
        classes = classes or (class_of(its.settings),)
    if not classes:
        raise UsageError(
            "settings needs CLASSES or --config FILE, such as: workerlab settings sync,gthread"
        )
    found = interpreters(options, classes, options.config, bundled=not options.config)
    lacks = {name: why for one in found.values() for name in classes if (why := one.lacks(name))}
    if all(one.lacks(name) for one in found.values() for name in classes):
        raise EnvironmentProblem("; ".join(lacks.values()))
    own = {python: one.gunicorn for (python, version), one in found.items() if not version}
    asked = replace(_asked(options, lines, its), gunicorns=own if len(own) > 1 else {})
    needed = {name for one in asked.settings for name in SETTINGS[one].launches}
    launches = [one for one in LAUNCHES.values() if one.name in needed]
    pythons = list(dict.fromkeys(python for python, _ in found))
    cells = tuple(
        cell
        for (python, version), its in found.items()
        for name in classes
        for cell in _cells(name, python, version, launches, its, 1 + pythons.index(python))
    )
    unavailable = lacking((cell.server for cell in cells), found)
    plan = Plan(
        *("settings", cells, 1, 1, 0, next(iter(found.values())).python),
        config=None,
        unavailable=unavailable,
        notes=tuple(map(stored, notes_on_gunicorn(found))),
        details=codec.plain(asked),
        gunicorn=version_of(found),
    )
    return plan, found


def _named(words: str | None) -> tuple[str, ...]:
    """The settings of --only, or all, and what happens beside them. Raises UsageError."""
    if words is None:
        return tuple(SETTINGS)
    try:
        names = [name for name, setting in SETTINGS.items() if not setting.happening]
        return names_of("setting", names)(words)
    except Refused as refused:
        raise UsageError(f"--only: {refused}") from None


def _asked(
    options: argparse.Namespace, lines: tuple[Line, ...], its: preflight.Interpreter | None
) -> Asked:
    """`its`: what reads the file. Raises UsageError where there is nothing to examine."""
    names: Iterable[str] = _named(options.only)
    if its is not None:
        in_file = {line.name for line in lines if line.sets}
        names = [name for name in names if name in in_file and not SETTINGS[name].happening]
    if options.config and not names:
        others = strange(lines, its.names) if its else {}
        none = f"; {', '.join(others)}: no setting of Gunicorn" if others else ""
        annotated = [f"{line.name}: {line.text}" for line in lines if not line.sets]
        none += f"; {', '.join(annotated)}: an annotation sets nothing" if annotated else ""
        raise UsageError(
            f"{options.config} sets nothing that can be examined{none}:"
            " workerlab settings CLASSES shows what can"
        )
    quick = {one.name for one in LAUNCHES.values() if one.quick or not options.quick}
    provable = [name for name in names if quick.issuperset(SETTINGS[name].launches)]
    left_out = tuple(name for name in names if name not in provable)
    if not provable:
        raise UsageError(f"--quick cannot examine {', '.join(left_out)}: leave it out")
    if its is None:
        return Asked(tuple(provable), left_out=left_out)
    own = [line.name for line in lines if line.sets and line.name in its.names]
    return Asked(
        *(tuple(provable), options.config, lines, left_out),
        values={name: value for name, value in its.settings.items() if name in own},
        unknown=tuple(name for name in own if name not in (*SETTINGS, *SERVER)),
        strange=strange(lines, its.names),
        unset=tuple(line.name for line in lines if not line.sets and line.name in its.names),
    )


def _cells(
    name: str,
    python: str,
    version: str,
    launches: Iterable[Launch],
    found: preflight.Interpreter,
    number: int,
) -> Iterator[Cell]:
    """Of one class and version, a cell for each launch. `number`: of the interpreter."""
    app = App(target=f"inspected:{'asgi' if found.serves_asgi(name) else 'wsgi'}")
    at = f"python{number}" if python else ""
    for launch in launches:
        threads = launch.threads if class_named(name).slots == "threads" else 1
        server = Server(name, 1, threads, 0, 0, app=app, gunicorn=version, python=python)
        place = "-".join(filter(None, (name, version, at, launch.name)))
        yield Cell(server, "", 1, name=place)
