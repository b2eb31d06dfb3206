"""Scenarios of other limits and faults of servers, of load tools, rates and trials."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from tests.diagnosis.truth import ABOVE, AT, BELOW, CORES, FOUR, Scenario, also, sweep, truth


def cpu_bound() -> Iterable[Scenario]:
    saturated = truth("saturated|at capacity", "BusyWorkers", "WaitingForSlots AllSlotsBusy")
    why = "20 ms of CPU and no waiting: a worker computes on one core at a time"
    if CORES > 1:
        line = "sync 2,8 --workers 1 --tool fast"
        cells = {"2": also(saturated, may="Shared"), "8": saturated}
        yield sweep("sync-computes-on-1", why, line, cells, sleep_ms=0, cpu_ms=20, short=True)
        for name in ("gthread", "asgi", "uvicorn"):
            line = f"{name} 8 --workers 1 --threads 4 --tool fast"
            cells = {"8": also(saturated, may="Shared BlockedLoop")}
            yield sweep(f"{name}-computes-on-1",
                        f"{why}, even with several threads or an event loop", line,
                        cells, sleep_ms=0, cpu_ms=20)  # fmt: skip
    workers, many = 2 * CORES, 8 * CORES
    full = truth("saturated|at capacity", "BusyMachine",
                 "WaitingForSlots AllSlotsBusy Shared UnevenDealing")  # fmt: skip
    why = f"{workers} workers that compute all the time need more than {CORES} cores"
    for name in ("sync", "gthread"):
        line = f"{name} {workers},{many} --workers {workers} --threads 1 --tool fast"
        cells = {str(workers): full, str(many): full}
        yield sweep(f"{name}-computes-on-more", why, line, cells, sleep_ms=0, cpu_ms=20)


def shared_resources() -> Iterable[Scenario]:
    shared = truth("saturated|at capacity", "Shared", "WaitingForSlots AllSlotsBusy")
    kinds = {
        "lock": "a lock that each request holds for 30 of its 50 ms: 33 requests/s per worker,"
        " however many slots it has",
        "pool": "a pool of 2 that each request needs for its 50 ms: 40 requests/s per worker",
        "gil": "20 of 50 ms in C code that holds the GIL: 50 requests/s per worker",
    }
    for case, why in kinds.items():
        line = "gthread 1,8 --workers 1 --threads 8 --tool fast"
        yield sweep(f"gthread-{case}", why, line, {"1": BELOW, "8": shared}, case=case,
                    short=case == "lock")  # fmt: skip
    yield sweep("sync-machine-lock", "a lock shared by all workers that each request holds for 30"
                " of its 50 ms: 33 requests/s, however many slots there are",
                f"sync 1,8 {FOUR['sync']} --tool fast",
                {"1": BELOW, "8": shared}, case="machine-lock")  # fmt: skip
    for name, case in (("asgi", "pool"), ("uvicorn", "lock"), ("gevent", "pool")):
        line = f"{name} 1,8 --workers 1 --tool fast"
        yield sweep(f"{name}-{case}", kinds[case], line, {"1": BELOW, "8": shared}, case=case)


def faults() -> Iterable[Scenario]:
    yield sweep("sync-boots-slowly", "takes 4 s to boot, then behaves like any other server",
                f"sync 2,16 {FOUR['sync']}", {"2": BELOW, "16": ABOVE},
                case="slow-boot", sleep_ms=100)  # fmt: skip
    dies = truth("invalid")
    for name in ("sync", "gthread"):
        yield sweep(f"{name}-worker-dies", "each worker exits after 50 requests",
                    f"{name} 8 --workers 2 --threads 2 --tool fast --rounds 20", {"8": dies},
                    case="dies", exit_codes=(1,), short=name == "sync")  # fmt: skip
    sheds = truth("saturated|at capacity|below capacity", "Shedding",
                  "WaitingForSlots AllSlotsBusy NothingWaits UnevenDealing")  # fmt: skip
    yield sweep("gthread-sheds",
                "a worker refuses requests while it has 2: with 16 connections most are refused",
                "gthread 2,16 --workers 2 --threads 8 --tool fast --rounds 30",
                {"2": also(BELOW, may="Shedding"), "16": sheds}, case="sheds", sleep_ms=100,
                exit_codes=(0, 1), short=True)  # fmt: skip
    yield sweep("gevent-sheds", "as with gthread", "gevent 16 --workers 2 --tool fast --rounds 30",
                {"16": sheds}, case="sheds", sleep_ms=100, exit_codes=(0, 1))  # fmt: skip
    fails = {"2": also(BELOW, "Failing"), "16": also(ABOVE, "Failing")}
    fails["16"] = replace(fails["16"], must=("Failing",), may=fails["16"].may | {"WaitingForSlots"})
    yield sweep("gthread-fails", "a 500 for every fifth request that overlaps another, at any load",
                "gthread 2,16 --workers 1 --threads 4 --tool fast", fails, case="fails",
                exit_codes=(0, 1))  # fmt: skip
    errors = {"2": also(BELOW, may="Failing"), "16": also(ABOVE, "Failing")}
    yield sweep("sync-errors", "a 500 for 1 in 20 requests, at random, including lone ones",
                f"sync 2,16 {FOUR['sync']} --tool fast --rounds 20", errors, case="errors",
                exit_codes=(0, 1))  # fmt: skip
    drift = truth("saturated", "Drift", "WaitingForSlots AllSlotsBusy")
    for case, why in {
        "drift": "each request to a worker sleeps 1/40 longer than the previous one",
        "leak": "each request to a worker computes 0.4 ms longer than the previous one",
    }.items():
        yield sweep(f"sync-{case}", why, f"sync 8 {FOUR['sync']} --tool fast --rounds 20",
                    {"8": drift}, case=case, short=case == "drift")  # fmt: skip
    first = truth("at capacity|below capacity|saturated", "SlowFirst",
                  "AllSlotsBusy NothingWaits")  # fmt: skip
    yield sweep("gthread-slow-first",
                "a pool opens connections on demand, each taking 1 s; then requests take 50 ms",
                "gthread 8 --workers 1 --threads 8 --tool fast --rounds 30", {"8": first},
                case="slow-first")  # fmt: skip
    yield sweep("gevent-slow-first", "the same, with more slots than needed",
                "gevent 8 --workers 1 --tool fast --rounds 30",
                {"8": replace(first, verdicts=("below capacity",))}, case="slow-first")  # fmt: skip


def random_sleeps() -> Iterable[Scenario]:
    why = "sleeps of random length: how long a slot is held varies, the number of slots does not"
    for case in ("exponential", "bimodal", "heavy"):
        line = f"sync 2,16 {FOUR['sync']} --tool fast"
        yield sweep(f"sync-{case}", why, line, {"2": BELOW, "16": ABOVE}, case=case)
        line = "gevent 2,8 --workers 2 --tool fast"
        cells = dict.fromkeys(("2", "8"), BELOW)
        yield sweep(f"gevent-{case}", f"{why}; 2000 slots", line, cells, case=case)


def load_tools() -> Iterable[Scenario]:
    slow = truth("generator-bound", "LoadToolIsLimit", "")
    yield Scenario("locust-too-slow",
                   "a Locust process needs more CPU per request than an app that does nothing",
                   ("gthread", "8", "--workers", "2", "--threads", "4", "--sleep", "0",
                    "--tool", "locust", "--duration", "6"), {"8": slow}, sleeper=False)  # fmt: skip


def open_loads() -> Iterable[Scenario]:
    why = "4 slots of 100 ms serve nearly 40 requests/s, and never more"
    quiet = truth("below capacity", may="NothingWaits")
    near = truth("below capacity|at capacity", may="NothingWaits AllSlotsBusy WaitingForSlots")
    over = truth("saturated", may="WaitingForSlots AllSlotsBusy FullAcceptQueue")
    for name in ("sync", "gevent"):
        for label, rates in {"below": ("20", "36"), "above": ("42", "60")}.items():
            truths = (quiet, near) if label == "below" else (over, over)
            cells = {"4": AT, **dict(zip(rates, truths, strict=True))}
            # At rates below capacity, responses take as long as in the closed load
            yield Scenario(f"{name}-open-{label}", why,
                           (name, "4", *FOUR[name].split(), "--tool", "fast", "--sleep", "0.1",
                            "--rate", ",".join(rates)), cells,
                           identical=label == "below",
                           short=(name, label) == ("sync", "below"))  # fmt: skip

    why = "a pool of 2 that each request needs for its 50 ms: 40 requests/s, and no slot limit"
    cells = {"8": truth("saturated", "Shared"), "20": quiet, "60": truth("saturated")}
    yield sweep("asgi-pool-open", why, "asgi 8 --workers 1 --tool fast --rate 20,60", cells,
                case="pool")  # fmt: skip


def identical_servers() -> Iterable[Scenario]:
    cells = {"2": BELOW, "16": ABOVE}
    yield sweep("sync-trials", "four identical fresh servers",
                f"sync 2,16 {FOUR['sync']} --trials 4", cells, sleep_ms=100,
                identical=True)  # fmt: skip
    yield sweep("sync-two-tools", "two load tools that send the same load",
                f"sync 2,16 {FOUR['sync']} --tool ab,fast", cells,
                sleep_ms=100, identical=True)  # fmt: skip
    random_findings = "AllSlotsBusy WaitingForSlots UnevenDealing"
    cells = {
        "4": truth("below capacity|at capacity", may=f"NothingWaits {random_findings}"),
        "16": truth("saturated|at capacity", "WaitingForSlots|UnevenDealing", random_findings),
    }
    yield sweep("gthread-trials", "kept-alive connections, distributed anew on each of 3 servers",
                "gthread 4,16 --workers 2 --threads 2 --tool fast --keepalive on --trials 3",
                cells, identical=True)  # fmt: skip
