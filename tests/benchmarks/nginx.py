"""An nginx of one process that answers from its own memory, for the benchmark of the generators."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workerlab.server.services import free_port

PATIENCE_S = 10.0
CONFIG = """
daemon off; master_process off; worker_processes 1; pid nginx.pid; error_log stderr;
events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 1000000000; keepalive_timeout 1h;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{ default_type text/plain; return 200 "{answer}"; }}
    }}
}}
"""


@contextmanager
def nginx(answer: str, place: Path, core: int | None) -> Iterator[str]:
    """Its address. `answer`: the body of each response, in nginx's syntax; `core`: its own."""
    port = free_port()
    (place / "nginx.conf").write_text(CONFIG.format(port=port, answer=answer))
    argv = [shutil.which("nginx") or "nginx", "-p", str(place), "-c", "nginx.conf"]
    with (place / "stderr").open("w") as err:
        child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=err)
    try:
        if core is not None:
            os.sched_setaffinity(child.pid, {core})
        _await(child, port, place / "stderr")
        yield f"http://127.0.0.1:{port}/"
    finally:
        child.terminate()
        child.wait()


def _await(child: subprocess.Popen[bytes], port: int, stderr: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and child.poll() is None:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise OSError(f"nginx does not listen: {stderr.read_text()[-500:]}")
