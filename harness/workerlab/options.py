"""The options of a command as a typed record, options shared by several commands, and types of
arguments: invalid input is rejected with one sentence, before anything starts.

A record is a subclass of `Options`. Each field has a function that reads it from the command line
and determines its type, a default, and a text for --help. Shared options are in base records.
Rejected: a dataclass, which makes --help slower by almost a tenth, and a msgspec Struct, which can
have only one base with fields.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Generic, Never, NoReturn, Self, TypeVar, get_args, overload

from workerlab.errors import UsageError
from workerlab.load.registry import ALIASES, TOOLS
from workerlab.model.plan import Arrivals, Rate
from workerlab.paths import APPS, BUNDLED_GUNICORN
from workerlab.report import FORMATS
from workerlab.server.worker_classes import CLASSES, SERVERS
from workerlab.slo import TargetSyntaxError, canonical

T = TypeVar("T")
Word = TypeVar("Word", bound=str)

MAX_RATE_RPS = 1_000_000
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
PROJECT = """\
Defaults of --app, --python, --slo and --mix can be set in the pyproject.toml of your project, in
[tool.workerlab].
"""
EXIT_CODES = """\
Exit codes: 0 fine; 1 a cell is invalid; 2 usage; 3 this machine or app cannot do it; 4 a target is
missed; 130 Ctrl-C, 143 SIGTERM, with everything measured so far kept and printed.
"""


class Option(Generic[T]):
    """A field of `Options`. In a record its value is the given one, else `default`; in the class it
    is this description.

    `flag`: its name on the command line, by default derived from the field's name; the metavar of a
    positional argument. `before`: the inherited option that --help lists after it. `resumes`:
    whether --resume allows it; `in_project`: whether [tool.workerlab] may set it. `keywords`: for
    argparse's add_argument; empty if the command does not accept the option.
    """

    def __init__(
        self,
        default: T,
        *,
        flag: str = "",
        before: str = "",
        resumes: bool = False,
        in_project: bool = False,
        **keywords: Any,
    ) -> None:
        self.default, self.flag, self.before = default, flag, before
        self.resumes, self.in_project, self.keywords = resumes, in_project, keywords

    def __set_name__(self, record_type: type, name: str) -> None:
        self.name = name
        self.flag = self.flag or f"--{name.replace('_', '-')}"

    @overload
    def __get__(self, record: None, record_type: type) -> Self: ...
    @overload
    def __get__(self, record: object, record_type: type) -> T: ...
    def __get__(self, record: object, record_type: type) -> Self | T:
        return self if record is None else vars(record).get(self.name, self.default)

    def __set__(self, record: object, value: Never) -> NoReturn:
        raise AttributeError(f"{self.name} is read-only: use Options.replace for a changed copy")

    @property
    def repeatable(self) -> bool:
        return self.keywords.get("action") == "append"

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        names = [self.flag] if self.flag.startswith("-") else []
        parser.add_argument(*names, dest=self.name, default=None, **self.keywords)


@overload
def option(
    read: Callable[[str], T], metavar: str | None, text: str, *, default: Any, **more: Any
) -> Option[T]: ...
@overload
def option(
    read: Callable[[str], T], metavar: str | None, text: str, **more: Any
) -> Option[T | None]: ...
def option(
    read: Callable[[str], Any],
    metavar: str | None,
    text: str,
    *,
    default: Any = None,
    **more: Any,
) -> Option[Any]:
    """An option with a value. `more`: further arguments of `Option`."""
    return Option(default, type=read, metavar=metavar, help=text, **more)


def repeatable(
    read: Callable[[str], T], metavar: str, text: str, **more: Any
) -> Option[Sequence[T]]:
    return Option((), type=read, metavar=metavar, help=text, action="append", **more)


def positional(
    read: Callable[[str], T], metavar: str, text: str, default: Any, nargs: str | None = "?"
) -> Option[T]:
    """An argument without a flag. `nargs`: None if it is required."""
    return option(read, metavar, text, default=default, flag=metavar, nargs=nargs)


def flag(text: str, **more: Any) -> Option[bool]:
    return Option(False, help=text, action="store_true", **more)


class Options:
    """The options given on the command line. `vars` of a record has only these."""

    command: str = ""
    project: tuple[str, ...] = ()  # names of the options set in the user's pyproject.toml

    def __init__(self, **values: object) -> None:
        """`values`: the given ones by name; None counts as not given."""
        if unknown := [name for name in values if not hasattr(type(self), name)]:
            raise TypeError(f"{type(self).__name__} has no {', '.join(unknown)}")
        vars(self).update({name: value for name, value in values.items() if value is not None})

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def replace(self, **changes: object) -> Self:
        return type(self)(**{**vars(self), **changes})

    def given_options(self, *options: Option[Any]) -> list[Option[Any]]:
        """The options among these that were given."""
        return [option for option in options if option.name in vars(self)]

    def values_for(self, record_type: type[Options]) -> dict[str, object]:
        """The given values of the options that the other record type also has."""
        names = options_of(record_type)
        return {name: value for name, value in vars(self).items() if name in names}


def options_of(record_type: type) -> dict[str, Option[Any]]:
    """The options of a record by name, in the order of --help: base records first."""
    names: list[str] = []
    for base in record_type.__bases__:
        names += options_of(base)
    for name, field in vars(record_type).items():
        if isinstance(field, Option) and field.keywords and name not in names:
            names.insert(names.index(field.before) if field.before else len(names), name)
    options = {name: getattr(record_type, name) for name in names}
    return {name: option for name, option in options.items() if option.keywords}


def add_record(
    parser: argparse.ArgumentParser,
    record_type: type[Options],
    groups: Mapping[str, type[Options]] = {},
) -> None:
    """Add the options of a record to a parser. `groups`: base records by title; --help lists their
    options in separate groups."""
    group_of: dict[str, argparse._ActionsContainer] = {}
    for title, base in groups.items():
        group_of |= dict.fromkeys(options_of(base), parser.add_argument_group(title))
    for name, field in options_of(record_type).items():
        field.add_to(group_of.get(name, parser))
    parser.set_defaults(record_type=record_type)


def record_of(namespace: argparse.Namespace) -> Options:
    """The record for arguments parsed by a parser with `add_record`."""
    values = dict(vars(namespace))
    record_type: type[Options] = values.pop("record_type")
    return record_type(**values)


class FormatOptions(Options):
    format = option(str, None, "output format (table)", default="table", choices=sorted(FORMATS))
    explain = flag("also print the evidence, all notes and what the columns mean")


class StoredOptions(Options):
    resume = option(str, "RUN", "finish an interrupted run, following its plan")
    out = option(str, "DIR", "directory for runs (results)")


class RunOptions(StoredOptions, FormatOptions):
    """The options of every command that makes runs."""


# --- types of arguments -------------------------------------------------------------------------


class BadArgument(argparse.ArgumentTypeError, ValueError):
    """An invalid argument, with a message that argparse prints."""


def _entries(text: str) -> list[str]:
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entries):
        raise BadArgument(f"{text!r} has an empty entry: write a list such as 4,8,16")
    return list(dict.fromkeys(entries))


def list_of(kind: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """An argument type for comma-separated values, without duplicates."""
    return lambda text: tuple(dict.fromkeys(map(kind, _entries(text))))


def one_of(kind: str, word: str, choices: Collection[str]) -> str:
    if word not in choices:
        import difflib

        matches = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
        hint = f"did you mean {matches[0]}?" if matches else f"choose from {', '.join(choices)}"
        raise BadArgument(f"unknown {kind} {word!r}: {hint}")
    return word


def names_of(kind: str, choices: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    return list_of(lambda word: one_of(kind, word, choices))


def classes(text: str) -> tuple[str, ...]:
    """Names of worker classes that workerlab knows, or dotted paths of other classes."""
    return _classes(text, CLASSES)


def servers(text: str) -> tuple[str, ...]:
    """Like `classes`, but also names of servers other than Gunicorn."""
    return _classes(text, (*CLASSES, *SERVERS))


def _classes(text: str, names: tuple[str, ...]) -> tuple[str, ...]:
    if text == "all":
        return CLASSES
    paths = [entry for entry in _entries(text) if DOTTED.fullmatch(entry)]
    if file := next((path for path in paths if path.endswith(".py")), None):
        raise BadArgument(f"{file} is a file name, not a worker class: pass it with --config")
    return names_of("worker class", (*names, *paths))(text)


def tools(text: str) -> tuple[str, ...]:
    names = names_of("load tool", (*TOOLS, *ALIASES))(text)
    return tuple(dict.fromkeys(ALIASES.get(name, name) for name in names))


def whole(text: str, least: int = 1) -> int:
    if not re.fullmatch(r"-?[0-9]+", text):
        raise BadArgument(f"{text!r} is not a whole number")
    if int(text) < least:
        raise BadArgument(f"{text} is too small: must be at least {least}")
    return int(text)


whole_numbers = list_of(whole)


def levels(text: str) -> tuple[int, ...]:
    return tuple(sorted(whole_numbers(text)))


rounds = partial(whole, least=2)  # a single round has no steady part


def status(text: str) -> int:
    code = whole(text)
    if not 100 <= code <= 599:
        raise BadArgument(f"{code} is not an HTTP status")
    return code


def either(*words: Word) -> Callable[[str], Word]:
    """An argument type for one of these words."""

    def read(text: str) -> Word:
        for word in words:
            if word == text:
                return word
        raise BadArgument(f"{text!r} is neither {' nor '.join(words)}")

    return read


def switch(word: str) -> bool:
    return either("off", "on")(word) == "on"


keepalive = list_of(switch)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise BadArgument(f"{text!r} is not a number of seconds") from None
    if not math.isfinite(value) or not 0 <= value <= 3600:
        raise BadArgument(f"{text} is out of range: must be from 0 to 3600 seconds")
    return value


def duration(text: str) -> float:
    """Seconds, greater than 0."""
    if (value := seconds(text)) <= 0:
        raise BadArgument(f"{text} is too short: must be greater than 0 seconds")
    return value


def rate(word: str) -> Rate:
    """Requests per second, or a share of the capacity, such as 200 or 80%."""
    share = word.endswith("%")
    try:
        value = float(word.removesuffix("%"))
    except ValueError:
        raise BadArgument(f"{word!r} is neither req/s nor a share, such as 200 or 80%") from None
    if not math.isfinite(value) or not 0 < value <= MAX_RATE_RPS:
        raise BadArgument(f"invalid rate {word}: must be above 0, at most {MAX_RATE_RPS:,} req/s")
    if share and value > 100:
        raise BadArgument(f"{word} exceeds the capacity: must be at most 100%")
    return Rate(share=value / 100) if share else Rate(rps=value)


rates = list_of(rate)


def jobs(word: str) -> int | str:
    if word != "auto" and not word.lstrip("-").isdigit():
        raise BadArgument(f"{word!r} is neither a whole number nor auto")
    return word if word == "auto" else whole(word)


def slo_target(text: str) -> str:
    """The target in its canonical spelling."""
    try:
        return canonical(text)
    except TargetSyntaxError as error:
        raise BadArgument(str(error)) from None


class SloOptions(Options):
    slo = option(
        slo_target,
        "TARGET",
        "mark the cells that miss it: limits on p50, p90, p95, p99, max, mean (response time),"
        " errors and rps, such as 'p95<300ms,errors<0.1%%'",
        in_project=True,
    )
    fail_on_slo = flag(
        "exit with 4 unless every class meets the target at some level (with --rate: or some rate)",
        resumes=True,
    )


arrivals: Callable[[str], Arrivals] = either(*get_args(Arrivals))


seed = partial(whole, least=0)


def setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadArgument(f"{text!r} is not NAME=VALUE")
    return name, value


def header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    token = re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name.strip())  # RFC 9110, 5.6.2
    if not colon or not token or not re.fullmatch(r"[\t\x20-\x7e\xa0-\xff]*", value):
        raise BadArgument(f"{text!r} is not a valid header ('Name: value')")
    return name.strip(), value.strip()


def matching(pattern: str, what: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise BadArgument(f"{text!r} is not {what}")
        return text

    return read


client = either("closes", "lingers")


hosts = list_of(
    matching(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", "the name or address of a host")
)
url_path = matching(
    r"/[!-~]*", "a path: it must begin with / and have no spaces; escape other characters as %XX"
)
_module = matching(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:.*)?", "of the form module:callable")


def app_target(text: str) -> str:
    """The user's app as MODULE:CALLABLE, or the name of a bundled app."""
    if not text.startswith("@"):
        return _module(text)
    if text[1:] not in APPS:
        raise BadArgument(f"unknown bundled app {text!r}: choose from @{', @'.join(APPS)}")
    return text


