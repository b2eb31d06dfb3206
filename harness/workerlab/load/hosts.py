"""Load from other machines: whether their names mean something, and how they reach this one.

Only where a host is named can a server be reached from elsewhere than this machine: it then listens
on the one address that leads to the first of them.
"""

import socket
from collections.abc import Iterable

from workerlab.model import UsageError


def reached_at(hosts: tuple[str, ...]) -> str:
    """This machine's IPv4 address on the way to the first of `hosts`; loopback if there is none.
    Raises UsageError for a name or a way that is unknown."""
    if not hosts:
        return "127.0.0.1"
    address = _address(hosts[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect((address, 9))  # nothing is sent: the kernel is asked for the way
        except OSError as error:
            raise UsageError(f"--load-hosts: no route to {hosts[0]}: {error}") from None
        return str(way.getsockname()[0])


def check(hosts: Iterable[str], port: int) -> None:
    """Raises UsageError for a host that is unknown, or a port that is taken here."""
    for host in hosts:
        _address(host)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as here:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            here.bind(("", port))
        except OSError as error:
            raise UsageError(
                f"--load-hosts: port {port}, where the load hosts join, is taken: {error}"
            ) from None


def _address(host: str) -> str:
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--load-hosts: unknown host {host}: {error}") from None
    return str(found[0][4][0])
