"""The command line of `workerlab advise`: an app, a target, and the limits of the machine."""

import argparse
import re

from workerlab import options as read
from workerlab.experiments.sweep_options import AppOptions
from workerlab.options import Options, RunOptions, Serves, add_record, flag, option
from workerlab.server.worker_classes import SERVERS

MIN_RPS = 0.1
EXAMPLES = """\
examples:
  workerlab advise --app shop.wsgi:app --chdir ~/shop --rate 50 --slo 'p95<300ms,errors<0.1%'
      which class, how many workers and threads, for 50 requests/s?
  workerlab advise --app shop.asgi:app --chdir ~/shop --config ~/shop/gunicorn.conf.py \\
      --rate 200 --slo 'p99<1s' --classes asgi,uvicorn
      with the app's own Gunicorn file, ASGI classes only
  workerlab advise --app shop.wsgi:app --rate 50 --slo 'p95<300ms' --cores 4 --memory 2G \\
      --max-in-flight 20
      for a machine with 4 cores and 2 GB, and a database pool of 20 connections
  workerlab advise --app shop.wsgi:app --rate 50 --slo 'p95<300ms' --classes sync,gthread \\
      --gunicorn 25.3.0,27.0.1 --budget 10m
      also compares versions of Gunicorn; --python python3.11,python3.13 compares interpreters
  workerlab advise --rate 3 --slo 'p95<1.5s'
      the bundled app, which sleeps a second
  workerlab advise --resume results/20261120-101500-advise
      continue after Ctrl-C
"""

EXIT_CODES = """\
Exit codes: 0 a file was written; 1 the budget or the machine did not allow an answer; 2 usage;
3 this machine or app cannot do it, or the file cannot be written; 4 no candidate meets the target;
130 Ctrl-C, 143 SIGTERM, after printing the results so far.
"""

MIN_BYTES = 1 << 20  # smaller values probably lack a unit
UNIT_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size(text: str) -> int:
    """Bytes from '512M', '2G' or '2GiB'. Raises BadArgument."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None or (size_bytes := float(match[1]) * UNIT_BYTES[match[2].upper()]) < 1:
        raise read.BadArgument(f"{text!r} is not an amount of memory, such as 512M or 2G")
    if size_bytes < MIN_BYTES:
        raise read.BadArgument(f"{text!r} is less than a worker needs: give a unit, such as 512M")
    return int(size_bytes)


def core_count(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise read.BadArgument(f"{text!r} is not a number of cores") from None
    if not 1 <= value <= 1024:
        raise read.BadArgument(
            f"{text} cores: must be 1 to 1024, since servers cannot be confined to less than one"
        )
    return value


def arrival_rate(text: str) -> float:
    try:
        float(text.removesuffix("%"))
    except ValueError:
        message = f"{text!r} is not a number of requests per second, such as 50"
        raise read.BadArgument(message) from None
    rate_rps = read.rate(text).rps
    if rate_rps is None:
        raise read.BadArgument(f"{text} is a share of unknown capacity: give requests/s")
    if rate_rps < MIN_RPS:
        raise read.BadArgument(f"{text} requests/s is too few: must be at least {MIN_RPS}")
    return rate_rps


def time_limit(text: str) -> float:
    """Seconds from '300', '300s', '5m' or '5 min'. Raises BadArgument."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(s|sec|m|min|h)?\s*", text)
    seconds = float(match[1]) * {"m": 60, "h": 3600}.get((match[2] or "s")[0], 1) if match else 0
    if not 30 <= seconds <= 6 * 3600:
        raise read.BadArgument(f"{text!r} is not a time of 30 s to 6 hours, such as 5m or 300")
    return seconds


class TargetOptions(Options):
    rate = option(arrival_rate, "N", "arrival rate in requests/s (required)")
    slo = option(
        str,
        "TEXT",
        "the target at that rate: 'p95<300ms,errors<0.1%%' (required)",
        in_project=True,
    )
    budget = option(time_limit, "TIME", "how long it may take, at least 30s (5m)", resumes=True)
    arrivals = option(
        read.arrivals,
        "KIND",
        "how requests arrive: poisson, at random like independent users, or even (poisson)",
        default="poisson",
    )
    seed = option(
        read.seed, "N", "seed of the arrivals; the same one gives the same schedules (random)"
    )


class MachineOptions(Options):
    classes = option(
        read.servers,
        "LIST",
        "worker classes to consider (all but eventlet, which Gunicorn 26 removed), or other"
        f" servers: {', '.join(SERVERS)}",
    )
    cores = option(core_count, "N", "cores of the machine that will serve the app (this one's)")
    memory = option(size, "SIZE", "its memory, such as 512M or 2G (this one's)")
    max_workers = option(
        read.whole,
        "N",
        "maximum number of workers (2 x cores + 1; at least 16 for sync and tornado)",
    )
    max_in_flight = option(
        read.whole,
        "N",
        "maximum requests in the app at once, over all workers, such as a database pool's size",
    )
    not_thread_safe = flag("a worker must not serve two requests at once")


class AdviseOptions(TargetOptions, MachineOptions, AppOptions, Serves, RunOptions):
    sleep = option(read.seconds, "S", "sleep of the bundled app (1)", before="resume")
    write = option(
        str, "FILE", "also write the file to FILE, which must not exist", before="resume"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Find the worker class, workers and threads with which an app meets a target at an arrival"
        " rate, by prediction and measurement, and write the gunicorn.conf.py; for another server,"
        " a script that starts it."
    )
    parser.epilog = f"{EXAMPLES}\n{read.PROJECT}\n{EXIT_CODES}"
    groups = {
        "the target": TargetOptions,
        "limits": MachineOptions,
        "your app": AppOptions,
        "what serves it": Serves,
    }
    add_record(parser, AdviseOptions, groups)
