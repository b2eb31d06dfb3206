"""The server's sockets in the kernel: accept queues, connections, TCP counters, and
when it retransmits an unanswered SYN."""

import contextlib
import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from itertools import accumulate
from pathlib import Path

from msgspec import Struct

from workerlab.model import ConnectionSample, QueueSample
from workerlab.observe import inet_diag
from workerlab.server.preflight import sysctl

SS_S = 2.0
# include/net/tcp_states.h
STATES = {
    1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2", 6: "TIME_WAIT",
    7: "CLOSE", 8: "CLOSE_WAIT", 9: "LAST_ACK", 11: "CLOSING",
}  # fmt: skip
LISTEN = 10
CONNECTED = sum(1 << state for state in STATES)
SERVED = sum(1 << state for state in (1, 3, 8))  # the server has not closed them

Places = Collection[tuple[str, int]]  # (host, port) of each server instance


class Unseen(Exception):
    """The sockets cannot be read here; the message says why."""


def family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class AcceptQueues:
    """The accept queues of the sockets that listen on `places`, added up."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._refused: str | None = None  # why netlink is not available

    def sample(self) -> QueueSample:
        """Raises Unseen if neither netlink nor ss works."""
        refused = self._refused
        if refused is None:
            try:
                return self._sum(_by_kernel)
            except (OSError, AttributeError) as error:  # no netlink, no permission, ...
                refused = self._refused = str(error)
            except Unseen as error:  # a re-created socket is missing for a moment
                refused = str(error)
        try:
            return self._sum(_by_ss)
        except (OSError, subprocess.SubprocessError, Unseen) as error:
            raise Unseen(f"inet_diag: {refused}; ss: {error}") from error

    def drops(self) -> int | None:
        """Handshakes that these sockets alone have dropped since they were opened; None if the
        kernel does not say."""
        try:
            listeners = [_listeners(host, port, drops=True) for host, port in self._places]
        except (OSError, AttributeError, Unseen):
            return None
        counts = [listener.drops for of_place in listeners for listener in of_place]
        present = [count for count in counts if count is not None]
        return sum(present) if len(present) == len(counts) else None

    def _sum(self, ask: Callable[[str, int], tuple[int, int]]) -> QueueSample:
        at_ns = time.monotonic_ns()
        lengths, limits = zip(*(ask(host, port) for host, port in self._places), strict=True)
        return QueueSample(at_ns, sum(lengths), sum(limits))


def _by_kernel(host: str, port: int) -> tuple[int, int]:
    listeners = _listeners(host, port)
    lengths = (listener.receive_queue for listener in listeners)
    return sum(lengths), sum(listener.send_queue for listener in listeners)


def _listeners(host: str, port: int, *, drops: bool = False) -> list[inet_diag.Socket]:
    """Several with SO_REUSEPORT, as of granian: one for each worker. Raises Unseen for none."""
    address = socket.inet_pton(family(host), host), port
    listeners = [listener
                 for listener in inet_diag.sockets(family(host), 1 << LISTEN, port, drops=drops)
                 if listener.local == address]  # fmt: skip
    if not listeners:
        raise Unseen(f"nothing listens on {host} port {port}")
    return listeners


def drops_are_told() -> bool:
    """Whether this kernel counts the drops of each listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return AcceptQueues([listener.getsockname()[:2]]).drops() is not None


