"""Reads what the observer saw during a trial, `observed.jsonl` in the trial's directory.

Its lines are described in `harness.observe.observer`. Whoever reads them wants to add up, so the
doubt about one line spreads to all that it may have belonged to: what is missing is said by
sampler, what was seen is kept. Of what is only there with some apps, nothing seen is not missing,
unless its sampler was lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from harness import codec
from harness.model import (
    AppMetricsSample,
    ConnectionSample,
    Counters,
    Observations,
    ProcessSample,
    QueueSample,
    ServiceSample,
)
from harness.observe.kernel import CountersSample

FILE = "observed.jsonl"
SAMPLERS = ("queue", "processes", "connections", "counters")
SOMETIMES = ("services", "app_metrics")  # not every app stands on something, or counts
SAMPLES: Mapping[str, type[Any]] = {  # by the names of their lines
    "queue": QueueSample,
    "processes": ProcessSample,
    "connections": ConnectionSample,
    "counters": CountersSample,
    "services": ServiceSample,
    "app_metrics": AppMetricsSample,
}


@dataclass(frozen=True)
class Header:
    """Of the machine."""

    cores: int | None
    syn_steps_s: tuple[float, ...]


@dataclass(frozen=True)
class Lost:
    """A sampler that failed, and is not asked again."""

    sampler: str
    reason: str


@dataclass
class _Lines:
    """What the lines hold; `whole`: they end as they should."""

    header: Header = Header(None, ())
    samples: Mapping[str, list[Any]] = field(default_factory=lambda: {name: [] for name in SAMPLES})
    lost: dict[str, str] = field(default_factory=dict)
    whole: bool = False

    def read(self, line: bytes | str) -> None:
        """Raises ValueError when it cannot be read."""
        name, value = codec.by_kind(line)
        if name in SAMPLES:
            self.samples[name].append(codec.decode(value, SAMPLES[name]))
        elif name == "lost":
            lost = codec.decode(value, Lost)
            self.lost[lost.sampler] = lost.reason
        elif name == "header":
            self.header = codec.decode(value, Header)
        elif name == "end":
            codec.decode(value, int)
            self.whole = True
        else:
            raise ValueError(f"nothing that is observed is called {name}")


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
    found, unread = _Lines(), ""
    for number, line in enumerate(lines, 1):
        try:
            found.read(line)
        except ValueError:
            unread = unread or f"line {number} of {FILE} cannot be read"
    samples = {name: tuple(each) for name, each in found.samples.items()}
    counters = samples.pop("counters")
    missing = _missing(found, unread)
    return Observations(
        **samples,
        counters=None if "counters" in missing else _growth(counters),
        cores=found.header.cores,
        syn_steps_s=found.header.syn_steps_s,
        intervals_s={
            name: median((later.at_ns - one.at_ns) / 1e9 for one, later in pairwise(each))
            for name, each in samples.items()
            if len(each) > 1
        },
        missing=missing,
    )


def _missing(found: _Lines, unread: str) -> dict[str, str]:
    """What gave nothing, or not all that it should have, and why."""
    missing = dict(found.lost)
    expected = (*SAMPLERS, *(name for name in SOMETIMES if found.samples[name]))
    for name in expected:
        if unread or not found.whole:
            missing.setdefault(name, unread or "the observation was cut short")
        if not found.samples[name]:
            missing.setdefault(name, "it was never looked at")
    if len(found.samples["counters"]) < 2:  # what they were says nothing, only how they grew
        missing.setdefault("counters", "they were not read at both ends of the load")
    return missing


def _growth(samples: Sequence[CountersSample]) -> Counters:
    """From the load's start to its end."""
    first, last = samples[0].counts, samples[-1].counts
    grown = {name: last[name] - first[name] for name in first if name in last}
    return codec.convert(grown, Counters)
