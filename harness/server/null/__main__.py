"""Starts the null server: `python -I -S harness/server/null WORDS`."""

import sys
from pathlib import Path


def _main() -> int:
    # Run as a directory, only the directory itself is on the path; -I and -S keep the rest away
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    from harness.server.null.program import main

    return main()


if __name__ == "__main__":
    sys.exit(_main())
