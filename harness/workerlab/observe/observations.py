"""Reads what the observer saw during a trial, `observed.jsonl` in the trial's directory.

Its lines are described in `workerlab.observe.observer`. The doubt about one line spreads to all
that it may have belonged to: what is missing is said by sampler, what was seen is kept. Of what is
only there with some apps, nothing seen is not missing, unless its sampler was lost.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from workerlab import codec
from workerlab.model import (
    AppMetricsSample,
    ConnectionSample,
    Counters,
    MemorySample,
    Observations,
    Pause,
    ProcessSample,
    QueueSample,
    ServiceSample,
    WorkersSample,
)
from workerlab.observe.kernel import CountersSample

FILE = "observed.jsonl"
SAMPLERS = ("queue", "processes", "connections", "counters")
# Not every app stands on something, or counts; not every trial asks what requests need; a machine
# seldom stands still
SOMETIMES = ("services", "app_metrics", "workers", "memory", "pauses")


class Header(Struct, frozen=True):
    cores: int | None = None
    syn_steps_s: tuple[float, ...] = ()


class Lost(Struct, frozen=True):
    """A sampler that failed, and is not asked again."""

    sampler: str
    reason: str


class Line(Struct, forbid_unknown_fields=True):
    header: Header | None = None
    queue: QueueSample | None = None
    processes: ProcessSample | None = None
    connections: ConnectionSample | None = None
    counters: CountersSample | None = None
    services: ServiceSample | None = None
    app_metrics: AppMetricsSample | None = None
    workers: WorkersSample | None = None
    memory: MemorySample | None = None
    pauses: Pause | None = None
    lost: Lost | None = None
    end: int | None = None

    def __post_init__(self) -> None:
        if all(getattr(self, name) is None for name in self.__struct_fields__):
            raise ValueError("a line says something")


def read_observations(directory: Path) -> Observations:
    """All that was observed; what was not is named in `missing`, never taken for 0."""
    try:
        data = (directory / FILE).read_bytes()
    except FileNotFoundError:
        return Observations(missing=dict.fromkeys(SAMPLERS, "the trial was not observed"))
    except OSError as error:
        return Observations(missing=dict.fromkeys(SAMPLERS, f"{FILE} cannot be read: {error}"))
    # What stands after the last newline is torn or empty
    return parse_observations(data.split(b"\n")[:-1])


def parse_observations(lines: Sequence[bytes | str]) -> Observations:
    read, unread = list[Line](), ""
    for number, line in enumerate(lines, 1):
        try:
            read.append(codec.decode(line, Line))
        except ValueError:
            unread = unread or f"line {number} of {FILE} cannot be read"
    found: dict[str, tuple[Any, ...]] = {
        name: tuple(value for one in read if (value := getattr(one, name)) is not None)
        for name in Line.__struct_fields__
    }
    if not unread and not found["end"]:
        unread = "the observation was cut short"
    missing = _missing(found, unread)
    header = found["header"][0] if found["header"] else Header()
    samples = {name: found[name] for name in (*SAMPLERS, *SOMETIMES)}
    counters = samples.pop("counters")
    return Observations(
        **samples,
        counters=None if "counters" in missing else _growth(counters),
        cores=header.cores,
        syn_steps_s=header.syn_steps_s,
        missing=missing,
    )


def _missing(found: Mapping[str, Sequence[Any]], unread: str) -> dict[str, str]:
    """What gave nothing, or not all that it should have, and why. `unread`: of all of them."""
    missing = {one.sampler: one.reason for one in found["lost"]}
    for name in (*SAMPLERS, *(name for name in SOMETIMES if found[name])):
        if unread or not found[name]:
            missing.setdefault(name, unread or "it was never looked at")
    if len(found["counters"]) < 2:  # what they were says nothing, only how they grew
        missing.setdefault("counters", "they were not read at both ends of the load")
    return missing


def _growth(samples: Sequence[CountersSample]) -> Counters:
    first, last = samples[0].counts, samples[-1].counts
    grown = {name: last[name] - first[name] for name in first if name in last}
    return codec.convert(grown, Counters)
