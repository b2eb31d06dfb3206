"""Starts the target: `python -I -S harness/target WORDS`."""

import os
import sys


def _main() -> int:
    # Run as a directory, only the directory itself is on the path; -I and -S keep the rest away
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from harness.target.program import main

    return main()


if __name__ == "__main__":
    sys.exit(_main())
