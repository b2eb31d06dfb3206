"""`workerlab …`, which is `python -m workerlab …`.

Signal handlers come first: importing a command takes a moment, during which Ctrl-C must end it as
cleanly as later.
"""

import faulthandler
import gc
import sys

from workerlab.terminal import interrupt

STDERR = 2  # by number: `sys.stderr` may have no file descriptor
COLLECT_AFTER = (20_000, 50, 100)  # thresholds of the generations: few objects are cyclic


def main() -> int:
    """Returns the exit code."""
    interrupt.end_at_once()
    faulthandler.enable(STDERR)  # traceback if the interpreter crashes
    gc.disable()  # imported objects live on: collections took a sixth of the start
    from workerlab import cli

    try:
        return cli.main(ready=ready)
    except interrupt.Stopped as stopped:
        return stopped.exit_code
    finally:
        interrupt.finish()
        gc.freeze()  # no collection as the interpreter ends


def ready() -> None:
    """Everything is imported; nothing has started."""
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()
    interrupt.install()


if __name__ == "__main__":
    sys.exit(main())
