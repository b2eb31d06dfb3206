"""The limits of a comparison as JUnit XML for build servers: a test for each limit, class and load.
Exceeded is a failure; inconclusive is skipped."""

from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from workerlab.experiments.compare.document import outcome_text
from workerlab.experiments.compare.pairs import GroupChanges
from workerlab.report.values import text
from workerlab.terminal.console import tell


def junit(groups: Iterable[GroupChanges], run: str) -> str:
    suite = ElementTree.Element("testsuite", name=f"workerlab compare {run}")
    counts = {"tests": 0, "failures": 0, "skipped": 0}
    for comparison in groups:
        for limit, outcome in comparison.outcomes:
            case = ElementTree.SubElement(
                suite, "testcase", classname=text(comparison.name), name=limit.text
            )
            counts["tests"] += 1
            if outcome != "kept":
                failed = outcome == "exceeded"
                counts["failures" if failed else "skipped"] += 1
                message = outcome_text(comparison, limit)
                ElementTree.SubElement(case, "failure" if failed else "skipped", message=message)
    for name, count in counts.items():
        suite.set(name, str(count))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def write(place: Path, groups: Iterable[GroupChanges], run: str) -> None:
    """Reports a file that cannot be written, without raising: the measurement is kept."""
    try:
        place.write_text(junit(groups, run))
    except OSError as error:
        tell(f"{place} cannot be written: {error.strerror or error}")
