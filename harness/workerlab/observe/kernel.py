"""The kernel's TCP counters, and when it retransmits an unanswered SYN."""

import time
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

from msgspec import Struct

from workerlab.server.preflight import sysctl

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
    counts = {ours: values[theirs] for ours, theirs in NAMES.items() if theirs in values}
    counts |= {} if socket_drops is None else {"socket_drops": socket_drops}
    return CountersSample(time.monotonic_ns(), counts)


def steps_s(linear: int, retries: int) -> tuple[float, ...]:
    """When an unanswered SYN is sent again, in seconds after the first. The first `linear` timeouts
    are 1 s each, the `retries` after them double from 1 s on (Linux, networking/ip-sysctl.rst)."""
    timeouts = [1.0] * linear + [float(min(2**n, RTO_MAX_S)) for n in range(retries)]
    return tuple(accumulate(timeouts))


def syn_steps_s() -> tuple[float, ...]:
    """The same for this kernel's settings; empty if they are not known."""
    retries = sysctl("net.ipv4.tcp_syn_retries")
    if retries is None:
        return ()
    return steps_s(int(sysctl("net.ipv4.tcp_syn_linear_timeouts") or 0), int(retries))
