"""Runs a mistake by its name: `python harness/load/mistakes NAME URL`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

NAMES = ("missing_await", "session_per_request")

if __name__ == "__main__":
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in NAMES:
        print(f"mistakes: name one of {', '.join(NAMES)}", file=sys.stderr)
        sys.exit(2)
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    try:
        runpy.run_module(f"harness.load.mistakes.{name}", run_name="__main__")
    except ModuleNotFoundError as error:
        print(f"{name} needs {error.name}: pip install {error.name}", file=sys.stderr)
        sys.exit(3)
