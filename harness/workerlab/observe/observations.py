"""Reads the observer's samples of a trial: `observed.jsonl` in the trial's directory.

Its lines are described in `workerlab.observe.observer`. An unreadable line makes every sampler that
may have written it incomplete: `missing` names them, and the samples read are kept. Samplers that
only some trials have are not missing if there are no samples, unless they failed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from workerlab import codec
from workerlab.model.evidence import (
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
from workerlab.observe.tcp import CountersSample

FILE = "observed.jsonl"
SAMPLERS = ("queue", "processes", "connections", "counters")
# Not all apps have services or metrics, not all trials measure the needs of requests, and machines
# are rarely paused
OPTIONAL_SAMPLERS = ("services", "app_metrics", "workers", "memory", "pauses")


class ObservationHeader(Struct, frozen=True):
    cores: int | None = None
    syn_steps_s: tuple[float, ...] = ()


class SamplerFailure(Struct, frozen=True):
    """A sampler that failed; it was not tried again."""

    sampler: str
    reason: str


class ObservationLine(Struct, forbid_unknown_fields=True):
    header: ObservationHeader | None = None
    queue: QueueSample | None = None
    processes: ProcessSample | None = None
    connections: ConnectionSample | None = None
    counters: CountersSample | None = None
    services: ServiceSample | None = None
    app_metrics: AppMetricsSample | None = None
    workers: WorkersSample | None = None
    memory: MemorySample | None = None
    pauses: Pause | None = None
    lost: SamplerFailure | None = None
    end: int | None = None

    def __post_init__(self) -> None:
        if all(getattr(self, name) is None for name in self.__struct_fields__):
            raise ValueError("an empty line")


def read_observations(directory: Path) -> Observations:
    """All samples; `missing` names the samplers that failed, which never count as 0."""
    try:
        data = (directory / FILE).read_bytes()
    except FileNotFoundError:
        return Observations(missing=dict.fromkeys(SAMPLERS, "the trial was not observed"))
    except OSError as error:
        return Observations(missing=dict.fromkeys(SAMPLERS, f"{FILE} cannot be read: {error}"))
    # After the last newline: nothing, or a line cut off
    return parse_observations(data.split(b"\n")[:-1])


def parse_observations(lines: Sequence[bytes | str]) -> Observations:
    entries, why_incomplete = list[ObservationLine](), ""
    for number, line in enumerate(lines, 1):
        try:
            entries.append(codec.decode(line, ObservationLine))
        except ValueError:
            why_incomplete = why_incomplete or f"line {number} of {FILE} cannot be read"
    by_kind: dict[str, tuple[Any, ...]] = {
        name: tuple(value for line in entries if (value := getattr(line, name)) is not None)
        for name in ObservationLine.__struct_fields__
    }
    if not why_incomplete and not by_kind["end"]:
        why_incomplete = "the observation was cut short"
    missing = _missing(by_kind, why_incomplete)
    header = by_kind["header"][0] if by_kind["header"] else ObservationHeader()
    samples = {name: by_kind[name] for name in (*SAMPLERS, *OPTIONAL_SAMPLERS)}
    counters = samples.pop("counters")
    return Observations(
        **samples,
        counters=None if "counters" in missing else _growth(counters),
        cores=header.cores,
        syn_steps_s=header.syn_steps_s,
        missing=missing,
    )


def _missing(by_kind: Mapping[str, Sequence[Any]], why_incomplete: str) -> dict[str, str]:
    """The samplers that lack samples, with the reason. `why_incomplete`: one for all, or ""."""
    missing = {lost.sampler: lost.reason for lost in by_kind["lost"]}
    for name in (*SAMPLERS, *(name for name in OPTIONAL_SAMPLERS if by_kind[name])):
        if why_incomplete or not by_kind[name]:
            missing.setdefault(name, why_incomplete or "never sampled")
    if len(by_kind["counters"]) < 2:  # only their growth matters
        missing.setdefault("counters", "not read both before and after the load")
    return missing


def _growth(samples: Sequence[CountersSample]) -> Counters:
    first, last = samples[0].counts, samples[-1].counts
    growth = {name: last[name] - first[name] for name in first if name in last}
    return codec.convert(growth, Counters)
