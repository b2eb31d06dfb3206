"""Does the file that `advise` recommends meet its target? On apps of known behaviour, with launches
and schedules that the search did not use.

    python -m tests.benchmarks.advised [--apps waits,pool] [--launches 20] [--out DIR]

For each app `workerlab advise` runs with the default budget; then Gunicorn is started from the file
that it wrote, on another port, and loaded for 20 s at the target's rate, each time as a fresh
server and with a new schedule. A launch breaks the target by the rule of the search
(`workerlab.slo`; failures are slower than any limit; errors are counted over all launches). A
launch that broke it is void, and repeated, if other programs used a quarter of a core or more.

Apps that sleep may run in parallel; all others need a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.benchmarks.machine import busy_s, used_s
from workerlab import slo
from workerlab.analysis.target import requests_of, value_of
from workerlab.load.registry import tool_named
from workerlab.model.evidence import Output
from workerlab.model.plan import Load
from workerlab.server.services import free_port

APPS = Path(__file__).parent / "advised_apps"
SECONDS, MAX_VOIDS = 20.0, 10
DISTURBING_CORES = 0.25  # used by other programs
FIRST_SEED = 500_000  # beyond those of the search


class Case(NamedTuple):
    """An app, its load and target, and other arguments of `advise`."""

    target: str
    rate: float
    slo: str
    arguments: tuple[str, ...] = ()


CASES: Mapping[str, Case] = {
    "waits": Case("requests_that:waits", 50, "p95<100ms,errors<0.1%"),
    "computes": Case("requests_that:computes", 40, "p95<150ms"),
    "mixed": Case("requests_that:mixed", 80, "p95<150ms"),
    "heavy_tail": Case("requests_that:heavy_tail", 30, "p95<200ms"),
    "pool": Case("pool:app", 40, "p95<200ms", ("--max-in-flight", "4")),
    "hidden_block": Case("hidden_block:app", 30, "p95<200ms"),
    "releases_gil": Case("requests_that:releases_gil", 40, "p95<150ms"),
    "big": Case("big:app", 30, "p95<200ms", ("--memory", "1G")),
    "slow_boot": Case("slow_boot:app", 30, "p95<200ms"),
    "django": Case("django_site:app", 30, "p95<150ms",
                   ("--config", str(APPS / "django_gunicorn.py"))),
}  # fmt: skip


def python_of(name: str, out: Path) -> str:
    """Django has its own environment, like a user's app."""
    if name != "django":
        return sys.executable
    directory = out / "django-venv"
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
        packages = ["gunicorn==25.3.0", "gevent", "packaging", "django"]
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    return str(python)


def advise(name: str, case: Case, out: Path, budget: str) -> tuple[Path, int]:
    """The run's directory, and the exit code."""
    runs = out / "runs" / name
    argv = [sys.executable, "-m", "workerlab", "advise", "--app", case.target, "--chdir", str(APPS)]
    argv += ["--rate", f"{case.rate:g}", "--slo", case.slo, "--python", python_of(name, out)]
    argv += ["--budget", budget, "--out", str(runs), *case.arguments]
    with (out / f"{name}.txt").open("w") as log:
        code = subprocess.run(argv, stdout=log, stderr=log).returncode
    return max(runs.iterdir(), key=lambda path: path.stat().st_mtime), code


def end(server: subprocess.Popen[bytes]) -> None:
    """Do not wait for requests in flight: after an overload that would take long."""
    if server.poll() is None:
        master = psutil.Process(server.pid)
        processes = [master, *master.children(recursive=True)]
        server.send_signal(signal.SIGQUIT)
        try:
            server.wait(3)
        except subprocess.TimeoutExpired:
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            server.wait()


