"""What the documents of the experiments are made of."""

from collections.abc import Iterable, Mapping
from typing import Any

from workerlab.model import Column, Label, Table


def table(
    title: Label,
    columns: Iterable[Column],
    items: Iterable[Any],
    note: Label | None = None,
) -> Table:
    """A row per item."""
    columns = tuple(columns)
    rows = tuple(tuple(column.of(item) for column in columns) for item in items)
    return Table(title, columns, rows, note)


def cores_of(environment: Mapping[str, object]) -> int | None:
    """Cores of the machine that the run was measured on; None if unknown."""
    cores = environment.get("cores")
    return cores if isinstance(cores, int) and cores > 0 else None
