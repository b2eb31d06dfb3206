"""The duration of `workerlab report`, as ratios of paired measurements.

    python -m tests.benchmarks.report_speed                      twice the trials, twice the timings
    python -m tests.benchmarks.report_speed RUN --than WORKERLAB  this checkout against the program
                                                                 of another one, on RUN

A ratio is the median over pairs of consecutive measurements. For growth, the time that the program
takes to start is subtracted: reading twice as much must take at most twice as long.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
PAIRS = 7
WORKERLAB = (sys.executable, "-m", "workerlab")


def seconds(*argv: str) -> float:
    """The duration of a command, which must succeed."""
    start_s = time.monotonic()
    subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return time.monotonic() - start_s


def report(run: Path, workerlab: tuple[str, ...] = WORKERLAB) -> float:
    return seconds(*workerlab, "report", str(run), "--format", "json")


def repeated(run: Path, to: Path, times: int) -> Path:
    """Copy a run of one trial per cell, with `times` copies of each trial."""
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("raw"))
    document = json.loads((run / "run.json").read_text())
    document["plan"]["trials"] = times
    (to / "run.json").write_text(json.dumps(document))
    lines = (run / "trials.jsonl").read_text()
    with (to / "trials.jsonl").open("w") as records:
        for number in range(1, times + 1):
            records.write(lines.replace('-1"', f'-{number}"'))
    for trial in (run / "raw").iterdir():
        for number in range(1, times + 1):
            shutil.copytree(trial, to / "raw" / f"{trial.name.removesuffix('-1')}-{number}")
    return to


def swept(out: Path, duration_s: float) -> Path:
    """A run whose number of timings is proportional to `duration_s`."""
    sweep = ("sweep", "gthread", "4", "--sleep", "0.001", "--tool", "fast", "--workers", "1")
    seconds(*WORKERLAB, *sweep, "--duration", f"{duration_s:g}", "--out", str(out))
    (run,) = out.iterdir()
    return run


def growth(name: str, small: Path, large: Path) -> None:
    """The ratio of the durations for two runs, without the program's start."""
    pairs = [(report(small), report(large)) for _ in range(PAIRS)]
    start_s = median(seconds(*WORKERLAB, "--version") for _ in range(PAIRS))
    ratio = median((b - start_s) / max(a - start_s, 1e-3) for a, b in pairs)
    small_s, large_s = map(median, zip(*pairs, strict=True))
    print(f"{name}: {small_s:.2f} s and {large_s:.2f} s, start {start_s:.2f} s; ratio {ratio:.2f}")


def against(run: Path, other: str) -> None:
    pairs = [(report(run), report(run, (other,))) for _ in range(PAIRS)]
    ratio = median(here / there for here, there in pairs)
    here_s, there_s = map(median, zip(*pairs, strict=True))
    print(f"{run.name}: {here_s:.2f} s here, {there_s:.2f} s there; ratio {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--than", metavar="WORKERLAB", help="the other checkout's program")
    options = parser.parse_args()
    if options.run and options.than:
        against(options.run.absolute(), options.than)
        return
    with tempfile.TemporaryDirectory(prefix="workerlab-") as name:
        directory = Path(name)
        shutil.unpack_archive(ROOT / "tests" / "data" / "runs" / "ladder.tar.xz", directory)
        runs = [repeated(directory / "ladder", directory / f"trials-{n}", n) for n in (4, 8)]
        growth("twice the trials", *runs)
        growth(
            "twice the timings", swept(directory / "short", 5.0), swept(directory / "long", 10.0)
        )


if __name__ == "__main__":
    main()
