"""Runs a generator by its name: `python harness/workerlab/load/generators NAME OPTIONS...`.

Works in isolated mode (`python -I -S`), with only the standard library and this checkout.
"""

import gc
import importlib
import os
import signal
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
if __name__ == "__main__":
    gc.disable()  # imported objects stay alive, and collection took a tenth of the start-up time

from workerlab.load.generators.document import Tally, document, text_of
from workerlab.load.generators.options import OPTIONAL_FIELDS, LoadOptions, parse


class Generator(NamedTuple):
    module: str  # imported only when used, as its packages may be missing
    optional_fields: Collection[str] = ()  # those of OPTIONAL_FIELDS that it supports
    process_per: str = ""  # default: one process per "connection" or "core"; "": only one


GENERATORS = {
    "fast": Generator("fast", OPTIONAL_FIELDS),
    "processes": Generator("blocking", process_per="connection"),
    "threads": Generator("blocking"),
    "coroutines": Generator("coroutines"),
    "processes-coroutines": Generator("coroutines", ("processes",), process_per="core"),
}


def main(argv: list[str]) -> int:
    """Returns 0 whatever the server did, 2 for invalid options, 3 for a missing package or file."""
    name, names = (*argv, "")[0], ", ".join(GENERATORS)
    if name in ("-h", "--help"):
        print(f"usage: generators NAME OPTIONS...; NAME --help lists the options; names: {names}")
        return 0
    if name == "live":  # not a load tool: it prints no document
        from workerlab.load.generators.live import main as run_live

        _enable_collection()
        return run_live(argv[1:])
    if name not in GENERATORS:
        print(f"generators: unknown generator {name!r}; choose from {names}", file=sys.stderr)
        return 2
    try:
        options, tally = _run(name, argv[1:])
    except ModuleNotFoundError as error:
        print(f"{name}: {error}: pip install {error.name}", file=sys.stderr)
        return 3
    except (OSError, ValueError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 3 if isinstance(error, OSError) else 2
    print(text_of(document(name, options, tally)), flush=True)
    return 0


def _enable_collection() -> None:
    """Enable garbage collection once imports are done, before the first request."""
    gc.freeze()
    gc.enable()


def _run(name: str, argv: list[str]) -> tuple[LoadOptions, Tally]:
    module, optional_fields, process_per = GENERATORS[name]
    options = parse(argv, name, optional_fields)
    if process_per and options.processes == 1:
        has_affinity = hasattr(os, "sched_getaffinity")
        cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
        processes = options.concurrency if process_per == "connection" else cores
        options = replace(options, processes=min(processes, options.concurrency))
    generator = importlib.import_module(f"workerlab.load.generators.{module}")
    _enable_collection()
    if module == "fast":
        return options, generator.run(options)
    from workerlab.load.generators.share import SharedState, fork

    if process_per:
        # Let the kernel end the process: Python would lose an interrupt that arrives during a fork
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        gc.freeze()  # keeps pages shared: collections in a child do not write to them
        return options, fork(options, generator.load)
    return options, generator.load(SharedState(options), range(options.concurrency))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
