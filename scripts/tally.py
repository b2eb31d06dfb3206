"""Adds up JUnit XML files, one per tox environment, into one line: `N passed, N failed, N skipped`.

An error (a fixture that failed) counts as failed. A file that cannot be read counts as one failed
test: its environment was cut short, and silence would look like success.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree


def outcomes(path: Path) -> Iterator[str]:
    """The outcome of each test in a file."""
    try:
        cases = [{child.tag for child in case} for case in ElementTree.parse(path).iter("testcase")]
    except ElementTree.ParseError:
        cases = [{"error"}]
    for tags in cases:
        failed = "failed" if tags & {"failure", "error"} else ""
        yield failed or ("skipped" if "skipped" in tags else "passed")


def run_again(path: Path) -> Iterator[str]:
    """The tests that failed while the machine was paused and were run again, each with its first
    failure."""
    with suppress(ElementTree.ParseError):
        for case in ElementTree.parse(path).iter("testcase"):
            for entry in case.iter("property"):
                if entry.get("name") == "run again":
                    yield f"{case.get('classname')}::{case.get('name')} ({entry.get('value')})"


def tally(paths: Iterable[Path]) -> str:
    """The line for all files. Ignores missing files: their environments ran no tests."""
    count = Counter(outcome for path in paths if path.exists() for outcome in outcomes(path))
    return ", ".join(f"{count[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))


if __name__ == "__main__":
    files = [path for path in map(Path, sys.argv[1:]) if path.exists()]
    for name in (name for path in files for name in run_again(path)):
        print(f"run again, since this machine was paused: {name}")
    print(tally(files))