_method = matching(r"[A-Za-z]+", "an HTTP method")


def method(text: str) -> str:
    return _method(text).upper()


def _existing(kind: str, exists: Callable[[Path], bool]) -> Callable[[str], str]:
    def read(text: str) -> str:
        path = Path(text).expanduser().absolute()
        if not exists(path):
            raise BadArgument(f"{text} is not a {kind}")
        return str(path)

    return read


existing_file = _existing("file", Path.is_file)
existing_directory = _existing("directory", Path.is_dir)


def interpreter(text: str) -> str:
    """The absolute path of an interpreter, from a name on PATH, a Python version, or a path.
    Symlinks are not resolved, because a venv's python is one."""
    program = shutil.which(Path(text).expanduser())
    if program is None and re.fullmatch(r"3\.\d+", text):
        program = shutil.which(f"python{text}")
    if program is None:
        raise BadArgument(f"{text} is not an executable program")
    return str(Path(program).absolute())


interpreters = list_of(interpreter)


def version(text: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)*((a|b|rc|\.dev|\.post)\d+)?", text):
        raise BadArgument(f"{text!r} is not a version, such as 25.3.0")
    return text


versions = list_of(version)


def only(read_list: Callable[[str], tuple[T, ...]]) -> Callable[[str], tuple[T, ...]]:
    """An argument type for a list that has a single value."""

    def read(text: str) -> tuple[T, ...]:
        values = read_list(text)
        if len(values) > 1:
            raise BadArgument(f"{text!r} has {len(values)} values, but this command takes one")
        return values

    return read


