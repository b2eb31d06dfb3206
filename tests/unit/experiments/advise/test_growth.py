"""What a run of `advise` is grown by before anything is forecast."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from harness.experiments.advise.candidates import Limits
from harness.experiments.advise.command import needs_cell
from harness.experiments.advise.growth import MUCH_BYTES, preload_cells, stacks_cells
from harness.experiments.advise.study import Asked, Study
from harness.model import App, Memory, Needs, Plan, RequestNeed


def study(*classes: str, private_bytes: int = 2 * MUCH_BYTES, sets: tuple[str, ...] = ()) -> Study:
    """Of needs that are known."""
    asked = Asked("p95<1s", 10.0, 300.0, Limits(cores=2), config_sets=sets)
    plan: Any = Plan(
        "advise", tuple(needs_cell(name, App()) for name in classes), 1, 5, 1, "", None, {}, ()
    )
    memory = Memory(10 << 20, private_bytes, 2)
    needs = Needs("", (RequestNeed(0.05, 0.001),), 0.0, 0.0, memory=memory)
    return Study(asked, plan, "", dict.fromkeys(classes, needs), {}, (), {}, ())


def test_what_could_be_shared_is_looked_at_once() -> None:
    seen = study("gevent", "sync", "gthread")
    (cell,) = preload_cells(seen.plan, seen)
    assert (cell.server.worker_class, cell.server.preload) == ("sync", True)
    grown = replace(seen.plan, cells=(*seen.plan.cells, cell))
    assert not list(preload_cells(grown, seen))
    alarmed = Study(*(getattr(seen, name) for name in Study.__struct_fields__[:8]), ("sync",))
    assert all(not one.server.preload for one in stacks_cells(grown.cells, alarmed))


def test_not_where_there_is_little_or_nobody_may() -> None:
    little = study("sync", private_bytes=MUCH_BYTES - 1)
    assert not list(preload_cells(little.plan, little))
    patched = study("gevent")
    assert not list(preload_cells(patched.plan, patched))
    own = study("sync", sets=("preload_app",))
    assert not list(preload_cells(own.plan, own))
