"""The command line of `workerlab report`."""

import argparse

from workerlab.options import FormatOptions, SloOptions, add_record, option, positional

EXAMPLES = """\
examples:
  workerlab report results/20261120-101500-sync
  workerlab report 20261120-101500-sync --format markdown
  workerlab report results                       (the newest run in results/)
  workerlab report results --explain             (with evidence, notes and column meanings)
  workerlab report results --slo 'p95<300ms'     (a sweep: which cells meet this target?)
  workerlab report results --html report.html    (one page for any browser, also offline)
  workerlab report results --png pictures        (the charts of that page)
"""


class ReportOptions(FormatOptions, SloOptions):
    run = positional(str, "RUN", "the run's directory, or its name in results/", "", nargs=None)
    html = option(str, "FILE", "write the run as one HTML page")
    png = option(str, "DIR", "write each chart of that page as PNG and SVG")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Analyse a saved run again and print it."
    parser.epilog = EXAMPLES
    add_record(parser, ReportOptions)
