"""`[tool.workerlab]` in the pyproject.toml of the user's project: defaults of options.

    [tool.workerlab]
    app = "shop.wsgi:app"
    python = ".venv/bin/python"
    slo = "p95<300ms"
    mix = "load/shop.mix"

They are inserted before the command-line arguments and parsed like them. They do not apply to saved
runs and bundled apps.
"""

import argparse
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from workerlab.mix import REPLACED_OPTIONS
from workerlab.model import UsageError
from workerlab.options import BadWord, one_of, options_of
from workerlab.terminal.console import short, tell

FILE = "pyproject.toml"
KEYS = ("app", "python", "slo", "mix")
SAVED_RUN_OPTIONS = ("resume", "baseline", "run")  # options that name a saved run
REQUEST_OPTIONS = ("access_log", *REPLACED_OPTIONS)  # options that define requests, as a mix does


def with_project(
    argv: Sequence[str],
    options: argparse.Namespace,
    parse: Callable[[Sequence[str]], argparse.Namespace],
) -> argparse.Namespace:
    """`options`, parsed from `argv` by `parse`, with the project's values for options that were not
    given. `project` of the result has their names. Raises UsageError."""
    open_keys = _unset_keys(options)
    start = Path(getattr(options, "chdir", None) or ".").absolute()
    path = _file_above(start) if open_keys else None
    values = {} if path is None else _read(path)
    names = tuple(name for name in values if name in open_keys)
    if path is None or not names:
        return options
    arguments = [f"--{name}={_resolved(name, values[name], path.parent)}" for name in names]
    if "app" in names and options.chdir is None:
        arguments.append(f"--chdir={path.parent}")
    try:
        options = parse([argv[0], *arguments, *argv[1:]])
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    options.project = names
    tell(f"{', '.join(names)} from {short(path)}")
    return options


def _unset_keys(options: argparse.Namespace) -> list[str]:
    """The keys that are options of the command and were not given."""
    compares_saved = options.command == "compare" and not (options.a or options.b)
    if compares_saved or any(getattr(options, name, None) for name in SAVED_RUN_OPTIONS):
        return []
    available = options_of(type(options)) or vars(options)
    serves_users_app = "app" in available or options.command == "settings"
    if not serves_users_app or str(getattr(options, "app", None)).startswith("@"):
        return []
    names = [name for name in KEYS if name in available and getattr(options, name) is None]
    if any(getattr(options, name, None) for name in REQUEST_OPTIONS):
        names = [name for name in names if name != "mix"]
    return names


def _file_above(directory: Path) -> Path | None:
    """The pyproject.toml in the directory, or in the nearest one above."""
    candidates = (parent / FILE for parent in (directory, *directory.parents))
    return next(filter(Path.is_file, candidates), None)


def _read(path: Path) -> Mapping[str, str]:
    """The table [tool.workerlab], its keys in the order of KEYS. Raises UsageError."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    tool = document.get("tool")
    table = tool.get("workerlab", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(f"{path}: tool.workerlab is not a table")
    for name, value in table.items():
        try:
            one_of("key in [tool.workerlab]", name, KEYS)
        except BadWord as refused:
            raise UsageError(f"{path}: {refused}") from None
        if not isinstance(value, str):
            raise UsageError(f"{path}: {name} in [tool.workerlab] must be a string")
    return {name: table[name] for name in KEYS if name in table}


def _resolved(name: str, text: str, directory: Path) -> str:
    """The value, with paths relative to the file resolved; an interpreter may be a name on PATH, or
    a list."""
    if name == "python":
        return ",".join(_path(part.strip(), directory, "/" in part) for part in text.split(","))
    return _path(text, directory, name == "mix")


def _path(text: str, directory: Path, is_path: bool) -> str:
    return str(directory / Path(text).expanduser()) if is_path and text else text
