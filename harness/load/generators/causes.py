"""What a failed system call is called among the causes of failures."""

from __future__ import annotations

import errno

CAUSES = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
    errno.ETIMEDOUT: "connect_timeout",
    errno.EADDRNOTAVAIL: "no_address",
    errno.EADDRINUSE: "no_address",
    errno.EMFILE: "no_files",
    errno.ENFILE: "no_files",
}


def of_errno(number: int | None, otherwise: str) -> str:
    """`otherwise` where the number says nothing in particular."""
    return CAUSES.get(number or 0, otherwise)
