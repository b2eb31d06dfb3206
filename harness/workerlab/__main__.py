"""Entry point of `workerlab …` and `python -m workerlab …`.

Signal handlers are installed first, so that Ctrl-C exits cleanly even during imports.
"""

import faulthandler
import gc
import sys

from workerlab.terminal import interrupt

STDERR_FD = 2  # a number, because `sys.stderr` may have no file descriptor
GC_THRESHOLDS = (20_000, 50, 100)  # by generation; high, because few objects form cycles


def main() -> int:
    """Run the program. Returns the exit code."""
    interrupt.end_at_once()
    faulthandler.enable(STDERR_FD)  # prints a traceback if the interpreter crashes
    gc.disable()  # imported objects are never freed; collections took a sixth of the startup time
    from workerlab import cli

    try:
        return cli.main(ready=ready)
    except interrupt.Stopped as stopped:
        return stopped.exit_code
    finally:
        interrupt.finish()
        gc.freeze()  # no collection at interpreter exit


def ready() -> None:
    """Prepare for work, after the imports and before anything starts."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    interrupt.install()


if __name__ == "__main__":
    sys.exit(main())
