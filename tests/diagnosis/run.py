"""Run the corpus through the command line, and print how often the diagnosis is right.

    python -m tests.diagnosis.run                       all, 5 times quiet and 5 times with noise
    python -m tests.diagnosis.run --only 'sync-*' --repeat 1 --noise off
    python -m tests.diagnosis.run --short --repeat 1    the subset that runs with the other tests
    python -m tests.diagnosis.run --table               judge the existing runs again

An interrupted corpus can be resumed. Scenarios that only sleep run three at a time, each in its own
network namespace, others one at a time; noise is a program that burns a core at random times.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.diagnosis import store, table
from tests.diagnosis.scenarios import SCENARIOS
from tests.diagnosis.statement import Statement
from tests.diagnosis.store import RunRecord
from tests.diagnosis.truth import Scenario

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
TIMEOUT_S = 300.0
PARALLEL_RUNS = 3
# With noise, most loads take their maximum; the default of 30 s per cell would take days
MAX_LOAD_S = 10
LENGTH_OPTIONS = {"--rounds", "--duration"}
OWN_NETWORK = (sys.executable, "-m", "tests.diagnosis.own_network")


def arguments() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "tests.diagnosis.run", description=__doc__, formatter_class=formatter
    )
    parser.add_argument("--out", type=Path, default=Path("results-diagnosis"), metavar="DIR")
    parser.add_argument("--only", action="append", metavar="NAMES", help="'sync-*'; repeatable")
    parser.add_argument(
        "--short", action="store_true", help="the subset that runs with the other tests"
    )
    parser.add_argument("--repeat", type=int, default=5, metavar="N")
    parser.add_argument("--noise", choices=("off", "on", "both"), default="both")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no run after")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the page")
    parser.add_argument("--record", type=Path, metavar="DIR", help="copy one run of each there")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    corpus: Path = options.out.absolute()
    corpus.mkdir(parents=True, exist_ok=True)
    scenarios = [scenario for scenario in SCENARIOS.values() if is_selected(scenario, options)]
    if not options.table:
        run_all(scenarios, options, corpus)
    names = {scenario.name for scenario in scenarios}
    records = [record for record in store.records_in(corpus) if record.scenario in names]
    statements = [statement for record in records for statement in judged(corpus, record)]
    sys.stdout.write(table.as_text(statements))
    if options.markdown:
        options.markdown.write_text(table.as_markdown(statements, records))
    if options.record:
        copy_correct_runs(corpus, records, options.record)
    return 1 if table.misses(statements) else 0


def judged(corpus: Path, record: RunRecord) -> list[Statement]:
    return store.statements(corpus, record, SCENARIOS[record.scenario])


def is_selected(scenario: Scenario, options: argparse.Namespace) -> bool:
    if options.short and not scenario.short:
        return False
    patterns = options.only or ["*"]
    return any(fnmatch.fnmatch(scenario.name, pattern) for pattern in patterns)


def copy_correct_runs(corpus: Path, records: Sequence[RunRecord], directory: Path) -> None:
    """One quiet run of each scenario and one with noise, if they are judged correct today."""
    directory.mkdir(parents=True, exist_ok=True)
    for record in records:
        kind = "noise" if record.noise else "quiet"
        copy = directory / f"{record.scenario}-{kind}{store.SUFFIX}"
        if not copy.exists() and not any(statement.wrong for statement in judged(corpus, record)):
            shutil.copyfile(corpus / f"{record.name}{store.SUFFIX}", copy)


# --- running ------------------------------------------------------------------------------------


def run_all(scenarios: Sequence[Scenario], options: argparse.Namespace, corpus: Path) -> None:
    deadline_s = time.monotonic() + 60 * options.minutes
    done = {record.name for record in store.records_in(corpus)}
    own_network = own_networks()
    if not own_network:
        print("no network namespaces here: one scenario at a time", file=sys.stderr)

    def run_scenario(scenario: Scenario, noise: bool, number: int) -> None:
        name = RunRecord(scenario.name, noise, number, 0, 0.0).name
        if name not in done and time.monotonic() < deadline_s:
            record = run(scenario, corpus, noise, number, own_network)
            store.append(corpus, record)
            wrong = sum(statement.wrong for statement in judged(corpus, record))
            print(f"{name}: {record.took_s:.0f} s, {wrong} wrong", file=sys.stderr, flush=True)

    for number in range(1, options.repeat + 1):
        for noise in {"off": (False,), "on": (True,), "both": (False, True)}[options.noise]:
            parallel = [s for s in scenarios if s.sleeper and own_network]
            with burning(number) if noise else contextlib.nullcontext():
                for scenario in scenarios:
                    if scenario not in parallel:
                        run_scenario(scenario, noise, number)
                with ThreadPoolExecutor(PARALLEL_RUNS) as pool:
                    list(pool.map(partial(run_scenario, noise=noise, number=number), parallel))


def own_networks() -> bool:
    """Whether scenarios can have their own network namespaces."""
    return subprocess.run(OWN_NETWORK, cwd=ROOT).returncode == 0


def run(
    scenario: Scenario, corpus: Path, noise: bool, number: int, own_network: bool,
    max_load_s: int = MAX_LOAD_S,
) -> RunRecord:  # fmt: skip
    """`max_load_s`: applies to loads without a fixed length."""
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="corpus-", dir=corpus) as scratch:
        command = sweep_command(scenario, scratch, max_load_s)
        exit_code, stderr = finish([*(OWN_NETWORK if own_network else ()), *command], Path(scratch))
        record = RunRecord(scenario.name, noise, number, exit_code, time.monotonic() - start_s,
                           stderr[-2000:], commit())  # fmt: skip
        for directory in Path(scratch).glob("runs/*/"):
            store.pack(directory, corpus / f"{record.name}{store.SUFFIX}")
    return record


def sweep_command(scenario: Scenario, scratch: str, max_load_s: int) -> list[str]:
    command = [sys.executable, "-m", "workerlab", "sweep", *scenario.argv, "--jobs", "1"]
    if "--app" in scenario.argv:
        command += ["--chdir", str(HERE / "apps")]
    for name, value in scenario.env.items():
        command += ["--env", f"{name}={value}"]
    if not LENGTH_OPTIONS.intersection(scenario.argv):
        command += ["--max-seconds", str(max_load_s)]
    return [*command, "--out", f"{scratch}/runs", "--format", "json"]


def finish(command: Sequence[str], scratch: Path) -> tuple[int, str]:
    """The command's exit code and standard error."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "harness")}
    with (scratch / "out").open("w") as out, (scratch / "err").open("w") as err:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(TIMEOUT_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGTERM)  # the lab ends all its processes
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
    return process.returncode, (scratch / "err").read_text(errors="replace")


@contextlib.contextmanager
def burning(seed: int) -> Iterator[None]:
    """A program that burns a core at random times; it also ends if this process is killed."""
    argv = [sys.executable, str(HERE / "noise.py"), str(seed)]
    process = subprocess.Popen(argv, start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def commit() -> str:
    argv = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
