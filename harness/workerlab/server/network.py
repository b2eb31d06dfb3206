"""A network namespace (Linux), where a load may use up ports without taking them from others."""

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000  # linux/sched.h
SIOCSIFFLAGS, IFF_UP = 0x8914, 1  # linux/sockios.h, linux/if.h


@contextmanager
def own_network(tw_reuse: int) -> Iterator[None]:
    """One for this thread and all that it starts meanwhile, with loopback, the kernel's usual
    settings and this net.ipv4.tcp_tw_reuse. Raises OSError where the user may not make one."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        os.close(before)
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        with socket.socket() as any_socket:
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", IFF_UP))
        Path("/proc/sys/net/ipv4/tcp_tw_reuse").write_text(str(tw_reuse))
        yield
    finally:
        failed = libc.setns(before, CLONE_NEWNET)
        os.close(before)
        if failed:  # all that this thread starts would be cut off
            raise OSError(ctypes.get_errno(), "cannot return to the network namespace")
