"""The interface of a load tool: its properties, its command, and the parser of its output.

The lab's generators and locust read the mix of a load from a file:

    [{"label", "weight", "method", "path", "headers": [[name, value]], "body_file", "expect": []}]

in the order of Load.mix. Requests with the same label form one route, and the tools print a
`RouteTotals` for each route.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import msgspec

from workerlab.errors import ParseError, UsageError
from workerlab.load.generators.format import MAX_COUNT, RouteTotals
from workerlab.model.evidence import Command, Measurement, Output, RouteResult, Summary
from workerlab.model.plan import Load
from workerlab.numbers.histogram import Histogram
from workerlab.numbers.samples import percents_of
from workerlab.numbers.units import first_lines


class Tool(ABC):
    """A load tool. It starts no process and opens no file: the harness runs its command in a
    directory made for it, and passes the output files to `parse`."""

    NAME: str  # what the user calls it; the key in TOOLS
    PROGRAM: str | None = None  # looked up on PATH; None: part of the lab
    NEEDS: tuple[str, ...] = ()  # Python packages that it imports from the lab's environment
    VERSION_ARGV: tuple[str, ...] | None = None  # prints the version first, with any exit code
    COUNTED = True  # sends `load.requests`; False: runs for `load.duration_s`
    TIMED = False  # can run for `load.duration_s`
    SENDS_FIRST_ALONE = False  # sends the others once the first request has its response
    SUCCESS_STATUSES: range | None = None  # statuses that count as success; None: the expected one
    NUMBERS_REQUESTS = False  # sends the number of each request in the header X-Workerlab-Request
    OPEN_MODEL = False  # can send at `load.rate_rps`
    PROCESSES = False  # can send from `load.processes`
    RAMPS = False  # can spread the start of its connections over `load.ramp_s`
    LINGERS = False  # its clients can close connections `load.linger_s` late
    MIX = False  # can send requests of multiple kinds, `load.mix`
    DISTRIBUTES = False  # can send from `load.hosts`
    CHOOSES_SOURCE = False  # can send from `load.sources`
    REPEATS_HEADERS = True  # can send a header of the same name more than once
    MAX_CONNECTIONS: int | None = None
    NEEDS_REQUEST_EACH = False  # rejects fewer requests than connections
    CLIENTS = "connections"  # its term for connections
    HTTP_1_0 = False  # sends HTTP/1.0: some worker classes close such connections
    OUTPUT_FILES: tuple[str, ...] = ()  # in its directory, read by `parse`
    FLOOR_RPS = 0.0  # rate that it reaches on any machine: slower cells need no ceiling
    REQUEST_CPU_S: float | None = None  # its CPU per request; None: not measured
    START_S = 0.0  # time until it sends, beyond the start of a small program
    # Connections that suffice to measure a ceiling, if each takes a process or a thread: more would
    # use memory and be no faster
    MAX_CEILING_CONNECTIONS: int | None = None
    IS_EXAMPLE = False  # a client like those of Python applications, built on a library
    CAVEAT = ""  # on comparing its figures with those of other tools

    @property
    def INSTALL_HINT(self) -> str:
        """How to install it, in one sentence."""
        return "Install it with: pip install 'workerlab[generators]'."

    def cores_used(self, concurrency: int, processes: int) -> int:
        """The number of cores it can keep busy, to compare its CPU usage with."""
        return processes

    def compared_processes(self, cores: int) -> tuple[int, ...]:
        """The numbers of processes to run it with in a comparison of load tools."""
        return (1,)

    def check(self, load: Load) -> None:
        """Raises UsageError for a load that the tool cannot produce."""
        if not 1 <= load.concurrency <= (self.MAX_CONNECTIONS or load.concurrency):
            limits = f"1 to {self.MAX_CONNECTIONS}" if self.MAX_CONNECTIONS else "1 or more"
            raise UsageError(
                f"{self.NAME} supports {limits} {self.CLIENTS}, not {load.concurrency}."
            )
        if self.NEEDS_REQUEST_EACH and load.requests < load.concurrency:
            raise UsageError(f"{self.NAME} cannot keep {load.concurrency} connections busy with"
                             f" {load.requests} requests.")  # fmt: skip
        if (processes := max(1, len(load.hosts)) * load.processes) > load.concurrency:
            raise UsageError(f"{self.NAME} cannot share {load.concurrency} {self.CLIENTS} among"
                             f" {processes} processes.")  # fmt: skip
        if load.sources and not self.CHOOSES_SOURCE:
            raise UsageError(f"{self.NAME} cannot choose the address it sends from; use fast.")
        if not self.REPEATS_HEADERS and (name := _repeated_header(load)):
            raise UsageError(f"{self.NAME} cannot send the header {name} twice; use fast.")

    @abstractmethod
    def command(self, load: Load, url: str, workdir: str) -> Command:
        """The argv to run in `workdir` (absolute), and files to write there first."""

    @abstractmethod
    def parse(self, output: Output) -> Measurement:
        """The measurement. Raises only ParseError, for any doubtful output: an aborted or partial
        run, a truncated or empty file, unknown text."""

    def check_exit_code(self, output: Output) -> None:
        """Raises ParseError, with the last line of stderr, unless the tool exited with 0."""
        if output.exit_code != 0:
            last = output.stderr.strip().rpartition("\n")[2]
            raise ParseError(f"{self.NAME} ended with exit code {output.exit_code}", last)


def only_match(text: str, pattern: str, *, tool: str) -> re.Match[str]:
    """The match of the only line of this form. Raises ParseError unless there is exactly one."""
    matches = [m for line in text.splitlines() if (m := re.fullmatch(pattern, line, re.ASCII))]
    if len(matches) != 1:
        count, form = len(matches), pattern.strip()
        raise ParseError(f"{tool}'s report has {count} lines of the form {form!r}")
    return matches[0]


def table_lines(text: str | None, tool: str, name: str, header: str | None = None) -> list[str]:
    """The lines of a file, below its header if it has one. Raises ParseError if the file is
    missing or cut short."""
    if not text:
        raise ParseError(f"{tool} left no {name}")
    *lines, rest = text.split("\n")
    if header is not None and lines[:1] != [header]:
        raise ParseError(f"{name} has unexpected columns", text.partition("\n")[0])
    if rest or not lines:
        raise ParseError(f"{name} is cut short", rest)
    return lines if header is None else lines[1:]


def table_rows(
    text: str | None, row: str, *, tool: str, name: str, header: str | None = None
) -> Iterator[re.Match[str]]:
    """A match of `row` for each line of a file, below its header if it has one. Raises ParseError
    if the file is missing or cut short, or has another line."""
    for line in table_lines(text, tool, name, header):
        match = re.fullmatch(row, line, re.ASCII)
        if match is None:
            raise ParseError(f"{name} has a row in an unknown format", line)
        yield match


def _repeated_header(load: Load) -> str | None:
    """The name of a header that occurs more than once in a request, or None."""
    for headers in (load.headers, *(route.headers for route in load.mix)):
        names = [name.lower() for name, _ in headers]
        if repeated := min((name for name in names if names.count(name) > 1), default=None):
            return repeated
    return None


def sent_headers(load: Load, host: str) -> list[tuple[str, str]]:
    """`typed_headers` without Connection, which the load sets; `host`: the spelling of Host."""
    return [
        (host if name.lower() == "host" else name, value)
        for name, value in typed_headers(load)
        if name.lower() != "connection"
    ]


def typed_headers(load: Load) -> list[tuple[str, str]]:
    """The headers of a request, including a content type if it has a body."""
    has_type = any(name.lower() == "content-type" for name, _ in load.headers)
    needs_type = load.body_file is not None and not has_type
    return [*[("Content-Type", "application/octet-stream")] * needs_type, *load.headers]


MIX_FILE = "mix.json"
MIX_FIELDS = ("label", "weight", "method", "path", "headers", "body_file", "expect")
WHOLE_NUMBER = r"(\d{1,15})"  # ab and h2load print at most 15 digits
DEADLINE_SHARE = 0.95  # of the deadline: the tool must end before it is killed
NS = 1e9
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]


def mix_file(load: Load) -> dict[str, str]:
    """The file of the mix, as {name: text}; empty if all requests are the same."""
    if not load.mix:
        return {}
    kinds = [{name: getattr(route, name) for name in MIX_FIELDS} for route in load.mix]
    return {MIX_FILE: json.dumps(kinds)}


def route_results(parts: Iterable[Mapping[str, RouteTotals]]) -> dict[str, RouteResult]:
    """The results of all processes, by route label."""
    by_label: dict[str, list[RouteTotals]] = {}
    for part in parts:
        for label, totals in part.items():
            by_label.setdefault(label, []).append(totals)
    return {label: _route_result(parts) for label, parts in by_label.items()}


def _route_result(parts: Iterable[RouteTotals]) -> RouteResult:
    errors, statuses, response = Counter[str](), Counter[str](), Histogram()
    requests, body = 0, ""
    for part in parts:
        errors.update(part.errors)
        statuses.update(part.statuses)
        response.add(part.response)
        requests, body = requests + part.complete, body or part.body
    return RouteResult(
        requests=requests,
        failed=errors.total(),
        errors=dict(sorted(errors.items())),
        response=summary_of(response),
        statuses=dict(sorted(statuses.items())),
        answer=first_lines(body.encode()),
    )


def percentiles_of(histogram: Histogram) -> dict[float, float]:
    """Seconds by percentile (0 to 100), from a histogram of nanoseconds."""
    percents = percents_of(histogram.count)
    values_ns = {percent: histogram.quantile(percent / 100) for percent in percents}
    return {percent: ns / NS for percent, ns in values_ns.items() if ns is not None}


def summary_of(histogram: Histogram) -> Summary:
    """A summary in seconds, from a histogram of nanoseconds."""
    return Summary(
        mean=_seconds(histogram.mean),
        p50=_seconds(histogram.quantile(0.50)),
        p90=_seconds(histogram.quantile(0.90)),
        p95=_seconds(histogram.quantile(0.95)),
        p99=_seconds(histogram.quantile(0.99)),
        max=_seconds(histogram.most),
    )


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / NS
