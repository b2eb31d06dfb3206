"""`workerlab …`, which is `python -m workerlab …`.

Signals come first: to import what a command needs takes a moment, in which a Ctrl-C must end as
cleanly as later.
"""

import faulthandler
import gc
import sys

from workerlab.terminal import interrupt

STDERR = 2  # by its number: also where `sys.stderr` is none that has one
COLLECT_AFTER = (20_000, 50, 100)  # new objects, and collections of those: few of ours are cyclic


def main() -> int:
    """Returns the exit code."""
    interrupt.end_at_once()
    faulthandler.enable(STDERR)  # an interpreter that crashes says where
    gc.disable()  # what imports make stays: to look through it took a sixth of a start
    from workerlab import cli

    try:
        return cli.main(ready=ready)
    except interrupt.Stopped as stopped:
        return stopped.exit_code
    finally:
        interrupt.finish()
        gc.freeze()  # nor does the interpreter look through it as it ends


def ready() -> None:
    """All is imported, and nothing is started yet."""
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()
    interrupt.install()


if __name__ == "__main__":
    sys.exit(main())
