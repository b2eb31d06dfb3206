"""The server's sockets as the kernel has them: who waits to be accepted, who is connected to whom.

The listening socket is asked for by its port, in a fraction of a millisecond; the connections take
a walk through the kernel's whole table, so they are asked for less often.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Collection
from typing import Any

from harness.model import ConnectionSample, QueueSample
from harness.observe import inet_diag

SS_S = 2.0
# include/net/tcp_states.h
STATES = {
    1: "ESTABLISHED",
    2: "SYN_SENT",
    3: "SYN_RECV",
    4: "FIN_WAIT1",
    5: "FIN_WAIT2",
    6: "TIME_WAIT",
    7: "CLOSE",
    8: "CLOSE_WAIT",
    9: "LAST_ACK",
    11: "CLOSING",
}
LISTEN = 10
CONNECTED = sum(1 << state for state in STATES)


class Unseen(Exception):
    """What was asked for is not to be seen here; says why."""


def family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class Listener:
    """The accept queue of the socket that listens on `host`:`port`."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._diag: Any = None
        self._refused: str | None = None  # why the kernel cannot be asked directly

    def sample(self) -> QueueSample:
        """Raises Unseen where neither the kernel nor ss tells."""
        if self._refused is None:
            try:
                return self._by_kernel()
            except Exception as error:  # no pyroute2, no inet_diag, no permission, ...
                self._refused = str(error) or type(error).__name__
        try:
            return self._by_ss()
        except (OSError, subprocess.SubprocessError, Unseen) as error:
            raise Unseen(f"inet_diag: {self._refused}; ss: {error}") from error

    def close(self) -> None:
        if self._diag is not None:
            self._diag.close()

    def _by_kernel(self) -> QueueSample:
        if self._diag is None:
            from pyroute2 import DiagSocket  # takes 0.15 s, and is not there on every system

            self._diag = DiagSocket()
            self._diag.bind()
        at_ns = time.monotonic_ns()
        found = self._diag.get_sock_stats(
            family=family(self._host), states=1 << LISTEN, sport=self._port
        )
        for one in found:
            if one["idiag_src"] == self._host:
                return QueueSample(at_ns, one["idiag_rqueue"], one["idiag_wqueue"])
        raise Unseen(f"nothing listens on {self._host} port {self._port}")

    def _by_ss(self) -> QueueSample:
        at_ns = time.monotonic_ns()
        words = ["ss", "-Hltn", f"sport = :{self._port}"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=SS_S, check=True)
        return QueueSample(at_ns, *parse_ss(done.stdout, self._host, self._port))


def parse_ss(text: str, host: str, port: int) -> tuple[int, int]:
    """(length, limit) of the listener's queue from `ss -Hltn`. Raises Unseen when it is not there.

    A line reads `LISTEN 3 5 127.0.0.1:8000 0.0.0.0:*`: state, Recv-Q, Send-Q, local, peer.
    """
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 4 and words[3] == name:
            return int(words[1]), int(words[2])
    raise Unseen(f"nothing listens on {name}")


class Connections:
    """The TCP connections of the server on `host`:`port`, and which worker owns which."""

    def __init__(self, host: str, port: int, workers: Collection[int]) -> None:
        self._workers = tuple(workers)
        self._family = family(host)
        self._server = (socket.inet_pton(self._family, host), port)

    def sample(self) -> ConnectionSample:
        """Raises OSError where the kernel does not tell."""
        at_ns = time.monotonic_ns()
        found = inet_diag.sockets(self._family, CONNECTED, self._server[1])
        server = [one for one in found if one.local == self._server]
        client = [one for one in found if one.remote == self._server]
        held = [one for one in server if one.inode]  # 0: not accepted yet, or let go of
        owners = self._owners() if held else {}
        owned = Counter(owners[one.inode] for one in held if one.inode in owners)
        unread = sum(  # behind a FIN, the FIN's own number counts as unread
            one.unread_bytes > 0 and STATES[one.state] == "ESTABLISHED" and one.inode in owners
            for one in held
        )
        return ConnectionSample(
            at_ns,
            dict(Counter(STATES[one.state] for one in server)),
            dict(Counter(STATES[one.state] for one in client)),
            {pid: owned[pid] for pid in self._workers},
            unread,
        )

    def _owners(self) -> dict[int, int]:
        """Inode -> worker, of every socket the workers have open."""
        found: dict[int, int] = {}
        for pid in self._workers:
            place = f"/proc/{pid}/fd".encode()
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                for number in os.listdir(place):
                    with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                        target = os.readlink(place + b"/" + number)
                        if target.startswith(b"socket:["):
                            found[int(target[8:-1])] = pid
        return found
