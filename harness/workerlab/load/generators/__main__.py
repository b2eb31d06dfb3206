"""Runs a generator by its name: `python harness/workerlab/load/generators NAME WORDS...`.

Works in isolated mode (`python -I -S`), where nothing but the standard library is found: the
checkout's own place is all it needs.
"""

import gc
import importlib
import json
import os
import signal
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
if __name__ == "__main__":
    gc.disable()  # what imports make stays: to look through it took a tenth of a start

from workerlab.load.generators.document import Tally, document
from workerlab.load.generators.words import OPTIONAL, Words, parse


class Generator(NamedTuple):
    module: str  # imported by name, as most need packages that may be missing
    options: Collection[str] = ()  # of OPTIONAL
    process_per: str = ""  # what it starts one for, where nobody says how many


GENERATORS = {
    "fast": Generator("fast", OPTIONAL),
    "processes": Generator("blocking", process_per="connection"),
    "threads": Generator("blocking"),
    "coroutines": Generator("coroutines"),
    "processes-coroutines": Generator("coroutines", ("processes",), process_per="core"),
}


def main(argv: list[str]) -> int:
    """The exit code: 0 whatever the server did, 2 usage, 3 a package or file is missing."""
    name, known = (*argv, "")[0], ", ".join(GENERATORS)
    if name in ("-h", "--help"):
        print(f"usage: generators NAME WORDS...: {known}; NAME --help has its words")
        return 0
    if name == "live":  # no load tool: it prints no document
        from workerlab.load.generators.live import main as live

        _collect_again()
        return live(argv[1:])
    if name not in GENERATORS:
        print(f"generators: unknown generator {name!r}: there are {known}", file=sys.stderr)
        return 2
    try:
        words, tally = _run(name, argv[1:])
    except ModuleNotFoundError as error:
        print(f"{name}: {error}: pip install {error.name}", file=sys.stderr)
        return 3
    except (OSError, ValueError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 3 if isinstance(error, OSError) else 2
    print(json.dumps(document(name, words, tally)), flush=True)
    return 0


def _collect_again() -> None:
    """All is imported, and nothing is sent yet."""
    gc.freeze()
    gc.enable()


def _run(name: str, argv: list[str]) -> tuple[Words, Tally]:
    module, options, process_per = GENERATORS[name]
    words = parse(argv, name, options)
    if process_per and words.processes == 1:
        known = hasattr(os, "sched_getaffinity")
        cores = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
        most = words.concurrency if process_per == "connection" else cores
        words = replace(words, processes=min(most, words.concurrency))
    generator = importlib.import_module(f"workerlab.load.generators.{module}")
    _collect_again()
    if module == "fast":
        return words, generator.run(words)
    from workerlab.load.generators.share import Share, fork

    if process_per:
        # At once, by the kernel: Python would lose an interrupt that comes as it forks
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        gc.freeze()  # what is here now stays shared: no collection writes to it in a child
        return words, fork(words, generator.load)
    return words, generator.load(Share(words), range(words.concurrency))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
