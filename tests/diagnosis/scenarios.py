"""The corpus: sweeps of which it is known, by how they are made, what may be said about them.

A Scenario is a command line and the truth per level of its load. Of each cell a Truth says which
verdicts are right, which findings must be among those reported, and which may be. **All others of
CODES must not be**: a scenario that lists nothing forbids everything. `a|b`: one of the two.

A verdict is allowed for a reason, too: on 4 connections that chance deals to 2 workers of 2 threads
the slots may be full or not, so that both words are right; "saturated" is not.

What is measured by how many must share a core (`cpu`) is run by itself; apps that only sleep are
run up to three at a time, in networks of their own, because what the kernel drops is counted per
network. `sleeper`: nothing it says may be inconclusive.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

CORES = os.cpu_count() or 1
CODES = frozenset(
    {"load_tool", "full_queue", "stall", "uneven", "blocked_loop", "busy_workers", "busy_machine",
     "shared", "drift", "slow_first", "shedding", "failing", "core_wait", "steal", "waiting",
     "all_slots_busy", "nothing_waits"}
)  # fmt: skip
BESIDE_NOISE = frozenset({"core_wait", "steal"})  # true of any cell while others take the cores
ANYWHERE = frozenset({"steal"})  # the machine's own neighbours: not ours to arrange


class Truth(Struct, frozen=True):
    """Of one cell. `must` and `may`: codes without "diagnosis."."""

    verdicts: tuple[str, ...]
    must: tuple[str, ...] = ()
    may: frozenset[str] = frozenset()

    @property
    def forbidden(self) -> frozenset[str]:
        required = {code for one in self.must for code in one.split("|")}
        return CODES - required - self.may - ANYWHERE


class Scenario(Struct, frozen=True):
    """`cells`: the truth by level, or by rate as it is written ("42"). `knee`: between which
    numbers of connections it lies; () where nothing is expected of it, (None,) where there is none.
    """

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


BELOW = truth("below capacity", may="nothing_waits")
AT = truth("at capacity", may="all_slots_busy")
NEAR = truth("below capacity|at capacity", may="nothing_waits all_slots_busy waiting")
ABOVE = truth("saturated", "waiting", "all_slots_busy")


def also(one: Truth, must: str = "", may: str = "") -> Truth:
    """With further findings."""
    return replace(one, must=(*one.must, *must.split()), may=one.may | frozenset(may.split()))


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
        **more,  # type: ignore[arg-type]
    )


def levels() -> Iterable[Scenario]:
    """Below, at and above what the slots serve."""
    why = "4 slots, each taken for as long as a request sleeps: 2 connections leave 2 free, 4 fill"
    why += " them where the kernel deals evenly, 16 make 12 wait"
    for name, settings in FOUR.items():
        # These accept more than they serve, and chance decides which worker's requests wait
        chance = name in ("gthread", "tornado")
        at = also(NEAR, may="uneven") if chance else AT
        below = truth("below capacity", may="nothing_waits waiting uneven") if chance else BELOW
        above = truth("saturated|at capacity", "waiting|uneven", "all_slots_busy waiting uneven")
        cells = {"2": below, "4": at, "16": above if chance else ABOVE}
        if name == "tornado":  # a WSGI app is called on tornado's loop, which is blocked
            cells = {level: also(one, may="blocked_loop") for level, one in cells.items()}
        line = f"{name} 2,4,16 {settings}"
        yield sweep(
            f"{name}-sleeps", why, line, cells, sleep_ms=100, short=name in ("sync", "gevent")
        )
        yield sweep(f"{name}-computes-some", why, f"{line} --tool fast", cells, cpu_ms=5)


def awaiting() -> Iterable[Scenario]:
    why = "no slots, and nothing but a timer to wait for: each request is answered in its 100 ms"
    for name in ASYNC:
        line = f"{name} 2,8,32 --workers 2 --tool fast"
        cells = dict.fromkeys(("2", "8", "32"), BELOW)
        yield sweep(f"{name}-awaits", why, line, cells, sleep_ms=100, short=name == "asgi")
        why_some = "2 ms of CPU in 50 ms: 8 connections take a third of a core of 2 workers"
        line = f"{name} 2,8 --workers 2 --tool fast --keepalive on"
        cells = dict.fromkeys(("2", "8"), BELOW)
        yield sweep(f"{name}-awaits-computes-some", why_some, line, cells, cpu_ms=2)


def overflow() -> Iterable[Scenario]:
    full = truth("saturated", "full_queue", "waiting stall all_slots_busy")
    why = "4 slots and an accept queue of 4 + 1 take 9 of 16 connections; the kernel drops the rest"
    none = "an accept queue of 8 + 1 takes 8 connections, even before the first is accepted"
    for name in ("sync", "gevent"):
        for tool in ("fast", "ab"):
            line = f"{name} 16 {FOUR[name]} --backlog 4 --tool {tool}"
            yield sweep(f"{name}-overflows-{tool}", why, line, {"16": full}, sleep_ms=200)
        line = f"{name} 8 {FOUR[name]} --backlog 8 --tool fast"
        cells = {"8": ABOVE}
        yield sweep(f"{name}-queue-fits", none, line, cells, sleep_ms=200, short=name == "sync")


def dealing() -> Iterable[Scenario]:
    why = "the app lets its workers accept so many of 8 connections; each has 4 threads"
    settings = "--workers 2 --threads 4 --tool fast --rounds 8"
    apart = truth("below capacity|saturated", "uneven", "waiting nothing_waits")
    even = AT
    for quotas in ("8,0", "7,1", "6,2", "4,4"):
        one = even if quotas == "4,4" else apart
        label = quotas.replace(",", "-")
        line = f"gthread 8 {settings} --keepalive on"
        yield sweep(f"gthread-dealt-{label}", why, line, {"8": one},
                    sleep_ms=100, quotas=quotas, short=quotas in ("6,2", "4,4"))  # fmt: skip
    for quotas in ("6,2", "4,4"):
        label = quotas.replace(",", "-")
        one = even if quotas == "4,4" else apart
        yield sweep(f"gthread-dealt-{label}-closed", f"{why}; a connection per request",
                    f"gthread 8 {settings}", {"8": one}, sleep_ms=100, quotas=quotas)  # fmt: skip
    for name in ASYNC:
        line = f"{name} 8 --workers 2 --tool fast --keepalive on --rounds 8"
        for quotas in ("7,1", "8,0"):
            label = quotas.replace(",", "-")
            blocked = truth(
                "saturated|at capacity|below capacity", "uneven blocked_loop", "waiting"
            )
            yield sweep(f"{name}-blocks-dealt-{label}",
                        f"a loop that is blocked serves one at a time; dealt {quotas}",
                        line, {"8": blocked}, case="blocks", quotas=quotas)  # fmt: skip
        yield sweep(f"{name}-awaits-dealt-7-1",
                    "dealt 7,1, but a loop that awaits serves all: nobody waits for another",
                    line, {"8": BELOW}, sleep_ms=100, quotas="7,1")  # fmt: skip


def loops() -> Iterable[Scenario]:
    why = {
        "blocks": "each request blocks its worker's loop for all of its 50 ms",
        "partly": "each request waits 50 ms and then blocks its worker's loop for 30 ms: of 8"
        " connections on 2 workers more than one is always due",
        "rarely": "each tenth request blocks its worker's loop for 200 ms, in which 7 others wait",
        "steady": "each request gives way in all of its waits",
    }
    for name in LOOPS:
        for case, sentence in why.items():
            blocked = truth(
                "saturated|at capacity", "blocked_loop", "waiting uneven all_slots_busy"
            )
            cell = {"steady": BELOW, "rarely": replace(blocked, verdicts=(
                "saturated", "at capacity", "below capacity"))}.get(case, blocked)  # fmt: skip
            line = f"{name} 8 --workers 2 --tool fast --rounds 10"
            short = (name, case) in {("uvicorn", "partly"), ("gevent", "blocks")}
            label = "gives-way" if case == "steady" else case
            yield sweep(f"{name}-{label}", sentence, line, {"8": cell}, case=case, short=short)


def computing() -> Iterable[Scenario]:
    cpu: dict[str, object] = {"sleep_ms": 0, "cpu_ms": 20}
    held = "waiting all_slots_busy busy_machine shared uneven"
    one = truth("saturated|at capacity", "busy_workers", "waiting all_slots_busy")
    why = "20 ms of CPU and no wait: a worker computes on one core at a time"
    if CORES > 1:
        yield sweep("sync-computes-on-1", why, "sync 2,8 --workers 1 --tool fast --rounds 20",
                    {"2": also(one, may="shared"), "8": one}, short=True, **cpu)  # type: ignore[arg-type]  # fmt: skip
        for name in ("gthread", "asgi", "uvicorn"):
            may = "shared blocked_loop"
            yield sweep(f"{name}-computes-on-1", f"{why}, whatever its threads or loop",
                        f"{name} 8 --workers 1 --threads 4 --tool fast --rounds 20",
                        {"8": also(one, may=may)}, **cpu)  # type: ignore[arg-type]  # fmt: skip
    workers = 2 * CORES
    more = truth("saturated|at capacity", "busy_machine", held)
    for name in ("sync", "gthread"):
        yield sweep(f"{name}-computes-on-more",
                    f"{workers} workers that compute all the time want more than {CORES} cores",
                    f"{name} {workers},{4 * workers} --workers {workers} --threads 1 --tool fast"
                    " --rounds 10", {str(workers): more, str(4 * workers): more}, **cpu)  # type: ignore[arg-type]  # fmt: skip


def sharing() -> Iterable[Scenario]:
    shared = truth("saturated|at capacity", "shared", "waiting all_slots_busy")
    alone = BELOW
    kinds = {
        "lock": "a lock that each request holds for 30 of its 50 ms: 33 requests/s of a worker,"
        " whatever its slots",
        "pool": "a pool of 2 that each request needs for its 50 ms: 40 requests/s of a worker",
        "gil": "20 of 50 ms in C code that keeps the interpreter's lock: 50 requests/s of a worker",
    }
    for case, why in kinds.items():
        line = "gthread 1,8 --workers 1 --threads 8 --tool fast --rounds 10"
        yield sweep(f"gthread-{case}", why, line, {"1": alone, "8": shared}, case=case,
                    short=case == "lock")  # fmt: skip
    for name, case in (("asgi", "pool"), ("uvicorn", "lock"), ("gevent", "pool")):
        line = f"{name} 1,8 --workers 1 --tool fast --rounds 10"
        yield sweep(f"{name}-{case}", kinds[case], line, {"1": alone, "8": shared}, case=case)


def troubles() -> Iterable[Scenario]:
    yield sweep("sync-boots-slowly", "4 s to boot, after which it is like any other",
                f"sync 2,16 {FOUR['sync']}", {"2": BELOW, "16": ABOVE},
                case="slow-boot", sleep_ms=100)  # fmt: skip
    dies = truth("invalid")
    for name in ("sync", "gthread"):
        yield sweep(f"{name}-worker-dies", "each worker ends in the midst of its 25th request",
                    f"{name} 8 --workers 2 --threads 2 --tool fast --rounds 20", {"8": dies},
                    case="dies", exit_codes=(1,), short=name == "sync")  # fmt: skip
    sheds = truth("saturated|at capacity|below capacity", "shedding",
                  "waiting all_slots_busy nothing_waits uneven")  # fmt: skip
    yield sweep("gthread-sheds",
                "a worker refuses what comes while 2 are in it: of 16 connections most are refused",
                "gthread 2,16 --workers 2 --threads 8 --tool fast --rounds 30",
                {"2": also(BELOW, may="shedding"), "16": sheds}, case="sheds", sleep_ms=100,
                exit_codes=(0, 1), short=True)  # fmt: skip
    yield sweep("gevent-sheds", "as with threads", "gevent 16 --workers 2 --tool fast --rounds 30",
                {"16": sheds}, case="sheds", sleep_ms=100, exit_codes=(0, 1))  # fmt: skip
    fails = {"2": also(BELOW, "failing"), "16": also(ABOVE, "failing")}
    fails["16"] = replace(fails["16"], must=("failing",), may=fails["16"].may | {"waiting"})
    yield sweep("sync-fails", "each fifth answer is a 500 at any load",
                f"sync 2,16 {FOUR['sync']} --tool fast", fails, case="fails",
                exit_codes=(0, 1))  # fmt: skip
    drift = truth("saturated", "drift", "waiting all_slots_busy")
    for case, why in {
        "drift": "each request of a worker sleeps 1/40 longer than the one before",
        "leak": "each request of a worker computes 0.4 ms longer than the one before",
    }.items():
        yield sweep(f"sync-{case}", why, f"sync 8 {FOUR['sync']} --tool fast --rounds 20",
                    {"8": drift}, case=case, short=case == "drift")  # fmt: skip
    first = truth("at capacity|below capacity|saturated", "slow_first",
                  "all_slots_busy nothing_waits")  # fmt: skip
    yield sweep("gthread-slow-first",
                "a pool of connections grows when needed, each in 1 s; then requests take 50 ms",
                "gthread 8 --workers 1 --threads 8 --tool fast --rounds 30", {"8": first},
                case="slow-first")  # fmt: skip
    yield sweep("gevent-slow-first", "the same, with slots to spare",
                "gevent 8 --workers 1 --tool fast --rounds 30",
                {"8": replace(first, verdicts=("below capacity",))}, case="slow-first")  # fmt: skip


def chance() -> Iterable[Scenario]:
    why = "sleeps that differ by chance alone: what holds a slot is random, how many there are not"
    for case in ("exponential", "bimodal", "heavy"):
        line = f"sync 2,16 {FOUR['sync']} --tool fast --rounds 10"
        yield sweep(f"sync-{case}", why, line, {"2": BELOW, "16": ABOVE}, case=case)
        line = "gevent 2,8 --workers 2 --tool fast --rounds 10"
        cells = dict.fromkeys(("2", "8"), BELOW)
        yield sweep(f"gevent-{case}", f"{why}; 2000 slots", line, cells, case=case)


def load_tools() -> Iterable[Scenario]:
    slow = truth("generator-bound", "load_tool", "")
    yield Scenario("locust-too-slow",
                   "a Locust process needs more CPU for a request than an app that does nothing",
                   ("gthread", "8", "--workers", "2", "--threads", "4", "--sleep", "0",
                    "--tool", "locust", "--duration", "6"), {"8": slow}, sleeper=False)  # fmt: skip


def open_loads() -> Iterable[Scenario]:
    why = "4 slots of 100 ms serve at most 40 requests/s, and hardly less"
    quiet = truth("below capacity", may="nothing_waits")
    near = truth("below capacity|at capacity", may="nothing_waits all_slots_busy waiting")
    over = truth("saturated", may="waiting all_slots_busy full_queue")
    for name in ("sync", "gevent"):
        for label, rates in {"below": ("20", "36"), "above": ("42", "60")}.items():
            truths = (quiet, near) if label == "below" else (over, over)
            cells = {"4": AT, **dict(zip(rates, truths, strict=True))}
            yield Scenario(f"{name}-open-{label}", why,
                           (name, "4", *FOUR[name].split(), "--tool", "fast", "--sleep", "0.1",
                            "--rate", ",".join(rates)), cells,
                           short=(name, label) == ("sync", "below"))  # fmt: skip


def same() -> Iterable[Scenario]:
    cells = {"2": BELOW, "4": AT, "16": ABOVE}
    yield sweep("sync-trials", "five fresh servers that differ in nothing",
                f"sync 2,4,16 {FOUR['sync']} --trials 5", cells, sleep_ms=100,
                identical=True)  # fmt: skip
    yield sweep("sync-two-tools", "two load tools that do the same",
                f"sync 2,16 {FOUR['sync']} --tool ab,fast", {"2": BELOW, "16": ABOVE},
                sleep_ms=100, identical=True)  # fmt: skip
    chance = "all_slots_busy waiting uneven"
    cells = {
        "4": truth("below capacity|at capacity", may=f"nothing_waits {chance}"),
        "16": truth("saturated|at capacity", "waiting|uneven", chance),
    }
    yield sweep("gthread-trials", "kept connections that chance deals anew to each of 4 servers",
                "gthread 4,16 --workers 2 --threads 2 --tool fast --keepalive on --trials 4",
                cells, identical=True)  # fmt: skip


GROUPS = (levels, awaiting, overflow, dealing, loops, computing, sharing, troubles, chance,
          load_tools, open_loads, same)  # fmt: skip
SCENARIOS = {one.name: one for group in GROUPS for one in group()}
