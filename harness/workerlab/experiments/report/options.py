"""The command line of `workerlab report`."""

import argparse

from workerlab.options import FormatOptions, SloOptions, add_record, option, positional

EXAMPLES = """\
examples:
  workerlab report results/20261120-101500-sync
  workerlab report 20261120-101500-sync --format markdown
  workerlab report results                       (the newest run in there)
  workerlab report results --explain             (with evidence, notes and column meanings)
  workerlab report results --slo 'p95<300ms'     (a sweep: which cells meet this target?)
  workerlab report results --html report.html    (one page, needs nothing but a browser)
  workerlab report results --png pictures        (the charts of that page)
"""


class ReportOptions(FormatOptions, SloOptions):
    run = positional(str, "RUN", "its directory, or its name below results/", "", nargs=None)
    html = option(str, "FILE", "write it as one HTML page")
    png = option(str, "DIR", "write each chart of that page as PNG and SVG")


def add_options(to: argparse.ArgumentParser) -> None:
    to.description = "Analyse a saved run again and print it."
    to.epilog = EXAMPLES
    add_record(to, ReportOptions)
