"""Samples the server's sockets in the kernel: accept queues, connections and TCP counters. Also
reads when the kernel resends an unanswered SYN."""

import contextlib
import os
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from workerlab.model.evidence import ConnectionSample, QueueSample
from workerlab.observe import inet_diag
from workerlab.server.preflight import sysctl

RELISTEN_WAIT_S = 0.005
# include/net/tcp_states.h
STATES = {
    1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2", 6: "TIME_WAIT",
    7: "CLOSE", 8: "CLOSE_WAIT", 9: "LAST_ACK", 11: "CLOSING",
}  # fmt: skip
LISTEN = 10
CONNECTED = sum(1 << state for state in STATES)
NOT_CLOSED = sum(1 << state for state in (1, 3, 8))  # by the server

TABLES = {socket.AF_INET: Path("/proc/net/tcp"), socket.AF_INET6: Path("/proc/net/tcp6")}
TABLE_TIMEOUT_S = 1.0  # until a connection is in the table

Addresses = Collection[tuple[str, int]]  # (host, port) of each server instance
T = TypeVar("T")


class SocketsUnreadable(Exception):
    """The sockets cannot be read here; the message says why."""


class NetlinkRefused(SocketsUnreadable):
    """The kernel does not respond over netlink."""


def _kernel_address(host: str, port: int) -> tuple[socket.AddressFamily, tuple[bytes, int]]:
    """The family and the address of a server, as `inet_diag` has them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return family, (socket.inet_pton(family, host), port)


def _listeners(addresses: Addresses, *, drops: bool = False) -> list[inet_diag.Socket]:
    """The listening sockets at all addresses; with SO_REUSEPORT, as in granian, one for each
    worker. Raises NetlinkRefused, or SocketsUnreadable if nothing listens at an address."""
    return [
        listener
        for address in addresses
        for listener in _look_twice(partial(_by_netlink, *address, drops=drops), *address)
    ]


def _look_twice(look: Callable[[], list[T]], host: str, port: int) -> list[T]:
    """Look again if nothing listens: a socket that is created anew is missing for a moment."""
    for wait_s in (RELISTEN_WAIT_S, 0.0):
        if listeners := look():
            return listeners
        time.sleep(wait_s)
    raise SocketsUnreadable(f"nothing listens on {host} port {port}")


def _by_netlink(host: str, port: int, *, drops: bool) -> list[inet_diag.Socket]:
    family, address = _kernel_address(host, port)
    try:
        sockets = inet_diag.sockets(family, 1 << LISTEN, port, drops=drops)
    except (OSError, AttributeError) as error:  # no netlink, no permission, ...
        raise NetlinkRefused(f"inet_diag: {error}") from error
    return [listener for listener in sockets if listener.local == address]


# --- without netlink ------------------------------------------------------------------------


def _lengths_in_table(host: str, port: int) -> list[int]:
    """The lengths of the accept queues, from the table in /proc. Raises OSError or ValueError."""
    family, (packed, _) = _kernel_address(host, port)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    local, lengths = "".join(f"{word:08X}" for word in words) + f":{port:04X}", list[int]()
    with TABLES[family].open() as table:
        next(table, "")
        for line in table:
            _, address, _, state, queues, *_ = line.split()
            if int(state, 16) != LISTEN:  # listeners come first (proc_net_tcp.rst)
                break
            if address == local:
                lengths.append(int(queues.partition(":")[2], 16))
    return lengths


@cache
def _table_has_lengths() -> bool:
    """Whether the table counts waiting connections: gVisor writes 0 for all. Raises OSError or
    ValueError."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        with socket.create_connection((host, port), TABLE_TIMEOUT_S):
            poller = select.poll()
            poller.register(listener, select.POLLIN)
            poller.poll(TABLE_TIMEOUT_S * 1e3)
            return _lengths_in_table(host, port) == [1]


