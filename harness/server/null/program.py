"""The null server as a program: reads its options, listens, says where, and serves until ended."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import socket
import sys
from collections.abc import Sequence

from harness.server.null import options as command_line
from harness.server.null.replies import Replies
from harness.server.null.server import Server
from harness.server.null.tally import Tally


def _listen(host: str, port: int, backlog: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # its connections inherit it
    listener.bind((host, port))
    listener.listen(backlog)
    listener.setblocking(False)
    return listener


def _announce(path: str, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    with open(f"{path}.part", "w") as file:
        json.dump({"host": host, "port": port, "pid": os.getpid()}, file)
    os.replace(f"{path}.part", path)


def _use_all_files() -> None:
    """As many connections as the machine allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS reports "unlimited" and refuses it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 once it was ended by a signal, 3 where it cannot listen or write."""
    options = command_line.parse(argv)
    _use_all_files()
    gc.disable()  # nothing here forms a cycle, and 10 000 connections take long to look through
    try:
        if options.core is not None:
            os.sched_setaffinity(0, {options.core})
        with _listen(options.host, options.port, options.backlog) as listener:
            tally = Tally(options.report)
            replies = Replies(options.body_bytes, options.fault)
            server = Server(listener, replies, options.delay, options.seed, tally)
            if options.ready:
                _announce(options.ready, listener)
            server.run()
    except OSError as error:
        print(f"null: {error}", file=sys.stderr)
        return 3
    return 0
