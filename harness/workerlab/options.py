"""Options of several commands, and types of arguments: invalid input is rejected in one sentence,
before anything starts."""

import argparse
import math
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeVar

from workerlab.load.registry import ALIASES, TOOLS
from workerlab.model import Rate, UsageError
from workerlab.numbers.schedule import KINDS
from workerlab.paths import APPS, BUNDLED_GUNICORN
from workerlab.report import FORMATS
from workerlab.server.worker_classes import CLASSES, SERVERS
from workerlab.slo import TargetSyntaxError, canonical

T = TypeVar("T")

MAX_RATE_RPS = 1_000_000
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
PROJECT = """\
Defaults of --app, --python, --slo and --mix can stand in the pyproject.toml of your project, in
[tool.workerlab].
"""
EXIT_CODES = """\
Exit codes: 0 fine; 1 a cell is invalid; 2 usage; 3 this machine or app cannot do it; 4 a target is
not kept; 130 Ctrl-C, 143 SIGTERM, with everything measured so far kept and printed.
"""


def add_common(to: argparse.ArgumentParser) -> None:
    """Add the options of every command that makes runs."""
    to.add_argument("--resume", metavar="RUN", help="finish an interrupted run, as planned")
    to.add_argument("--out", metavar="DIR", help="where runs are kept (results)")
    add_format(to)


def add_format(to: argparse.ArgumentParser) -> None:
    to.add_argument("--format", choices=sorted(FORMATS), help="output format (table)")
    to.add_argument(
        "--explain",
        action="store_true",
        help="also print the evidence, all notes and what the columns mean",
    )


# --- types of arguments -------------------------------------------------------------------------


class BadWord(argparse.ArgumentTypeError, ValueError):
    """An invalid argument, with a message that argparse prints."""


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise BadWord(f"{text!r} has an empty entry: write a list such as 4,8,16")
    return list(dict.fromkeys(words))


def list_of(kind: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """A type for comma-separated values, without duplicates."""
    return lambda text: tuple(dict.fromkeys(map(kind, _words(text))))


def one_of(kind: str, word: str, choices: Collection[str]) -> str:
    if word not in choices:
        import difflib

        near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(choices)}"
        raise BadWord(f"unknown {kind} {word!r}: {hint}")
    return word


