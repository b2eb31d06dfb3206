"""A network namespace of one's own: the kernel counts dropped handshakes for a whole one."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def make_own_network() -> bool:
    """A network namespace for this process and all that it starts, with loopback; False where that
    is not allowed or not known."""
    unshare = getattr(ctypes.CDLL(None), "unshare", None)
    if unshare is None or unshare(CLONE_NEWNET) != 0:
        return False
    with socket.socket() as any_socket:
        name = b"lo".ljust(16, b"\0")
        request = fcntl.ioctl(any_socket, SIOCGIFFLAGS, name + bytes(24))
        flags = struct.unpack_from("H", request, 16)[0] | IFF_UP
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, name + struct.pack("H", flags) + bytes(22))
    return True