class ServedOptions(Options):
    """The app and the software that serves it. Options that a command does not accept are None."""

    app = Option[str | None](None)
    chdir = Option[str | None](None)
    config = Option[str | None](None)
    python = Option[tuple[str, ...] | None](None)
    gunicorn = Option[tuple[str, ...] | None](None)

    def serves_project(self) -> bool:
        """Whether the app is the user's project, whose pyproject.toml may then set options."""
        return False


class UsersApp(ServedOptions):
    app = option(
        app_target,
        "MODULE:CALLABLE",
        "the application, as Gunicorn spells it, or a bundled one: @sleep_wsgi, @sleep_flask, ...",
        in_project=True,
    )
    chdir = option(existing_directory, "DIR", "directory that contains the app (the current one)")
    config = option(
        existing_file,
        "FILE",
        "your own Gunicorn file; it overrides the defaults, and flags override it",
    )
    env = repeatable(setting, "K=V", "environment variable of the server (repeatable)")

    def serves_project(self) -> bool:
        return not (self.app or "").startswith("@")


PYTHON_HELP = (
    "interpreters that run the server: paths, or names such as python3.13 (for your app: an"
    " activated environment, else .venv next to the app)"
)
GUNICORN_HELP = (
    "versions of Gunicorn: 23.0.0,27.0.1 (for your app: the installed one, else"
    f" {BUNDLED_GUNICORN}); other versions are stored in your cache"
)
IN_TURN_HELP = "; each is measured in a separate run"


