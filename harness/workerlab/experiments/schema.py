"""`workerlab schema`: the JSON Schema of the documents that the commands print."""

import argparse
import json

from workerlab.experiments import EXPERIMENTS
from workerlab.options import Options, add_record, names_of, positional

EXAMPLES = """\
examples:
  workerlab schema sweep                         (for `sweep --format json`)
  workerlab schema advise,compare                (for either of the two)
  workerlab schema > workerlab.schema.json       (for any document of workerlab)

`report --format json` prints the document of the command that made the run. The schemas need no
network and conform to JSON Schema 2020-12.
"""


class SchemaOptions(Options):
    kinds = positional(
        names_of("command", EXPERIMENTS), "LIST", f"of {', '.join(EXPERIMENTS)} (all)", ()
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the JSON Schema of what --format json prints: keys, types and meanings."
    )
    parser.epilog = EXAMPLES
    add_record(parser, SchemaOptions)


def command(options: SchemaOptions) -> int:
    """Print the schema. Returns the exit code."""
    from workerlab.report.json import json_schema  # imported late: --help does not need it

    print(json.dumps(json_schema(options.kinds or EXPERIMENTS), indent=2))
    return 0
