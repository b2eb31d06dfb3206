"""A study as one self-contained page, in the look of a sweep's: findings, tables, charts."""

from __future__ import annotations

from html import escape

from harness.model import Answer, Document, Finding, Table
from harness.report.html import parts
from harness.report.html.figures import Figure, spec
from harness.report.html.frame import frame
from harness.report.messages import text
from harness.report.study.figures import figures
from harness.report.study.values import blank_columns, said, titles, to_right


def render(study: Document) -> str:
    """The whole page as text."""
    drawn = figures(study)
    charts = {one.name: [spec(pane) for pane in one.panes] for one in drawn}
    return frame(study.run, _body(study, drawn), charts)


def _body(study: Document, drawn: list[Figure]) -> str:
    said = [f"<h1>{escape(text(study.title))}</h1>"]
    if study.findings:
        inner = "".join(map(_finding, study.findings))
        said.append(f"<section><h2>What was found</h2>{inner}</section>")
    if drawn:
        kind = "grid" if len(drawn) > 1 else "alone"
        inner = "".join(map(parts.figure, drawn))
        said.append(f'<section><h2>Charts</h2><div class="{kind}">{inner}</div></section>')
    said += [_table(table) for table in study.tables if table.rows]
    if study.notes:
        said.append(f"<section><h2>Notes</h2>{parts.bullets(map(text, study.notes))}</section>")
    if facts := parts.environment(study.environment):
        said.append(
            "<section><h2>Environment</h2><details class='words'>"
            f"<summary>What it was measured on</summary>{facts}</details></section>"
        )
    return "".join(said)


def _finding(finding: Answer | Finding) -> str:
    if isinstance(finding, Answer):
        question, answer = text(finding.question), text(finding.answer)
    else:
        question, answer = text(Finding(finding.question)), text(finding)
    said = f"<h3>{escape(question)}</h3>{parts.paragraph(answer)}"
    if not finding.evidence:
        return said
    evidence = parts.bullets(map(text, finding.evidence))
    return f"{said}<details class='words'><summary>Evidence</summary>{evidence}</details>"


def _table(table: Table) -> str:
    blank = blank_columns(table)
    shown = [(place, one) for place, one in enumerate(table.columns) if place not in blank]
    rows = [[said(one, row[place]) for place, one in shown] for row in table.rows]
    right = [to_right(one) for _, one in shown]
    title, below = text(table.title), text(table.note)
    if blank:
        below += f" Missing in all rows: {titles(table, blank)}."
    drawn = parts.table(title, [one.title for _, one in shown], rows, right)
    note = parts.paragraph(below.strip(), "soft") if below else ""
    return f"<section><h2>{escape(title)}</h2>{drawn}{note}</section>"
