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
      use what is installed here, with 1000 users and three launches per step; about ten minutes
  workerlab ladder --quick
      100 users and one launch per step, without intervals; about two minutes
  workerlab ladder --mongo-url mongodb://127.0.0.1:27017/lab
      add steps on this MongoDB; the database must hold no posts and is left unchanged
  workerlab ladder --storages sqlite --users 200
      run without a database server
  workerlab ladder --find-limit 'p95<2s'
      also find how many users the first step serves before it misses this target
  workerlab ladder --resume results/20261120-101500-ladder --trials 12
      add launches to each step of a run
  workerlab report results --html ladder.html
      write the newest run as a page with its charts
"""


def _url(kind: str) -> Option[str | None]:
    """The address of a service, which may contain a password: it is not stored."""
    service = KINDS[kind]
    text = f"use this {service.name} instead of starting one"
    return option(str, "URL", text, flag=service.option, resumes=True)


class LadderOptions(RunOptions, GunicornInTurn):
    """The blog needs this interpreter's packages: no other interpreter can be chosen."""

    quick = flag("fewer users, shorter loads, one launch per step")
    users = option(read.whole, "N", "concurrent users (1000)")
    trials = option(
        read.whole, "N", "fresh launches per step (3); --resume can add more", resumes=True
    )
    duration = option(read.duration, "S", "seconds per load (6)")
    workers = option(read.whole, "N", "workers in the first steps (2)", default=2)
    tools = option(
        read.names_of("load tool that verifies every page", LADDER_TOOLS),
        "LIST",
        f"load tools that verify every page: {', '.join(LADDER_TOOLS)} (locust-fast,fast)",
    )
    storages = option(
        read.names_of("storage", STORAGES),
        "LIST",
        f"storages, in the order of the steps: {', '.join(STORAGES)} (the available servers;"
        " sqlite if none)",
    )
    load_hosts = option(
        read.hosts,
        "LIST",
        f"machines that send the load: a,b (this one); {' or '.join(LADDER_TOOLS[:2])} only",
        default=(),
    )
    find_limit = option(
        read.slo_target,
        "TARGET",
        "double the users until the first step misses TARGET or is unstable"
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
        " workers, Redis, MongoDB (for PostgreSQL), the second worker, async. Reports how much each"
        " contributed, where the time goes, and whether app, storage or load tool set the limit."
    )
    parser.epilog = EXAMPLES
    add_record(parser, LadderOptions)
