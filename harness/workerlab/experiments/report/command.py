"""`workerlab report`: a saved run, printed again or written as a page."""

import gc
from pathlib import Path

from workerlab.errors import ExitCode, UsageError
from workerlab.experiments.reading import document_of, find_run, print_document
from workerlab.experiments.report.options import ReportOptions
from workerlab.report.html import write_page, write_pictures
from workerlab.terminal.console import tell


def command(options: ReportOptions) -> int:
    """Print or export a saved run. If files are written, the table is printed only with --format.
    Returns the exit code."""
    gc.disable()  # all data lives until the end, and collection would take a tenth of the time
    try:
        directory = find_run(options.run, measured=True)
        if (newest := find_run(options.run)) != directory:
            tell(f"{newest.name} is newer, but has no results")
        document = document_of(directory, options.slo)
    finally:
        gc.enable()  # the charts of a page contain many cycles
    if options.html:
        write_page(document, Path(options.html).expanduser())
        tell(f"wrote {options.html}")
    if options.png:
        paths = write_pictures(document, Path(options.png).expanduser())
        tell(f"wrote {len(paths)} pictures to {options.png}")
    if options.given_options(ReportOptions.format) or not (options.html or options.png):
        print_document(document, options)
    if options.fail_on_slo and document.target_kept is None:
        raise UsageError(f"--fail-on-slo needs a target: {options.run} has none; add --slo")
    missed = options.fail_on_slo and not document.target_kept
    return ExitCode.TARGET_MISSED if missed else ExitCode.DONE
