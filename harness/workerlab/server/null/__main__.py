"""Starts the null server: `python -I -S harness/workerlab/server/null WORDS`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Run as a directory, only the directory itself is on the path; -I and -S keep the rest away
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    from workerlab.server.null.program import main

    sys.exit(main())
