"""`python -m tests.diagnosis.own_network COMMAND...`: run a command in its own network namespace;
exit with 3 if that is not allowed."""

from __future__ import annotations

import os
import sys

from tests.builders.network import make_own_network

if __name__ == "__main__":
    if not make_own_network():
        sys.exit(3)
    if sys.argv[1:]:
        os.execvp(sys.argv[1], sys.argv[1:])
