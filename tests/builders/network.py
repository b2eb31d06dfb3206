"""A private network namespace: the kernel counts dropped handshakes per namespace."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def make_own_network() -> bool:
    """Moves this process and its future children into a new network namespace with loopback. False
    if that is not allowed or not supported."""
    unshare = getattr(ctypes.CDLL(None), "unshare", None)
    if unshare is None or unshare(CLONE_NEWNET) != 0:
        return False
    with socket.socket() as any_socket:
        name = b"lo".ljust(16, b"\0")
        request = fcntl.ioctl(any_socket, SIOCGIFFLAGS, name + bytes(24))
        flags = struct.unpack_from("H", request, 16)[0] | IFF_UP
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, name + struct.pack("H", flags) + bytes(22))
    return True
