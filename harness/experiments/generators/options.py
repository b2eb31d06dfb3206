"""The command line of `workerlab generators`."""

from __future__ import annotations

import argparse

from harness.load.registry import TOOLS
from harness.options import add_common, duration, keepalive, levels, parsed, tools

EXAMPLES = """\
examples:
  workerlab generators
      every load generator that is installed, at 1, 10 and 100 connections, in about three minutes
  workerlab generators --tools fast,wrk --levels 10,100,1000 --duration 5
      just these two, further up
  workerlab generators --keepalive off
      a new connection per request: what ab asks for unless told otherwise
  workerlab report results --html generators.html
      the newest run again, as a page with its charts
"""


def add_options(to: argparse.ArgumentParser) -> None:
    to.description = (
        "Load the same server, which does nothing, with every generator: requests per second, CPU"
        " and memory of each, what it believes of response times against what the server says, and"
        " where each of them ends."
    )
    to.epilog = EXAMPLES
    add_common(to)
    add = to.add_argument
    add("--tools", type=parsed(tools), metavar="LIST", help=f"of {','.join(TOOLS)} (all)")
    add("--levels", type=parsed(levels), metavar="LIST", help="connections (1,10,100)")
    add("--duration", type=parsed(duration), metavar="S", help="of each load (3)")
    add("--keepalive", type=parsed(_once), metavar="WORD", help="off or on (on)")


def _once(text: str) -> tuple[bool, ...]:
    words = keepalive(text)
    if len(words) > 1:
        raise ValueError("one of them: off or on")
    return words
