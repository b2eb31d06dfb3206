"""Sweeps of which it is known, by how they are made, what may be said about them.

A Scenario is a command line and the truth per level of its load. Of each cell a Truth says which
verdicts are right, which findings must be among those reported, and which may be. **All others of
CODES must not be**: a scenario that lists nothing forbids everything. `a|b`: one of the two.

A verdict is allowed for a reason, too: on 4 connections that chance deals to 2 workers of 2 threads
the slots may be full or not, so that both words are right; "saturated" is not.

An app that computes is run by itself. Those that only sleep (`sleeper`) are run up to three at a
time, in networks of their own, because what the kernel drops is counted per network; nothing that
is reported of them may be inconclusive.
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
BESIDE_NOISE = frozenset({"CoresTaken", "CoresStolen"})  # true while others take the cores
ANYWHERE = frozenset({"CoresStolen"})  # the machine's own neighbours: not ours to arrange


class Truth(Struct, frozen=True):
    """Of one cell. `must` and `may`: names of diagnoses."""

    verdicts: tuple[str, ...]
    must: tuple[str, ...] = ()
    may: frozenset[str] = frozenset()

    @property
    def forbidden(self) -> frozenset[str]:
        required = {code for codes in self.must for code in codes.split("|")}
        return CODES - required - self.may - ANYWHERE


class Scenario(Struct, frozen=True):
    """`cells`: the truth by level, or by rate as it is written ("42"). `env`: of the server."""

    name: str
    why: str
    argv: tuple[str, ...]
    cells: Mapping[str, Truth]
    env: Mapping[str, str] = {}
    sleeper: bool = True
    exit_codes: tuple[int, ...] = (0,)
    short: bool = False  # in the subset that every test run makes
    identical: bool = False  # its trials differ in nothing: no difference may be reported


def truth(verdicts: str, must: str = "", may: str = "") -> Truth:
    return Truth(tuple(verdicts.split("|")), tuple(must.split()), frozenset(may.split()))


BELOW = truth("below capacity", may="NothingWaits")
AT = truth("at capacity", may="AllSlotsBusy")
NEAR = truth("below capacity|at capacity", may="NothingWaits AllSlotsBusy WaitingForSlots")
ABOVE = truth("saturated", "WaitingForSlots", "AllSlotsBusy")


def also(truth: Truth, must: str = "", may: str = "") -> Truth:
    """With further findings."""
    return replace(truth, must=(*truth.must, *must.split()), may=truth.may | frozenset(may.split()))


# --- sweeps -------------------------------------------------------------------------------------

# Four slots each: what they are configured to serve at once
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
    short: bool = False,
    **more: object,
) -> Scenario:
    """A sweep of the corpus's own apps. `line`: its command line after "sweep"."""
    words = line.split()
    module = "cases_asgi" if words[0] in ASYNC else "cases"
    env = {"CASE": case, "SLEEP_MS": str(sleep_ms), "CPU_MS": f"{cpu_ms:g}"}
    quotas = more.pop("quotas", "")
    if quotas:
        env["QUOTAS"] = str(quotas)
    return Scenario(
        name,
        why,
        (*words, "--app", f"{module}:app"),
        cells,
        env,
        sleeper=not cpu_ms and case not in ("leak",),
        short=short,
        **more,
    )