def _by_ss(host: str, port: int) -> tuple[int, int]:
    argv = ["ss", "-Hltn", f"sport = :{port}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SS_S, check=True)
    return parse_ss(done.stdout, host, port)


def parse_ss(text: str, host: str, port: int) -> tuple[int, int]:
    """(length, limit) of the listeners' queues, added up; raises Unseen if there is none. A line is
    `LISTEN 3 5 127.0.0.1:8000 0.0.0.0:*`: state, Recv-Q, Send-Q, local, peer."""
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    rows = [line.split() for line in text.splitlines()]
    queues = [(int(row[1]), int(row[2])) for row in rows if len(row) >= 4 and row[3] == name]
    if not queues:
        raise Unseen(f"nothing listens on {name}")
    length, limit = map(sum, zip(*queues, strict=True))
    return length, limit


def served_connections(places: Places) -> int | None:
    """How many connections the servers have not closed, including those not yet accepted; None if
    the kernel does not say."""
    count = 0
    try:
        for host, port in places:
            kind = family(host)
            address = socket.inet_pton(kind, host), port
            served = inet_diag.sockets(kind, SERVED, port)
            count += sum(connection.local == address for connection in served)
    except (OSError, AttributeError):
        return None
    return count


class Connections:
    """The TCP connections of the servers on `places`, by state and by worker."""

    def __init__(self, places: Places, workers: Collection[int]) -> None:
        self._workers = tuple(workers)
        self._servers = [
            (family(host), (socket.inet_pton(family(host), host), port)) for host, port in places
        ]

    def sample(self) -> ConnectionSample:
        """Raises OSError if the kernel does not answer."""
        at_ns = time.monotonic_ns()
        server, client = list[inet_diag.Socket](), Counter[str]()
        for kind, address in self._servers:
            sockets = inet_diag.sockets(kind, CONNECTED, address[1])
            server += [end for end in sockets if end.local == address]
            client.update(STATES[end.state] for end in sockets if end.remote == address)
        accepted = [end for end in server if end.inode]  # 0: not accepted yet, or closed
        owners = self._owners() if accepted else {}
        owned = Counter(owners[end.inode] for end in accepted if end.inode in owners)
        unread = sum(  # ESTABLISHED: after a FIN, its sequence number counts as unread
            end.receive_queue > 0 and STATES[end.state] == "ESTABLISHED" and end.inode in owners
            for end in accepted
        )
        return ConnectionSample(
            at_ns,
            server=dict(Counter(STATES[end.state] for end in server)),
            client=dict(client),
            per_worker={pid: owned[pid] for pid in self._workers},
            unread=unread,
        )

    def _owners(self) -> dict[int, int]:
        """The worker's pid by inode, for all sockets that the workers have open."""
        owners: dict[int, int] = {}
        for pid in self._workers:
            directory = f"/proc/{pid}/fd".encode()
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                for number in os.listdir(directory):
                    with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                        target = os.readlink(directory + b"/" + number)
                        if target.startswith(b"socket:["):
                            owners[int(target[8:-1])] = pid
        return owners


NETSTAT = Path("/proc/net/netstat")
# Counters -> their names in TcpExt
NAMES = {
    "listen_overflows": "ListenOverflows",
    "listen_drops": "ListenDrops",
    "syn_retransmits": "TCPSynRetrans",
    "syn_cookies": "TCPReqQFullDoCookies",
}
RTO_MAX_S = 120


class CountersSample(Struct, frozen=True):
    """The counters' values since this kernel booted, by their names in model.Counters."""

    at_ns: int
    counts: Mapping[str, int]


def parse_netstat(text: str) -> dict[str, int]:
    """The counters of the TcpExt group, by the kernel's names: a line of names, one of values.
    Raises ValueError if there is no such group."""
    rows = [line.split() for line in text.splitlines() if line.startswith("TcpExt:")]
    if len(rows) != 2:
        raise ValueError("the kernel's netstat table has no group TcpExt")
    names, values = rows
    return {name: int(value) for name, value in zip(names[1:], values[1:], strict=True)}


def sample_counters(socket_drops: int | None = None) -> CountersSample:
    """`socket_drops`: what the server's own sockets have dropped, if known. Raises OSError or
    ValueError if the kernel has no such counters."""
    values = parse_netstat(NETSTAT.read_text())
    counts = {field: values[name] for field, name in NAMES.items() if name in values}
    counts |= {} if socket_drops is None else {"socket_drops": socket_drops}
    return CountersSample(time.monotonic_ns(), counts)


def steps_s(linear: int, retries: int) -> tuple[float, ...]:
    """When an unanswered SYN is sent again, in seconds after the first. The first `linear` timeouts
    are 1 s each, the `retries` after them double from 1 s on (Linux, networking/ip-sysctl.rst)."""
    timeouts = [1.0] * linear + [float(min(2**n, RTO_MAX_S)) for n in range(retries)]
    return tuple(accumulate(timeouts))


def syn_steps_s() -> tuple[float, ...]:
    """`steps_s` with this kernel's settings; empty if they are not known."""
    retries = sysctl("net.ipv4.tcp_syn_retries")
    if retries is None:
        return ()
    return steps_s(int(sysctl("net.ipv4.tcp_syn_linear_timeouts") or 0), int(retries))
