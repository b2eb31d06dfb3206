"""The fields of a lesson's file, checked one by one: what is wrong is said with its place."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from workerlab.model import UsageError


class Field(NamedTuple):
    """`check` answers with the value, or raises ValueError with what it must be."""

    check: Callable[[Any], Any]
    default: Any = ...  # ...: it must be there


def words(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be text")
    return " ".join(value.split())


def whole(least: int, most: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return value

    return check


def number(least: float, most: float, unit: str = "") -> Callable[[object], float]:
    def check(value: object) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:  # type: ignore[operator]
            raise ValueError(f"must be a number{unit} from {least:g} to {most:g}")
        return float(value)  # type: ignore[arg-type]

    return check


seconds = number(0.01, 10, " of seconds")


def one_of(names: Iterable[str]) -> Callable[[object], str]:
    def check(value: object) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return value

    return check


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def tables(least: int, most: int) -> Callable[[object], list[object]]:
    def check(value: object) -> list[object]:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise ValueError(f"there must be {least} to {most} of them")
        return value

    return check


def fields(table: object, known: Mapping[str, Field], where: str) -> dict[str, Any]:
    """Every field that is known, checked. Raises UsageError for the first that is wrong."""
    if not isinstance(table, dict):
        raise UsageError(f"{where}: must be a table of {', '.join(known)}")
    for name in table.keys() - known.keys():
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise UsageError(f"{where}: there is no field {name!r}: {hint}")
    found = {}
    for name, field in known.items():
        if name not in table and field.default is ...:
            raise UsageError(f"{where}, {name}: is missing")
        try:
            found[name] = field.check(table[name]) if name in table else field.default
        except ValueError as error:
            raise UsageError(f"{where}, {name}: {error}, not {_shown(table[name])}") from error
    return found


def _shown(value: object) -> str:
    if isinstance(value, list):
        return str(len(value))
    return repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:40]}..."
