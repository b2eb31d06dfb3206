"""Formats values ("12.3 ms") and parses those that load tools print ("890us", "1.20k", "22.62KB"),
from one table of units.

Values in sentences are formatted by `fill("{wait_s:duration}", {"wait_s": 0.25})`, here "250 ms".

Templates are those of str.format, with these formats after the colon:

    {wait_s:duration}      0.25 -> "250 ms"
    {wait_s:milliseconds}  0 -> "0 ms"
    {rps:number}           3.984 -> "3.98"
    {count:# connection}   8 -> "8 connections", 1 -> "1 connection"; "# process/processes"
    {count:is/are}         8 -> "are", 1 -> "is"
    {count:count}          10000 -> "10,000"
    {share:percent}        0.25 -> "25 %"
    {share:fraction}       0.00083 -> "0.083 %"
    {size:bytes}           1536 -> "1.50 KB"
    {size:missing}         None -> "missing", anything else -> ""
    {names:list}           ["a", "b"] -> "a and b"
    {gain:change}          0.05 -> "+5 %"
    {gain:factor}          1.0 -> "1.00", 3.984 -> "3.98"
    {gain:times}{gain:interval}  a Ratio -> "1.23 times (95 % interval 1.10 to 1.37)"
    {used:cores}           0.93 -> "0.9 cores", 0.01 -> "hardly any CPU"
    {causes:counts}        {"reset": 2} -> "2 x connection reset"
    {counters:values}      {"ListenDrops": 2} -> "ListenDrops 2"
    {value:time}, {value:errors}, {value:rps}  a value of a target's term, by the kind of the term
    {result:outcome}       the result of a term: "broken" -> "missed"
    {command:block}        "ls" -> "ls", indented, with an empty line before it
    {reasons:; }           joined by the separator after the colon, one of JOINS
    {why:sentence}         "it died" -> "it died.", "It died." -> "It died."

[[Double brackets]] enclose text that is omitted if one of its values is missing or empty.
{step.took_s:duration} reads an attribute of a value.

`first_lines` returns the beginning of a page, for use in a sentence.
"""

import html
import math
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

# Sizes of units in base units, ascending
DURATION = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
COUNT = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
# A "KB" is 1024 bytes, as in wrk (its units.c)
BYTES = {"B": 1.0, "KB": 2.0**10, "MB": 2.0**20, "GB": 2.0**30, "TB": 2.0**40, "PB": 2.0**50}

MISSING = "-"

_NUMBER = re.compile(r"([+-]?\d+(?:\.\d+)?)\s?([A-Za-z]*)")


