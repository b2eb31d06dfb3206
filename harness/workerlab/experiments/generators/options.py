"""The command line of `workerlab generators`."""

import argparse

from workerlab.load.registry import TOOLS
from workerlab.options import Refused, add_common, duration, levels, switch, tools, whole

EXAMPLES = """\
examples:
  workerlab generators
      every load generator that is installed, at 1, 10 and 100 connections, in about seven minutes
  workerlab generators --tools fast,wrk --levels 10,100,1000 --duration 5
      only these two, at higher levels
  workerlab generators --keepalive off
      a new connection per request, as ab does by default
  workerlab report results --html generators.html
      the newest run again, as a page with its charts
"""


def add_options(to: argparse.ArgumentParser) -> None:
    to.description = (
        "Load the same server, which does nothing, with every generator: requests per second, CPU"
        " and memory of each, the response times it reports against those of the server, and how"
        " far each of them gets."
    )
    to.epilog = EXAMPLES
    add_common(to)
    add = to.add_argument
    add("--tools", type=tools, metavar="LIST", help=f"of {','.join(TOOLS)} (all)")
    add("--levels", type=levels, metavar="LIST", help="connections (1,10,100)")
    add("--duration", type=duration, metavar="S", help="seconds per load (2)")
    add("--trials", type=whole, metavar="N", help="repetitions, which are what is compared (3)")
    add("--keepalive", type=_once, metavar="WORD", help="reuse connections: off or on (on)")


def _once(text: str) -> bool:
    if "," in text:
        raise Refused("must be off or on, not both")
    return switch(text)
