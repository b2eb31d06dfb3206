"""Cells that are held up by what runs, not by how many slots there are."""

from __future__ import annotations

from harness.analysis.case import Case, cores_used
from harness.analysis.knee import BUSY
from harness.numbers.words import number, plural, seconds

BLOCKED = 0.9  # of the time in the app: no hello-world app gets there
LONG_S, QUEUED = 0.005, 0.05  # a request that takes so long, and others that wait so much of it
COMPUTING = 0.7  # of the cores its workers could use
FULL = 0.9  # of all cores
COUNTS = 0.25  # of all cores: less is not what the machine lacks


def blocked_loop(case: Case) -> str | None:
    """One request at a time in workers that could serve many."""
    if not case.waits or case.blocked is None:
        return None
    queued_s = case.cell.breakdown.in_worker_s or 0.0
    behind = case.service_s >= LONG_S and queued_s >= QUEUED * case.service_s
    if case.blocked < BLOCKED and not behind:
        return None
    workers = plural(case.server.workers, "worker")
    what = (
        "your workers serve one request at a time: something blocks the event loop"
        f" ({plural(case.connections, 'connection')} on {workers}, and no worker ever had two"
        f" requests in the app)"
    )
    return f"{what}. {_what_blocks(case)}"


def _what_blocks(case: Case) -> str:
    used, cores = case.cell.usage.server_cores, case.cores
    could = min(case.server.workers, cores or case.server.workers)
    if used is not None and used >= COMPUTING * could:
        return (
            f"It computes ({cores_used(used)} for {plural(case.server.workers, 'worker')}): move"
            " the work to other processes, or run as many workers as there are cores."
        )
    if case.patched_late:
        return (
            "preload_app loads the app before gevent replaces the calls that block: turn it off,"
            " or begin the app with gevent.monkey.patch_all()."
        )
    idle = "" if used is None else f" and uses {cores_used(used)} meanwhile"
    loop = "asynchronous calls" if case.worker_class.asgi else "calls its loop can patch"
    return (
        f"It sleeps or waits in a call that blocks{idle} (a sleep, a database driver, an HTTP"
        f" client): use {loop}, or a class with threads."
    )


def busy_machine(case: Case) -> str | None:
    """No core is left: by the server itself, or while its slots are not what holds it up."""
    used, cores = case.cell.usage, case.cores
    if not case.waits or not cores:
        return None
    server, host = used.server_cores, used.host_busy
    by_server = server is not None and server >= FULL * cores
    ours = (server or 0.0) + (used.generator_cores or 0.0)
    beside = host is not None and host > FULL and ours > COUNTS * cores
    beside = beside and case.rps < BUSY * case.possible_rps
    if not by_server and not beside:
        return None
    busy = " are busy" if host is None else f" are {100 * host:.0f} % busy"
    others = _others(case)
    shares = [("the server", server), ("the load tool", used.generator_cores)]
    shares += [("other programs", others)] if others > (1 - FULL) * cores else []
    told = [f"{name} {cores_used(share)}" for name, share in shares if share is not None]
    advice = "Faster code, more cores or a load tool on another machine bring more."
    if others > (server or 0.0):
        advice = "Close the other programs and measure again."
    got = f"{plural(case.connections, 'connection')} get {number(case.rps)} requests/s"
    return (
        f"the machine is the limit: {got} while its {plural(cores, 'core')}{busy}"
        f" ({', '.join(told) or 'nobody knows by whom'}). {advice}"
    )


def _others(case: Case) -> float:
    """Cores that neither server nor load tool used; 0 where that is not known."""
    used = case.cell.usage
    if used.host_busy is None or used.server_cores is None or used.generator_cores is None:
        return 0.0
    return used.host_busy * (case.cores or 0) - used.server_cores - used.generator_cores


def busy_workers(case: Case) -> str | None:
    """Every worker computes all the time: a Python process does on one core at a time."""
    server, workers = case.cell.usage.server_cores, case.server.workers
    if not case.waits or server is None or server < FULL * workers:
        return None
    if case.rps >= BUSY * case.possible_rps:
        return None  # the slots say it as well
    use = cores_used(server) + (f" (of {plural(case.cores, 'core')})" if case.cores else "")
    return (
        f"{plural(workers, 'worker')} compute{'s' * (workers == 1)} all the time, {use},"
        f" so that {plural(case.connections, 'connection')} get {number(case.rps)}"
        " requests/s. Faster code or more workers, up to one a core, bring more."
    )


def slow_together(case: Case) -> str | None:
    """Nobody waits for a slot, and yet requests take longer than a lone one."""
    if not case.waits:
        return None
    used, cores = case.cell.usage.server_cores, case.cores
    cpu = "" if used is None or not cores else f" The server uses {cores_used(used)} of {cores}:"
    look = "look for what" if cpu else "Look for what"
    return (
        f"with {plural(case.connections, 'connection')} a request spends {seconds(case.service_s)}"
        f" inside the app, a lone one {seconds(case.lone_s)}: they slow each other down.{cpu}"
        f" {look} they share (a lock, a pool of connections, a service behind the app)."
    )
