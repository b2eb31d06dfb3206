"""Formats values in sentences: `fill("{wait_s:duration}", {"wait_s": 0.25})` is "250 ms".

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
    {command:block}        "ls" -> "ls", indented, with an empty line before it
    {reasons:; }           joined by what follows the colon, one of JOINS
    {why:sentence}         "it died" -> "it died.", "It died." -> "It died."

[[Double brackets]] enclose text that is omitted if one of its values is missing or empty.
{step.took_s:duration} reads an attribute of a value.
"""

import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from workerlab.numbers.units import format_bytes, format_duration, three_digits

OF_A_RATIO = ("times", "interval")  # formatted by `intervals.Ratio` itself
JOINS = (", ", "; ", " ", " and ", " or ", "\n")
OPTIONAL = re.compile(r"\[\[(.*?)\]\]")
EMPTY: tuple[object, ...] = (None, "", (), [], {})
# Why requests fail, by cause as in Measurement.errors
CAUSES = {
    "non_2xx": "status other than 2xx",
    "unexpected_2xx": "unexpected success",
    "status": "unexpected status",
    "wrong_status": "unexpected status",
    "length": "body of another length",
    "body": "unexpected body",
    "truncated": "incomplete answer",
    "protocol": "malformed answer",
    "never_accepted": "never accepted by a worker",
    "timeout": "no answer in time",
    "gave_up": "given up by the client",
    "connect_timeout": "no connection in time",
    "connect": "no connection",
    "refused": "connection refused",
    "reset": "connection reset",
    "closed": "connection closed",
    "read": "error in reading",
    "write": "error in writing",
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


def caused(counts: Mapping[str, int]) -> str:
    """'2 x connection reset, 1 x no answer in time'; an unknown cause unchanged."""
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
    "counts": caused,
    "values": lambda counts: ", ".join(f"{name} {count}" for name, count in counts.items()),
    "sentence": lambda words: f"{str(words).removesuffix('.')}.",
    "block": "\n\n    {}\n".format,
    "time": format_duration,
    "errors": lambda share: f"{100 * share:.0f} %",
    "rps": lambda rps: f"{amount(rps)} req/s",
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
        """The template with its values. KeyError for a value that is not given."""

        def present(match: re.Match[str]) -> str:
            missing = any(_value(values, name) in EMPTY for name, _ in fields(match[1]))
            return "" if missing else match[1]

        return self.vformat(OPTIONAL.sub(present, template), (), values)


def _value(values: Mapping[str, Any], name: str) -> Any:
    """The value of "step.took_s", its attributes resolved; None if the first, or an attribute, is
    None. AttributeError where there is no such attribute."""
    first, *attributes = name.split(".")
    value = values.get(first)
    for attribute in attributes:
        value = None if value is None else getattr(value, attribute)
    return value


FORMATTER = Formatter()
fill = FORMATTER.fill


def fields(template: str) -> Iterator[tuple[str, str]]:
    """(name, format) of each value in a template."""
    for _, name, spec, _ in FORMATTER.parse(template):
        if name:
            yield name, spec or ""


def is_format(spec: str) -> bool:
    """Whether a format is one of the above or of str.format's own."""
    return spec in (*FORMATS, *OF_A_RATIO) or not re.fullmatch("[a-z_]{2,}", spec)
