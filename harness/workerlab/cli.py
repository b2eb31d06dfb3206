"""The command line of `workerlab`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, NoReturn

from workerlab import __version__
from workerlab.errors import LabError, UsageError
from workerlab.experiments import COMMANDS, action_of, add_options
from workerlab.terminal.console import tell

if TYPE_CHECKING:
    from workerlab.options import Options

MIN_SIGNAL_EXIT_CODE = 128  # lowest exit code of a command that a signal stopped

EXAMPLES = """\
examples:
  workerlab sweep sync,eventlet 4,8,16
      where does the throughput of each class level off? (sleep(1) app, 4 workers, ApacheBench)
  workerlab sweep gthread,gevent 8,64 --app shop.wsgi:app --chdir ~/shop
      measure your own app
  workerlab demo
      take a lesson in the terminal
  workerlab report results --html report.html
      show the newest run again, as a page

workerlab COMMAND --help shows the options of a command and more examples.
"""


class Parser(argparse.ArgumentParser):
    """Reports an error in one sentence instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} ({self.prog} --help has examples)")


class HelpLayout(argparse.RawDescriptionHelpFormatter):
    """Wraps lines only between words, not at hyphens, so that options stay whole."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)


def command_line(names: Collection[str]) -> argparse.ArgumentParser:
    """The parser of the command line. Only the commands in `names` get their options."""
    top = Parser(
        prog="workerlab",
        description="Which Gunicorn worker class, how many workers, and what happens when more "
        "requests arrive than they can serve?",
        epilog=EXAMPLES,
        formatter_class=HelpLayout,
    )
    top.add_argument("--version", action="version", version=f"workerlab {__version__}")
    parsers = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        parser = parsers.add_parser(name, help=summary, formatter_class=HelpLayout)
        if name in names:
            add_options(name, parser)
    return top


def parse(argv: Sequence[str]) -> Options:
    """The options of a command. Raises UsageError, or SystemExit after --help."""
    namespace = command_line(argv).parse_args(argv)
    from workerlab.options import record_of  # imported late: plain --help does not need it

    return record_of(namespace)


def _run_in_turn(action: Callable[[Options], int], options: Options) -> int:
    """Runs the action for each requested run, one after the other. Returns the first exit code
    other than 0."""
    from workerlab.options import in_turn

    codes: list[int] = []
    for label, run_options in in_turn(options):
        if label:
            tell(f"next run: {label}")
        codes.append(action(run_options))
        if codes[-1] >= MIN_SIGNAL_EXIT_CODE:
            break
    return next(filter(None, codes), 0)


def main(argv: Sequence[str] | None = None, ready: Callable[[], None] = lambda: None) -> int:
    """Runs a command and returns its exit code. `ready` is called after the imports, before
    anything starts."""
    try:
        arguments = sys.argv[1:] if argv is None else argv
        options = parse(arguments)
        from workerlab.project import with_project  # imported late: --help does not need it

        options = with_project(arguments, options, parse)
        action = action_of(options.command)
        ready()
        return _run_in_turn(action, options)
    except LabError as error:
        tell(f"workerlab: {error}")
        return error.exit_code
    except BrokenPipeError:  # the reader has closed the pipe, like `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
