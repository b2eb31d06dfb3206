"""A trial as the player takes it (`report/player`)."""

from typing import Any

from workerlab.model import CellResult, Timeline


def played(cell: CellResult, timeline: Timeline) -> dict[str, Any] | None:
    """None where no request was seen."""
    trace, plan = timeline.trace, cell.trial.cell
    if trace is None:
        return None
    server = trace.server
    shown = ("worker_class", "workers", "threads", "worker_connections", "backlog")
    closed = plan.rate is None
    load = {
        "model": "closed" if closed else "open",
        "clients": plan.concurrency if closed else None,
        "rate": None if closed else cell.asked_rps,
        "keepalive": plan.keepalive,
    }
    side = {
        "server": {name: getattr(server, name) for name in shown},
        "load": load,
        "slots": trace.slots,
        "accepts_first": trace.accepts_first,
        "workers": server.workers * server.instances,
        "sentence": "",
        "law": None,
        "moves": trace.moves,
        "samples": trace.samples,
    }
    return {"length_ms": trace.length_ms, "named": trace.named, "sides": [side]}