def names_of(kind: str, choices: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    return list_of(lambda word: one_of(kind, word, choices))


def classes(text: str) -> tuple[str, ...]:
    """Names of bundled worker classes, or dotted paths of others."""
    return _classes(text, CLASSES)


def servers(text: str) -> tuple[str, ...]:
    """As `classes`, or names of servers other than Gunicorn."""
    return _classes(text, (*CLASSES, *SERVERS))


def _classes(text: str, names: tuple[str, ...]) -> tuple[str, ...]:
    if text == "all":
        return CLASSES
    paths = [word for word in _words(text) if DOTTED.fullmatch(word)]
    if file := next((path for path in paths if path.endswith(".py")), None):
        raise BadWord(f"{file} is a file name, not a worker class: pass it with --config")
    return names_of("worker class", (*names, *paths))(text)


def tools(text: str) -> tuple[str, ...]:
    names = names_of("load tool", (*TOOLS, *ALIASES))(text)
    return tuple(dict.fromkeys(ALIASES.get(name, name) for name in names))


def whole(text: str, least: int = 1) -> int:
    if not re.fullmatch(r"-?[0-9]+", text):
        raise BadWord(f"{text!r} is not a whole number")
    if int(text) < least:
        raise BadWord(f"{text} is too small: must be at least {least}")
    return int(text)


whole_numbers = list_of(whole)


def levels(text: str) -> tuple[int, ...]:
    return tuple(sorted(whole_numbers(text)))


rounds = partial(whole, least=2)  # a single round has no steady part


def status(text: str) -> int:
    code = whole(text)
    if not 100 <= code <= 599:
        raise BadWord(f"{code} is not an HTTP status")
    return code


def either(*words: str) -> Callable[[str], str]:
    """A type for one of these words."""

    def read(word: str) -> str:
        if word not in words:
            raise BadWord(f"{word!r} is neither {' nor '.join(words)}")
        return word

    return read


def switch(word: str) -> bool:
    return either("off", "on")(word) == "on"


keepalive = list_of(switch)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise BadWord(f"{text!r} is not a number of seconds") from None
    if not math.isfinite(value) or not 0 <= value <= 3600:
        raise BadWord(f"{text} is not between 0 and 3600 seconds")
    return value


def duration(text: str) -> float:
    """Seconds, greater than 0."""
    if (value := seconds(text)) <= 0:
        raise BadWord(f"{text} is too short: must be greater than 0 seconds")
    return value


def rate(word: str) -> Rate:
    """Requests per second, or a share of the capacity, such as 200 or 80%."""
    share = word.endswith("%")
    try:
        value = float(word.removesuffix("%"))
    except ValueError:
        raise BadWord(f"{word!r} is neither requests per second nor a share: 200, 80%") from None
    if not math.isfinite(value) or not 0 < value <= MAX_RATE_RPS:
        raise BadWord(f"a rate of {word}: must be above 0 and at most {MAX_RATE_RPS:,} requests/s")
    if share and value > 100:
        raise BadWord(f"{word} is more than the capacity: must be at most 100%")
    return Rate(share=value / 100) if share else Rate(rps=value)


rates = list_of(rate)


def jobs(word: str) -> int | str:
    if word != "auto" and not word.lstrip("-").isdigit():
        raise BadWord(f"{word!r} is neither a whole number nor auto")
    return word if word == "auto" else whole(word)


def target_of_cells(text: str) -> str:
    """The target in its canonical spelling."""
    try:
        return canonical(text)
    except TargetSyntaxError as mistake:
        raise BadWord(str(mistake)) from None


Row = tuple[str, Callable[[str], object] | None, str, str]  # option, type (None: a flag), metavar
REPEATABLE = ("--env", "--header")
SLO: tuple[Row, ...] = (
    ("--slo", target_of_cells, "TARGET",
     "mark the cells that break it: limits of p50, p90, p95, p99, max, mean (response time), errors"
     " and rps, such as 'p95<300ms,errors<0.1%%'"),
    ("--fail-on-slo", None, "",
     "exit with 4 unless every class keeps it: at some level or, with --rate, at some rate"),
)  # fmt: skip


def add_rows(to: argparse._ActionsContainer, rows: Iterable[Row]) -> None:
    for name, kind, metavar, text in rows:
        if kind is None:
            to.add_argument(name, action="store_true", help=text)
        else:
            action = "append" if name in REPEATABLE else "store"
            to.add_argument(name, type=kind, metavar=metavar, action=action, help=text)


arrivals = either(*KINDS)


seed = partial(whole, least=0)


def setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadWord(f"{text!r} is not NAME=VALUE")
    return name, value


def header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    token = re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name.strip())  # RFC 9110, 5.6.2
    if not colon or not token or not re.fullmatch(r"[\t\x20-\x7e\xa0-\xff]*", value):
        raise BadWord(f"{text!r} is not a valid header ('Name: value')")
    return name.strip(), value.strip()


