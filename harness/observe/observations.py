"""Reads what the observer saw during a trial, `observed.jsonl` in the trial's directory.

Its lines are described in `harness.observe.observer`. Whoever reads them wants to add up, so the
doubt about one line spreads to all that it may have belonged to: what is missing is said by
sampler, what was seen is kept. Of what is only there with some apps, nothing seen is not missing,
unless its sampler was lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from harness.model import (
    AppMetricsSample,
    ConnectionSample,
    Counters,
    Observations,
    ProcessSample,
    QueueSample,
    ServiceSample,
)

FILE = "observed.jsonl"
SAMPLERS = ("queue", "processes", "connections", "counters")
SOMETIMES = ("parts", "ledger")  # not every app stands on something, or keeps a ledger


def read_observations(directory: Path) -> Observations:
    """All that was observed; what was not is named in `missing`, never taken for 0."""
    try:
        text = (directory / FILE).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return Observations(missing=dict.fromkeys(SAMPLERS, "the trial was not observed"))
    except OSError as error:
        return Observations(missing=dict.fromkeys(SAMPLERS, f"{FILE} cannot be read: {error}"))
    # What stands after the last newline is torn or empty
    return parse_observations(text.split("\n")[:-1])


class _Heard:
    """What the lines have said so far."""

    def __init__(self) -> None:
        self.header: Mapping[str, Any] = {}
        self.queue: list[QueueSample] = []
        self.processes: list[ProcessSample] = []
        self.connections: list[ConnectionSample] = []
        self.counts: list[Mapping[str, int]] = []
        self.parts: list[ServiceSample] = []
        self.ledger: list[AppMetricsSample] = []
        self.missing: dict[str, str] = {}
        self.whole = False

    def hear(self, line: str) -> None:
        """Raises ValueError, KeyError, TypeError or AttributeError when it cannot be read."""
        ((kind, said),) = json.loads(line).items()
        if kind == "queue":
            self.queue.append(QueueSample(**said))
        elif kind == "processes":
            self.processes.append(ProcessSample(**said))
        elif kind == "connections":
            by_pid = {int(pid): count for pid, count in said.pop("per_worker").items()}
            self.connections.append(ConnectionSample(**said, per_worker=by_pid))
        elif kind == "counters":
            self.counts.append(dict(said["counts"]))
        elif kind == "parts":
            cpu_s, rss_bytes = dict(said["cpu_s"]), dict(said["rss_bytes"])
            self.parts.append(ServiceSample(said["at_ns"], cpu_s, rss_bytes))
        elif kind == "ledger":
            self.ledger.append(AppMetricsSample(said["at_ns"], dict(said["totals"])))
        elif kind == "lost":
            self.missing[str(said["sampler"])] = str(said["reason"])
        elif kind == "header":
            self.header = {"cores": said["cores"], "syn_steps_s": tuple(said["syn_steps_s"])}
        elif kind == "end":
            self.whole = True
        else:
            raise ValueError(f"nothing that is observed is called {kind}")


def parse_observations(lines: Sequence[str]) -> Observations:
    heard, unread = _Heard(), ""
    for number, line in enumerate(lines, 1):
        try:
            heard.hear(line)
        except (ValueError, KeyError, TypeError, AttributeError):
            unread = unread or f"line {number} of {FILE} cannot be read"
    moments_ns = {
        "queue": [sample.at_ns for sample in heard.queue],
        "processes": [sample.at_ns for sample in heard.processes],
        "connections": [sample.at_ns for sample in heard.connections],
        "parts": [sample.at_ns for sample in heard.parts],
        "ledger": [sample.at_ns for sample in heard.ledger],
    }
    for name in (*SAMPLERS, *(name for name in SOMETIMES if moments_ns[name])):
        if name not in heard.missing and (unread or not heard.whole):
            heard.missing[name] = unread or "the observation was cut short"
    for name, at_ns in moments_ns.items():
        if not at_ns and name in SAMPLERS:
            heard.missing.setdefault(name, "it was never looked at")
    if len(heard.counts) < 2:  # what they were says nothing, only how they grew
        heard.missing.setdefault("counters", "they were not read at both ends of the load")
    return Observations(
        queue=tuple(heard.queue),
        processes=tuple(heard.processes),
        connections=tuple(heard.connections),
        counters=None if "counters" in heard.missing else _growth(heard.counts),
        parts=tuple(heard.parts),
        ledger=tuple(heard.ledger),
        intervals_s={
            name: median((later - one) / 1e9 for one, later in pairwise(at_ns))
            for name, at_ns in moments_ns.items()
            if len(at_ns) > 1
        },
        missing=heard.missing,
        **heard.header,
    )


def _growth(counts: Sequence[Mapping[str, int]]) -> Counters:
    """From the load's start to its end."""
    first, last = counts[0], counts[-1]
    return Counters(**{name: last[name] - first[name] for name in first if name in last})
