"""The command line of all generators. Each generator rejects options that it does not support."""

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

# Fields of LoadOptions that only some generators support
OPTIONAL_FIELDS = (
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
class LoadOptions:
    """The requested load. Exactly one of `requests` and `duration_s` is set."""

    urls: tuple[str, ...]
    concurrency: int  # connections of all processes, kept busy; with a rate, the maximum
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
    seed: int = 0  # of the schedule and of the mix
    ramp_s: float = 0.0
    linger_s: float = 0.0  # delay before clients close connections
    sources: tuple[str, ...] = ()
    ports: tuple[int, int] | None = None  # local ports to use, lowest and highest
    same_body: bool = False
    rows: str | None = None  # file to write a row per request to
    mix: tuple[MixEntry, ...] = ()  # (): all requests are the same
    together: bool = False  # do not send the first request alone
    expect: tuple[int, ...] | None = None  # replaces expect_status in a mix; (): any 2xx or 3xx

    def due_times_ns(self) -> Sequence[int]:
        """Due times of the requests, since the start of the load; () without a rate."""
        if self.rate_rps is None or self.duration_s is None:
            return ()
        return schedule(self.arrivals, self.rate_rps, self.duration_s, self.seed)

    def failure_cause(self, status: int | None) -> str | None:
        """Why a complete response with this status is a failure; None for a success."""
        if self.expect is not None:
            expected = status in self.expect if self.expect else 200 <= (status or 0) < 400
            return None if expected else "status"
        if self.expect_status == 200:  # the default: any 2xx is a success
            return None if status is not None and 200 <= status < 300 else "non_2xx"
        return None if status == self.expect_status else "status"


@dataclass(frozen=True)
class MixEntry:
    """One kind of request in a mix. `options`: those of the load, with this request."""

    label: str  # of its route, which multiple entries may share
    weight: float
    options: LoadOptions


def mix_entries(options: LoadOptions, mix: Sequence[Mapping[str, Any]]) -> tuple[MixEntry, ...]:
    """The entries of a mix, from the objects that `workerlab.load.tool` writes. Raises OSError if a
    body file cannot be read."""
    return tuple(
        MixEntry(
            label=entry["label"],
            weight=entry["weight"],
            options=replace(
                options,
                urls=tuple(_with_path(url, entry["path"]) for url in options.urls),
                method=entry["method"],
                headers=tuple((name, value) for name, value in entry["headers"]),
                body=Path(entry["body_file"]).read_bytes() if entry["body_file"] else None,
                expect=tuple(entry["expect"]),
                mix=(),
            ),
        )
        for entry in mix
    )


def _with_path(url: str, path: str) -> str:
    """Replace the path of a URL, without normalising it as urljoin does."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{path}"


class OneLineErrorParser(argparse.ArgumentParser):
    """Reports an error as one sentence, without the usage text."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def positive_int(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small: must be at least 1")
    return number


def positive_number(text: str) -> float:
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number greater than 0")
    return value


def url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme != "http" or not parts.hostname:
        raise argparse.ArgumentTypeError(f"not an http:// URL: {text}")
    return text


def header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not (colon and name.strip()) or any(c in text for c in "\r\n\0"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a header, 'Name: value'")
    return name.strip(), value.strip()


def arrivals_kind(text: str) -> str:
    if text not in KINDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(KINDS)}")
    return text


def port_range(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    if not dash or not 1 <= int(low) <= int(high) <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of ports, LO-HI")
    return int(low), int(high)


# (option, field of LoadOptions, type, help)
OPTIONS: tuple[tuple[str, str, Callable[[str], Any], str], ...] = (
    ("--url", "urls", url, "target, repeatable; one is chosen at random"),
    ("--concurrency", "concurrency", positive_int, "connections kept busy"),
    ("--requests", "requests", positive_int, "number of requests"),
    ("--duration", "duration_s", positive_number, "seconds to send requests"),
    ("--processes", "processes", positive_int, "processes that share the connections"),
    ("--method", "method", str, "HTTP method (default: GET)"),
    ("--header", "headers", header, "'Name: value', repeatable"),
    ("--body-file", "body", lambda path: Path(path).read_bytes(), "file with the body"),
    ("--expect-status", "expect_status", positive_int, "status of a success (default: any 2xx)"),
    (
        "--deadline",
        "deadline_s",
        positive_number,
        "seconds for the whole run (default: 3600, or 60 more than --duration)",
    ),
    ("--rate", "rate_rps", positive_number, "open model: arrivals per second"),
    ("--arrivals", "arrivals", arrivals_kind, f"spacing: {' or '.join(KINDS)} (default: even)"),
    ("--seed", "seed", int, "seed of the schedule and of the mix (default: 0)"),
    ("--ramp", "ramp_s", float, "seconds over which connections are opened"),
    ("--linger", "linger_s", positive_number, "seconds before clients close their connections"),
    (
        "--source",
        "sources",
        lambda text: tuple(text.split(",")),
        "local addresses to connect from, separated by commas",
    ),
    ("--ports", "ports", port_range, "local ports to connect from, LO-HI (Linux 6.3)"),
    ("--rows", "rows", str, "file to write a row per request to"),
    (
        "--mix",
        "mix",
        lambda path: json.loads(Path(path).read_bytes()),
        "JSON file with a mix of requests: objects of label, weight, method, path, headers,"
        " body_file, expect; the seed determines their order",
    ),
)


def parse(argv: Sequence[str] | None, name: str, supports: Collection[str] = ()) -> LoadOptions:
    """Parse the command line. Raises SystemExit(2) with one sentence for invalid options, including
    those of OPTIONAL_FIELDS that are not in `supports`, and OSError if a file cannot be read."""
    parser = OneLineErrorParser(
        prog=name,
        description=f"The load generator {name}. It prints one JSON document.",
        argument_default=argparse.SUPPRESS,  # LoadOptions has the defaults
    )
    amounts = parser.add_mutually_exclusive_group(required=True)
    for option, field, kind, text in OPTIONS:
        add = (amounts if field in ("requests", "duration_s") else parser).add_argument
        required = field in ("urls", "concurrency")
        metavar = option[2:].upper().replace("-", "_")
        add(option, dest=field, metavar=metavar, type=kind, required=required, help=text,
            action="append" if field in ("urls", "headers") else "store")  # fmt: skip
    parser.add_argument("--keepalive", action="store_true", help="reuse connections")
    parser.add_argument("--same-body", action="store_true", help="all bodies must be equal")
    parser.add_argument(
        "--together", action="store_true", help="do not send the first request alone"
    )
    values: dict[str, Any] = vars(parser.parse_args(argv))
    if "duration_s" in values:
        values.setdefault("deadline_s", values["duration_s"] + 60.0)
    values["ramp_s"] = max(0.0, values.get("ramp_s", 0.0))
    for field in values.keys() & {"urls", "headers"}:
        values[field] = tuple(values[field])
    mix = values.pop("mix", ())
    options = LoadOptions(**values)
    options = replace(options, mix=mix_entries(options, mix))
    for option, field, *_ in OPTIONS:
        is_unsupported = field in OPTIONAL_FIELDS and field not in supports
        if is_unsupported and getattr(options, field) != getattr(LoadOptions, field):
            parser.error(f"{option} is not supported by this generator")
    if options.rate_rps and options.duration_s is None:
        parser.error("--rate needs --duration")
    if options.processes > options.concurrency:
        parser.error("--processes must not exceed --concurrency")
    return options
