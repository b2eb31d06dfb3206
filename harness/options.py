"""The words of the command line, checked: bad input is one sentence and starts nothing."""

from __future__ import annotations

import argparse
import difflib
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn, TypeVar

from harness import __version__
from harness.load.registry import ALSO, TOOLS
from harness.model import Rate, UsageError
from harness.report import FORMATS
from harness.server.worker_classes import CLASSES

T = TypeVar("T")

MOST_RPS = 1_000_000
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")

EXAMPLES = """\
examples:
  workerlab sweep sync,eventlet 4,8,16
      where do these two classes stop serving more? (sleep(1) app, 4 workers, ApacheBench)
  workerlab sweep gthread 4,8,16,32 --threads 1,2,4
      threads as an axis
  workerlab sweep gthread 8,16,32 --workers 2 --threads 4 --tool wrk --keepalive off,on
      what does it cost that a kept connection stays with its worker?
  workerlab sweep sync,gevent 2,4,8,16,32 --trials 3 --sleep 0.2
      repeated on fresh servers in random order: capacity with a 95 % interval
  workerlab sweep sync,gthread 2,4,8,16 --tool fast --rate 50%,80%,90%
      how long do requests take that arrive at a rate, whether answered or not?
  workerlab sweep gthread 64 --sleep 0.1 --tool fast --keepalive on --ramp 3 --duration 12
      ramp-up, drain, steady and churn, as far as they show in response times and TCP states
  workerlab sweep gthread,gevent 8,64 --app shop.wsgi:app --chdir ~/shop \\
      --python ~/shop/.venv/bin/python --config ~/shop/gunicorn.conf.py --path /cart
      your own app, in its own environment, with your own Gunicorn file
  workerlab sweep --resume results/20261120-101500-sync
      finish an interrupted run

Exit codes: 0 fine; 1 a cell is invalid; 2 usage; 3 this machine or app cannot do it;
130 Ctrl-C, 143 SIGTERM, with everything measured so far kept and printed.
"""


REPORT_EXAMPLES = """\
examples:
  workerlab report results/20261120-101500-sync
  workerlab report 20261120-101500-sync --format markdown
  workerlab report results                       (the newest run in there)
  workerlab report results --html report.html    (a page to look at: needs nothing but a browser)
  workerlab report results --png pictures        (its charts, as PNG and SVG)
"""


def program() -> str:
    """How the user called this program, and can call it again."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{Path(sys.executable).name} -m harness"
    if shutil.which(called.name):
        return called.name
    here = Path.cwd()
    return str(called.relative_to(here) if called.is_relative_to(here) else called)


class Parser(argparse.ArgumentParser):
    """One sentence instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} ({self.prog} --help has examples)")


