"""What a machine's limits do to a client: recognised by the cause of its failures, explained in a
sentence, with what to change. Pure."""

from __future__ import annotations

from collections.abc import Mapping

SPARE_FILES = 64  # what a process has open beside its connections


def no_files(failed: int, connections: int, open_files: int | None) -> str:
    """Errno 24. `open_files`: the process's limit, None: not known."""
    limit = f"a process may have {open_files:,} of them" if open_files else "they are limited"
    return (
        f"Errno 24, too many open files: {failed:,} requests got no file for their connection;"
        f" {limit}, and {connections:,} connections were wanted at once. Raise the limit"
        f" (ulimit -n {connections + SPARE_FILES}), or bound how many requests are under way."
    )


def no_address(failed: int, connections: int, ports: int | None) -> str:
    """Errno 99. `ports`: how many local ones there are, None: not known."""
    some = f"there are {ports:,} of them" if ports else "they are limited"
    return (
        f"Errno 99, cannot assign requested address: {failed:,} requests found no free local port;"
        f" {some} for each pair of a source address and a server, a connection takes one, and"
        f" {connections:,} connections were wanted at once. Use connections again (keep-alive), or"
        " connect from further source addresses (on loopback 127.0.0.2, 127.0.0.3, and so on), or"
        " widen net.ipv4.ip_local_port_range."
    )


def explained(
    errors: Mapping[str, int], connections: int, open_files: int | None, ports: int | None
) -> list[str]:
    """A sentence for each cause that is a limit of the client's machine."""
    found = []
    if failed := errors.get("no_files"):
        found.append(no_files(failed, connections, open_files))
    if failed := errors.get("no_address"):
        found.append(no_address(failed, connections, ports))
    return found
