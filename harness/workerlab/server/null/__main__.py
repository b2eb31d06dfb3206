"""Starts the null server, using only the standard library:

    python -I -S harness/workerlab/server/null OPTIONS

Parses the options, listens, writes the address, and responds at once or after a seeded random
delay, until a signal ends it.
"""

import argparse
import contextlib
import gc
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    # Running a directory puts only that directory on sys.path, not the package's parent
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from workerlab.server.null.server import FAULTS, NullProcess, publish


def _whole_number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 0")
    return int(text)


def _delay(text: str) -> tuple[float, float]:
    """(shortest, longest) seconds from "LO,HI"."""
    try:
        shortest, longest = (float(word) for word in text.split(","))
    except ValueError:
        shortest, longest = 1.0, 0.0
    if not 0 <= shortest <= longest < 3600:
        raise argparse.ArgumentTypeError(f"{text} is not a range of seconds, LO,HI")
    return shortest, longest


def _ports(text: str) -> tuple[int, int]:
    low, _, high = text.partition(",")
    return _whole_number(low), _whole_number(high)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options. Exits with code 2 and a sentence for an invalid one."""
    parser = argparse.ArgumentParser(
        prog="null", description="A fast HTTP server that sends the same response every time."
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=_whole_number, default=0, help="0: chosen by the kernel")
    add(
        "--client-ports",
        type=_ports,
        metavar="LO,HI",
        help="with --port 0: range of ports to avoid",
    )
    add("--ready", metavar="FILE", help="file for host, port and pid, written once it listens")
    add("--core", type=_whole_number, help="the CPU to run on")
    add("--body-bytes", type=_whole_number, default=12, help="length of a response body")
    add("--delay", type=_delay, default=(0.0, 0.0), metavar="LO,HI", help="range of delays, in s")
    add("--seed", type=int, default=1, help="seed of the delays")
    add("--backlog", type=_whole_number, default=4096, help="limit of the accept queue")
    add("--fault", choices=FAULTS, default="", help="a fault injected into every response")
    add("--requests-per-connection", type=_whole_number, default=0, help="0: no limit")
    add("--report", metavar="FILE", help="file for its counts of requests and connections")
    return parser.parse_args(argv)


def listen(
    host: str, port: int, backlog: int, client_ports: tuple[int, int] | None = None
) -> socket.socket:
    """A listening socket. For port 0 the kernel chooses one outside `client_ports`, which the load
    uses: no client can connect from the port that it connects to."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    low, high = client_ports or (0, -1)
    with contextlib.ExitStack() as rejects:  # kept open, so the kernel chooses another port
        while True:
            listener = socket.socket(family, socket.SOCK_STREAM)
            if port:  # else the kernel could choose a rejected port again
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Inherited by its connections
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listener.bind((host, port))
            if port or not low <= listener.getsockname()[1] <= high:
                break
            rejects.enter_context(listener)
    listener.listen(backlog)
    listener.setblocking(False)
    return listener


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 once a signal has ended it, 3 if it cannot listen or write."""
    options = parse(argv)
    gc.disable()  # there are no cycles, and traversing 10,000 connections takes too long
    try:
        if options.core is not None:
            os.sched_setaffinity(0, {options.core})
        with listen(options.host, options.port, options.backlog, options.client_ports) as listener:
            server = NullProcess(listener, options)
            if options.ready:
                host, port = listener.getsockname()[:2]
                publish(options.ready, {"host": host, "port": port, "pid": os.getpid()})
            server.run()
    except (OSError, OverflowError) as error:  # OverflowError: a port above 65535
        print(f"null: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
