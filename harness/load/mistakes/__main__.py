"""Runs a mistake by its name: `python harness/load/mistakes NAME URL`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

NAMES = ("missing_await", "session_per_request")


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in NAMES:
        print(f"mistakes: name one of {', '.join(NAMES)}", file=sys.stderr)
        return 2
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    try:
        mistake = importlib.import_module(f"harness.load.mistakes.{argv[0]}")
    except ModuleNotFoundError as error:
        print(f"{argv[0]} needs {error.name}: pip install {error.name}", file=sys.stderr)
        return 3
    code: int = mistake.main(argv[1:])
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
