"""The command line of `workerlab generators`."""

import argparse
import re

from workerlab import options as read
from workerlab.load.registry import TOOLS
from workerlab.options import RunOptions, add_record, option

EXAMPLES = """\
examples:
  workerlab generators
      compare all installed load generators at 1, 10 and 100 connections; about seven minutes
  workerlab generators --tools fast,wrk --levels 10,100,1000 --duration 5
      compare only these two, at higher levels
  workerlab generators --tools threads,processes,coroutines --levels 20,80,200 --delay 0.08
      use a server that takes 80 ms to respond, so throughput grows with the connections
  workerlab generators --tools processes-coroutines --processes 4,6,8 --levels 80,100,120
      measure a grid: 4 processes of 80 coroutines each (320 connections), 6 of 80, ..., 8 of 120
  workerlab generators --keepalive off
      open a new connection for each request, as ab does by default
  workerlab report results --html generators.html
      write the newest run as a page with its charts
"""


def _delay(text: str) -> tuple[float, float]:
    """Shortest and longest delay: 0.08, or 0-0.16."""
    span = re.fullmatch(r"(.*[\d.])-([\d.].*)", text)
    shortest, longest = map(read.seconds, span.groups() if span else (text, text))
    if shortest > longest:
        raise read.BadArgument(f"{text!r} must be LO-HI, the lower one first")
    return shortest, longest


def _off_or_on(text: str) -> bool:
    if "," in text:
        raise read.BadArgument("must be off or on, not both")
    return read.switch(text)


class GeneratorsOptions(RunOptions):
    tools = option(read.tools, "LIST", f"tools: {', '.join(TOOLS)} (all)", default=tuple(TOOLS))
    levels = option(
        read.levels,
        "LIST",
        "connections (1,10,100); with --processes, connections of each process",
        default=(1, 10, 100),
    )
    processes = option(
        read.levels,
        "LIST",
        "numbers of processes, for each tool that can use several, at each level (one per core)",
        default=(),
    )
    delay = option(
        _delay,
        "S",
        "delay of the full-speed server in seconds; LO-HI: random between the two (0)",
        default=(0.0, 0.0),
    )
    duration = option(read.duration, "S", "seconds per load (2)", default=2.0)
    trials = option(read.whole, "N", "trials of each load, from which intervals are computed (3)")
    keepalive = option(_off_or_on, "WORD", "reuse connections: off or on (on)", default=True)


def add_options(to: argparse.ArgumentParser) -> None:
    to.description = (
        "Load the same server, which does nothing, with every generator. Reports the throughput,"
        " CPU and memory of each, its response times next to those of the server, and the"
        " throughput up to which it is reliable."
    )
    to.epilog = EXAMPLES
    add_record(to, GeneratorsOptions)
