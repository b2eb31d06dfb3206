"""The null server, started and stopped like the server under test.

For a load that exhausts the local ports, it runs in a network namespace (Linux), so that other
programs keep theirs.
"""

import ctypes
import fcntl
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from workerlab.model.evidence import Fault
from workerlab.model.plan import Server
from workerlab.server.process import Guarded
from workerlab.server.running import Serving, TrialFailed, explained

CLONE_NEWNET = 0x40000000  # linux/sched.h
SIOCSIFFLAGS, IFF_UP = 0x8914, 1  # linux/sockios.h, linux/if.h


@contextmanager
def own_network(tw_reuse: int) -> Iterator[None]:
    """A network namespace for this thread and its children, with loopback, the kernel's default
    settings and this net.ipv4.tcp_tw_reuse. Raises OSError if the user may not create one."""
    original = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        os.close(original)
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        with socket.socket() as any_socket:
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", IFF_UP))
        Path("/proc/sys/net/ipv4/tcp_tw_reuse").write_text(str(tw_reuse))
        yield
    finally:
        failed = libc.setns(original, CLONE_NEWNET)
        os.close(original)
        if failed:  # what this thread starts later would have no network
            raise OSError(ctypes.get_errno(), "cannot return to the network namespace")


PROGRAM = str(Path(__file__).parent / "null")
READY, COUNTS, LOG = "ready.json", "null-server.json", "null-server.log"
BOOT_S = 30.0
POLL_S = 0.01
GRACE_S = 5.0  # to write its counts


class RunningNull(Serving, kw_only=True):
    """A null server that listens. Without workers, it has no proofs."""

    def lost(self) -> Fault | None:
        if self.process.running:
            return None
        return Fault("server", explained("the null server exited under load", self.log))


def command(
    server: Server, directory: Path, client_ports: tuple[int, int] | None = None
) -> list[str]:
    assert server.null is not None
    null = server.null
    options = {
        "ready": directory / READY,
        "report": directory / COUNTS,
        "body-bytes": null.body_bytes,
        "delay": "{!r},{!r}".format(*null.delay_s),
        "seed": null.seed,
        "backlog": server.backlog,
        "core": null.core,
        "client-ports": "{},{}".format(*client_ports) if client_ports else None,
        "requests-per-connection": null.requests_per_connection,
        "fault": null.fault,
    }
    argv = [f"--{name}={value}" for name, value in options.items() if value is not None]
    return [sys.executable, "-I", "-S", PROGRAM, *argv]


@contextmanager
def null_server(
    server: Server, directory: Path, client_ports: tuple[int, int] | None = None
) -> Iterator[RunningNull]:
    """A null server that listens. On exit it is stopped, and has written its counts to `directory`,
    which must exist. `client_ports`: the lowest and highest port reserved for clients. Raises
    TrialFailed if it does not start."""
    began, log = time.monotonic(), directory / LOG
    argv = command(server, directory, client_ports)
    tw_reuse = server.null.tw_reuse if server.null else None
    with (
        nullcontext() if tw_reuse is None else own_network(tw_reuse),
        Guarded(argv, cwd=directory, env=os.environ, stdout=log, grace_s=GRACE_S) as process,
    ):
        while not (directory / READY).exists():
            if process.wait(POLL_S) or time.monotonic() > began + BOOT_S:
                raise TrialFailed("unavailable", explained("the null server did not start", log))
        address = json.loads((directory / READY).read_text())
        yield RunningNull(
            process=process,
            host=address["host"],
            port=address["port"],
            backlog=server.backlog,
            log=log,
            start_s=time.monotonic() - began,
        )
