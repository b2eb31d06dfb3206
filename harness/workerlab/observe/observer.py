"""Samples the kernel and /proc while the load runs.

One thread of the harness calls its samplers in turn and appends their samples to `observed.jsonl`
in the trial's directory. A sampler that used t seconds of CPU rests for t / CPU_SHARE, within its
limits, so that sampling never becomes a load of its own. A random jitter lengthens the rest:
otherwise an app that sleeps 50 ms, sampled every 50 ms, would always be seen in the same phase.

    {"header": {"cores", "syn_steps_s"}}            first
    {"queue" | "processes" | "connections" | "counters": a sample}
    {"services": a sample}                          if the lab started services of the app
    {"app_metrics": a sample}                       if the app publishes them
    {"workers" | "memory": a sample}                if requested, the memory after the load
    {"pauses": a pause}                             the machine, or the lab, was paused
    {"lost": {"sampler", "reason"}}                 the sampler failed and is not tried again
    {"end": at_ns}                                  last; without it, samples may be missing

Lines are written at once and not synced: waiting for a disk would delay the next sample. Rejected:
a separate process (one start per trial), asyncio (reading /proc blocks anyway).

CPU and memory of the workers are read to compute what a request needs. CPU is read from the clock
of each process (`clock_getcpuclockid`), which the kernel sums up to this moment, including threads
that have ended; a sum over /proc/PID/task would lose these. On systems other than Linux, and for
the child processes of a worker, psutil is used.

Memory is the proportional set size (Pss) of /proc/PID/smaps: shared pages are divided between the
processes, so that a sum over all counts each page once. The lab's own maps in a worker are left
out: half a million spans would be 20 MB."""

from __future__ import annotations

import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
from msgspec import Struct

from workerlab import codec
from workerlab.model.evidence import MemorySample, QueueSample, WorkersSample
from workerlab.observe.app_metrics import sample_app_metrics
from workerlab.observe.cpu import Lab, Processes, ServiceCpus
from workerlab.observe.observations import FILE
from workerlab.observe.pauses import Pauses
from workerlab.observe.tcp import (
    AcceptQueues,
    Connections,
    CountersSample,
    sample_counters,
    syn_steps_s,
)

CPUCLOCK_SCHED = 2  # of a process's clock, in its lowest three bits (linux/posix-timers.h)
KB = 1024
MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")  # begins the lines of a mapping
SMAPS_FIELDS = ("Pss", "Private_Clean", "Private_Dirty")


def sample_workers(pids: Collection[int]) -> WorkersSample:
    """The CPU of each worker. Raises psutil.Error if one has ended or is hidden."""
    at_ns = time.monotonic_ns()
    return WorkersSample(at_ns, {pid: process_cpu_s(pid) for pid in pids})


def process_cpu_s(pid: int) -> float:
    """CPU seconds of a process since it began, and of the children it has waited for."""
    times = psutil.Process(pid).cpu_times()
    own_s = float(times.user + times.system)
    if sys.platform == "linux":
        own_s = time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)
    return own_s + float(times.children_user + times.children_system)


class MappedMemory(Struct, frozen=True):
    """Memory in bytes."""

    pss: int
    private: int


def sample_memory(
    masters: Iterable[int | None], workers: Iterable[int], directory: Path
) -> MemorySample | None:
    """Memory of servers and workers, without files mapped from `directory`, which are the lab's.
    None if the system has no Pss. Raises OSError if a process has ended or is hidden."""
    if not Path("/proc/self/smaps").exists():
        return None
    at_ns = time.monotonic_ns()
    masters_memory = [memory_of(_smaps(pid), directory) for pid in masters if pid is not None]
    by_worker = {pid: memory_of(_smaps(pid), directory) for pid in workers}
    pss = sum(memory.pss for memory in (*masters_memory, *by_worker.values()))
    return MemorySample(at_ns, pss, {pid: memory.private for pid, memory in by_worker.items()})


def _smaps(pid: int) -> str:
    return Path(f"/proc/{pid}/smaps").read_text(errors="replace")


def memory_of(smaps: str, excluded: Path) -> MappedMemory:
    """The memory of all mappings, except those of files in the directory `excluded`."""
    sums, is_counted = dict.fromkeys(SMAPS_FIELDS, 0), True
    for line in smaps.splitlines():
        if MAPPING.match(line):
            is_counted = str(excluded) not in line
        elif is_counted and (name := line.partition(":")[0]) in sums:
            sums[name] += int(line.split()[1]) * KB
    return MappedMemory(sums["Pss"], sums["Private_Clean"] + sums["Private_Dirty"])


CPU_SHARE = 0.015  # of a core, per sampler
PARALLEL_CPU_SHARE = 0.005  # while other trials are observed, too
JITTER = 0.25
SETUP_S = 5.0  # the load waits no longer than this for the first samples
GIVE_UP_S = 10.0  # no sampler takes that long; a trial must not hang on one


class Sampler(Struct):
    """The CPU cost of a sample determines when the next is due: `min_pause_s` to `max_pause_s`
    later."""

    name: str
    take: Callable[[], object]  # returns a sample; None: there is nothing to sample, now or later
    min_pause_s: float
    max_pause_s: float
    last: bool = True  # sample once more when the load ends: its sums cover the whole load
    due_s: float | None = 0.0  # CLOCK_MONOTONIC; None once it has failed
    share: float = CPU_SHARE

    def pause_s(self, cost_s: float) -> float:
        pause_s = min(max(cost_s / self.share, self.min_pause_s), self.max_pause_s)
        return pause_s * random.uniform(1.0, 1.0 + JITTER)


