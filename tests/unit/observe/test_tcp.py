"""Samples of the kernel's tables, for real sockets in known states."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.builders.conditions import LONG_S, until
from tests.builders.processes import ended_pid, python
from workerlab.model.evidence import ConnectionSample
from workerlab.observe import tcp
from workerlab.observe.inet_diag import sockets

LOOPBACK = f"{int.from_bytes(socket.inet_aton('127.0.0.1'), sys.byteorder):08X}"  # in the table
linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's tables are Linux's")


def listening(stack: ExitStack, backlog: int, host: str = "127.0.0.1") -> socket.socket:
    """Without SO_REUSEADDR, so the port has no connection in TIME_WAIT."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = stack.enter_context(socket.socket(kind))
        listener.bind((host, 0))
    except OSError as error:
        pytest.skip(f"{host} is unavailable: {error}")
    listener.listen(backlog)
    return listener


def address(listener: socket.socket) -> tuple[str, int]:
    host, port = listener.getsockname()[:2]
    return host, port


def connect(stack: ExitStack, listener: socket.socket, count: int) -> list[socket.socket]:
    return [
        stack.enter_context(socket.create_connection(address(listener), timeout=LONG_S))
        for _ in range(count)
    ]


def until_length(queues: tcp.AcceptQueues, length: int) -> None:
    until(lambda: queues.sample().length == length, f"{length} connections wait to be accepted")


# --- the accept queue ---------------------------------------------------------------------------


@linux
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_length_and_limit_of_an_accept_queue_are_sampled(stack: ExitStack, host: str) -> None:
    listener = listening(stack, 5, host)
    queues = tcp.AcceptQueues([address(listener)])
    assert (queues.sample().length, queues.sample().limit) == (0, 5)
    connect(stack, listener, 3)
    until_length(queues, 3)
    stack.enter_context(listener.accept()[0])
    until_length(queues, 2)
    listener.listen(2)  # as the native asgi worker does
    assert queues.sample().limit == 2


@linux
def test_the_queues_of_workers_that_listen_on_one_port_are_added_up(stack: ExitStack) -> None:
    listeners, port = [], 0
    for backlog in (5, 7):
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(backlog)
        port = listener.getsockname()[1]
        listeners.append(listener)
    queues = tcp.AcceptQueues([address(listeners[0])])
    connect(stack, listeners[0], 4)  # the kernel chooses the queue of each
    until_length(queues, 4)
    assert queues.sample().limit == 12
    assert queues.drops() == 0


