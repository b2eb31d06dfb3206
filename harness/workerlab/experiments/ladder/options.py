"""The command line of `workerlab ladder`."""

import argparse

from workerlab import options as read
from workerlab.options import GunicornInTurn, Option, RunOptions, add_record, flag, option
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
      and how many users does the first step serve within this target?
  workerlab ladder --resume results/20261120-101500-ladder --trials 12
      the same run with more launches per step
  workerlab report results --html ladder.html
      the newest run again, as a page with its charts
"""


def _url(kind: str) -> Option[str | None]:
    """The address of a service, which may contain a password: it is not stored."""
    service = KINDS[kind]
    text = f"use this {service.name} instead of starting one"
    return option(str, "URL", text, flag=service.option, resumes=True)


class LadderOptions(RunOptions, GunicornInTurn):
    """The blog needs this interpreter's packages: another one cannot be chosen."""

    quick = flag("fewer users, shorter loads, one launch per step")
    users = option(read.whole, "N", "concurrent users (1000)")
    trials = option(
        read.whole, "N", "fresh launches per step (3); --resume can add more", resumes=True
    )
    duration = option(read.duration, "S", "seconds per load (6)")
    workers = option(read.whole, "N", "workers, until they are removed (2)", default=2)
    tools = option(
        read.names_of("load tool that verifies every page", LADDER_TOOLS),
        "LIST",
        f"of {', '.join(LADDER_TOOLS)}, which verify every page (locust-fast,fast)",
    )
    storages = option(
        read.names_of("storage", STORAGES),
        "LIST",
        f"of {', '.join(STORAGES)}, in this order (all that are available; sqlite if none)",
    )
    load_hosts = option(
        read.hosts,
        "LIST",
        f"machines that send the load: a,b (this one); {' or '.join(LADDER_TOOLS[:2])} only",
        default=(),
    )
    find_limit = option(
        read.target_of_cells,
        "TARGET",
        "double the users until the first step breaks TARGET or is unstable"
        f" ({TARGET.replace('%', '%%')})",
        nargs="?",
        const=TARGET,
    )
    mongodb_url = _url("mongodb")
    postgresql_url = _url("postgresql")
    redis_url = _url("redis")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Load a small blog under Gunicorn and remove one thing at a time: the cache inside the"
        " workers, Redis, MongoDB (for PostgreSQL), the second worker, async. Reports what each was"
        " worth, where the time goes, and whether app, storage or load tool set the limit."
    )
    parser.epilog = EXAMPLES
    add_record(parser, LadderOptions)