def parsed(kind: Callable[[str], T]) -> Callable[[str], T]:
    """argparse swallows the message of a ValueError but not of its own error."""

    def convert(text: str) -> T:
        try:
            return kind(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def nearest(kind: str, name: str, known: Iterable[str]) -> str:
    """What to say of an unknown name."""
    names = tuple(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
    return f"unknown {kind} {name!r}: {hint}"


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise ValueError(f"{text!r} has an empty entry: write a comma list such as 4,8,16")
    return list(dict.fromkeys(words))


def names_of(kind: str, known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        words = _words(text)
        for word in words:
            if word not in known:
                raise ValueError(nearest(kind, word, known))
        return tuple(words)

    return read


def classes(text: str) -> tuple[str, ...]:
    """Names of worker classes, or dotted paths of others."""
    if text == "all":
        return CLASSES
    paths = [word for word in _words(text) if DOTTED.fullmatch(word)]
    return names_of("worker class", (*CLASSES, *paths))(text)


def tools(text: str) -> tuple[str, ...]:
    names = names_of("load tool", (*TOOLS, *ALSO))(text)
    return tuple(dict.fromkeys(ALSO.get(name, name) for name in names))


def whole(text: str, least: int = 1) -> int:
    if not text.isascii() or not text.lstrip("-").isdigit():
        raise ValueError(f"{text!r} is not a whole number")
    if int(text) < least:
        raise ValueError(f"{text} is too small: {least} is the least")
    return int(text)


def whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(whole(word) for word in _words(text)))


def keepalive(text: str) -> tuple[bool, ...]:
    words = _words(text)
    for word in words:
        if word not in ("off", "on"):
            raise ValueError(f"{word!r} is neither off nor on")
    return tuple(word == "on" for word in words)


def levels(text: str) -> tuple[int, ...]:
    return tuple(sorted(whole_numbers(text)))


def rounds(text: str) -> int:
    return whole(text, least=2)  # with one round there is no moment that is neither start nor end


def hosts(text: str) -> tuple[str, ...]:
    words = _words(text)
    for word in words:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", word):
            raise ValueError(f"{word!r} is not the name or address of a host")
    return tuple(words)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of seconds") from None
    if not math.isfinite(value) or not 0 <= value <= 3600:
        raise ValueError(f"{text} is not between 0 and 3600 seconds")
    return value


def duration(text: str) -> float:
    """Seconds, but some."""
    if (value := seconds(text)) <= 0:
        raise ValueError(f"{text} seconds are no time: say how long, such as 10")
    return value


def rates(text: str) -> tuple[Rate, ...]:
    """Requests per second, or shares of the capacity: 200 or 50%,80%."""
    return tuple(dict.fromkeys(rate(word) for word in _words(text)))


def rate(word: str) -> Rate:
    share = word.endswith("%")
    try:
        value = float(word.removesuffix("%"))
    except ValueError:
        raise ValueError(f"{word!r} is neither requests per second nor a share: 200, 80%") from None
    if not math.isfinite(value) or not 0 < value <= MOST_RPS:
        raise ValueError(f"a rate of {word}: it is above 0 and at most {MOST_RPS:,} requests/s")
    if share and value > 100:
        raise ValueError(f"{word} is more than the capacity: at most 100%")
    return Rate(share=value / 100) if share else Rate(rps=value)


def setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return name, value


def header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    token = re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name.strip())  # RFC 9110, 5.6.2
    if not colon or not token or not re.fullmatch(r"[\t\x20-\x7e\xa0-\xff]*", value):
        raise ValueError(f"{text!r} is not a header, 'Name: value', that can be sent")
    return name.strip(), value.strip()


def url_path(text: str) -> str:
    if not re.fullmatch(r"/[!-~]*", text):
        raise ValueError(
            f"{text!r} is not a path: it begins with / and has no spaces; write others as %XX"
        )
    return text


def method(text: str) -> str:
    if not text.isascii() or not text.isalpha():
        raise ValueError(f"{text!r} is not an HTTP method")
    return text.upper()


def status(text: str) -> int:
    code = whole(text)
    if not 100 <= code <= 599:
        raise ValueError(f"{code} is not an HTTP status")
    return code


def existing_file(text: str) -> str:
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        raise ValueError(f"{text} is not a file")
    return str(path)


def existing_directory(text: str) -> str:
    path = Path(text).expanduser().absolute()
    if not path.is_dir():
        raise ValueError(f"{text} is not a directory")
    return str(path)


def interpreter(text: str) -> str:
    """A program on PATH, or a file. Not resolved: a venv's python is a link that must stay one."""
    found = shutil.which(Path(text).expanduser())
    if found is None:
        raise ValueError(f"{text} is not a program that can be run")
    return str(Path(found).absolute())


def target(text: str) -> str:
    module, _, _ = text.partition(":")
    if not module or not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(f"{text!r} is not module:callable")
    return text


def explain(to: argparse._ActionsContainer) -> None:
    to.add_argument(
        "--explain",
        action="store_true",
        default=None,
        help="print the evidence, the notes and what the columns mean as well",
    )


def _add_sweep(commands: argparse._SubParsersAction[Parser]) -> None:
    sweep = commands.add_parser(
        "sweep",
        help="measure worker classes at rising concurrency",
        description="Launch the app under each worker class, load it at each concurrency, and "
        "show where each class stops serving more.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = f"all, or of {','.join(CLASSES)}, or dotted paths of others"
    sweep.add_argument(
        "classes",
        metavar="CLASSES",
        nargs="?",
        type=parsed(classes),
        help=known,
    )
    sweep.add_argument(
        "levels", metavar="LEVELS", nargs="?", type=parsed(levels), help="concurrency: 4,8,16"
    )
    sweep.add_argument("--resume", metavar="RUN", help="finish an interrupted run, as planned")
    _add_axes(sweep.add_argument_group("axes and amounts (LIST: comma separated, becomes an axis)"))
    _add_app(sweep.add_argument_group("any app"))
    out = sweep.add_argument_group("output")
    out.add_argument("--out", metavar="DIR", default=None, help="where runs are kept (results)")
    out.add_argument("--format", choices=sorted(FORMATS), default=None, help="table")
    explain(out)


def _add_axes(axes: argparse._ArgumentGroup) -> None:
    def add(name: str, kind: Callable[[str], object], text: str, metavar: str = "LIST") -> None:
        axes.add_argument(name, type=parsed(kind), metavar=metavar, default=None, help=text)

    add("--workers", whole_numbers, "worker processes (4)")
    add("--threads", whole_numbers, "threads per worker, gthread only (2)")
    add("--backlog", whole_numbers, "length of the accept queue (2048)")
    add(
        "--worker-connections",
        whole,
        "per gevent, eventlet or gthread worker (1000)",
        "N",
    )
    add("--tool", tools, f"of {','.join(TOOLS)} (ab)")
    add("--tool-processes", whole_numbers, "processes of the load tool, which share the load (1)")
    add("--keepalive", keepalive, "use connections again: off, on, or off,on (off)")
    add("--rate", rates, "then arrivals at a rate: 200 a second, 50%%,80%% of the capacity")
    add("--duration", duration, "load for so long instead of counting requests", "S")
    add("--ramp", duration, "begin the connections one after the other over so long", "S")
    add("--load-hosts", hosts, "machines that send the load, with a tool that can: a,b (this one)")
    add("--sleep", seconds, "how long the lab's own app sleeps (1)", "S")
    add("--rounds", rounds, "requests = 1 + rounds x concurrency (5)", "N")
    add("--trials", whole, "repetitions, each on a fresh server, in random order (1)", "N")


def _add_app(app: argparse._ArgumentGroup) -> None:
    def add(name: str, kind: Callable[[str], object], metavar: str, text: str) -> None:
        app.add_argument(name, type=parsed(kind), metavar=metavar, default=None, help=text)

    def add_many(name: str, kind: Callable[[str], object], metavar: str, text: str) -> None:
        app.add_argument(
            name, type=parsed(kind), metavar=metavar, action="append", default=None, help=text
        )

    add("--app", target, "MODULE:CALLABLE", "your application, in Gunicorn's spelling")
    add("--chdir", existing_directory, "DIR", "where it is imported from (here)")
    add("--python", interpreter, "PATH", "interpreter of its environment; the server runs there")
    add("--config", existing_file, "FILE", "your own Gunicorn file: wins over the lab's defaults")
    add_many("--env", setting, "K=V", "environment of the server (repeatable)")
    add("--path", url_path, "PATH", "what is requested (/)")
    add("--method", method, "NAME", "GET")
    add_many("--header", header, "'K: V'", "request header (repeatable)")
    add("--body-file", existing_file, "FILE", "request body")
    add("--expect-status", status, "CODE", "the answer that counts as success (200)")


DEMO_EXAMPLES = """\
examples:
  workerlab demo            in front of a class: it asks before each step, a key goes on
  workerlab demo --yes      runs through in about two minutes
"""


def _add_demo(commands: argparse._SubParsersAction[Parser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="a lesson in six steps: predict, guess, watch, explain",
        description="A lesson in the terminal: what happens when more requests come in than a "
        "server can serve? Each step changes one thing, says what the law predicts, lets you "
        "guess, runs it live, and says what came out and why.",
        epilog=DEMO_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument("--yes", action="store_true", help="ask nothing, run through")
    demo.add_argument("--out", metavar="DIR", default=None, help="where runs are kept (results)")


def parser(*more: Callable[[argparse._SubParsersAction[Parser]], None]) -> Parser:
    """`more`: adders of further commands, which have files of their own."""
    top = Parser(
        prog="workerlab",
        description="Which Gunicorn worker class, how many workers, and what happens when more "
        "requests come in than they can serve?",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"workerlab {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_sweep(commands)
    _add_demo(commands)
    for add in more:
        add(commands)
    report = commands.add_parser(
        "report",
        help="print a saved run again, from its files",
        description="Read a run's files again and print what they show.",
        epilog=REPORT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument("run", metavar="RUN", help="its directory, or its name below results/")
    report.add_argument("--format", choices=sorted(FORMATS), default=None, help="table")
    explain(report)
    report.add_argument("--html", metavar="FILE", default=None, help="write it as one page")
    report.add_argument(
        "--png", metavar="DIR", default=None, help="write each of its charts, as PNG and as SVG"
    )
    return top
