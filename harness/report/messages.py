"""Every sentence the lab prints about a run, by the code of what was found. Nothing else has any.

A sentence is a template. `{name}` is one of the finding's values; after a colon stands how it is
said:

    {wait:duration}        0.25 -> "250 ms"
    {rps:number}           3.984 -> "3.98"
    {n:# connection}       8 -> "8 connections", 1 -> "1 connection"
    {share:percent}        0.25 -> "25 %"
    {size:bytes}           1536 -> "1.50 KB"
    {names:list}           ["a", "b"] -> "a and b"; findings in it are said first
    {reasons:; }           joined by what stands after the colon, any of ", " "; " " "
    {inner}                a finding is said by its own template

What stands in [[double brackets]] is left out where one of its values is missing or empty. A
sentence that no template can say is a function of the values.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.model import Answer, Column, Finding, Text
from harness.numbers.units import format_bytes, format_duration, three_digits

Sentence = str | Callable[[Mapping[str, Any]], str]

JOINS = (", ", "; ", " ", " and ", " or ", "\n")
OPTIONAL = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)


def amount(value: float) -> str:
    """A rate or a count in three digits: '4', '3.98', '12.5', '1250', '61,200'."""
    if abs(value) >= 10_000:
        return f"{float(f'{value:.3g}'):,.0f}"
    text = three_digits(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def listed(names: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def counted(count: float, noun: str) -> str:
    """'1 connection', '8 connections'; the plural may be given: 'process/processes'."""
    one, _, many = noun.partition("/")
    return f"{count:,} {one if count == 1 else many or one + 's'}"


class _Formatter(string.Formatter):
    """str.format with the units of this lab."""

    def format_field(self, value: Any, spec: str) -> str:
        if isinstance(value, Finding):
            value = text(value)
        if spec == "duration":
            return format_duration(value)
        if spec == "number":
            return amount(value)
        if spec == "percent":
            return f"{100 * value:.0f} %"
        if spec == "bytes":
            return format_bytes(value)
        if spec.startswith("# "):
            return counted(value, spec[2:])
        if spec == "list":
            return listed([text(one) for one in value])
        if spec in JOINS:
            return spec.join(text(one) for one in value)
        return str(super().format_field(value, spec))


_FORMATTER = _Formatter()


def _names(template: str) -> list[str]:
    return [name for _, name, _, _ in _FORMATTER.parse(template) if name]


def _filled(template: str, values: Mapping[str, Any]) -> str:
    def kept(match: re.Match[str]) -> str:
        known = (values.get(name) for name in _names(match[1]))
        missing = any(one is None or one == "" or one == () or one == [] for one in known)
        return "" if missing else match[1]

    return _FORMATTER.vformat(OPTIONAL.sub(kept, template), (), values)


def text(said: Text) -> str:
    """The sentence of a finding. KeyError for a code that has none."""
    if isinstance(said, str):
        return said
    sentence = SENTENCES[said.code]
    return _filled(sentence, said.values) if isinstance(sentence, str) else sentence(said.values)


def question_of(finding: Answer | Finding) -> str:
    """The question it answers, "" where nobody asked."""
    if isinstance(finding, Answer):
        return text(finding.question)
    return text(Finding(finding.question, finding.values)) if finding.question else ""


def answer_of(finding: Answer | Finding) -> str:
    return text(finding.answer if isinstance(finding, Answer) else finding)


def heading(column: Column) -> str:
    """The words above a column: by its name."""
    return column.title or HEADINGS.get(column.name, column.name.replace("_", " "))


SENTENCES: dict[str, Sentence] = {}
HEADINGS: dict[str, str] = {}  # of columns, by their names

# advice: how a worker class gets more slots; the codes stand in its row, `server/worker_classes.py`
SENTENCES |= {
    "advice.more_workers": "More workers serve more at once.",
    "advice.workers_threads_or_async": (
        "More workers, threads (gthread) or an asynchronous class serve more at once."
    ),
    "advice.threads_or_async": (
        "More threads or workers, or an asynchronous class, serve more at once."
    ),
    "advice.worker_connections": (
        "A higher --worker-connections or more workers serve more at once."
    ),
    "advice.tornado": (
        "A WSGI app blocks tornado's loop: more workers, or threads (gthread), serve more at once."
    ),
}
