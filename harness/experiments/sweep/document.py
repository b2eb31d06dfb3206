"""What a sweep has to show."""

from harness.experiments.reading import report_of
from harness.model import Document
from harness.report.document import of_sweep
from harness.run_store import Run


def document(run: Run) -> Document:
    return of_sweep(report_of(run, over_time=True))
