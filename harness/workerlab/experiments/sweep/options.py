"""The command line of `workerlab sweep`: axes and amounts, and the app that is measured."""

import argparse

from workerlab import options as read
from workerlab.load.registry import TOOLS
from workerlab.mix import RequestOptions
from workerlab.options import (
    Option,
    Options,
    RunOptions,
    ServedOptions,
    Serves,
    SloOptions,
    add_record,
    option,
    positional,
    repeatable,
)
from workerlab.server.worker_classes import CLASSES, SERVERS

EXAMPLES = """\
examples:
  workerlab sweep sync,eventlet 4,8,16
      where do these two classes stop serving more? (sleep(1) app, 4 workers, ApacheBench)
  workerlab sweep gthread 4,8,16,32 --threads 1,2,4
      threads as an axis
  workerlab sweep gthread 8,16,32 --workers 2 --threads 4 --tool wrk --keepalive off,on
      what does it cost that a kept-alive connection stays with its worker?
  workerlab sweep gevent,eventlet,uvicorn 2,4,8,16,32 --workers 2 --sleep 0.1 \\
      --cpu 0.02,0.05 --server-cores 1,2 --rounds 5 --explain
      how many connections per worker does each class use, by CPU per request and cores?
  workerlab sweep sync,gevent 2,4,8,16,32 --trials 3 --sleep 0.2
      repeated on fresh servers in random order: capacity with a 95 % interval
  workerlab sweep sync,gthread 2,4,8,16 --tool fast --rate 50%,80%,90%
      response times at a rate, whether or not earlier requests were answered
  workerlab sweep sync 4,8 --sleep 0.05 --rate 80%,90% --trials 5 --arrivals even --seed 7
      evenly spaced arrivals, which cause less waiting than real ones; and a repeatable run
  workerlab sweep gthread 64 --sleep 0.1 --tool fast --keepalive on --ramp 3 --duration 12
      the phases of a load: ramp-up, drain, steady, churn
  workerlab sweep gthread,gevent 8,64 --app shop.wsgi:app --chdir ~/shop \\
      --config ~/shop/gunicorn.conf.py --path /cart
      your own app, served by its own environment (~/shop/.venv), with your own Gunicorn file
  workerlab sweep sync,gthread 8,16 --gunicorn 23.0.0,25.3.0,27.0.1
      versions of Gunicorn as an axis; so are interpreters: --python python3.11,python3.13
  workerlab sweep gthread 8,32 --app shop.wsgi:app --access-log /var/log/nginx/access.log.1.gz
      ... under the requests that its users send (or those of a file: --mix)
  workerlab sweep gthread 8,16,32 --rate 100 --slo 'p95<300ms,errors<0.1%' --fail-on-slo
      up to which load does it meet a target? Exit code 4 if it never does
  workerlab sweep --resume results/20261120-101500-sync
      finish an interrupted run
"""


class LoadOptions(Options):
    """Servers and load, of a sweep and of a comparison. A LIST becomes an axis."""

    workers = option(read.whole_numbers, "LIST", "worker processes (4)")
    threads = option(read.whole_numbers, "LIST", "threads per worker, gthread only (2)")
    backlog = option(read.whole_numbers, "LIST", "length of the accept queue (2048)")
    worker_connections = option(read.whole, "N", "per gevent, eventlet or gthread worker (1000)")
    tool = option(read.tools, "LIST", f"of {', '.join(TOOLS)} (ab)")
    tool_processes = option(
        read.whole_numbers, "LIST", "processes of the load tool; they share the load (1)"
    )
    keepalive = option(read.keepalive, "LIST", "reuse connections: off, on or off,on (off)")
    rate = option(
        read.rates,
        "LIST",
        "after the closed levels, arrivals at a rate: 200 (requests/s) or 50%%,80%% (of the"
        " capacity)",
    )
    arrivals = option(
        read.arrivals,
        "KIND",
        "of requests at a rate: poisson, as users send them, or even (poisson)",
    )
    seed = option(
        read.seed, "N", "of arrival times and the order of trials, to repeat a run (random)"
    )
    duration = option(
        read.duration,
        "S",
        "load for S seconds, no more and no less, instead of counting requests",
    )
    client = option(
        read.client,
        "KIND",
        "closes its connection at once, or lingers: 5 s after its last answer (closes)",
    )
    sleep = option(read.seconds, "S", "seconds that the bundled app sleeps (1)")


class Axes(LoadOptions):
    """What only a sweep takes."""

    ramp = option(
        read.duration,
        "S",
        "start the connections one after the other, over S seconds",
        before="client",
    )
    load_hosts = option(
        read.hosts,
        "LIST",
        "machines that send the load: a,b (this one); locust only",
        before="sleep",
    )
    requests = option(read.whole, "N", "send N requests, as `ab -n N` does")
    cpu = option(
        read.list_of(read.seconds),
        "LIST",
        "CPU seconds that the bundled app computes per request, before it sleeps (0)",
    )
    server_cores = option(read.whole_numbers, "LIST", "cores that the server may use (all)")
    rounds = option(
        read.rounds,
        "N",
        "send 1 + N x concurrency requests, no more and no less (5, then as many as it takes to"
        " know the throughput within 5%%)",
    )
    max_seconds = option(
        read.duration,
        "S",
        "load for about S seconds at most where the throughput varies (30)",
    )
    jobs = option(
        read.jobs,
        "N",
        "cells at the same time, ten at most: N, or auto: as many as keep less than a third of the"
        " cores busy (auto for the bundled apps that sleep, 1 for any other)",
        resumes=True,
    )
    trials = option(read.whole, "N", "repetitions, each on a fresh server, in random order (1)")


class UsersApp(ServedOptions):
    app = option(
        read.target,
        "MODULE:CALLABLE",
        "the application, as Gunicorn spells it; or a bundled one: @sleep_wsgi, @sleep_flask, ...",
    )
    chdir = option(
        read.existing_directory, "DIR", "directory it is imported from (the current one)"
    )
    config = option(
        read.existing_file,
        "FILE",
        "your own Gunicorn file; it overrides the defaults, flags override it",
    )
    env = repeatable(read.setting, "K=V", "environment of the server (repeatable)")


class AppOptions(UsersApp, RequestOptions):
    """The app and its requests. `sleep`: seconds that the bundled app sleeps."""

    sleep = Option[float | None](None)


class SweepOptions(Axes, AppOptions, Serves, SloOptions, RunOptions):
    classes = positional(
        read.servers,
        "CLASSES",
        f"all, or any of {', '.join(CLASSES)}, or dotted paths of other classes; or other servers:"
        f" {', '.join(SERVERS)}",
    )
    levels = positional(read.levels, "LEVELS", "concurrency: 4,8,16")


GROUPS = {
    "axes and amounts (LIST: comma-separated, becomes an axis)": Axes,
    "your own app": AppOptions,
    "what serves it": Serves,
    "a target": SloOptions,
}


def add_options(to: argparse.ArgumentParser) -> None:
    to.description = (
        "Launch the app under each worker class, load it at each concurrency, and show where each"
        " class stops serving more."
    )
    to.epilog = f"{EXAMPLES}\n{read.PROJECT}\n{read.EXIT_CODES}"
    add_record(to, SweepOptions, GROUPS)
