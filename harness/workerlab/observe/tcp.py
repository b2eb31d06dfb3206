"""The server's sockets as the kernel has them: who waits to be accepted, and who is connected."""

import contextlib
import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection

from workerlab.model import ConnectionSample, QueueSample
from workerlab.observe import inet_diag

SS_S = 2.0
# include/net/tcp_states.h
STATES = {
    1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2", 6: "TIME_WAIT",
    7: "CLOSE", 8: "CLOSE_WAIT", 9: "LAST_ACK", 11: "CLOSING",
}  # fmt: skip
LISTEN = 10
CONNECTED = sum(1 << state for state in STATES)
SERVED = sum(1 << state for state in (1, 3, 8))  # the server has not let go of them

Places = Collection[tuple[str, int]]  # hosts and ports of the servers; to the load they are one


class Unseen(Exception):
    """What was asked for is not to be seen here; says why."""


def family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class AcceptQueues:
    """Those of the sockets that listen on `places`, added up."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._refused: str | None = None  # why the kernel cannot be asked directly

    def sample(self) -> QueueSample:
        """Raises Unseen where neither the kernel nor ss tells."""
        refused = self._refused
        if refused is None:
            try:
                return self._sum(_by_kernel)
            except (OSError, AttributeError) as error:  # no netlink, no permission, ...
                refused = self._refused = str(error)
            except Unseen as error:  # where a socket listens anew, it is missing for a moment
                refused = str(error)
        try:
            return self._sum(_by_ss)
        except (OSError, subprocess.SubprocessError, Unseen) as error:
            raise Unseen(f"inet_diag: {refused}; ss: {error}") from error

    def drops(self) -> int | None:
        """Handshakes that these sockets, and no others, have dropped since they began; None where
        the kernel does not tell."""
        try:
            found = [_listener(host, port, drops=True).drops for host, port in self._places]
        except (OSError, AttributeError, Unseen):
            return None
        known = [count for count in found if count is not None]
        return sum(known) if len(known) == len(found) else None

    def _sum(self, ask: Callable[[str, int], tuple[int, int]]) -> QueueSample:
        at_ns = time.monotonic_ns()
        lengths, limits = zip(*(ask(host, port) for host, port in self._places), strict=True)
        return QueueSample(at_ns, sum(lengths), sum(limits))


def _by_kernel(host: str, port: int) -> tuple[int, int]:
    found = _listener(host, port)
    return found.receive_queue, found.send_queue


def _listener(host: str, port: int, *, drops: bool = False) -> inet_diag.Socket:
    address = socket.inet_pton(family(host), host), port
    for one in inet_diag.sockets(family(host), 1 << LISTEN, port, drops=drops):
        if one.local == address:
            return one
    raise Unseen(f"nothing listens on {host} port {port}")


def drops_are_told() -> bool:
    """Whether this kernel says of each listening socket what it dropped."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return AcceptQueues([listener.getsockname()[:2]]).drops() is not None


def _by_ss(host: str, port: int) -> tuple[int, int]:
    words = ["ss", "-Hltn", f"sport = :{port}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SS_S, check=True)
    return parse_ss(done.stdout, host, port)


def parse_ss(text: str, host: str, port: int) -> tuple[int, int]:
    """(length, limit) of the listener's queue; Unseen when it is not there. A line reads
    `LISTEN 3 5 127.0.0.1:8000 0.0.0.0:*`: state, Recv-Q, Send-Q, local, peer."""
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 4 and words[3] == name:
            return int(words[1]), int(words[2])
    raise Unseen(f"nothing listens on {name}")


def served_connections(places: Places) -> int | None:
    """How many connections the servers have accepted or will, and have not closed; None where the
    kernel does not tell."""
    count = 0
    try:
        for host, port in places:
            kind = family(host)
            address = socket.inet_pton(kind, host), port
            count += sum(one.local == address for one in inet_diag.sockets(kind, SERVED, port))
    except (OSError, AttributeError):
        return None
    return count


class Connections:
    """The TCP connections of the servers on `places`, and which worker owns which."""

    def __init__(self, places: Places, workers: Collection[int]) -> None:
        self._workers = tuple(workers)
        self._servers = [
            (family(host), (socket.inet_pton(family(host), host), port)) for host, port in places
        ]

    def sample(self) -> ConnectionSample:
        """Raises OSError where the kernel does not tell."""
        at_ns = time.monotonic_ns()
        server, client = list[inet_diag.Socket](), Counter[str]()
        for kind, address in self._servers:
            found = inet_diag.sockets(kind, CONNECTED, address[1])
            server += [one for one in found if one.local == address]
            client.update(STATES[one.state] for one in found if one.remote == address)
        held = [one for one in server if one.inode]  # 0: not accepted yet, or let go of
        owners = self._owners() if held else {}
        owned = Counter(owners[one.inode] for one in held if one.inode in owners)
        unread = sum(  # behind a FIN, the FIN's own number counts as unread
            one.receive_queue > 0 and STATES[one.state] == "ESTABLISHED" and one.inode in owners
            for one in held
        )
        return ConnectionSample(
            at_ns,
            server=dict(Counter(STATES[one.state] for one in server)),
            client=dict(client),
            per_worker={pid: owned[pid] for pid in self._workers},
            unread=unread,
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
