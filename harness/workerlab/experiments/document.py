"""What the documents of the experiments are made of: answers, and tables of fields."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from workerlab.model import Column, Finding, Form, Table, Value

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
    title: Finding, fields: Iterable[Field], items: Iterable[Any], note: Finding | None = None
) -> Table:
    """A column per field, a row per item."""
    columns, getters = zip(*((Column(name, form), get) for name, form, get in fields), strict=True)
    return Table(title, columns, tuple(tuple(get(one) for get in getters) for one in items), note)


def cores_of(environment: Mapping[str, object]) -> int | None:
    """Of the machine that a run was measured on."""
    cores = environment.get("cores")
    return cores if isinstance(cores, int) and cores > 0 else None
