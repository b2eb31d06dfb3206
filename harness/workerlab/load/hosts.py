"""Load from other machines: whether their names resolve, and how they reach this one.

Without load hosts, servers listen on loopback only; with them, on the one address that faces the
first host.
"""

import socket
from collections.abc import Iterable

from workerlab.model import UsageError


def reached_at(hosts: tuple[str, ...]) -> str:
    """This machine's IPv4 address on the route to the first of `hosts`; loopback without hosts.
    Raises UsageError for an unknown host, or one without a route."""
    if not hosts:
        return "127.0.0.1"
    address = _address(hosts[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        try:
            route.connect((address, 9))  # sends nothing: the kernel looks up the route
        except OSError as error:
            raise UsageError(f"--load-hosts: no route to {hosts[0]}: {error}") from None
        return str(route.getsockname()[0])


def check(hosts: Iterable[str], port: int) -> None:
    """Raises UsageError for an unknown host, or if `port` is taken here."""
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
        addresses = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--load-hosts: unknown host {host}: {error}") from None
    return str(addresses[0][4][0])