def _length_in_tables(addresses: Addresses, refusal: NetlinkRefused) -> int:
    """The total length of all queues. Raises SocketsUnreadable."""
    try:
        lengths = [
            length
            for address in addresses
            for length in _look_twice(partial(_lengths_in_table, *address), *address)
        ]
        if not _table_has_lengths():
            raise refusal
    except (OSError, ValueError) as error:
        raise SocketsUnreadable(f"{refusal}; {error}") from error
    return sum(lengths)


# --- the accept queues ----------------------------------------------------------------------


class AcceptQueues:
    """The accept queues of all sockets that listen on `addresses`, added up. Raises
    SocketsUnreadable.

    If netlink is refused, their lengths are read from /proc, which does not have their limits.
    Rejected: ss, which then reads the same file and prints 0 for the limits."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses

    def sample(self) -> QueueSample:
        at_ns = time.monotonic_ns()
        try:
            listeners = _listeners(self._addresses)
        except NetlinkRefused as refusal:
            return QueueSample(at_ns, _length_in_tables(self._addresses, refusal), None)
        length = sum(listener.receive_queue for listener in listeners)
        return QueueSample(at_ns, length, sum(listener.send_queue for listener in listeners))

    def drops(self) -> int | None:
        """Handshakes that these sockets alone have dropped since they were opened; None if the
        kernel does not count them."""
        try:
            counts = [listener.drops for listener in _listeners(self._addresses, drops=True)]
        except SocketsUnreadable:
            return None
        present = [count for count in counts if count is not None]
        return sum(present) if len(present) == len(counts) else None


def counts_socket_drops() -> bool:
    """Whether this kernel counts the drops of each listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return AcceptQueues([listener.getsockname()[:2]]).drops() is not None


def served_connections(addresses: Addresses) -> int | None:
    """The number of connections that the servers have not closed, including those not yet accepted;
    None if the kernel does not report it."""
    count = 0
    try:
        for family, address in (_kernel_address(host, port) for host, port in addresses):
            connections = inet_diag.sockets(family, NOT_CLOSED, address[1])
            count += sum(connection.local == address for connection in connections)
    except (OSError, AttributeError):
        return None
    return count


class Connections:
    """The TCP connections of the servers on `addresses`, by state and by worker."""

    def __init__(self, addresses: Addresses, workers: Collection[int]) -> None:
        self._workers = tuple(workers)
        self._servers = [_kernel_address(host, port) for host, port in addresses]

    def sample(self) -> ConnectionSample:
        """The connections now. Raises OSError if the kernel does not respond."""
        at_ns = time.monotonic_ns()
        server, client = list[inet_diag.Socket](), Counter[str]()
        for family, address in self._servers:
            sockets = inet_diag.sockets(family, CONNECTED, address[1])
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
    """The counters now. `socket_drops`: drops of the server's own sockets, if known. Raises OSError
    or ValueError if the kernel has no such counters."""
    values = parse_netstat(NETSTAT.read_text())
    counts = {field: values[name] for field, name in NAMES.items() if name in values}
    counts |= {} if socket_drops is None else {"socket_drops": socket_drops}
    return CountersSample(time.monotonic_ns(), counts)


def steps_s(linear: int, retries: int) -> tuple[float, ...]:
    """The times at which an unanswered SYN is sent again, in seconds after the first. The first
    `linear` timeouts are 1 s each, the `retries` after them double from 1 s on (Linux,
    networking/ip-sysctl.rst)."""
    timeouts = [1.0] * linear + [float(min(2**n, RTO_MAX_S)) for n in range(retries)]
    return tuple(accumulate(timeouts))


def syn_steps_s() -> tuple[float, ...]:
    """`steps_s` with this kernel's settings; empty if they are unknown."""
    retries = sysctl("net.ipv4.tcp_syn_retries")
    if retries is None:
        return ()
    return steps_s(int(sysctl("net.ipv4.tcp_syn_linear_timeouts") or 0), int(retries))
