"""The options of a sweep: axes, amounts, and the app to measure. `compare` and `advise` share some
of them; `planning` makes a plan from them."""

from workerlab import options as read
from workerlab.load.registry import TOOLS
from workerlab.mix import RequestOptions
from workerlab.options import (
    Option,
    Options,
    RunOptions,
    Serves,
    SloOptions,
    UsersApp,
    option,
    positional,
)
from workerlab.server.worker_classes import CLASSES, SERVERS


class CellOptions(Options):
    """Options for servers and load, shared by sweeps and comparisons. A LIST becomes an axis."""

    workers = option(read.whole_numbers, "LIST", "worker processes (4)")
    threads = option(read.whole_numbers, "LIST", "threads per worker, gthread only (2)")
    backlog = option(read.whole_numbers, "LIST", "length of the accept queue (2048)")
    worker_connections = option(read.whole, "N", "per gevent, eventlet or gthread worker (1000)")
    tool = option(read.tools, "LIST", f"load tools: any of {', '.join(TOOLS)} (ab)")
    tool_processes = option(
        read.whole_numbers,
        "LIST",
        "processes of the load tool, which share the load (1)",
        default=(1,),
    )
    keepalive = option(
        read.keepalive, "LIST", "reuse connections: off, on or off,on (off)", default=(False,)
    )
    rate = option(
        read.rates,
        "LIST",
        "after the closed levels, requests that arrive at a rate: 200 (requests/s) or 50%%,80%% (of"
        " the capacity)",
        default=(),
    )
    arrivals = option(
        read.arrivals,
        "KIND",
        "spacing of requests at a rate: poisson (like independent users) or even (poisson)",
    )
    seed = option(
        read.seed, "N", "seed of arrival times and of the order of trials, to repeat a run (random)"
    )
    duration = option(
        read.duration,
        "S",
        "load for exactly S seconds, instead of counting requests",
    )
    client = option(
        read.client,
        "KIND",
        "closes its connection at once, or lingers for 5 s after its last response (closes)",
    )
    sleep = option(read.seconds, "S", "seconds that the bundled app sleeps (1)")


class Axes(CellOptions):
    """Options of sweeps only."""

    ramp = option(
        read.duration,
        "S",
        "start the connections one after the other, over S seconds",
        before="client",
        default=0.0,
    )
    load_hosts = option(
        read.hosts,
        "LIST",
        "machines that send the load, such as a,b (this one); only with locust",
        before="sleep",
        default=(),
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
        "send exactly 1 + N x concurrency requests (5, then as many as it takes to know the"
        " throughput within 5%%)",
        default=5,
    )
    max_seconds = option(
        read.duration,
        "S",
        "load for at most about S seconds if the throughput varies (30)",
        default=30.0,
    )
    jobs = option(
        read.jobs,
        "N",
        "cells to measure in parallel, at most ten: N, or auto: as many as keep less than a third"
        " of the cores busy (auto for bundled apps that sleep, 1 for any other)",
        resumes=True,
    )
    trials = option(
        read.whole, "N", "repetitions, each on a fresh server, in random order (1)", default=1
    )


class AppOptions(UsersApp, RequestOptions):
    """Options for the app and its requests. `sleep`: seconds that the bundled app sleeps."""

    sleep = Option[float | None](None)


class SweepOptions(Axes, AppOptions, Serves, SloOptions, RunOptions):
    classes = positional(
        read.servers,
        "CLASSES",
        f"all, or any of {', '.join(CLASSES)}, dotted paths of other classes, or other servers:"
        f" {', '.join(SERVERS)}",
        (),
    )
    levels = positional(read.levels, "LEVELS", "numbers of connections: 4,8,16", ())