class Serves(ServedOptions):
    python = option(interpreters, "LIST", PYTHON_HELP, in_project=True)
    gunicorn = option(versions, "LIST", GUNICORN_HELP)


class ServesOne(ServedOptions):
    """The software that serves the app, for commands that compare or have a single server."""

    python = option(
        only(interpreters),
        "PATH",
        "interpreter that runs the server (for your app: an activated environment, else .venv next"
        " to the app)",
        in_project=True,
    )
    gunicorn = option(
        only(versions),
        "VERSION",
        "version of Gunicorn (for your app: the installed one, else"
        f" {BUNDLED_GUNICORN}); other versions are stored in your cache",
    )


class GunicornInTurn(ServedOptions):
    """The software that serves the app, for commands that run once per version of Gunicorn."""

    gunicorn = option(versions, "LIST", GUNICORN_HELP + IN_TURN_HELP)


class ServesInTurn(GunicornInTurn):
    """The software that serves the app, for commands that run once per interpreter and version of
    Gunicorn."""

    python = option(interpreters, "LIST", PYTHON_HELP + IN_TURN_HELP, before="gunicorn")


def in_turn(options: Options) -> Iterator[tuple[str, Options]]:
    """The options of each run, with a label of the arguments that distinguish it; the label is ""
    if there is only one run. Raises UsageError."""
    if not isinstance(options, GunicornInTurn):
        yield "", options
        return
    pairs = list(product(options.python or (None,), options.gunicorn or (None,)))
    output_format = options.format if isinstance(options, FormatOptions) else None
    if len(pairs) > 1 and output_format in ("json", "csv"):
        raise UsageError(f"--format {output_format} prints a single run: name one version")
    for python, gunicorn in pairs:
        values = {ServesInTurn.python: python, ServesInTurn.gunicorn: gunicorn}
        arguments = [f"{option.flag} {value}" for option, value in values.items() if value]
        label = " ".join(arguments) if len(pairs) > 1 else ""
        yield label, options.replace(python=python and (python,), gunicorn=gunicorn and (gunicorn,))
