"""The options of the null server, checked."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from harness.server.null.replies import FAULTS


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 0")
    return int(text)


def _port(text: str) -> int:
    if (number := _whole(text)) > 65_535:
        raise argparse.ArgumentTypeError(f"{text} is no port: 65535 is the highest")
    return number


def _core(text: str) -> int:
    number = _whole(text)
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    if number not in usable:
        there = ", ".join(map(str, sorted(usable))) or "none that can be chosen"
        raise argparse.ArgumentTypeError(f"there is no CPU {number}: there are {there}")
    return number


def _delay(text: str) -> tuple[float, float]:
    """(least, most) seconds from "LO,HI"."""
    try:
        least, most = (float(word) for word in text.split(","))
    except ValueError:
        least, most = 1.0, 0.0
    if not 0 <= least <= most < 3600:
        raise argparse.ArgumentTypeError(f"{text} is not LO,HI: the least and most seconds")
    return least, most


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Ends the program with exit code 2 and a sentence where one of them is wrong."""
    parser = argparse.ArgumentParser(
        prog="null", description="A fast HTTP server that answers every request alike."
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=_port, default=0, help="0: one of the kernel's choice")
    add("--ready", metavar="FILE", help="where it says host, port and pid once it listens")
    add("--core", type=_core, help="the CPU to stay on")
    add("--body-bytes", type=_whole, default=12)
    add("--delay", type=_delay, default=(0.0, 0.0), metavar="LO,HI", help="seconds, uniform")
    add("--seed", type=int, default=1, help="of the delays")
    add("--backlog", type=_whole, default=4096)
    add("--fault", choices=FAULTS, default="", help="what every answer suffers from")
    add("--report", metavar="FILE", help="where it counts what it did")
    return parser.parse_args(argv)
