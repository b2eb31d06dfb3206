"""Whether the file that `advise` recommends keeps its target: on apps of known behaviour, with
launches and schedules that the search never saw.

    python tests/benchmarks/advised.py [--apps waits,pool] [--launches 20] [--out DIR]

For each app `workerlab advise` is run as a user would, with the default budget; then Gunicorn is
started from the file it wrote, as it is but for the port, and loaded for 20 s at the target's rate,
on a fresh server and a new schedule each time. A launch breaks the target by the same rule as the
search counts (`workerlab.slo`, failures are slower than any limit; errors are counted over all
launches). One in which other programs used a quarter of a core or more, and that broke the target,
is void: it is repeated, and counted.

Apps that sleep may run side by side; for all others the machine should be quiet.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from workerlab import slo
from workerlab.analysis.target import requests_of, value_of
from workerlab.load.registry import tool_named
from workerlab.model import Load, Output

APPS = Path(__file__).parent / "advised_apps"
SECONDS, OTHERS, MOST_VOIDS = 20.0, 0.25, 10
FIRST_SEED = 500_000  # of schedules that no search has


class Case(NamedTuple):
    """An app, its target, and what `advise` is told beside it."""

    target: str
    rate: float
    slo: str
    more: tuple[str, ...] = ()


CASES: Mapping[str, Case] = {
    "waits": Case("waits:app", 50, "p95<100ms,errors<0.1%"),
    "computes": Case("computes:app", 40, "p95<150ms"),
    "mixed": Case("mixed:app", 80, "p95<150ms"),
    "heavy_tail": Case("heavy_tail:app", 30, "p95<200ms"),
    "pool": Case("pool:app", 40, "p95<200ms", ("--max-in-flight", "4")),
    "hidden_block": Case("hidden_block:app", 30, "p95<200ms"),
    "releases_gil": Case("releases_gil:app", 40, "p95<150ms"),
    "big": Case("big:app", 30, "p95<200ms", ("--memory", "1G")),
    "slow_boot": Case("slow_boot:app", 30, "p95<200ms"),
    "django": Case(
        "django_site:app", 30, "p95<150ms", ("--config", str(APPS / "django_gunicorn.py"))
    ),
}


def python_of(name: str, out: Path) -> str:
    """Django has an environment of its own, as a user's app has."""
    if name != "django":
        return sys.executable
    place = out / "django-venv"
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
        packages = ["gunicorn==25.3.0", "gevent", "packaging", "django"]
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    return str(python)


def advise(name: str, case: Case, out: Path, budget: str) -> tuple[Path, int]:
    """The run's directory, and the exit code."""
    runs = out / "runs" / name
    argv = [sys.executable, "-m", "workerlab", "advise", "--app", case.target, "--chdir", str(APPS)]
    argv += ["--rate", f"{case.rate:g}", "--slo", case.slo, "--python", python_of(name, out)]
    argv += ["--budget", budget, "--out", str(runs), *case.more]
    with (out / f"{name}.txt").open("w") as log:
        code = subprocess.run(argv, stdout=log, stderr=log).returncode
    return max(runs.iterdir(), key=lambda path: path.stat().st_mtime), code


def end(server: subprocess.Popen[bytes]) -> None:
    """Without waiting for requests that are under way: an overload takes long to drain."""
    if server.poll() is None:
        master = psutil.Process(server.pid)
        every = [master, *master.children(recursive=True)]
        server.send_signal(signal.SIGQUIT)
        try:
            server.wait(3)
        except subprocess.TimeoutExpired:
            for one in every:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            server.wait()


@contextmanager
def serving(python: str, file: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Gunicorn, from that file; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [python, "-m", "gunicorn", "-c", str(file), "--bind", f"127.0.0.1:{port}"]
    argv += ["--no-control-socket"]
    log = file.with_name("gunicorn.log").open("ab")
    server = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}/"
        until = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(url, timeout=10).read()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"{file} does not start: see {log.name}") from None
                time.sleep(0.05)
        time.sleep(1)  # the other workers
        yield url, psutil.Process(server.pid)
    finally:
        end(server)
        log.close()


