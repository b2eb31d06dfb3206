"""Run the corpus through the real command line, and print what it got right.

    python -m tests.diagnosis.run                       all, 5 times quiet and 5 times beside noise
    python -m tests.diagnosis.run --only 'sync-*' --repeat 1 --noise off
    python -m tests.diagnosis.run --short --repeat 1    the subset of every test run
    python -m tests.diagnosis.run --table               judge again what there is; runs nothing

Ended at any moment it goes on from there. Scenarios that only sleep run three at a time, each in a
network of its own, others one at a time; noise is one neighbour that burns a core at random times.
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
from pathlib import Path

from tests.diagnosis import store, table
from tests.diagnosis.scenarios import SCENARIOS
from tests.diagnosis.statement import Statement
from tests.diagnosis.store import Ran
from tests.diagnosis.truth import Scenario

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
LONGEST_S = 300.0
SIDE_BY_SIDE = 3
# Beside noise a load goes on until its throughput is known; half a minute per cell is days in all
MOST_S = 10
FIXED = {"--rounds", "--duration"}  # say how long a load is
ALONE = (sys.executable, "-m", "tests.diagnosis.alone")


def arguments() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("tests.diagnosis.run", None, __doc__, formatter_class=plain)
    parser.add_argument("--out", type=Path, default=Path("results-diagnosis"), metavar="DIR")
    parser.add_argument("--only", action="append", metavar="NAMES", help="'sync-*'; repeatable")
    parser.add_argument("--short", action="store_true", help="the subset of every test run")
    parser.add_argument("--repeat", type=int, default=5, metavar="N")
    parser.add_argument("--noise", choices=("off", "on", "both"), default="both")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no run after")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there, too")
    parser.add_argument("--record", type=Path, metavar="DIR", help="keep one run of each there")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    options = arguments().parse_args(words)
    place: Path = options.out.absolute()
    place.mkdir(parents=True, exist_ok=True)
    chosen = [scenario for scenario in SCENARIOS.values() if wanted(scenario, options)]
    if not options.table:
        run_all(chosen, options, place)
    names = {scenario.name for scenario in chosen}
    ran = [trial for trial in store.ran_in(place) if trial.scenario in names]
    statements = [statement for trial in ran for statement in judged(place, trial)]
    sys.stdout.write(table.as_text(statements))
    if options.markdown:
        options.markdown.write_text(table.as_markdown(statements, ran))
    if options.record:
        record(place, ran, options.record)
    return 1 if table.misses(statements) else 0


def judged(place: Path, ran: Ran) -> list[Statement]:
    return store.statements(place, ran, SCENARIOS[ran.scenario])


def wanted(scenario: Scenario, options: argparse.Namespace) -> bool:
    if options.short and not scenario.short:
        return False
    return not options.only or any(
        fnmatch.fnmatch(scenario.name, pattern) for pattern in options.only
    )


def record(place: Path, ran: Sequence[Ran], into: Path) -> None:
    """One quiet run of each scenario, and one beside noise, that are understood today."""
    into.mkdir(parents=True, exist_ok=True)
    for trial in ran:
        kept = into / f"{trial.scenario}-{'noise' if trial.noise else 'quiet'}{store.PACKED}"
        if not kept.exists() and not any(statement.wrong for statement in judged(place, trial)):
            shutil.copyfile(place / f"{trial.name}{store.PACKED}", kept)


# --- running ------------------------------------------------------------------------------------


def run_all(chosen: Sequence[Scenario], options: argparse.Namespace, place: Path) -> None:
    end = time.monotonic() + 60 * options.minutes
    done = {trial.name for trial in store.ran_in(place)}
    alone = own_networks()
    if not alone:
        print("no network namespaces here: one scenario at a time", file=sys.stderr)

    def run_scenario(scenario: Scenario, noise: bool, number: int) -> None:
        name = Ran(scenario.name, noise, number, 0, 0.0).name
        if name not in done and time.monotonic() < end:
            ran = run(scenario, place, noise, number, alone)
            store.append(place, ran)
            wrong = [entry for entry in judged(place, ran) if entry.wrong]
            print(f"{name}: {ran.took_s:.0f} s, {len(wrong)} wrong", file=sys.stderr, flush=True)

    for number in range(1, options.repeat + 1):
        for noise in {"off": (False,), "on": (True,), "both": (False, True)}[options.noise]:
            together = [s for s in chosen if s.sleeper and alone]
            with burning(number) if noise else contextlib.nullcontext():
                for scenario in chosen:
                    if scenario not in together:
                        run_scenario(scenario, noise, number)
                with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
                    list(pool.map(lambda scenario: run_scenario(scenario, noise, number), together))  # noqa: B023


def own_networks() -> bool:
    """Whether each scenario can have a network namespace."""
    return subprocess.run(ALONE, cwd=ROOT).returncode == 0


def run(
    scenario: Scenario,
    place: Path,
    noise: bool,
    number: int,
    own_network: bool,
    most_s: int = MOST_S,
) -> Ran:
    """`most_s`: how long a load lasts whose length nobody has fixed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="corpus-", dir=place) as scratch:
        command = [*(ALONE if own_network else ()), *words(scenario, scratch, most_s)]
        exit_code, stderr = finish(command, Path(scratch))
        ran = Ran(scenario.name, noise, number, exit_code, time.monotonic() - began,
                  stderr[-2000:], commit())  # fmt: skip
        for directory in Path(scratch).glob("runs/*/"):
            store.pack(directory, place / f"{ran.name}{store.PACKED}")
    return ran


def words(scenario: Scenario, scratch: str, most_s: int) -> list[str]:
    line = [sys.executable, "-m", "workerlab", "sweep", *scenario.argv, "--jobs", "1"]
    if "--app" in scenario.argv:
        line += ["--chdir", str(HERE / "apps")]
    for name, value in scenario.env.items():
        line += ["--env", f"{name}={value}"]
    if not FIXED.intersection(scenario.argv):
        line += ["--max-seconds", str(most_s)]
    return [*line, "--out", f"{scratch}/runs", "--format", "json"]


def finish(command: Sequence[str], scratch: Path) -> tuple[int, str]:
    """Its exit code and what it said on standard error."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "harness")}
    with (scratch / "out").open("w") as out, (scratch / "err").open("w") as err:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(LONGEST_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGTERM)  # it puts an end to all that it has started
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
    return process.returncode, (scratch / "err").read_text(errors="replace")


@contextlib.contextmanager
def burning(seed: int) -> Iterator[None]:
    """A neighbour that burns a core at random times; it ends with us, too, if we are killed."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "noise.py"), str(seed)], start_new_session=True
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def commit() -> str:
    words = ["git", "rev-parse", "--short", "HEAD"]
    revision = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    return revision.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