@linux
def test_a_missing_listener_is_looked_up_again(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = stack.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    queues = tcp.AcceptQueues([address(listener)])
    with pytest.raises(tcp.SocketsUnreadable, match=r"nothing listens on 127\.0\.0\.1"):
        queues.sample()
    with monkeypatch.context() as patched:
        patched.setattr(tcp.time, "sleep", lambda _: listener.listen(7))
        assert queues.sample().limit == 7
    with pytest.raises(tcp.SocketsUnreadable, match=r"nothing listens on 127\.0\.0\.9"):
        tcp.AcceptQueues([("127.0.0.9", address(listener)[1])]).sample()


@linux
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_each_listener_counts_its_own_drops(stack: ExitStack, host: str) -> None:
    """A short queue takes two connections; the SYNs of the others are dropped, and repeated by the
    kernel. A long queue takes all."""
    listeners = listening(stack, 1, host), listening(stack, 64, host)
    short, long = (tcp.AcceptQueues([address(listener)]) for listener in listeners)
    both = tcp.AcceptQueues(list(map(address, listeners)))
    assert (short.drops(), long.drops()) == (0, 0)
    for listener in listeners:
        for _ in range(6):
            client = stack.enter_context(socket.socket(listener.family))
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
    until(lambda: (short.drops() or 0) >= 4, "four connections are dropped")
    assert long.drops() == 0
    assert both.drops() >= 4
    assert tcp.sample_counters(short.drops()).counts["socket_drops"] >= 4


@linux
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_without_netlink_limit_and_drops_are_unknown(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """The kernel's table has 0 for each limit, which any waiting connection would exceed."""
    assert tcp.counts_socket_drops()
    monkeypatch.delattr(socket, "AF_NETLINK")
    assert not tcp.counts_socket_drops()
    assert "socket_drops" not in tcp.sample_counters(None).counts
    listeners = [listening(stack, 7, host), listening(stack, 7, host)]
    queues = tcp.AcceptQueues(list(map(address, listeners)))
    assert queues.drops() is None
    assert (queues.sample().length, queues.sample().limit) == (0, None)
    connect(stack, listeners[0], 3)
    connect(stack, listeners[1], 1)
    until_length(queues, 4)
    stack.enter_context(listeners[0].accept()[0])
    until_length(queues, 3)
    with pytest.raises(tcp.SocketsUnreadable, match="nothing listens on"):
        tcp.AcceptQueues([(host, 1)]).sample()


TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: {local} 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
"""


@linux
@pytest.mark.parametrize(
    ("text", "why"), [(TABLE, "AF_NETLINK'$"), ("", "nothing listens"), (None, "No such file")]
)
def test_without_a_usable_table_the_queue_is_unknown(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, why: str
) -> None:
    """gVisor's table has 0 for all lengths: a missing value, not an empty queue."""
    listener, table = listening(stack, 7), tmp_path / "tcp"
    queues = tcp.AcceptQueues([address(listener)])
    if text is not None:
        table.write_text(text.format(local=f"{LOOPBACK}:{address(listener)[1]:04X}"))
    monkeypatch.delattr(socket, "AF_NETLINK")
    monkeypatch.setitem(tcp.TABLES, socket.AF_INET, table)
    tcp._table_has_lengths.cache_clear()
    stack.callback(tcp._table_has_lengths.cache_clear)
    with pytest.raises(tcp.SocketsUnreadable, match=why):
        queues.sample()


# --- connections --------------------------------------------------------------------------------

WORKER = """
import socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
held = [listener.accept() for _ in range(int(sys.argv[2]))]
print(len(held), flush=True)
sys.stdin.read()
"""


def worker(stack: ExitStack, listener: socket.socket, count: int) -> int:
    """The pid of a process that has accepted `count` connections and holds them."""
    fd = listener.fileno()
    process = stack.enter_context(python(WORKER, fd, count, pass_fds=[fd]))
    assert process.stdout.readline() == f"{count}\n"
    return process.pid


def without_time_wait(client: Mapping[str, int]) -> dict[str, int]:
    """Another socket may have used the port in the last minute."""
    return {state: count for state, count in client.items() if state != "TIME_WAIT"}


@linux
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_connections_are_counted_by_state_and_owner(stack: ExitStack, host: str) -> None:
    listener = listening(stack, 10, host)
    clients = connect(stack, listener, 5)
    pids = [worker(stack, listener, 2), worker(stack, listener, 1), worker(stack, listener, 0)]
    clients[0].sendall(b"unread")  # accepted first
    clients[4].sendall(b"unread, and not accepted")
    clients[1].shutdown(socket.SHUT_WR)
    connections = tcp.Connections([address(listener)], pids)

    def as_expected() -> bool:
        sample = connections.sample()
        return replace(sample, client=without_time_wait(sample.client)) == ConnectionSample(
            sample.at_ns,
            server={"ESTABLISHED": 4, "CLOSE_WAIT": 1},
            client={"ESTABLISHED": 4, "FIN_WAIT2": 1},
            per_worker=dict(zip(pids, (2, 1, 0), strict=True)),
            unread=1,
        )

    until(as_expected, "the connections are in these states")


@linux
def test_an_unanswered_handshake_is_counted(stack: ExitStack) -> None:
    listener = listening(stack, 0)
    connect(stack, listener, 1)
    before = tcp.sample_counters().counts
    late = stack.enter_context(socket.socket())
    late.setblocking(False)
    late.connect_ex(address(listener))
    connections = tcp.Connections([address(listener)], [])
    until(lambda: connections.sample().client.get("SYN_SENT") == 1, "the SYN is unanswered")

    def increased(name: str) -> bool:  # of the whole network namespace
        return tcp.sample_counters().counts[name] > before[name]

    until(lambda: increased("syn_retransmits"), "the SYN was sent again")
    assert increased("listen_overflows")
    assert increased("listen_drops")


@linux
def test_sockets_of_other_ports_and_addresses_do_not_count(stack: ExitStack) -> None:
    listener, other = listening(stack, 5), listening(stack, 5)
    connect(stack, other, 1)
    connect(stack, listener, 1)
    host, port = address(listener)
    assert tcp.Connections([(host, port)], []).sample().client["ESTABLISHED"] == 1
    assert tcp.Connections([("127.0.0.9", port)], []).sample().client == {}


@linux
def test_connections_that_do_not_fit_in_one_datagram_are_counted(stack: ExitStack) -> None:
    listener = listening(stack, 400)
    connect(stack, listener, 400)
    connections = tcp.Connections([address(listener)], [os.getpid()])
    established = {"ESTABLISHED": 400}
    until(lambda: connections.sample().server == established, "each connection is counted once")
    assert without_time_wait(connections.sample().client) == established
    assert connections.sample().per_worker == {os.getpid(): 0}


@linux
def test_a_refusal_of_the_kernel_is_an_error() -> None:
    with pytest.raises(OSError, match="inet_diag: "):
        sockets(socket.AF_UNSPEC, 1, 80)


@linux
def test_an_ended_worker_owns_no_connections(stack: ExitStack) -> None:
    listener = listening(stack, 5)
    connect(stack, listener, 1)
    with stack.enter_context(listener.accept()[0]):
        ended = ended_pid()
        sample = tcp.Connections([address(listener)], [ended, os.getpid()]).sample()
        assert sample.per_worker == {ended: 0, os.getpid(): 1}


# --- the kernel's counters and timer ------------------------------------------------------------

NETSTAT = """\
TcpExt: SyncookiesSent ListenOverflows ListenDrops TCPSynRetrans
TcpExt: 1 20 30 4
IpExt: InNoRoutes ListenDrops
IpExt: 7 8
"""


def test_counters_are_parsed() -> None:
    assert tcp.parse_netstat(NETSTAT) == {
        "SyncookiesSent": 1, "ListenOverflows": 20, "ListenDrops": 30, "TCPSynRetrans": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "IpExt: A\nIpExt: 1\n", "TcpExt: A B\nTcpExt: 1\n", "TcpExt: A\nTcpExt: B\n"]
)
def test_invalid_counters_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        tcp.parse_netstat(text)


@pytest.mark.parametrize(
    ("linear", "retries", "steps"),
    [
        # ip-sysctl.rst: with 4 and 6, the last SYN is sent after 67 s
        (4, 6, (1, 2, 3, 4, 5, 7, 11, 19, 35, 67)),
        (0, 6, (1, 3, 7, 15, 31, 63)),
        (0, 0, ()),
        (0, 9, (1, 3, 7, 15, 31, 63, 127, 247, 367)),  # no timeout is longer than 120 s
    ],
)
def test_syn_steps_follow_from_the_kernels_settings(
    linear: int, retries: int, steps: tuple[float, ...]
) -> None:
    assert tcp.steps_s(linear, retries) == steps


@linux
def test_syn_steps_of_this_kernel_ascend_from_one_second() -> None:
    steps = tcp.syn_steps_s()
    assert steps[0] == 1.0
    assert list(steps) == sorted(set(steps))