def matching(pattern: str, what: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise BadWord(f"{text!r} is not {what}")
        return text

    return read


client = either("closes", "lingers")


hosts = list_of(
    matching(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", "the name or address of a host")
)
url_path = matching(
    r"/[!-~]*", "a path: it must begin with / and have no spaces; escape others as %XX"
)
_module = matching(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:.*)?", "of the form module:callable")


def target(text: str) -> str:
    """The target of the user's app, or the name of a bundled one."""
    if not text.startswith("@"):
        return _module(text)
    if text[1:] not in APPS:
        raise BadWord(f"unknown bundled app {text!r}: there are @{', @'.join(APPS)}")
    return text


_method = matching(r"[A-Za-z]+", "an HTTP method")


def method(text: str) -> str:
    return _method(text).upper()


def _existing(kind: str, exists: Callable[[Path], bool]) -> Callable[[str], str]:
    def read(text: str) -> str:
        path = Path(text).expanduser().absolute()
        if not exists(path):
            raise BadWord(f"{text} is not a {kind}")
        return str(path)

    return read


existing_file = _existing("file", Path.is_file)
existing_directory = _existing("directory", Path.is_dir)


def interpreter(text: str) -> str:
    """The absolute path of a program on PATH, a Python version, or a file. Symlinks are not
    resolved, as a venv's python is one."""
    program = shutil.which(Path(text).expanduser())
    if program is None and re.fullmatch(r"3\.\d+", text):
        program = shutil.which(f"python{text}")
    if program is None:
        raise BadWord(f"{text} is not an executable program")
    return str(Path(program).absolute())


interpreters = list_of(interpreter)


def version(text: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)*((a|b|rc|\.dev|\.post)\d+)?", text):
        raise BadWord(f"{text!r} is not a version, such as 25.3.0")
    return text


versions = list_of(version)


def only(several: Callable[[str], tuple[T, ...]]) -> Callable[[str], tuple[T, ...]]:
    """A list type that accepts a single value."""

    def read(text: str) -> tuple[T, ...]:
        values = several(text)
        if len(values) > 1:
            raise BadWord(f"{text!r}: {len(values)} values, but this command takes one")
        return values

    return read


SERVES: tuple[Row, ...] = (
    ("--python", interpreters, "LIST",
     "interpreters that run the server: paths, or names such as python3.13 (your app's: an"
     " activated environment, else .venv beside it)"),
    ("--gunicorn", versions, "LIST",
     "versions of Gunicorn: 23.0.0,27.0.1 (your app's: the one that is installed there, else"
     f" {BUNDLED_GUNICORN}); others are kept in your cache"),
)  # fmt: skip
SERVES_ONE: tuple[Row, ...] = (  # for commands that compare
    ("--python", only(interpreters), "PATH",
     "interpreter that runs the server (your app's: an activated environment, else .venv beside"
     " it)"),
    ("--gunicorn", only(versions), "VERSION",
     f"version of Gunicorn (your app's: the one that is installed there, else {BUNDLED_GUNICORN});"
     " kept in your cache"),
)  # fmt: skip
SERVES_IN_TURN: tuple[Row, ...] = tuple(
    (name, read, metavar, f"{what}; of several each in turn, in a run of its own")
    for name, read, metavar, what in SERVES
)


def add_serves_in_turn(to: argparse.ArgumentParser, *, python: bool = True) -> None:
    """Add the options of a command that runs once for each interpreter and version of Gunicorn.
    `python`: whether the interpreter can be chosen."""
    add_rows(to, SERVES_IN_TURN if python else SERVES_IN_TURN[1:])
    to.set_defaults(in_turn=True)


def in_turn(options: argparse.Namespace) -> Iterator[tuple[str, argparse.Namespace]]:
    """The options of each run, with the arguments that distinguish it; these are "" if there is
    only one run. Raises UsageError."""
    option_names = ("python", "gunicorn") if getattr(options, "in_turn", False) else ()
    values = {name: getattr(options, name, None) or (None,) for name in option_names}
    multiple = math.prod(map(len, values.values())) > 1
    if multiple and getattr(options, "format", None) in ("json", "csv"):
        raise UsageError(f"--format {options.format} prints a single run: name one version")
    for combination in product(*values.values()):
        named_options = {
            name: value and (value,) for name, value in zip(values, combination, strict=True)
        }
        arguments = [
            f"--{name} {value[0]}" for name, value in named_options.items() if value and multiple
        ]
        yield " ".join(arguments), argparse.Namespace(**{**vars(options), **named_options})
