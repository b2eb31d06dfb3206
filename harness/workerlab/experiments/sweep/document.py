"""What a sweep has to show."""

from msgspec.structs import replace

from workerlab.experiments.reading import report_of
from workerlab.model import Document
from workerlab.notes import ClientsLinger, FlagIgnored, ServerCoresBound, SettingIgnored
from workerlab.report.document import of_sweep
from workerlab.run_store import Run

# What was known before it started, and a reader of its figures must know, too
KEPT = {kind.__name__ for kind in (SettingIgnored, FlagIgnored, ClientsLinger, ServerCoresBound)}


def document(run: Run) -> Document:
    found = of_sweep(report_of(run, over_time=True))
    known = (note for note in run.plan.notes if note.code in KEPT)
    return replace(found, notes=(*found.notes, *known))
