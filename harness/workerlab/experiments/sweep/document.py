"""The document of a sweep."""

from msgspec.structs import replace

from workerlab.experiments.reading import report_of
from workerlab.model import Document
from workerlab.notes import ClientsLinger, FlagIgnored, ServerCoresBound, SettingIgnored
from workerlab.report.sweep_document import sweep_document
from workerlab.run_store import Run

# Notes of the plan that also matter to readers of the results
KEPT = {kind.__name__ for kind in (SettingIgnored, FlagIgnored, ClientsLinger, ServerCoresBound)}


def document(run: Run) -> Document:
    sweep = sweep_document(report_of(run))
    notes = (note for note in run.plan.notes if note.code in KEPT)
    return replace(sweep, notes=(*sweep.notes, *notes))
