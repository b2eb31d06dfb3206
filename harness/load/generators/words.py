"""The words that all generators understand, checked: who cannot do one refuses it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

# What not every generator can do: a field of Words, and its option
OPTIONAL = {"processes": "--processes", "rate_rps": "--rate", "sources": "--source",
            "ports": "--ports", "rows": "--rows"}  # fmt: skip


@dataclass(frozen=True)
class Words:
    """What a generator is asked to do. Exactly one of `requests` and `duration_s` is known."""

    urls: tuple[str, ...]
    concurrency: int  # connections kept busy, of all processes; with a rate the most at once
    requests: int | None = None
    duration_s: float | None = None
    processes: int = 1
    keepalive: bool = False
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None  # of each request
    expect_status: int = 200
    deadline_s: float = 3600.0  # when the whole run gives up
    rate_rps: float | None = None
    ramp_s: float = 0.0
    sources: tuple[str, ...] = ()
    ports: tuple[int, int] | None = None  # the local ones to use
    same_body: bool = False
    rows: str | None = None  # a file to write a line per request to

    def judge(self, status: int | None) -> str | None:
        """The cause of the failure that a complete answer of this status is, None for a success."""
        if self.expect_status == 200:  # as good as any 2xx where nobody said otherwise
            return None if status is not None and 200 <= status < 300 else "non_2xx"
        return None if status == self.expect_status else "status"


class Parser(argparse.ArgumentParser):
    """One sentence instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small: must be at least 1")
    return number


def amount(text: str) -> float:
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme != "http" or not parts.hostname:
        raise argparse.ArgumentTypeError(f"not a http:// address: {text}")
    return text


def header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not (colon and name.strip()) or any(c in text for c in "\r\n\0"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a header")
    return name.strip(), value.strip()


def port_range(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    if not dash or not 1 <= int(low) <= int(high) <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of ports, LO-HI")
    return int(low), int(high)


def parse(argv: Sequence[str] | None, name: str, supports: Collection[str] = ()) -> Words:
    """SystemExit(2) with one sentence for words that are off, or of OPTIONAL and not among
    `supports`. OSError where the body cannot be read."""
    parser = Parser(
        prog=name,
        description=f"The load generator {name}: one JSON document.",
        argument_default=argparse.SUPPRESS,  # what is not given has the default of Words
    )
    _add(parser)
    given: dict[str, Any] = vars(parser.parse_args(argv))
    if "duration_s" in given:
        given.setdefault("deadline_s", given["duration_s"] + 60.0)
    given["ramp_s"] = max(0.0, given.get("ramp_s", 0.0))
    for several in given.keys() & {"urls", "headers"}:
        given[several] = tuple(given[several])
    words = Words(**given)
    for field, option in OPTIONAL.items():
        if field not in supports and getattr(words, field) != getattr(Words, field):
            parser.error(f"{option} is more than this generator can do")
    if words.rate_rps and words.duration_s is None:
        parser.error("--rate needs --duration")
    if words.processes > words.concurrency:
        parser.error("more processes than connections")
    return words


def _add(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--url", dest="urls", metavar="URL", type=url, action="append", required=True,
        help="repeatable: one at random each")  # fmt: skip
    add("--concurrency", type=positive, required=True, help="connections kept busy")
    amounts = parser.add_mutually_exclusive_group(required=True)
    amounts.add_argument("--requests", type=positive)
    amounts.add_argument("--duration", dest="duration_s", metavar="DURATION", type=amount,
                         help="seconds")  # fmt: skip
    add("--processes", type=positive)
    add("--keepalive", action="store_true", help="reuse connections")
    add("--method")
    add("--header", dest="headers", metavar="HEADER", type=header, action="append",
        help="'Name: value', repeatable")  # fmt: skip
    add("--body-file", dest="body", metavar="BODY_FILE", type=lambda path: Path(path).read_bytes())
    add("--expect-status", type=positive)
    add("--deadline", dest="deadline_s", metavar="DEADLINE", type=amount,
        help="seconds for the whole run (3600; or 60 after --duration)")  # fmt: skip
    add("--rate", dest="rate_rps", metavar="RATE", type=amount,
        help="open model: arrivals per second")  # fmt: skip
    add("--ramp", dest="ramp_s", metavar="RAMP", type=float,
        help="seconds over which the connections begin")  # fmt: skip
    add("--source", dest="sources", metavar="SOURCE", type=lambda text: tuple(text.split(",")),
        help="local addresses to connect from, by commas")  # fmt: skip
    add("--ports", type=port_range, help="local ports to connect from, LO-HI (Linux 6.3)")
    add("--same-body", action="store_true", help="every body must equal the first one")
    add("--rows", help="file to write a row per request to")
