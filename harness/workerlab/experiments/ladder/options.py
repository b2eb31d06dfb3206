"""The command line of `workerlab ladder`."""

import argparse

from workerlab import options as read
from workerlab.options import (
    Row,
    add_common,
    add_rows,
    add_serves_in_turn,
    duration,
    names_of,
    whole,
)
from workerlab.server.service_check import KINDS

STORAGES = ("mongodb", "postgresql", "sqlite")  # in the order of the ladder
TARGET = "p95<5s,errors<1%"
LADDER_TOOLS = ("locust-fast", "locust", "fast")
EXAMPLES = """\
examples:
  workerlab ladder
      with what is installed here, 1000 users, three launches per step, in about ten minutes
  workerlab ladder --quick
      100 users, one launch per step, in about two minutes; no intervals
  workerlab ladder --mongo-url mongodb://127.0.0.1:27017/lab
      with steps on this MongoDB; the database must hold no posts, and is left as it was
  workerlab ladder --storages sqlite --users 200
      with no database server installed
  workerlab ladder --find-limit 'p95<2s'
      then also: how many users does the first step serve within this target?
  workerlab ladder --resume results/20261120-101500-ladder --trials 12
      the same run with more launches per step
  workerlab report results --html ladder.html
      the newest run again, as a page with its charts
"""


ROWS: tuple[Row, ...] = (
    ("--quick", None, "", "fewer users, shorter loads, one launch per step"),
    ("--users", whole, "N", "concurrent users (1000)"),
    ("--trials", whole, "N", "fresh launches per step (3); --resume adds some"),
    ("--duration", duration, "S", "seconds per load (6)"),
    ("--workers", whole, "N", "workers, until they are removed (2)"),
    ("--tools", names_of("load tool that verifies every page", LADDER_TOOLS), "LIST",
     f"of {', '.join(LADDER_TOOLS)}, which verify every page (locust-fast,fast)"),
    ("--storages", names_of("storage", STORAGES), "LIST",
     f"of {', '.join(STORAGES)}, in this order (all that are available; sqlite if none)"),
    ("--load-hosts", read.hosts, "LIST",
     f"machines that send the load: a,b (this one); {' or '.join(LADDER_TOOLS[:2])} only"),
)  # fmt: skip


def add_options(to: argparse.ArgumentParser) -> None:
    to.description = (
        "Load a small blog under Gunicorn and remove one thing at a time: the cache inside the"
        " workers, Redis, MongoDB (for PostgreSQL), the second worker, async. Reports what each was"
        " worth, where the time goes, and whether app, storage or load tool set the limit."
    )
    to.epilog = EXAMPLES
    add_common(to)
    add = to.add_argument
    add_serves_in_turn(to, python=False)  # the blog needs this interpreter's packages
    add_rows(to, ROWS)
    text = "double the users until the first step breaks TARGET or is unstable (%s)"
    add("--find-limit", nargs="?", const=TARGET, type=read.target_of_cells, metavar="TARGET",
        help=text % TARGET.replace("%", "%%"))  # fmt: skip
    for kind, service in KINDS.items():
        if service.option:
            text = f"use this {service.name} instead of starting one"
            add(service.option, dest=f"{kind}_url", metavar="URL", help=text)
