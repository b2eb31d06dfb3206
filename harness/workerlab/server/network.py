"""A network namespace (Linux), in which a load cannot use up the ports of other programs."""

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
    """A namespace for this thread and all it starts meanwhile, with loopback, the kernel's default
    settings and this net.ipv4.tcp_tw_reuse. Raises OSError if the user may not create one."""
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
        if failed:  # whatever this thread starts would have no network
            raise OSError(ctypes.get_errno(), "cannot return to the network namespace")
