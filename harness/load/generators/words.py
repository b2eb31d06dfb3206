"""The words that all generators understand, checked: who cannot do one refuses it.

python harness/load/generators NAME --url URL --concurrency C (--requests N | --duration S) ...
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import urlsplit

# What not every generator can do; the others all can.
OPTIONAL = frozenset(
    {"processes", "rate", "ramp", "source", "ports", "rows", "timeout", "urls", "same_body"}
)


@dataclass(frozen=True)
class Words:
    """What a generator is asked to do. Exactly one of `requests` and `duration_s` is known.

    `concurrency`: connections kept busy, of all processes together; with `rate_rps` the most at
    once. `deadline_s`: when the whole run gives up. `timeout_s`: when one request does. `body`: of
    each request. `rows`: a file to write a line per request to. `ports`: the local ones to use.
    """

    urls: tuple[str, ...]
    concurrency: int
    requests: int | None = None
    duration_s: float | None = None
    processes: int = 1
    keepalive: bool = False
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    expect_status: int = 200
    deadline_s: float = 3600.0
    timeout_s: float | None = None
    rate_rps: float | None = None
    ramp_s: float = 0.0
    sources: tuple[str, ...] = ()
    ports: tuple[int, int] | None = None
    same_body: bool = False
    rows: str | None = None

    def judge(self, status: int | None) -> str | None:
        """The cause of the failure that a complete answer of this status is, None for a success.

        200 is as good as any 2xx where nobody said otherwise.
        """
        if self.expect_status == 200:
            return None if status is not None and 200 <= status < 300 else "non_2xx"
        return None if status == self.expect_status else "status"


class Parser(argparse.ArgumentParser):
    """One sentence instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small: must be at least 1")
    return number


def amount(text: str) -> float:
    """A finite number above 0."""
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme != "http" or not parts.hostname:
        raise argparse.ArgumentTypeError(f"not a http:// address: {text}")
    return text


def header(text: str) -> tuple[str, str]:
    """(name, value) of "Name: value"."""
    name, colon, value = text.partition(":")
    if not (colon and name.strip()) or any(c in text for c in "\r\n\0"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a header")
    return name.strip(), value.strip()


def port_range(text: str) -> tuple[int, int]:
    """(lowest, highest) of "LO-HI"."""
    low, dash, high = text.partition("-")
    if not dash or not 1 <= int(low) <= int(high) <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of ports, LO-HI")
    return int(low), int(high)


def parse(argv: Sequence[str] | None, name: str, supports: Collection[str] = ()) -> Words:
    """SystemExit(2) and one sentence on standard error for words that are off, or of OPTIONAL and
    not among `supports`. OSError where the body cannot be read."""
    parser = Parser(prog=name, description=f"The load generator {name}: one JSON document.")
    _add(parser)
    found = parser.parse_args(argv)
    asked = {
        "processes": found.processes > 1, "rate": found.rate, "ramp": found.ramp,
        "source": found.source, "ports": found.ports, "rows": found.rows,
        "timeout": found.timeout, "urls": len(found.url) > 1, "same_body": found.same_body,
    }  # fmt: skip
    for what, said in asked.items():
        if said and what not in supports:
            parser.error(f"--{what.replace('_', '-')} is more than this generator can do")
    if found.rate and found.duration is None:
        parser.error("--rate needs --duration")
    if found.processes > found.concurrency:
        parser.error("more processes than connections")
    return _words(found)


def _add(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--url", type=url, action="append", required=True, help="repeatable: one at random each")
    add("--concurrency", type=positive, required=True, help="connections kept busy")
    amounts = parser.add_mutually_exclusive_group(required=True)
    amounts.add_argument("--requests", type=positive)
    amounts.add_argument("--duration", type=amount, help="seconds")
    add("--processes", type=positive, default=1)
    add("--keepalive", action="store_true", help="reuse connections")
    add("--method", default="GET")
    add("--header", type=header, action="append", default=[], help="'Name: value', repeatable")
    add("--body-file")
    add("--expect-status", type=positive, default=200)
    add("--deadline", type=amount, help="seconds for the whole run (3600; or 60 after --duration)")
    add("--timeout", type=amount, help="seconds for one request")
    add("--rate", type=amount, help="open model: arrivals per second")
    add("--ramp", type=float, default=0.0, help="seconds over which the connections begin")
    add("--source", help="local addresses to connect from, by commas")
    add("--ports", type=port_range, help="local ports to connect from, LO-HI (Linux 6.3)")
    add("--same-body", action="store_true", help="every body must equal the first one")
    add("--rows", help="file to write a row per request to")


def _words(found: argparse.Namespace) -> Words:
    body = None
    if found.body_file is not None:
        with open(found.body_file, "rb") as file:
            body = file.read()
    return Words(
        urls=tuple(found.url),
        concurrency=found.concurrency,
        requests=found.requests,
        duration_s=found.duration,
        processes=found.processes,
        keepalive=found.keepalive,
        method=found.method,
        headers=tuple(found.header),
        body=body,
        expect_status=found.expect_status,
        deadline_s=found.deadline or (found.duration + 60.0 if found.duration else 3600.0),
        timeout_s=found.timeout,
        rate_rps=found.rate,
        ramp_s=max(0.0, found.ramp),
        sources=tuple(found.source.split(",")) if found.source else (),
        ports=found.ports,
        same_body=found.same_body,
        rows=found.rows,
    )
