"""The command line of all generators, validated; each refuses options it does not support."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from workerlab.numbers.schedule import KINDS, schedule

# Fields of Words that not every generator supports
OPTIONAL = (
    "processes",
    "rate_rps",
    "arrivals",
    "seed",
    "sources",
    "ports",
    "rows",
    "mix",
    "linger_s",
)


@dataclass(frozen=True)
class Words:
    """The requested load. Exactly one of `requests` and `duration_s` is given."""

    urls: tuple[str, ...]
    concurrency: int  # connections of all processes, all kept busy; with a rate, the maximum
    requests: int | None = None
    duration_s: float | None = None
    processes: int = 1
    keepalive: bool = False
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None  # of each request
    expect_status: int = 200
    deadline_s: float = 3600.0  # of the whole run
    rate_rps: float | None = None
    arrivals: str = "even"  # one of KINDS
    seed: int = 0  # of the schedule
    ramp_s: float = 0.0
    linger_s: float = 0.0  # delay before clients close connections
    sources: tuple[str, ...] = ()
    ports: tuple[int, int] | None = None  # local ports to use, lowest and highest
    same_body: bool = False
    rows: str | None = None  # file to write a line per request to
    mix: tuple[ArgumentKind, ...] = ()  # of requests; (): all are the same
    together: bool = False  # the first request is not sent alone
    expect: tuple[int, ...] | None = None  # for a mix, instead of expect_status; (): any 2xx or 3xx

    def moments(self) -> Sequence[int]:
        """Due times of requests, in nanoseconds after the start; () without a rate."""
        if self.rate_rps is None or self.duration_s is None:
            return ()
        return schedule(self.arrivals, self.rate_rps, self.duration_s, self.seed)

    def judge(self, status: int | None) -> str | None:
        """The cause of failure of a complete answer with this status, None for a success."""
        if self.expect is not None:
            expected = status in self.expect if self.expect else 200 <= (status or 0) < 400
            return None if expected else "status"
        if self.expect_status == 200:  # the default: any 2xx is a success
            return None if status is not None and 200 <= status < 300 else "non_2xx"
        return None if status == self.expect_status else "status"


@dataclass(frozen=True)
class ArgumentKind:
    """One kind of request in a mix. `words`: the load's, with the request of this kind."""

    label: str  # of its route; several kinds may share a route
    weight: float
    words: Words


def kinds(words: Words, mix: Sequence[Mapping[str, Any]]) -> tuple[ArgumentKind, ...]:
    """The kinds of a mix, from the objects that `workerlab.load.tool` writes. Raises OSError if a
    body file cannot be read."""
    return tuple(
        ArgumentKind(
            label=kind["label"],
            weight=kind["weight"],
            words=replace(
                words,
                urls=tuple(_with_path(url, kind["path"]) for url in words.urls),
                method=kind["method"],
                headers=tuple((name, value) for name, value in kind["headers"]),
                body=Path(kind["body_file"]).read_bytes() if kind["body_file"] else None,
                expect=tuple(kind["expect"]),
                mix=(),
            ),
        )
        for kind in mix
    )


def _with_path(url: str, path: str) -> str:
    """Replace the path of a URL, without normalising it as urljoin does."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{path}"


class WordParser(argparse.ArgumentParser):
    """Reports an error in one sentence, without the usage text."""

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


def kind_of_arrivals(text: str) -> str:
    if text not in KINDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(KINDS)}")
    return text


def port_range(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    if not dash or not 1 <= int(low) <= int(high) <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of ports, LO-HI")
    return int(low), int(high)


# (option, field of Words, type, help)
OPTIONS: tuple[tuple[str, str, Callable[[str], Any], str], ...] = (
    ("--url", "urls", url, "repeatable: one at random each"),
    ("--concurrency", "concurrency", positive, "connections kept busy"),
    ("--requests", "requests", positive, ""),
    ("--duration", "duration_s", amount, "seconds"),
    ("--processes", "processes", positive, ""),
    ("--method", "method", str, ""),
    ("--header", "headers", header, "'Name: value', repeatable"),
    ("--body-file", "body", lambda path: Path(path).read_bytes(), ""),
    ("--expect-status", "expect_status", positive, ""),
    (
        "--deadline",
        "deadline_s",
        amount,
        "seconds for it all (3600; or 60 after --duration)",
    ),
    ("--rate", "rate_rps", amount, "open model: arrivals per second"),
    ("--arrivals", "arrivals", kind_of_arrivals, f"at that rate: {' or '.join(KINDS)} (even)"),
    ("--seed", "seed", int, "of the schedule (0)"),
    ("--ramp", "ramp_s", float, "seconds over which the connections begin"),
    ("--linger", "linger_s", amount, "seconds that clients close late, after their last answer"),
    ("--source", "sources", lambda text: tuple(text.split(",")), "local addresses, by commas"),
    ("--ports", "ports", port_range, "local ports to connect from, LO-HI (Linux 6.3)"),
    ("--rows", "rows", str, "file to write a row per request to"),
    (
        "--mix",
        "mix",
        lambda path: json.loads(Path(path).read_bytes()),
        "JSON file of what to request instead: objects of label, weight, method, path, headers,"
        " body_file, expect; the seed says which comes when",
    ),
)


def parse(argv: Sequence[str] | None, name: str, supports: Collection[str] = ()) -> Words:
    """Raises SystemExit(2) with one sentence for invalid options, including those of OPTIONAL that
    are not in `supports`; OSError if a file cannot be read."""
    parser = WordParser(
        prog=name,
        description=f"The load generator {name}: one JSON document.",
        argument_default=argparse.SUPPRESS,  # Words has the defaults
    )
    amounts = parser.add_mutually_exclusive_group(required=True)
    for option, field, kind, text in OPTIONS:
        add = (amounts if field in ("requests", "duration_s") else parser).add_argument
        required = field in ("urls", "concurrency")
        metavar = option[2:].upper().replace("-", "_")
        add(option, dest=field, metavar=metavar, type=kind, required=required, help=text,
            action="append" if field in ("urls", "headers") else "store")  # fmt: skip
    parser.add_argument("--keepalive", action="store_true", help="reuse connections")
    parser.add_argument("--same-body", action="store_true", help="all must equal the first one")
    parser.add_argument("--together", action="store_true", help="no request is sent alone first")
    given: dict[str, Any] = vars(parser.parse_args(argv))
    if "duration_s" in given:
        given.setdefault("deadline_s", given["duration_s"] + 60.0)
    given["ramp_s"] = max(0.0, given.get("ramp_s", 0.0))
    for repeatable in given.keys() & {"urls", "headers"}:
        given[repeatable] = tuple(given[repeatable])
    mix = given.pop("mix", ())
    words = Words(**given)
    words = replace(words, mix=kinds(words, mix))
    for option, field, *_ in OPTIONS:
        unsupported = field in OPTIONAL and field not in supports
        if unsupported and getattr(words, field) != getattr(Words, field):
            parser.error(f"{option} is not supported by this generator")
    if words.rate_rps and words.duration_s is None:
        parser.error("--rate needs --duration")
    if words.processes > words.concurrency:
        parser.error("more processes than connections")
    return words
