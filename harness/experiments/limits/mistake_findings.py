"""The classic mistakes of an asynchronous client, by what was seen of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.experiments.limits.demonstrations import Demonstration
from harness.model import Answer, Column, Table, Value
from harness.numbers.units import format_duration, three_digits

COLUMNS = (
    Column("mistake", "what", "text"),
    Column("form", "form", "text"),
    Column("asked", "asked for", "count"),
    Column("got", "handed back", "text"),
    Column("requests_seen", "requests at the server", "count"),
    Column("connections_seen", "connections there", "count"),
    Column("took_s", "took", "seconds"),
    Column("time_wait", "left in TIME_WAIT", "count"),
    Column("said", "said", "text"),
)


def mistake_tables(shown: Sequence[Demonstration]) -> list[Table]:
    rows = tuple(_row(one) for one in shown if one.why_not is None)
    return [Table("Two classic mistakes, and how they show", COLUMNS, rows)] if rows else []


def _row(one: Demonstration) -> tuple[Value, ...]:
    return (
        one.mistake.replace("_", " "),
        one.form,
        one.asked,
        _got(one),
        one.requests_seen,
        one.connections_seen,
        one.seconds,
        one.time_wait,
        "; ".join(one.said),
    )


def _got(one: Demonstration) -> str:
    return ", ".join(f"{count} {name}" for name, count in one.got.items())


def mistake_findings(shown: Sequence[Demonstration]) -> list[Answer]:
    by_name = {(one.mistake, one.form): one for one in shown if one.why_not is None}
    found = [_missing_await(by_name), _session_per_request(by_name)]
    return [one for one in found if one is not None]


Shown = dict[tuple[str, str], Demonstration]


def _evidence(one: Demonstration) -> str:
    said = "".join(f"; said {count} times: {text}" for text, count in one.said.items())
    return (
        f"{one.code}: {_got(one)} handed back, {one.requests_seen} requests and"
        f" {one.connections_seen} connections at the server{said}"
    )


def _missing_await(by_name: Shown) -> Answer | None:
    wrong, right = by_name.get(("missing_await", "mistake")), by_name.get(("missing_await", "cure"))
    if wrong is None or right is None:
        return None
    forms = [one for (name, _), one in by_name.items() if name == "missing_await"]
    answer = (
        f"As many objects come back as answers were expected ({_got(wrong)}), at once"
        f" ({format_duration(wrong.seconds)}), and the server sees {wrong.requests_seen} requests;"
        f" with await it sees {right.requests_seen}."
    )
    return Answer("How does a missing await show?", answer, tuple(map(_evidence, forms)))


def _session_per_request(by_name: Shown) -> Answer | None:
    wrong = by_name.get(("session_per_request", "mistake"))
    right = by_name.get(("session_per_request", "cure"))
    if wrong is None or right is None or not right.seconds or wrong.seconds is None:
        return None
    answer = (
        f"{wrong.connections_seen} connections for {wrong.requests_seen} requests, where one"
        f" session needs {right.connections_seen}; it took"
        f" {three_digits(wrong.seconds / right.seconds)} times as long"
        f" ({format_duration(wrong.seconds)} against {format_duration(right.seconds)})"
    )
    if wrong.time_wait is not None:
        answer += f" and left {wrong.time_wait} ports in TIME_WAIT, against {right.time_wait}"
    evidence = (_evidence(wrong), _evidence(right))
    return Answer("How does a session per request show?", f"{answer}.", evidence)
