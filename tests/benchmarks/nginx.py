"""A single-process nginx with fixed answers, for the benchmark of the generators."""

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

TIMEOUT_S = 10.0
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
def nginx(answer: str, directory: Path, core: int | None) -> Iterator[str]:
    """Yields its URL. `answer`: the body of each response, in nginx's syntax; `core`: to run on."""
    port = free_port()
    (directory / "nginx.conf").write_text(CONFIG.format(port=port, answer=answer))
    argv = [shutil.which("nginx") or "nginx", "-p", str(directory), "-c", "nginx.conf"]
    with (directory / "stderr").open("w") as err:
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=err)
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        _wait_until_listening(process, port, directory / "stderr")
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait()


def _wait_until_listening(process: subprocess.Popen[bytes], port: int, stderr: Path) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise OSError(f"nginx does not listen: {stderr.read_text()[-500:]}")