def _scan(text: str, table: dict[str, float], what: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    value = float(match[1]) * table.get(match[2], math.nan) if match else math.nan
    if not math.isfinite(value):
        raise ValueError(f"not a {what}: {text!r}")
    return value


def scan_duration(text: str) -> float:
    """Seconds from "890us", "1.04 s", "2m"; the unit is required. Raises ValueError."""
    return _scan(text, DURATION, "duration")


def scan_count(text: str) -> float:
    """A bare number from "12", "1.20k", "3 M". Raises ValueError."""
    return _scan(text, COUNT, "count")


def scan_bytes(text: str) -> float:
    """Bytes from "512B", "22.62KB"; the unit is required. Raises ValueError."""
    return _scan(text, BYTES, "size")


def three_digits(value: float) -> str:
    """About three significant digits; the integer part is printed in full: "3.98", "1250"."""
    size = abs(value)
    return f"{value:z.{2 if size < 9.995 else 1 if size < 99.95 else 0}f}"


def _format(value: float | None, table: dict[str, float]) -> str:
    if value is None or not math.isfinite(value):
        return MISSING
    unit = next(iter(table)) if value else next(unit for unit, size in table.items() if size == 1.0)
    for larger, size in table.items():
        # Rounded to three digits: 999.6 ms is printed as 1.00 s
        if abs(value) / size >= 0.9995:
            unit = larger
    return f"{three_digits(value / table[unit])} {unit}"


# Durations up to two minutes are printed in seconds, longer ones as minutes or hours
_PRINTED_UNITS = {unit: size for unit, size in DURATION.items() if unit not in ("ns", "m", "h")}


def format_duration(seconds: float | None) -> str:
    """Like "12.3 ms", "1.04 s", "2m 05s", "1h 02m"; "-" if missing or not finite."""
    if seconds is None or not math.isfinite(seconds) or abs(seconds) < 119.5:
        return _format(seconds, _PRINTED_UNITS)
    return ("-" if seconds < 0 else "") + _clock(round(abs(seconds)))


def format_wait(seconds: float) -> str:
    """A waiting time in whole seconds: "45 s", "2m 05s", "1h 02m"."""
    whole_s = max(0, round(seconds))
    return f"{whole_s} s" if whole_s < 60 else _clock(whole_s)


def _clock(whole_s: int) -> str:
    if whole_s < 3600:
        return f"{whole_s // 60}m {whole_s % 60:02d}s"
    minutes = round(whole_s / 60)
    return f"{minutes // 60}h {minutes % 60:02d}m"


def format_bytes(value: float | None) -> str:
    """Like "512 B", "22.6 KB" (1 KB = 1024 bytes); "-" if missing."""
    if value is not None and abs(value) < 1000 and float(value).is_integer():
        return f"{int(value)} B"
    return _format(value, BYTES)


RATIO_FORMATS = ("times", "interval")  # formatted by `intervals.Ratio` itself
JOINS = (", ", "; ", " ", " and ", " or ", "\n")
OPTIONAL = re.compile(r"\[\[(.*?)\]\]")
EMPTY: tuple[object, ...] = (None, "", (), [], {})
# Why requests fail, by cause in Measurement.errors
CAUSES = {
    "non_2xx": "status other than 2xx",
    "unexpected_2xx": "unexpected success",
    "status": "unexpected status",
    "wrong_status": "unexpected status",
    "length": "unexpected body length",
    "body": "unexpected body",
    "truncated": "incomplete response",
    "protocol": "malformed response",
    "never_accepted": "never accepted by a worker",
    "timeout": "no response in time",
    "gave_up": "given up by the client",
    "connect_timeout": "no connection in time",
    "connect": "no connection",
    "refused": "connection refused",
    "reset": "connection reset",
    "closed": "connection closed",
    "read": "read error",
    "write": "write error",
    "exception": "socket error",
    "no_files": "too many open files (errno 24)",
    "no_address": "no free local port (errno 99)",
}


def amount(value: float) -> str:
    """A rate or a count to three significant digits: '4', '3.98', '12.5', '1250', '61,200'."""
    if abs(value) >= 10_000:
        return f"{float(f'{value:.3g}'):,.0f}"
    text = three_digits(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def listed(names: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def count_text(count: float) -> str:
    """'8', '1250', '10,000'."""
    return f"{count:,.0f}" if abs(count) >= 10_000 else f"{count:g}"


def counted(count: float, noun: str) -> str:
    """'1 connection', '8 connections'; the plural may be given: 'process/processes'."""
    singular, _, plural = noun.partition("/")
    return f"{count_text(count)} {singular if count == 1 else plural or singular + 's'}"


def counts_by_cause(counts: Mapping[str, int]) -> str:
    """'2 x connection reset, 1 x no response in time'; an unknown cause is unchanged."""
    return ", ".join(
        f"{count_text(count)} x {CAUSES.get(cause, cause)}"
        for cause, count in sorted(counts.items())
    )


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "duration": format_duration,
    "seconds": format_duration,
    "milliseconds": lambda seconds: f"{1e3 * seconds:.0f} ms",
    "number": amount,
    "percent": lambda share: f"{100 * share:.0f} %",
    "fraction": lambda share: f"{100 * share:.2g} %",
    "change": lambda share: f"{100 * share:+z.{1 if abs(share) < 0.0095 else 0}f} %",
    "factor": three_digits,
    "bytes": format_bytes,
    "cores": lambda used: f"{used:.1f} cores" if used >= 0.05 else "hardly any CPU",
    "missing": lambda value: "missing" if value is None else "",
    "list": lambda items: listed([str(item) for item in items]),
    "count": count_text,
    "counts": counts_by_cause,
    "values": lambda counts: ", ".join(f"{name} {count}" for name, count in counts.items()),
    "sentence": lambda words: f"{str(words).removesuffix('.')}.",
    "block": "\n\n    {}\n".format,
    "time": format_duration,
    "errors": lambda share: f"{100 * share:.0f} %",
    "rps": lambda rps: f"{amount(rps)} req/s",
    "outcome": lambda result: "missed" if result == "broken" else result,
}


class Formatter(string.Formatter):
    """str.format with the FORMATS above."""

    def format_field(self, value: Any, spec: str) -> str:
        if spec in FORMATS:
            return FORMATS[spec](value)
        if spec.startswith("# "):
            return counted(value, spec[2:])
        if "/" in spec:
            return str(spec.split("/")[value != 1])
        if spec in JOINS:
            return spec.join(map(str, value))
        return str(super().format_field(value, spec))

    def fill(self, template: str, values: Mapping[str, Any]) -> str:
        """The template with its values. Raises KeyError if a value is missing."""

        def present(match: re.Match[str]) -> str:
            missing = any(value_at(values, name) in EMPTY for name, _ in fields(match[1]))
            return "" if missing else match[1]

        return self.vformat(OPTIONAL.sub(present, template), (), values)


def value_at(source: Any, path: str) -> Any:
    """The value at a path such as "step.took_s"; None if a part of the path is None or missing from
    a mapping. Raises AttributeError for an unknown attribute."""
    for name in path.split("."):
        if source is None:
            return None
        source = source.get(name) if isinstance(source, Mapping) else getattr(source, name)
    return source


FORMATTER = Formatter()
fill = FORMATTER.fill


def fields(template: str) -> Iterator[tuple[str, str]]:
    """(name, format) of each value in a template."""
    for _, name, spec, _ in FORMATTER.parse(template):
        if name:
            yield name, spec or ""


def is_format(spec: str) -> bool:
    """Whether a format is one of the above or one of str.format."""
    return spec in (*FORMATS, *RATIO_FORMATS) or not re.fullmatch("[a-z_]{2,}", spec)


EXCERPT_LINES, EXCERPT_CHARACTERS = 3, 300
MARKUP = re.compile(r"(?is)<(script|style|head)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>")


def first_lines(body: bytes) -> str:
    """The first visible lines of a page, joined into one; "" if there is no text."""
    text = html.unescape(MARKUP.sub("\n", body[:20_000].decode(errors="replace")))
    lines = filter(None, (" ".join(line.split()) for line in text.splitlines()))
    return " / ".join(islice(lines, EXCERPT_LINES))[:EXCERPT_CHARACTERS]
