"""Reads defaults of options from `[tool.workerlab]` in the pyproject.toml of the user's project.

    [tool.workerlab]
    app = "shop.wsgi:app"
    python = ".venv/bin/python"
    slo = "p95<300ms"
    mix = "load/shop.mix"

They are inserted before the command-line arguments and parsed like them. They do not apply to saved
runs or bundled apps.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from workerlab.errors import UsageError
from workerlab.mix import REPLACED_OPTIONS, RequestOptions
from workerlab.options import (
    BadArgument,
    Options,
    ServedOptions,
    Serves,
    SloOptions,
    StoredOptions,
    UsersApp,
    one_of,
    options_of,
)
from workerlab.terminal.console import short, tell

FILE = "pyproject.toml"
KEYS = tuple(
    option.name
    for record_type in (UsersApp, Serves, SloOptions, RequestOptions)
    for option in options_of(record_type).values()
    if option.in_project
)
# Options that, like a mix, define the requests
REQUEST_OPTIONS = (RequestOptions.access_log, *REPLACED_OPTIONS)


def with_project(
    argv: Sequence[str],
    options: Options,
    parse: Callable[[Sequence[str]], Options],
) -> Options:
    """The options that `parse` made from `argv`, with the project's values for options that were
    not given; their names are in the result's `project`. Raises UsageError."""
    if not isinstance(options, ServedOptions):
        return options
    unset_keys = _unset_keys(options)
    start = Path(options.chdir or ".").absolute()
    path = _file_above(start) if unset_keys else None
    values = {} if path is None else _read(path)
    names = tuple(name for name in values if name in unset_keys)
    if path is None or not names:
        return options
    arguments = [f"--{name}={_resolved(name, values[name], path.parent)}" for name in names]
    if "app" in names and options.chdir is None:
        arguments.append(f"--chdir={path.parent}")
    try:
        with_values = parse([argv[0], *arguments, *argv[1:]])
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    tell(f"{', '.join(names)} from {short(path)}")
    return with_values.replace(project=names)


def _unset_keys(options: ServedOptions) -> list[str]:
    """The keys that are options of the command but were not given."""
    resumes = isinstance(options, StoredOptions) and options.resume
    if resumes or not options.serves_project():
        return []
    available = [option for option in options_of(type(options)).values() if option.in_project]
    names = [option.name for option in available if not options.given_options(option)]
    if isinstance(options, RequestOptions) and options.given_options(*REQUEST_OPTIONS):
        names = [name for name in names if name != "mix"]
    return names


def _file_above(directory: Path) -> Path | None:
    """The pyproject.toml in the directory, or in the nearest parent that has one."""
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
        except BadArgument as error:
            raise UsageError(f"{path}: {error}") from None
        if not isinstance(value, str):
            raise UsageError(f"{path}: {name} in [tool.workerlab] must be a string")
    return {name: table[name] for name in KEYS if name in table}


def _resolved(name: str, text: str, directory: Path) -> str:
    """The value, with paths resolved relative to the file. An interpreter may also be a name on
    PATH, or a list."""
    if name == "python":
        return ",".join(_path(part.strip(), directory, "/" in part) for part in text.split(","))
    return _path(text, directory, name == "mix")


def _path(text: str, directory: Path, is_path: bool) -> str:
    return str(directory / Path(text).expanduser()) if is_path and text else text
