"""What the null server counts, and the file it writes it to."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Mapping
from typing import Any

from harness.numbers.histogram import Histogram

AT_ONCE = 8192  # spans that wait to be counted: many at once cost less than one by one


class Tally:
    """`spans`: nanoseconds from a request read to its answer sent, not counted yet."""

    def __init__(self, path: str | None) -> None:
        self.requests = 0
        self.connections = 0
        self.most_connections_at_once = 0
        self.delays_ns = 0
        self.spans: list[int] = []
        self._service = Histogram()
        self._path = path

    def count_spans(self) -> None:
        self._service.record_all(self.spans)
        self.spans.clear()

    def write(self) -> None:
        if self._path is None:
            return
        self.count_spans()
        used = resource.getrusage(resource.RUSAGE_SELF)
        document = {
            "requests": self.requests,
            "connections": self.connections,
            "most_connections_at_once": self.most_connections_at_once,
            "cpu_s": used.ru_utime + used.ru_stime,
            "delays_s": self.delays_ns / 1e9,
            "service": self._service.to_json(),
        }
        publish(self._path, document)


def publish(path: str, document: Mapping[str, Any]) -> None:
    """Replaced at once: a reader finds a whole one at any moment."""
    with open(f"{path}.part", "w") as file:
        json.dump(document, file)
    os.replace(f"{path}.part", path)
