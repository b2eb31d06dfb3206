"""`workerlab …`, which is `python -m workerlab …`.

Signals come first: to import what a command needs takes a moment, in which a Ctrl-C must end as
cleanly as later.
"""

import faulthandler
import sys

from workerlab.terminal import interrupt

STDERR = 2  # by its number: also where `sys.stderr` is none that has one


def main() -> int:
    """Returns the exit code."""
    interrupt.end_at_once()
    faulthandler.enable(STDERR)  # an interpreter that crashes says where
    from workerlab import cli

    try:
        return cli.main(ready=interrupt.install)
    except interrupt.Stopped as stopped:
        return stopped.exit_code
    finally:
        interrupt.finish()


if __name__ == "__main__":
    sys.exit(main())
