"""The command line of `workerlab report`."""

import argparse

from workerlab import options as read

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


def add_options(to: argparse.ArgumentParser) -> None:
    to.description = "Analyse a saved run again and print it."
    to.epilog = EXAMPLES
    to.add_argument("run", metavar="RUN", help="its directory, or its name below results/")
    read.add_format(to)
    read.add_rows(to, read.SLO)
    to.add_argument("--html", metavar="FILE", help="write it as one HTML page")
    to.add_argument("--png", metavar="DIR", help="write each chart of that page as PNG and SVG")
