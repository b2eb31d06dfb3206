"""Entry point of `workerlab …` and `python -m workerlab …`.

Signal handlers are installed first, so that Ctrl-C exits cleanly even while a command is imported.
"""

import faulthandler
import gc
import sys

from workerlab.terminal import interrupt

STDERR = 2  # by number: `sys.stderr` may have no file descriptor
COLLECT_AFTER = (20_000, 50, 100)  # gc thresholds by generation: few objects form cycles


def main() -> int:
    """Returns the exit code."""
    interrupt.end_at_once()
    faulthandler.enable(STDERR)  # traceback if the interpreter crashes
    gc.disable()  # imported objects are never freed: collecting took a sixth of startup
    from workerlab import cli

    try:
        return cli.main(ready=ready)
    except interrupt.Stopped as stopped:
        return stopped.exit_code
    finally:
        interrupt.finish()
        gc.freeze()  # no collection at interpreter exit


def ready() -> None:
    """Called once everything is imported, before anything starts."""
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()
    interrupt.install()


if __name__ == "__main__":
    sys.exit(main())
