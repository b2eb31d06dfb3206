"""Plans: a fixed one, and strategies for any plan that the axes allow."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from tests.builders.analysis import sentence
from workerlab.finding import stored
from workerlab.model.plan import App, Cell, Plan, Rate, Server
from workerlab.plan import product
from workerlab.server import preflight
from workerlab.server.worker_classes import CLASSES

APP = App("apps.sleep_wsgi:app", "", sleep_s=1.0)
SERVER = Server("sync", 4, 1, 2048, 1000, app=APP)


def plan(cells: tuple[Cell, ...] | None = None, **changes: Any) -> Plan:
    """By default, four sync workers under ab at 4, 8 and 16 connections."""
    values: dict[str, Any] = {
        "kind": "sweep",
        "cells": product((SERVER,), ("ab",), (4, 8, 16)) if cells is None else cells,
        "trials": 1,
        "rounds": 5,
        "seed": 1,
        "python": "python3",
        "config": None,
        "unavailable": {},
        "notes": (),
    }
    return Plan(**{**values, **changes})


def with_classes(monkeypatch: pytest.MonkeyPatch, classes: tuple[str, ...] = CLASSES) -> None:
    """Plans are made for an interpreter that has every worker class."""
    interpreter = preflight.Interpreter("python3", "25.3.0", classes, (), {}, {})
    monkeypatch.setattr(preflight, "interpreter", lambda *_: interpreter)


# --- any plan that the axes allow ---------------------------------------------------------------

TEXT = st.text(max_size=10)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple)
COUNTS = st.integers(1, 200)
RATES = st.builds(Rate, rps=st.floats(0.01, 1e5)) | st.builds(Rate, share=st.floats(0.01, 1))
APPS = st.builds(
    App,
    target=TEXT,
    chdir=TEXT,
    path=TEXT,
    method=st.sampled_from(["GET", "POST"]),
    headers=PAIRS,
    body_file=st.none() | TEXT,
    expect_status=st.integers(100, 599),
    env=PAIRS,
    sleep_s=st.none() | st.floats(0, 3600),
)
TOOLS = st.sampled_from(["ab", "wrk", "fast"])
LEVELS = st.integers(1, 30_000)
SERVERS = st.builds(Server, st.sampled_from(CLASSES), COUNTS, COUNTS, COUNTS, COUNTS, app=APPS)
CELLS = st.builds(Cell, SERVERS, TOOLS, LEVELS, st.booleans(), processes=st.integers(1, 2))


def some(
    values: st.SearchStrategy[Any], key: Any = lambda value: value
) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, min_size=1, max_size=3, unique_by=key).map(tuple)


AXES = st.fixed_dictionaries(
    {
        "servers": some(SERVERS, key=lambda server: server.key),
        "tools": some(TOOLS),
        "levels": some(LEVELS),
        "keepalive": st.sampled_from([(False,), (True,), (False, True)]),
        "processes": st.sampled_from([(1,), (1, 2)]),
        "rates": st.lists(RATES, max_size=2, unique_by=lambda rate: rate.label).map(tuple),
    }
)


def plans(cells: st.SearchStrategy[tuple[Cell, ...]] | None = None) -> st.SearchStrategy[Plan]:
    """Any plan; by default with cells of the closed loop."""
    closed = AXES.map(lambda axes: product(**{**axes, "rates": ()}))
    return st.builds(
        Plan,
        kind=st.just("sweep"),
        cells=closed if cells is None else cells,
        trials=st.integers(1, 4),
        rounds=st.integers(2, 50),
        seed=st.integers(0, 2**32 - 1),
        python=TEXT,
        config=st.none() | TEXT,
        unavailable=st.dictionaries(st.sampled_from(CLASSES), TEXT),
        notes=st.lists(TEXT.map(sentence).map(stored), max_size=2).map(tuple),
        max_seconds=st.none() | st.floats(1, 60),
        load_hosts=st.lists(TEXT, max_size=2).map(tuple),
    )
