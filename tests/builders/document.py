"""A document with every feature, and access to the parts of any document."""

from __future__ import annotations

from typing import Any, TypeVar

from tests.builders.analysis import sentence
from workerlab.finding import Answer, Inconclusive
from workerlab.model.result import Chart, ChartSeries, Column, Document, Table
from workerlab.report.values import text

COLUMNS = (
    Column("tool", form="text", heading="load tool"),
    Column("connections", form="count", heading="conn."),
    Column("throughput_rps", heading="req/s"),
    Column("response_p50_s", form="seconds", heading="p50"),
    Column("memory_bytes", form="bytes"),
    Column("host_busy", form="percent"),
    Column("whole", form="text"),
    Column("never_seen_s", form="seconds"),
)


class SentOnly(Answer):
    """{name} sent only {rps:number} requests/s"""

    question = "Which generator sends the most at a high rate?"

    name: str
    rps: float


def full_document(**changes: object) -> Document:
    rows = (
        ("fast", 10, 61234.567, 0.000_123_4, 13 << 20, 0.987, True, None),
        ("fast", 100, 70000.0, 0.001_3, 14 << 20, 1.0, True, None),
        ("threads | <b>", 10, 1203.4, float("nan"), 61 << 20, 0.031, False, None),
        ("threads | <b>", 1_000_000, -0.0, None, None, float("inf"), None, None),
    )
    values: dict[str, object] = {
        "run": "20261120-101500-generators",
        "kind": "generators",
        "title": sentence("Load generators on the same server"),
        "environment": {"cpu": "a CPU", "cores": 2, "load": float("nan")},
        "findings": (
            SentOnly(
                "threads | <b> \N{MULTIPLICATION SIGN}",
                1203.4,
                evidence=(SentOnly("fast µ", 70000.0), SentOnly("[red]1[/red]", 1.0)),
            ),
            Inconclusive("no CPU time was recorded", question="Where does the GIL show?"),
        ),
        "tables": (
            Table("High rate", COLUMNS, rows, "p50: response time."),
            Table("Nothing", COLUMNS[:2], ()),
            Table("Memory", (Column("step", form="text"), COLUMNS[4]), (("idle", 2048),)),
        ),
        "charts": (
            Chart(
                "Requests per second",
                "connections",
                "requests/s",
                (
                    ChartSeries("fast", ((10, 61234.567), (100, 70000.0))),
                    ChartSeries("threads | <b>", ((10, 1203.4), (1_000_000, 0.0))),
                ),
                (True, True),
                "Higher is better.",
            ),
            Chart("Empty", "connections", "seconds", ()),
        ),
        "notes": (
            sentence("locust is not installed: pip install locust"),
            sentence("load [3.9]\x1b[0m"),
        ),
    }
    return Document(**{**values, **changes})


K = TypeVar("K")


def answer(document: Document, kind: type[K]) -> K:
    """The only finding of this kind."""
    (match,) = (finding for finding in document.findings if isinstance(finding, kind))
    return match


def note(document: Document, kind: type[K]) -> K:
    """The only note of this kind."""
    (match,) = (note for note in document.notes if isinstance(note, kind))
    return match


def table(document: Document, title: str) -> Table:
    """The only table whose title starts like this."""
    (match,) = (table for table in document.tables if text(table.title).startswith(title))
    return match


def names(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def column(table: Table, name: str) -> list[Any]:
    index = names(table).index(name)
    return [row[index] for row in table.rows]


def rows(table: Table) -> list[dict[str, Any]]:
    """The rows with their cells by column."""
    return [dict(zip(names(table), row, strict=True)) for row in table.rows]
