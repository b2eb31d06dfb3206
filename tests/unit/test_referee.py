"""Numbers and verdicts of recorded runs stay as they were; sentences may be worded anew.

`tests/data/runs/NAME.zip` is a run directory, `NAME.json` what `workerlab report NAME --format
json` said of it when it was recorded, or since a rule was changed on purpose. Compared is a
projection of both: all that is no sentence. What is new may be there beside it, what was there must
not be missing.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.builders.runs import NAMES, PACKED, recorded
from workerlab.cli import main

REL = 1e-9

# Keys of a sweep under which sentences stand; that something stands there is looked at all the same
SENTENCES = frozenset({"reason", "diagnosis", "notes", "knee_note", "bound_reasons", "why"})
# Keys of a sweep whose mappings are keyed by what was found: one more is another result
FOUND = frozenset({"errors", "requests_per_worker", "connections_per_worker"})
# Columns of a study that hold verdicts and names, not sentences. The names of a ladder's steps, and
# what each step of `limits` is called, are wording
WORDS = frozenset({"tool", "generator", "generator_bound", "verdict", "limit"})


class Sentence:
    """Stands in for a text: what it says is not compared, its absence is a difference."""

    def __repr__(self) -> str:
        return "<some text>"


SENTENCE = Sentence()


class Exactly(dict[str, Any]):
    """A mapping that must not have further keys."""


def project(document: Mapping[str, Any]) -> Any:
    """What is compared of a document of either kind."""
    if "cells" in document and "classes" in document:
        return project_sweep(document)
    return project_study(document)


def project_sweep(value: Any, key: str = "") -> Any:
    """Every field of schema 1, sentences blanked."""
    if key in SENTENCES:
        return SENTENCE
    if isinstance(value, Mapping):
        made = Exactly if key in FOUND else dict
        return made({name: project_sweep(inner, name) for name, inner in value.items()})
    if isinstance(value, list):
        return [project_sweep(inner) for inner in value]
    return value


def project_study(document: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with their numbers and verdicts, the points of charts, and whether it is valid."""
    return {
        **{name: document[name] for name in ("schema", "kind", "run", "valid", "environment")},
        "tables": [[_row(row) for row in table["rows"]] for table in document["tables"]],
        "charts": [_chart(chart) for chart in document["charts"]],
    }


def _chart(chart: Mapping[str, Any]) -> list[Any]:
    """The points of each series, then their whiskers, then the line across."""
    return [
        *(
            [list(point) for point in series["points"]]
            + [[one["low"], one["high"]] for one in series.get("marks", ())]
            for series in chart["series"]
        ),
        *([[chart["level"]["y"]]] if chart.get("level") else ()),
    ]


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(name, value) for name, value in row.items()}


def _value(name: str, value: Any) -> Any:
    """Of a row: numbers and counts by name as they are, a verdict as its word, else no text."""
    text = value.get("text") if isinstance(value, Mapping) else value
    if isinstance(text, str):  # also where a text has become an object
        return text if name in WORDS else SENTENCE
    return Exactly(value) if isinstance(value, Mapping) else value


def differences(expected: Any, found: Any, where: str = "") -> Iterator[str]:
    """Where `found` is not what was expected; further keys of a mapping are none."""
    if expected is SENTENCE:
        return
    if isinstance(expected, Mapping):
        yield from _of_mappings(expected, found, where)
    elif isinstance(expected, list):
        yield from _of_lists(expected, found, where)
    elif not _same(expected, found):
        yield f"{where}: {expected!r} expected, {found!r} found"


def _of_mappings(expected: Mapping[str, Any], found: Any, where: str) -> Iterator[str]:
    if not isinstance(found, Mapping):
        yield f"{where}: a mapping expected, {found!r} found"
        return
    for name, value in expected.items():
        if name in found:
            yield from differences(value, found[name], f"{where}.{name}")
        else:
            yield f"{where}.{name}: missing"
    if isinstance(expected, Exactly):
        yield from (f"{where}.{name}: not expected" for name in found.keys() - expected.keys())


def _of_lists(expected: list[Any], found: Any, where: str) -> Iterator[str]:
    if not isinstance(found, list) or len(found) != len(expected):
        yield f"{where}: a list of {len(expected)} expected, {found!r:.200} found"
        return
    for place, (one, other) in enumerate(zip(expected, found, strict=True)):
        yield from differences(one, other, f"{where}[{place}]")


def _same(expected: Any, found: Any) -> bool:
    numbers = (int, float)
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found
    if isinstance(expected, numbers) and isinstance(found, numbers):
        return math.isclose(expected, found, rel_tol=REL, abs_tol=0.0)
    return type(expected) is type(found) and bool(expected == found)


def stored(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((PACKED / f"{name}.json").read_text(encoding="utf-8"))
    return document


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """`main` takes the signals for itself."""
    kept = {number: signal.getsignal(number) for number in _SIGNALS}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def test_there_are_runs() -> None:
    assert tuple(sorted(path.stem for path in PACKED.glob("*.json"))) == NAMES
    assert NAMES


@pytest.mark.parametrize("name", NAMES)
def test_numbers_and_verdicts_stay(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(recorded(name)), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not list(differences(project(stored(name)), project(found)))


def _numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all numbers in a document."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _numbers(inner, (*path, name))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _numbers(inner, (*path, place))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def _changed(document: dict[str, Any], whole: Any, path: tuple[Any, ...]) -> bool:
    """Whether the projection, `whole`, sees that this one number is another."""
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    was = place[path[-1]]
    place[path[-1]] = was * 1.000001 + 1e-9
    try:
        return bool(list(differences(whole, project(document))))
    finally:
        place[path[-1]] = was


@pytest.mark.parametrize("name", NAMES)
def test_the_referee_sees_a_change(name: str) -> None:
    document, whole = stored(name), project(stored(name))
    # A sentence may be made of other values
    paths = [one for one in _numbers(document) if one[0] != "findings" and "values" not in one]
    seen = paths[:: max(1, len(paths) // 40)]
    assert all(_changed(document, whole, path) for path in seen)
    assert not list(differences(whole, project(document)))


def test_the_referee_lets_sentences_change() -> None:
    document = {"cells": [{"reason": "so", "failed": 1}], "classes": [], "notes": ["a"]}
    later = {
        "cells": [{"reason": {"code": "x", "text": "thus"}, "failed": 1, "new": 2}],
        "classes": [],
        "notes": [],
        "more": None,
    }
    assert not list(differences(project(document), project(later)))
    assert list(differences(project(later), project(document)))
    missing = {"cells": [{"failed": 1}], "classes": [], "notes": []}
    assert list(differences(project(document), project(missing))) == [".cells[0].reason: missing"]
