"""Sweeps whose correct diagnosis is known by construction.

A Scenario is a command line and the Truth for each level of its load. A Truth lists the correct
verdicts of a cell, the findings that must be reported and those that may be. **All other CODES are
forbidden**: a Truth without findings forbids all of them. `a|b`: either of the two.

A Truth may allow several verdicts: 4 connections, distributed at random over 2 workers of 2
threads, may or may not fill the slots, so the cell is at or below capacity, but not saturated.

Apps that compute are run one at a time. Those that only sleep (`sleeper`) run up to three at a
time, each in its own network namespace, because the kernel counts drops per namespace; their
reports may not be inconclusive.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

CORES = os.cpu_count() or 1
CODES = frozenset(
    {"LoadToolIsLimit", "FullAcceptQueue", "IdleWhileClientsWait", "UnevenDealing", "BlockedLoop",
     "BusyWorkers", "BusyMachine", "Shared", "Drift", "SlowFirst", "Shedding", "Failing",
     "CoresTaken", "CoresStolen", "WaitingForSlots", "AllSlotsBusy", "NothingWaits"}
)  # fmt: skip
ALLOWED_WITH_NOISE = frozenset({"CoresTaken", "CoresStolen"})
ALWAYS_ALLOWED = frozenset({"CoresStolen"})  # by other machines, which tests do not control


class Truth(Struct, frozen=True):
    """What is correct for a cell. `must` and `may`: names of diagnoses."""

    verdicts: tuple[str, ...]
    must: tuple[str, ...] = ()
    may: frozenset[str] = frozenset()

    @property
    def forbidden(self) -> frozenset[str]:
        required = {code for codes in self.must for code in codes.split("|")}
        return CODES - required - self.may - ALWAYS_ALLOWED


class Scenario(Struct, frozen=True):
    """`cells`: the truth by level, or by rate ("42"). `env`: of the server. `short`: in the subset
    that runs with the other tests. `identical`: its servers are; no difference may be reported."""

    name: str
    why: str
    argv: tuple[str, ...]
    cells: Mapping[str, Truth]
    env: Mapping[str, str] = {}
    sleeper: bool = True
    exit_codes: tuple[int, ...] = (0,)
    short: bool = False
    identical: bool = False


def truth(verdicts: str, must: str = "", may: str = "") -> Truth:
    return Truth(tuple(verdicts.split("|")), tuple(must.split()), frozenset(may.split()))


BELOW = truth("below capacity", may="NothingWaits")
AT = truth("at capacity", may="AllSlotsBusy")
NEAR = truth("below capacity|at capacity", may="NothingWaits AllSlotsBusy WaitingForSlots")
ABOVE = truth("saturated", "WaitingForSlots", "AllSlotsBusy")


def also(truth: Truth, must: str = "", may: str = "") -> Truth:
    """A copy with further findings."""
    return replace(truth, must=(*truth.must, *must.split()), may=truth.may | frozenset(may.split()))


# --- sweeps -------------------------------------------------------------------------------------

# Settings for four slots
FOUR = {
    "sync": "--workers 4",
    "gthread": "--workers 2 --threads 2",
    "gevent": "--workers 2 --worker-connections 2",
    "eventlet": "--workers 2 --worker-connections 2",
    "tornado": "--workers 4",
}
ASYNC = ("asgi", "uvicorn")
LOOPS = ("asgi", "uvicorn", "gevent", "eventlet")


def sweep(
    name: str,
    why: str,
    line: str,
    cells: Mapping[str, Truth],
    *,
    case: str = "steady",
    sleep_ms: int = 50,
    cpu_ms: float = 0,
    quotas: str = "",
    **more: object,
) -> Scenario:
    """A sweep of an app in `apps`. `line`: its command line after "sweep"; `more`: of Scenario."""
    arguments = line.split()
    module = "cases_asgi" if arguments[0] in ASYNC else "cases"
    env = {"CASE": case, "SLEEP_MS": str(sleep_ms), "CPU_MS": f"{cpu_ms:g}"}
    if quotas:
        env["QUOTAS"] = quotas
    argv, sleeper = (*arguments, "--app", f"{module}:app"), not cpu_ms and case != "leak"
    return Scenario(name, why, argv, cells, env, sleeper=sleeper, **more)
