"""GitHub-flavoured Markdown, with all evidence, column meanings and notes."""

from collections.abc import Iterable

from workerlab.finding import Finding
from workerlab.model.result import Document, Table
from workerlab.report.tables import table_notes, to_grid
from workerlab.report.values import printable


def render(document: Document) -> str:
    """The whole document, ready to paste into an issue."""
    answers = [finding for finding in document.findings if finding.question]
    other_findings = [finding for finding in document.findings if not finding.question]
    blocks = [f"## {escaped(document.run)}", escaped(str(document.title))]
    blocks += [_answer(finding) for finding in answers]
    explained: set[tuple[str, str]] = set()
    for table in document.tables:
        blocks += _table(table, explained) if table.rows else []
    blocks.append(
        "\n".join(
            line
            for finding in other_findings
            for line in (
                bullets([finding]),
                *(f"  {bullets([evidence])}" for evidence in finding.evidence),
            )
        )
    )
    if document.notes:
        notes = bullets(document.notes)
        blocks += ["**Notes**", notes]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _answer(finding: Finding) -> str:
    answer = f"**{escaped(finding.question)}** {escaped(str(finding))}"
    return f"{answer}\n\n{bullets(finding.evidence)}" if finding.evidence else answer


def _table(table: Table, explained: set[tuple[str, str]]) -> Iterable[str]:
    grid = to_grid(table)
    if table.title:
        yield f"**{escaped(table.title)}**"
    rule = ["---:" if right else "---" for right in grid.right_aligned]
    lines = [grid.header, rule, *grid.rows]
    yield "\n".join(f"| {' | '.join(map(escaped, line))} |" for line in lines)
    yield escaped(" ".join(filter(None, table_notes(table, grid, explained))))


def bullets(findings: Iterable[Finding]) -> str:
    return "\n".join(f"- {escaped(str(finding))}" for finding in findings)


def escaped(text: str) -> str:
    """`text` on one line, with table and HTML markup escaped."""
    return printable(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
