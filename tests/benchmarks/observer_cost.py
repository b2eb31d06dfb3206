"""The cost of the observer: CPU per sample of each sampler, and its share of a core.

    python -m tests.benchmarks.observer_cost [20,100,1000] [--samples 15]
    python -m tests.benchmarks.observer_cost --processes 4,100
    python -m tests.benchmarks.observer_cost --load sync,uvicorn [--pairs 20]

The first form holds that many connections open, half of them accepted by a process in place of the
workers. Samples are taken at the observer's own intervals: without pauses they would cost a third,
because the kernel's tables would still be in the processor's cache.

The second form observes that many processes: the cost of a whole sample, and of the run-queue times
of all threads.

The third form measures the loss of throughput: wrk loads a running hello-world server for a second
with and a second without an observer, in alternating order. Printed are the median and the
quartiles of the paired ratios with / without.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from tests.benchmarks.machine import alternating, wrk_rps
from tests.builders.launch import launch
from workerlab.model.plan import App, Server
from workerlab.observe.cpu import Processes, RunQueue
from workerlab.observe.observer import Observer, Sampler
from workerlab.server.preflight import raise_file_limit
from workerlab.server.running import Launch, Running
from workerlab.server.serve import serve
from workerlab.server.worker_classes import ASGI_CLASSES


def accept(listener: socket.socket, count: int, parent: Connection) -> None:
    """In place of a worker: accept `count` connections and hold them until the parent writes."""
    connections = [listener.accept() for _ in range(count)]
    parent.send(len(connections))
    parent.recv()


def cost_s(sampler: Sampler, samples: int) -> float:
    """The median CPU of a sample, at the observer's own intervals."""
    costs: list[float] = []
    for _ in range(samples):
        before_s = time.thread_time()
        sampler.take()
        costs.append(time.thread_time() - before_s)
        time.sleep(min(sampler.pause_s(costs[-1]), 1.0))
    return statistics.median(costs)


def samplers(connections: int, samples: int, each: Callable[[Sampler, float], None]) -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=connections))
        here, there = multiprocessing.Pipe()
        worker = multiprocessing.Process(target=accept, args=(listener, connections // 2, there))
        worker.start()
        stack.callback(worker.join)
        stack.callback(here.send, "end")
        host, port = listener.getsockname()
        for _ in range(connections):
            stack.enter_context(socket.create_connection((host, port)))
        here.recv()
        assert worker.pid is not None
        observer = Observer(Path("unused"), [(host, port, worker.pid)], [worker.pid])
        for sampler in observer.samplers:
            each(sampler, cost_s(sampler, samples))


def show_cost(levels: list[int], samples: int) -> None:
    print(f"{'connections':>11}  {'sampler':12} {'ms CPU':>7} {'every ms':>9} {'of a core':>9}")
    for connections in levels:

        def show(sampler: Sampler, sample_s: float, connections: int = connections) -> None:
            pause_s = statistics.mean(sampler.pause_s(sample_s) for _ in range(1000))
            share = f"{sample_s / (sample_s + pause_s):9.2%}"
            row = f"{1e3 * sample_s:7.2f} {1e3 * pause_s:9.0f} {share}"
            print(f"{connections:11}  {sampler.name:12} {row}", flush=True)

        samplers(connections, samples, show)


def wait(parent: Connection) -> None:
    parent.recv()


def show_processes(levels: list[int], samples: int) -> None:
    print(f"{'processes':>9}  {'sample ms CPU':>13} {'run queue':>9}")
    for count in levels:
        _, there = multiprocessing.Pipe()
        children = [multiprocessing.Process(target=wait, args=(there,)) for _ in range(count)]
        for process in children:
            process.start()
        pids = [os.getpid(), *(process.pid for process in children if process.pid)]
        sample_s, queue_s = (
            cost_s(Sampler("processes", sample, 0.25, 0.4), samples)
            for sample in (Processes(os.getpid()).sample, partial(RunQueue().sample, pids))
        )
        print(f"{count:9}  {1e3 * sample_s:13.2f} {1e3 * queue_s:9.2f}", flush=True)
        for process in children:
            process.terminate()
            process.join()


def hello(name: str, directory: Path) -> Launch:
    style = "asgi" if name in ASGI_CLASSES else "wsgi"
    app = App(f"apps.sleep_{style}:app", "", env=(("WORKERLAB_SLEEP", "0"),), sleep_s=0)
    return launch(directory, Server(name, 2, 1, 2048, 1000), app, records=0)


def rate(server: Running, directory: Path, observed: bool) -> float:
    listeners = [(server.host, server.port, server.process.pid)]
    with Observer(directory, listeners, tuple(server.proofs)) if observed else nullcontext():
        return wrk_rps(server.url)


def show_load(names: list[str], pairs: int, same: bool) -> None:
    for name in names:
        with tempfile.TemporaryDirectory(prefix="observer-cost-") as temporary:
            directory = Path(temporary)
            with serve(hello(name, directory)) as server:
                measure = partial(rate, server, directory)
                rates = alternating(pairs, lambda observed: measure(observed and not same))  # noqa: B023
        low, middle, high = statistics.quantiles((a / b for a, b in rates), n=4)
        print(f"{name:10} {middle:7.3f} {low:7.3f} {high:7.3f}   observed / not", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("levels", nargs="?", default="20,100,1000")
    parser.add_argument("--samples", type=int, default=15)
    parser.add_argument("--processes", help="numbers of processes, instead of connections")
    parser.add_argument("--load", help="compare the throughput of these worker classes")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--same", action="store_true", help="no observer at all: shows the noise")
    options = parser.parse_args()
    raise_file_limit()
    if options.load:
        show_load(options.load.split(","), options.pairs, options.same)
    elif options.processes:
        show_processes([int(level) for level in options.processes.split(",")], options.samples)
    else:
        show_cost([int(level) for level in options.levels.split(",")], options.samples)


if __name__ == "__main__":
    main()
