"""Runs a generator by its name: `python harness/load/generators NAME WORDS...`.

Works in isolated mode (`python -I -S`), where nothing but the standard library is found: the
checkout's own place is all it needs.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

# The module of each; they are imported by name, as most need packages that may be missing.
GENERATORS = {
    "fast": "fast",
    "processes": "processes",
    "threads": "threads",
    "coroutines": "coroutines",
    "processes-coroutines": "processes_coroutines",
}


def main(argv: list[str]) -> int:
    """The exit code: 0 whatever the server did, 2 usage, 3 a package or file is missing."""
    name, words = (argv[0], argv[1:]) if argv else ("", [])
    known = ", ".join(GENERATORS)
    if name in ("-h", "--help"):
        print(f"usage: generators NAME WORDS...: {known}; NAME --help has its words")
        return 0
    if name not in GENERATORS:
        print(f"generators: unknown generator {name!r}: there are {known}", file=sys.stderr)
        return 2
    try:
        generator = importlib.import_module(f"harness.load.generators.{GENERATORS[name]}")
    except ModuleNotFoundError as error:
        print(f"{name}: {error}: pip install {error.name}", file=sys.stderr)
        return 3
    try:
        code: int = generator.main(words)
    except OSError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 3
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
