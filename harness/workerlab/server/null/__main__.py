"""Starts the null server: `python -I -S harness/workerlab/server/null OPTIONS`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Running a directory puts only that directory on sys.path, not the package's parent
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    from workerlab.server.null.program import main

    sys.exit(main())
