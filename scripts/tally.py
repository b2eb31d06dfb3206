"""Adds up JUnit XML files, one per tox environment, into one line: `N passed, N failed, N skipped`.

An error (a fixture that failed) counts as failed. A file that cannot be read counts as one failed
test: its environment was cut short, and silence would look like success.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree


def count(path: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of one file."""
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).iter("testcase"):
        outcomes = {child.tag for child in case}
        if outcomes & {"failure", "error"}:
            failed += 1
        elif "skipped" in outcomes:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def tally(paths: Iterable[Path]) -> str:
    """The line for all files. Paths that do not exist are left out: no environment ran tests."""
    passed = failed = skipped = 0
    for path in paths:
        if not path.exists():
            continue
        try:
            more = count(path)
        except ElementTree.ParseError:
            more = (0, 1, 0)
        passed, failed, skipped = passed + more[0], failed + more[1], skipped + more[2]
    return f"{passed} passed, {failed} failed, {skipped} skipped"


if __name__ == "__main__":
    print(tally(Path(name) for name in sys.argv[1:]))
