"""Markdown as GitHub shows it: what was found and why, then the tables."""

from __future__ import annotations

from harness.model import Answer, Document, Finding, Table
from harness.report.markdown import bullets, escaped, pipe_table
from harness.report.messages import answer_of, heading, question_of, text
from harness.report.study.values import blank_columns, said, titles, to_right


def render(study: Document) -> str:
    """A document of its own, ready to be pasted into an issue."""
    blocks = [f"## {escaped(text(study.title))}", escaped(study.run)]
    blocks += [_finding(one) for one in study.findings]
    for table in study.tables:
        if table.rows:
            blocks += [f"**{escaped(text(table.title))}**", _table(table), _below(table)]
    if study.notes:
        blocks += ["**Note**", bullets([text(note) for note in study.notes])]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _finding(finding: Answer | Finding) -> str:
    said = f"**{escaped(question_of(finding))}** {escaped(answer_of(finding))}"
    return (
        f"{said}\n\n{bullets([text(one) for one in finding.evidence])}"
        if finding.evidence
        else said
    )


def _below(table: Table) -> str:
    blank = blank_columns(table)
    missing = f" Missing in all rows: {titles(table, blank)}." if blank else ""
    return escaped(f"{text(table.note)}{missing}".strip())


def _table(table: Table) -> str:
    blank = blank_columns(table)
    shown = [(place, one) for place, one in enumerate(table.columns) if place not in blank]
    rows = [[said(one, row[place]) for place, one in shown] for row in table.rows]
    return pipe_table([heading(one) for _, one in shown], rows, [to_right(one) for _, one in shown])
