"""Adds up JUnit XML files, one per tox environment, into one line: `N passed, N failed, N skipped`.

An error (a fixture that failed) counts as failed. A file that cannot be read counts as one failed
test: its environment was cut short, and silence would look like success.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree


def outcomes(path: Path) -> Iterator[str]:
    """Of the tests of one file."""
    try:
        cases = [{child.tag for child in case} for case in ElementTree.parse(path).iter("testcase")]
    except ElementTree.ParseError:
        cases = [{"error"}]
    for tags in cases:
        failed = "failed" if tags & {"failure", "error"} else ""
        yield failed or ("skipped" if "skipped" in tags else "passed")


def tally(paths: Iterable[Path]) -> str:
    """The line for all files. Paths that do not exist are left out: no environment ran tests."""
    count = Counter(outcome for path in paths if path.exists() for outcome in outcomes(path))
    return ", ".join(f"{count[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))


if __name__ == "__main__":
    print(tally(Path(name) for name in sys.argv[1:]))