class Observer:
    """Samples until its `with` block ends, or until `stop`. Never raises."""

    def __init__(
        self,
        directory: Path,
        servers: Collection[tuple[str, int, int | None]],
        workers: Collection[int],
        states_s: float = 60.0,
        services: Mapping[str, int] | None = None,
        *,
        needs: bool = False,
        lab: Lab | None = None,
    ) -> None:
        """`servers`: host, port and the arbiter's pid of each instance; all are added up.
        `states_s`: the longest time between samples of the connections, however costly.
        `services`: pids of the app's services, by name. `needs`: sample the CPU of each worker, and
        its memory after the load. `lab`: set if other trials run at the same time."""
        addresses = [(host, port) for host, port, _ in servers]
        masters = [pid for _, _, pid in servers]
        self.latest: dict[str, object] = {}  # the newest sample, by sampler
        self._path = directory / FILE
        self._queues = AcceptQueues(addresses)
        self._processes = Processes(*masters, lab=lab)
        connections = Connections(addresses, workers)
        self.samplers = self._standard_samplers(connections, directory, states_s)
        if services:
            self.samplers.append(Sampler("services", ServiceCpus(services).sample, 0.25, 0.4))
        self._final_samplers: list[Sampler] = []  # called once, when the load has ended
        if needs:
            self.samplers.append(Sampler("workers", partial(sample_workers, workers), 0.1, 0.4))
            memory = partial(sample_memory, masters, workers, directory)
            self._final_samplers.append(Sampler("memory", memory, 0.0, 0.0))
        if lab is not None:
            for sampler in self.samplers:
                sampler.share = PARALLEL_CPU_SHARE
        self._tool_wait_s: float | None = None
        self._started, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)

    def _standard_samplers(
        self, connections: Connections, directory: Path, states_s: float
    ) -> list[Sampler]:
        metrics = partial(sample_app_metrics, directory)
        return [
            # At least every 100 ms, including jitter
            Sampler("queue", self._queues.sample, 0.05, 0.1 / (1 + JITTER), last=False),
            Sampler("connections", connections.sample, min(0.1, states_s), states_s),
            # At least every half second, including jitter, even if a hundred processes cost more
            # than the share: a load of a few seconds has no other measure of its CPU
            Sampler("processes", self._processes.sample, 0.25, 0.4),
            Sampler("counters", self._counters, 1.0, 5.0),
            Sampler("app_metrics", metrics, 0.1, 0.4),
        ]

    def __enter__(self) -> Observer:
        """Returns once the first samples are taken, so that later ones measure the load."""
        try:
            self._thread.start()
            self._started.wait(SETUP_S)
        except RuntimeError:
            pass  # no thread available: nothing is written, and the reader reports it missing
        except BaseException:
            self._stop.set()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def latest_queue(self) -> int | None:
        sample = self.latest.get("queue")
        return sample.length if isinstance(sample, QueueSample) else None

    def follow(self, tool_pid: int | None) -> None:
        self._processes.follow(tool_pid)

    def stop(self, tool_wait_s: float | None = None) -> None:
        """Take the last samples now, and end. `tool_wait_s`: how long the load tool's main thread
        waited for a core until it ended, if its guard could read that."""
        self._tool_wait_s = tool_wait_s
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(GIVE_UP_S)

    def _counters(self) -> CountersSample:
        return sample_counters(self._queues.drops())

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                stack.callback(os.close, handle)
                pauses = Pauses()
                stack.callback(pauses.close)
                self._observe(handle, pauses)
        except OSError:
            pass  # nothing more can be written; the reader reports the missing end
        finally:
            self._started.set()

    def _observe(self, handle: int, pauses: Pauses) -> None:
        _write(handle, "header", {"cores": os.cpu_count(), "syn_steps_s": syn_steps_s()})
        for sampler in self.samplers:
            self._take(handle, sampler)
        self._started.set()
        while True:
            if (pause := pauses.sleep(self._stop, self._pause_s())) is not None:
                _write(handle, "pauses", pause)
            if self._stop.is_set():
                break
            now_s = time.monotonic()
            for sampler in self.samplers:
                if sampler.due_s is not None and sampler.due_s <= now_s:
                    self._take(handle, sampler)
        self._processes.tool_ended(self._tool_wait_s)
        for sampler in (*self.samplers, *self._final_samplers):
            if sampler.last and sampler.due_s is not None:
                self._take(handle, sampler)
        _write(handle, "end", time.monotonic_ns())

    def _pause_s(self) -> float:
        due_s = [sampler.due_s for sampler in self.samplers if sampler.due_s is not None]
        return max(0.0, min(due_s) - time.monotonic()) if due_s else threading.TIMEOUT_MAX

    def _take(self, handle: int, sampler: Sampler) -> None:
        before_s, sampler.due_s = time.thread_time(), None
        try:
            sample = sampler.take()
        except Exception as error:  # other samplers and the trial go on
            reason = str(error) or type(error).__name__
            _write(handle, "lost", {"sampler": sampler.name, "reason": reason})
            return
        if sample is not None:
            self.latest[sampler.name] = sample
            _write(handle, sampler.name, sample)
            sampler.due_s = time.monotonic() + sampler.pause_s(time.thread_time() - before_s)


def _write(handle: int, kind: str, value: object) -> None:
    """Raises OSError if the line does not fit on the disk."""
    line = codec.encode({kind: value}) + b"\n"
    if os.write(handle, line) < len(line):
        raise OSError("the disk is full")
