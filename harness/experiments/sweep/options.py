"""The command line of `workerlab sweep`: axes and amounts, and the app that is measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from harness.load.registry import TOOLS
from harness.options import (
    EXIT_CODES,
    add_common,
    classes,
    duration,
    existing_directory,
    existing_file,
    header,
    hosts,
    interpreter,
    keepalive,
    levels,
    method,
    parsed,
    rates,
    rounds,
    seconds,
    setting,
    status,
    target,
    tools,
    url_path,
    whole,
    whole_numbers,
)
from harness.server.worker_classes import CLASSES

EXAMPLES = """\
examples:
  workerlab sweep sync,eventlet 4,8,16
      where do these two classes stop serving more? (sleep(1) app, 4 workers, ApacheBench)
  workerlab sweep gthread 4,8,16,32 --threads 1,2,4
      threads as an axis
  workerlab sweep gthread 8,16,32 --workers 2 --threads 4 --tool wrk --keepalive off,on
      what does it cost that a kept-alive connection stays with its worker?
  workerlab sweep sync,gevent 2,4,8,16,32 --trials 3 --sleep 0.2
      repeated on fresh servers in random order: capacity with a 95 % interval
  workerlab sweep sync,gthread 2,4,8,16 --tool fast --rate 50%,80%,90%
      response times at a rate, whether or not earlier requests were answered
  workerlab sweep gthread 64 --sleep 0.1 --tool fast --keepalive on --ramp 3 --duration 12
      the phases of a load: ramp-up, drain, steady, churn
  workerlab sweep gthread,gevent 8,64 --app shop.wsgi:app --chdir ~/shop \\
      --python ~/shop/.venv/bin/python --config ~/shop/gunicorn.conf.py --path /cart
      your own app, in its own environment, with your own Gunicorn file
  workerlab sweep --resume results/20261120-101500-sync
      finish an interrupted run
"""


def add_options(to: argparse.ArgumentParser) -> None:
    to.description = (
        "Launch the app under each worker class, load it at each concurrency, and show where each"
        " class stops serving more."
    )
    to.epilog = f"{EXAMPLES}\n{EXIT_CODES}"
    known = f"all, or of {','.join(CLASSES)}, or dotted paths of other classes"
    to.add_argument("classes", metavar="CLASSES", nargs="?", type=parsed(classes), help=known)
    to.add_argument(
        "levels", metavar="LEVELS", nargs="?", type=parsed(levels), help="concurrency: 4,8,16"
    )
    _add_axes(to.add_argument_group("axes and amounts (LIST: comma-separated, becomes an axis)"))
    _add_app(to.add_argument_group("your own app"))
    add_common(to)


def _add_axes(axes: argparse._ArgumentGroup) -> None:
    def add(name: str, kind: Callable[[str], object], text: str, metavar: str = "LIST") -> None:
        axes.add_argument(name, type=parsed(kind), metavar=metavar, default=None, help=text)

    add("--workers", whole_numbers, "worker processes (4)")
    add("--threads", whole_numbers, "threads per worker, gthread only (2)")
    add("--backlog", whole_numbers, "length of the accept queue (2048)")
    add("--worker-connections", whole, "per gevent, eventlet or gthread worker (1000)", "N")
    add("--tool", tools, f"of {','.join(TOOLS)} (ab)")
    add("--tool-processes", whole_numbers, "processes of the load tool; they share the load (1)")
    add("--keepalive", keepalive, "reuse connections: off, on or off,on (off)")
    add("--rate", rates, "then arrivals at a rate: 200 (requests/s) or 50%%,80%% (of the capacity)")
    add("--duration", duration, "load for S seconds instead of counting requests", "S")
    add("--ramp", duration, "start the connections one after the other, over S seconds", "S")
    add("--load-hosts", hosts, "machines that send the load: a,b (this one); locust only")
    add("--sleep", seconds, "seconds that the bundled app sleeps (1)", "S")
    add("--rounds", rounds, "requests = 1 + rounds x concurrency (5)", "N")
    add("--trials", whole, "repetitions, each on a fresh server, in random order (1)", "N")


def _add_app(app: argparse._ArgumentGroup) -> None:
    def add(name: str, kind: Callable[[str], object], metavar: str, text: str) -> None:
        app.add_argument(name, type=parsed(kind), metavar=metavar, default=None, help=text)

    def add_many(name: str, kind: Callable[[str], object], metavar: str, text: str) -> None:
        app.add_argument(
            name, type=parsed(kind), metavar=metavar, action="append", default=None, help=text
        )

    add("--app", target, "MODULE:CALLABLE", "the application, as Gunicorn spells it")
    add("--chdir", existing_directory, "DIR", "directory it is imported from (the current one)")
    add("--python", interpreter, "PATH", "interpreter of its environment, which runs the server")
    add("--config", existing_file, "FILE", "your own Gunicorn file; it overrides the defaults")
    add_many("--env", setting, "K=V", "environment of the server (repeatable)")
    add("--path", url_path, "PATH", "path to request (/)")
    add("--method", method, "NAME", "HTTP method (GET)")
    add_many("--header", header, "'K: V'", "request header (repeatable)")
    add("--body-file", existing_file, "FILE", "request body")
    add("--expect-status", status, "CODE", "status that counts as success (200)")
