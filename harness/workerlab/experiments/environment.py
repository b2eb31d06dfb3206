"""Chooses the interpreter and the Gunicorn version, from the first source that applies:

    interpreter   --python; for the user's app an activated virtual environment, or `.venv` in
                  the app's directory or next to its Gunicorn file; the lab's own
    Gunicorn      --gunicorn; for the user's app the one installed in that interpreter; 25.3.0,
                  the last release with every worker class; the installed one

The lab's own environment does not count as activated if one of these directories has a `.venv`:
users activate it to run the lab, not because it contains the app's packages.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from itertools import product
from pathlib import Path

from msgspec.structs import replace

from workerlab.errors import EnvironmentProblem
from workerlab.finding import Note
from workerlab.numbers.units import listed
from workerlab.options import ServedOptions
from workerlab.paths import BUNDLED_GUNICORN
from workerlab.server import preflight, versions
from workerlab.server.worker_classes import WORKER_CLASSES

LAB_PYTHON_NOTE = (
    "Gunicorn runs in the lab's own environment ({python}), since none is activated and there is no"
    " .venv in {directories}; choose another with --python"
)


def serves_bundled_app(options: ServedOptions, settings: Mapping[str, object]) -> bool:
    """Whether the app is a bundled one: its name begins with @, or neither the command line nor the
    user's Gunicorn file (`settings`) names an app."""
    if options.app is not None:
        return options.app.startswith("@")
    return not isinstance(settings.get("wsgi_app"), str)


def chdir_of(options: ServedOptions, settings: Mapping[str, object]) -> Path:
    """The directory from which the user's app is imported, as an absolute path."""
    configured = settings.get("chdir")
    path = options.chdir or (configured if isinstance(configured, str) else ".")
    return _absolute(Path(path).expanduser())


def _absolute(directory: Path) -> Path:
    directory = directory.absolute()
    return directory.resolve() if ".." in directory.parts else directory


def directories_of(options: ServedOptions, settings: Mapping[str, object]) -> tuple[Path, ...]:
    """The directories that may contain the app's `.venv`: its own and its Gunicorn file's."""
    config_dirs = [_absolute(Path(options.config).parent)] if options.config else []
    return tuple(dict.fromkeys((chdir_of(options, settings), *config_dirs)))


def python_of(directories: Iterable[Path]) -> str:
    """The path of the default interpreter for the user's app: the activated one, that of a `.venv`
    in one of the directories, or the lab's own."""
    activated = os.environ.get("VIRTUAL_ENV")
    venvs = [Path(activated)] if activated else []
    for venv in (*venvs, *(directory / ".venv" for directory in directories)):
        python = venv.absolute() / "bin" / "python"
        if not _is_lab_venv(venv) and os.access(python, os.X_OK):
            return str(python)
    return sys.executable


def _is_lab_venv(venv: str | Path) -> bool:
    return Path(venv).resolve() == Path(sys.prefix).resolve()


def interpreters(
    options: ServedOptions,
    classes: Iterable[str] = (),
    env: Mapping[str, str] = {},
    *,
    bundled: bool | None = None,
) -> preflight.Interpreters:
    """Every requested interpreter with every requested version of Gunicorn, by (python, version). A
    python or version that all keys share is "". `bundled`: whether the app is bundled; None: as the
    options and the user's Gunicorn file say. Raises the errors of `preflight.interpreter`."""
    config, pythons = options.config, options.python
    classes = tuple(classes)

    @cache
    def inspect(python: str, version: str, *, bundled: bool) -> preflight.Interpreter:
        cwd = Path(options.chdir or ".")
        inspect_version = partial(preflight.interpreter, python, cwd, config, classes, env)
        return _inspect_or_fall_back(inspect_version, version, bundled=bundled)

    def inspect_all(settings: Mapping[str, object], *, bundled: bool) -> preflight.Interpreters:
        default = sys.executable if bundled else python_of(directories_of(options, settings))
        pairs = product(pythons or (default,), options.gunicorn or ("",))
        by_pair = {pair: inspect(*pair, bundled=bundled) for pair in pairs}
        return {(python, version or interpreter.requested): interpreter
                for (python, version), interpreter in by_pair.items()}  # fmt: skip

    def is_bundled(settings: Mapping[str, object]) -> bool:
        return serves_bundled_app(options, settings) if bundled is None else bundled

    settings: Mapping[str, object] = {}
    # The Gunicorn file may name the app and its directory
    file_may_name_app = bundled is None and config and options.app is None
    serving = inspect_all(settings, bundled=not file_may_name_app and is_bundled(settings))
    if config:
        settings = next(iter(serving.values())).settings
        serving = inspect_all(settings, bundled=is_bundled(settings))
    if not pythons and not is_bundled(settings):
        directories = directories_of(options, settings)
        serving = {key: _with_note(value, directories) for key, value in serving.items()}
    return _with_distinct_keys(serving)