def used_s(process: psutil.Process) -> float:
    """CPU seconds of a process and all below it."""
    every = [process, *process.children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in every)


def busy_s() -> float:
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice


def launch(
    python: str, file: Path, case: Case, seed: int, workdir: Path, seconds: float = SECONDS
) -> dict[str, object]:
    """What a load on a fresh server shows of each term, and how many cores others used."""
    fast = tool_named("fast")
    load = Load(
        *(256, 1, seconds, 2 * seconds),
        rate_rps=case.rate, timed=True, arrivals="poisson", schedule=seed,
    )  # fmt: skip
    shutil.rmtree(workdir, ignore_errors=True)  # nothing of the launch before may be read
    workdir.mkdir(parents=True)
    with serving(python, file) as (url, server):
        command = fast.command(load, url, str(workdir))
        for name, text in command.files.items():
            (workdir / name).write_text(text)
        before, server_s, began = busy_s(), used_s(server), time.monotonic()
        done = subprocess.run(command.argv, capture_output=True, text=True, cwd=workdir)
        lasted_s = time.monotonic() - began
        ours_s = used_s(server) - server_s
        others = busy_s() - before - ours_s
    files = {name: (workdir / name).read_text() for name in fast.OUTPUT_FILES}
    said = fast.parse(Output(done.stdout, done.stderr, done.returncode, files))
    times_s = [one.end_s for one in said.timings if one.cause is None and one.end_s is not None]
    failed = len(said.timings) - len(times_s) + (said.unsent or 0)
    of = requests_of(times_s, failed, said.rps)
    terms = [term for term in slo.parse(case.slo) if term.kind != "errors"]
    values = {str(term): value_of(term.metric, of) for term in terms}
    keeps = all((value := values[str(term)]) is not None and term.holds(value) for term in terms)
    others_cores = max(0.0, others - (said.cpu_s or 0.0)) / lasted_s
    return {"values": values, "failed": failed, "requests": of.total,
            "keeps": keeps, "others_cores": others_cores}  # fmt: skip


def verify(name: str, case: Case, out: Path, file: Path, launches: int) -> dict[str, object]:
    """So many launches that say something."""
    kept, voids, every, seed = 0, 0, list[dict[str, object]](), FIRST_SEED
    while len(every) - voids < launches and voids < MOST_VOIDS:
        seed += 1
        found = launch(python_of(name, out), file, case, seed, out / "load" / name)
        void = not found["keeps"] and float(str(found["others_cores"])) >= OTHERS
        voids += void
        kept += bool(found["keeps"])
        every.append({**found, "void": void})
        print(name, seed, json.dumps(found), "void" if void else "", flush=True)
    valid = [one for one in every if not one["void"]]
    requests, failed = (
        sum(int(str(one[name])) for one in valid) for name in ("requests", "failed")
    )
    errors = [term for term in slo.parse(case.slo) if term.kind == "errors"]
    pooled = {str(term): term.holds(failed / requests) for term in errors}
    return {"kept": kept, "launches": len(valid), "voids": voids, **pooled, "each": every}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--apps", default=",".join(CASES))
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--out", type=Path, default=Path("advised"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.apps.split(","):
        case, out = CASES[name], options.out.absolute()
        run, code = advise(name, case, out, options.budget)
        file = run / "gunicorn.conf.py"
        found: dict[str, object] = {"run": str(run), "exit_code": code}
        if file.exists():
            found |= verify(name, case, out, file, options.launches)
        (out / f"{name}.json").write_text(json.dumps(found, indent=1))
        print(name, {key: value for key, value in found.items() if key != "each"}, flush=True)


if __name__ == "__main__":
    main()
