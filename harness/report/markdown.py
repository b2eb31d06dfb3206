"""Markdown as GitHub shows it: the cells, the classes, and the same sentences as the table."""

from __future__ import annotations

from collections.abc import Sequence

from harness.model import ClassResult
from harness.numbers.units import MISSING
from harness.report.columns import NOT_KNOWN, legend
from harness.report.document import SweepResult
from harness.report.loops import loop_lines
from harness.report.messages import text
from harness.report.phases import phase_lines
from harness.report.remarks import invalid_lines, note_lines
from harness.report.sections import Section, sections
from harness.report.sentences import (
    amount,
    class_lines,
    connections,
    constants,
    cost_lines,
    label,
    varying,
)


def render(report: SweepResult) -> str:
    """A document of its own, ready to be pasted into an issue."""
    blocks = [f"## {escaped(report.run)}", escaped(constants(report))]
    for section in sections(report):
        blocks += _section(section)
    blocks.append(bullets([*loop_lines(report), *phase_lines(report)]))
    if report.classes:
        blocks.append(_classes(report))
    blocks.append(bullets(class_lines(report)))
    blocks.append("\n".join(escaped(line) for line in cost_lines(report)))
    for heading, lines in (("Invalid", invalid_lines(report)), ("Note", note_lines(report))):
        if lines:
            blocks += [f"**{heading}**", bullets(lines)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _section(section: Section) -> list[str]:
    chosen, cells = section.columns, section.cells
    heads = [f"{c.heading} {c.unit}".strip() for c in chosen]
    rows = [[c.value(cell) for c in chosen] for cell in cells]
    title = f"**{section.title.rstrip(':')}**" if section.title else ""
    table = pipe_table(heads, rows, [c.right for c in chosen])
    return [title, table, legend(chosen, cells), escaped(section.below)]


def _classes(report: SweepResult) -> str:
    differ = varying(group.server for group in report.classes)
    tools = len({group.tool for group in report.classes})
    mixed = len({group.keepalive for group in report.classes}) > 1
    heads = ["class", "slots set", "slots used", "capacity req/s", "95 % interval", "knee"]
    rows = [
        [
            label(
                group.server, group.tool, differ, tools, group.keepalive and mixed, group.processes
            ),
            *_limits(group),
        ]
        for group in report.classes
    ]
    return pipe_table(heads, rows, [False, True, True, True, True, False])


def _limits(group: ClassResult) -> list[str]:
    measured, interval = group.slots_measured, group.capacity_ci95
    return [
        _slots(group),
        MISSING if measured is None else str(measured),
        MISSING if group.capacity_rps is None else amount(group.capacity_rps),
        MISSING if interval is None else f"{interval[0]:.4g} to {interval[1]:.4g}",
        text(group.knee_note) if group.knee is None else connections(group.knee),
    ]


def _slots(group: ClassResult) -> str:
    if group.slots_configured is not None:
        return str(group.slots_configured)
    return "unlimited" if group.worker_class.slots_known else NOT_KNOWN


def pipe_table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    rule = ["---:" if to_right else "---" for to_right in right]
    lines = [heads, rule, *rows]
    return "\n".join(f"| {' | '.join(escaped(value) for value in line)} |" for line in lines)


def bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {escaped(line)}" for line in lines)


def escaped(text: str) -> str:
    """One line, in which nothing reads as markup of a table or of HTML."""
    clean = "".join(char if char.isprintable() else " " for char in text)
    return clean.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