def _with_distinct_keys(serving: preflight.Interpreters) -> preflight.Interpreters:
    """`serving`, with "" instead of a python or version that all keys share."""
    columns = zip(*serving, strict=True)
    pythons_vary, versions_vary = (len(set(column)) > 1 for column in columns)
    return {
        (python if pythons_vary else "", version if versions_vary else ""): interpreter
        for (python, version), interpreter in serving.items()
    }


def _with_note(
    interpreter: preflight.Interpreter, directories: Iterable[Path]
) -> preflight.Interpreter:
    """The interpreter, with a note if it is the lab's own and the user has not activated it."""
    activated = os.environ.get("VIRTUAL_ENV")
    lab_is_activated = activated and _is_lab_venv(activated)
    if interpreter.note or lab_is_activated or interpreter.python != sys.executable:
        return interpreter
    places = " or ".join(map(str, directories))
    note = LAB_PYTHON_NOTE.format(python=interpreter.python, directories=places)
    return replace(interpreter, note=Note(note))


def _inspect_or_fall_back(
    inspect: Callable[[str], preflight.Interpreter], version: str, *, bundled: bool
) -> preflight.Interpreter:
    """The interpreter with this version of Gunicorn; with "", the default version and a note if
    that is not the interpreter's own or lacks a worker class."""
    own: preflight.Interpreter | None = None
    try:
        own = inspect(version)
        if version or not bundled or own.gunicorn == BUNDLED_GUNICORN:
            return own
    except preflight.NoGunicorn:
        if version:
            raise
    try:
        versions.provide(BUNDLED_GUNICORN)
        fallback, why_not = BUNDLED_GUNICORN, ""
    except EnvironmentProblem as problem:
        fallback, why_not = "" if own else versions.lab_version(), str(problem)
    serving = inspect(fallback)
    return replace(serving, note=_note(serving, own, why_not, bundled=bundled))


def _note(
    serving: preflight.Interpreter,
    own: preflight.Interpreter | None,
    why_not: str,
    *,
    bundled: bool,
) -> Note:
    """A note on the Gunicorn that serves instead of the interpreter's `own`. `why_not`: the reason
    why it is not `BUNDLED_GUNICORN`; "" if it is."""
    python, gunicorn = serving.python, serving.gunicorn
    if not bundled:
        instead = f"; {why_not}; using the lab's own, " if why_not else ": using "
        return Note(f"{python} has no Gunicorn{instead}{gunicorn}")
    if not why_not:
        instead = f"; {python} has {own.gunicorn}" if own and own.gunicorn else ""
        return Note(f"Gunicorn {gunicorn} serves the bundled apps{instead}")
    names = [name for name, row in WORKER_CLASSES.items() if not row.path]
    lacking = [name for name in names if name not in serving.worker_classes]
    without = f", without the worker class {listed(lacking)}" if lacking else ""
    return Note(f"{why_not}; {gunicorn} serves the bundled apps{without}")
