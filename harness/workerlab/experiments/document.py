"""What the documents of the experiments are made of: answers, and tables of fields."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from workerlab.model import Column, Finding, Form, Label, Table, Value

Getter = Callable[[Any], Value]
Field = tuple[str, Form, Getter]  # a column: its name, its form, its value in a row


def answer(
    kind: str,
    question: str,
    code: str,
    values: Mapping[str, Any] | None = None,
    evidence: Iterable[Finding] = (),
    trials: Iterable[str] = (),
) -> Finding:
    """To a question of the experiment `kind`, whose codes begin with its name."""
    name = f"{kind}.question.{question}"
    return Finding(f"{kind}.{code}", values or {}, tuple(trials), tuple(evidence), name)


def table(
    title: Label,
    fields: Iterable[Field | Column],
    items: Iterable[Any],
    note: Label | None = None,
) -> Table:
    """A column per field, a row per item."""
    columns = [
        field if isinstance(field, Column) else Column(field[0], field[1], value=field[2])
        for field in fields
    ]
    rows = tuple(tuple(column.of(item) for column in columns) for item in items)
    return Table(title, tuple(columns), rows, note)


def cores_of(environment: Mapping[str, object]) -> int | None:
    """Of the machine that a run was measured on."""
    cores = environment.get("cores")
    return cores if isinstance(cores, int) and cores > 0 else None