@contextmanager
def serving(python: str, file: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Start Gunicorn from that file and yield its URL and process."""
    port = free_port()
    argv = [python, "-m", "gunicorn", "-c", str(file), "--no-control-socket"]
    argv += ["--bind", f"127.0.0.1:{port}"]
    log = file.with_name("gunicorn.log").open("ab")
    server = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}/"
        deadline_s = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(url, timeout=10).read()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline_s:
                    raise SystemExit(f"{file} does not start: see {log.name}") from None
                time.sleep(0.05)
        time.sleep(1)  # for the other workers
        yield url, psutil.Process(server.pid)
    finally:
        end(server)
        log.close()


def launch(
    python: str, file: Path, case: Case, seed: int, workdir: Path, seconds: float = SECONDS
) -> dict[str, Any]:
    """Load a fresh server; return the value of each term and the cores used by other programs."""
    fast = tool_named("fast")
    load = Load(
        *(256, 1, seconds, 2 * seconds),
        rate_rps=case.rate, timed=True, arrivals="poisson", schedule=seed,
    )  # fmt: skip
    shutil.rmtree(workdir, ignore_errors=True)  # of the previous launch
    workdir.mkdir(parents=True)
    with serving(python, file) as (url, server):
        command = fast.command(load, url, str(workdir))
        for name, text in command.files.items():
            (workdir / name).write_text(text)
        before_s, server_before_s, start_s = busy_s(), used_s(server), time.monotonic()
        done = subprocess.run(command.argv, capture_output=True, text=True, cwd=workdir)
        duration_s = time.monotonic() - start_s
        others_s = busy_s() - before_s - (used_s(server) - server_before_s)
    files = {name: (workdir / name).read_text() for name in fast.OUTPUT_FILES}
    measured = fast.parse(Output(done.stdout, done.stderr, done.returncode, files))
    times_s = [
        timing.end_s
        for timing in measured.timings
        if timing.cause is None and timing.end_s is not None
    ]
    failed = len(measured.timings) - len(times_s) + (measured.unsent or 0)
    requests = requests_of(times_s, failed, measured.rps)
    terms = [term for term in slo.parse(case.slo) if term.kind != "errors"]
    values = {str(term): value_of(term.metric, requests) for term in terms}
    keeps = all((value := values[str(term)]) is not None and term.holds(value) for term in terms)
    return {
        "values": values,
        "failed": failed,
        "requests": requests.total,
        "keeps": keeps,
        "others_cores": max(0.0, others_s - (measured.cpu_s or 0.0)) / duration_s,
    }


def is_disturbed(result: Mapping[str, Any]) -> bool:
    return result["others_cores"] >= DISTURBING_CORES


def verify(name: str, case: Case, out: Path, file: Path, launches: int) -> dict[str, Any]:
    """Repeat until there are `launches` valid ones, or too many void ones."""
    valid, void = list[dict[str, Any]](), list[dict[str, Any]]()
    for seed in count(FIRST_SEED + 1):
        if len(valid) == launches or len(void) == MAX_VOIDS:
            break
        result = launch(python_of(name, out), file, case, seed, out / "load" / name)
        is_void = not result["keeps"] and is_disturbed(result)
        (void if is_void else valid).append(result)
        print(name, seed, json.dumps(result), "void" if is_void else "", flush=True)
    requests, failed = (sum(result[name] for result in valid) for name in ("requests", "failed"))
    errors = [term for term in slo.parse(case.slo) if term.kind == "errors"]
    pooled = {str(term): term.holds(failed / requests) for term in errors}
    kept = sum(result["keeps"] for result in valid)
    counts = {"kept": kept, "launches": len(valid), "voids": len(void)}
    return {**counts, **pooled, "valid": valid, "void": void}


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
        result: dict[str, Any] = {"run": str(run), "exit_code": code}
        if file.exists():
            result |= verify(name, case, out, file, options.launches)
        (out / f"{name}.json").write_text(json.dumps(result, indent=1))
        summary = {key: result[key] for key in result if key not in ("valid", "void")}
        print(name, summary, flush=True)


if __name__ == "__main__":
    main()
