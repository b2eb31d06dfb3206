"""`workerlab live`: a page on loopback that shows a real Gunicorn at work, and lets it be changed.

The lab ends with Ctrl-C, or when nobody has watched for a while; nothing is left of it then.
"""

import argparse
import asyncio
import contextlib
import secrets
import socket
import webbrowser

from harness.experiments.planning import interpreters
from harness.model import EnvironmentProblem, UsageError
from harness.server.worker_classes import CLASSES
from harness.terminal.console import tell

FORGOTTEN_S = 600.0  # without a tab
LOOK_S = 0.5
NEEDS = "the page needs starlette and uvicorn: pip install 'workerlab[live]'"


def command(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C. Returns the exit code."""
    try:
        from harness.experiments.live import serving
    except ImportError as error:
        raise EnvironmentProblem(f"{NEEDS} ({error})") from None
    from harness.experiments.live.stage import Stage

    (found,) = interpreters(options).values()
    missing = {name: why for name in CLASSES if (why := found.lacks(name))}
    token, sock = secrets.token_urlsafe(16), _listening(options.port or 0)
    address = f"http://127.0.0.1:{sock.getsockname()[1]}/{token}/"
    tell(f"the live lesson: {address}")
    tell("Ctrl-C ends it")
    stage = Stage(found.python, found.asked, missing)
    try:
        if not options.no_browser:
            with contextlib.suppress(webbrowser.Error):
                webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serving.serve(stage, token, sock, FORGOTTEN_S))
    finally:
        stage.close()
        sock.close()
    return 0


def _listening(port: int) -> socket.socket:
    """Raises UsageError where the port is taken."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("127.0.0.1", port))
    except OSError as error:
        sock.close()
        raise UsageError(f"--port: {port} cannot be had: {error.strerror}") from None
    sock.listen()
    return sock
