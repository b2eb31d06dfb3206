"""Scenarios of slots and event loops: how many requests are served at once, and how connections
are distributed over workers."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from tests.diagnosis.truth import (
    ABOVE,
    ASYNC,
    AT,
    BELOW,
    FOUR,
    LOOPS,
    NEAR,
    Scenario,
    also,
    sweep,
    truth,
)


def load_levels() -> Iterable[Scenario]:
    """Below, at and above the number of slots."""
    why = "4 slots, each held while a request sleeps: 2 connections leave 2 free, 4 fill them if"
    why += " distributed evenly, and of 16 connections 12 wait"
    for name, settings in FOUR.items():
        cells = {"2": BELOW, "4": AT, "16": ABOVE}
        # These accept more connections than they serve, so that their distribution is random
        if name in ("gthread", "eventlet", "tornado"):
            uneven = "WaitingForSlots UnevenDealing"
            cells = {
                "2": truth("below capacity", may=f"NothingWaits {uneven}"),
                "4": also(NEAR, may=uneven),
                "16": truth("saturated|at capacity", "WaitingForSlots|UnevenDealing",
                            f"AllSlotsBusy {uneven}"),
            }  # fmt: skip
        if name == "tornado":  # a WSGI app blocks tornado's loop
            cells = {level: also(expected, may="BlockedLoop") for level, expected in cells.items()}
        line = f"{name} 2,4,16 {settings}"
        yield sweep(
            f"{name}-sleeps", why, line, cells, sleep_ms=100, short=name in ("sync", "gevent")
        )
        yield sweep(f"{name}-computes-some", why, f"{line} --tool fast", cells, cpu_ms=5)


def async_apps() -> Iterable[Scenario]:
    why = "no slots, and requests wait only for a timer: each takes 100 ms"
    for name in ASYNC:
        line = f"{name} 2,8,32 --workers 2 --tool fast"
        cells = dict.fromkeys(("2", "8", "32"), BELOW)
        yield sweep(f"{name}-awaits", why, line, cells, sleep_ms=100, short=name == "asgi")
        why_some = "2 ms of CPU in 50 ms: 8 connections use a third of a core on 2 workers"
        line = f"{name} 2,8 --workers 2 --tool fast --keepalive on"
        cells = dict.fromkeys(("2", "8"), BELOW)
        yield sweep(f"{name}-awaits-computes-some", why_some, line, cells, cpu_ms=2)


def accept_queues() -> Iterable[Scenario]:
    # If the last packet of a handshake is dropped, the client sends its request seconds later; a
    # sync worker that has accepted the connection waits at most for its --timeout, then sends 500
    full = truth("saturated", "FullAcceptQueue",
                 "WaitingForSlots IdleWhileClientsWait AllSlotsBusy Failing")  # fmt: skip
    why = "4 slots and an accept queue of 4 + 1 hold 9 of 16 connections; the kernel drops the rest"
    why_fits = "an accept queue of 8 + 1 holds 8 connections, even before the first is accepted"
    for name in ("sync", "gevent"):
        for tool in ("fast", "ab"):
            line = f"{name} 16 {FOUR[name]} --backlog 4 --tool {tool}"
            yield sweep(f"{name}-overflows-{tool}", why, line, {"16": full}, sleep_ms=200)
        line = f"{name} 8 {FOUR[name]} --backlog 8 --tool fast"
        cells = {"8": ABOVE}
        yield sweep(f"{name}-queue-fits", why_fits, line, cells, sleep_ms=200, short=name == "sync")


def distributed_connections() -> Iterable[Scenario]:
    why = "the app limits how many of 8 connections each worker accepts; each has 4 threads"
    settings = "--workers 2 --threads 4 --tool fast"
    # Slots idle while requests wait, but one level cannot show whether more connections would help
    uneven = truth(
        "below capacity|saturated|inconclusive", "UnevenDealing", "WaitingForSlots NothingWaits"
    )
    for quotas in ("8,0", "7,1", "6,2", "4,4"):
        cells = {"8": AT if quotas == "4,4" else uneven}
        label = quotas.replace(",", "-")
        line = f"gthread 8 {settings} --keepalive on"
        yield sweep(f"gthread-dealt-{label}", why, line, cells,
                    sleep_ms=100, quotas=quotas, short=quotas in ("6,2", "4,4"))  # fmt: skip
    for quotas, cell in (("6,2", uneven), ("4,4", AT)):
        label = quotas.replace(",", "-")
        yield sweep(f"gthread-dealt-{label}-closed", f"{why}; a new connection per request",
                    f"gthread 8 {settings}", {"8": cell}, sleep_ms=100, quotas=quotas)  # fmt: skip
    for name in ASYNC:
        line = f"{name} 8 --workers 2 --tool fast --keepalive on"
        for quotas in ("7,1", "8,0"):
            label = quotas.replace(",", "-")
            blocked = truth(
                "saturated|at capacity|below capacity",
                "UnevenDealing BlockedLoop",
                "WaitingForSlots",
            )
            yield sweep(f"{name}-blocks-dealt-{label}",
                        f"a blocked loop serves one request at a time; distributed {quotas}",
                        line, {"8": blocked}, case="blocks", quotas=quotas)  # fmt: skip
        yield sweep(f"{name}-awaits-dealt-7-1",
                    "distributed 7,1, but a loop whose requests use `await` serves all of them at"
                    " once",
                    line, {"8": BELOW}, sleep_ms=100, quotas="7,1")  # fmt: skip


BLOCKS = {
    "blocks": ("what=usleeps&ms=50", "each request blocks its worker's loop for all of its 50 ms"),
    "partly": ("wait=50&what=usleeps&ms=30", "each request waits 50 ms and then blocks its worker's"
               " loop for 30 ms: with 8 connections on 2 workers, some request always waits for"
               " it"),
    "rarely": ("wait=50&what=usleeps&ms=200&each=10", "every tenth request blocks its worker's loop"
               " for 200 ms, while the others wait"),
    "gives-way": ("wait=50", "each request yields to the loop whenever it waits"),
}  # fmt: skip


def blocked_loops() -> Iterable[Scenario]:
    blocked = truth(
        "saturated|at capacity", "BlockedLoop", "WaitingForSlots UnevenDealing AllSlotsBusy"
    )
    some = replace(blocked, verdicts=("saturated", "at capacity", "below capacity"))
    truths = {"gives-way": {"8": BELOW}, "rarely": {"8": some, "32": blocked}}
    for name in (*LOOPS, "tornado"):
        kind = "asgi" if name in ASYNC else "wsgi" if name in LOOPS else "tornado"
        for case, (query, why) in BLOCKS.items():
            # If the loop rarely blocks, throughput levels off at about 8 connections: 32 show it
            levels = "8,32" if case == "rarely" else "8"
            argv = (name, levels, "--workers", "2", "--tool", "fast",
                    "--app", f"held_{kind}:app", "--path", f"/?{query}")  # fmt: skip
            short = (name, case) in {("uvicorn", "partly"), ("gevent", "blocks")}
            yield Scenario(f"{name}-{case}", why, argv, truths.get(case, {"8": blocked}),
                           short=short)  # fmt: skip
