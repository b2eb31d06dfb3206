"""`workerlab live`: a page on loopback that shows a real Gunicorn at work, and lets it be changed.

The lab ends with Ctrl-C, or when nobody has watched for a while; nothing is left of it then.
"""

import argparse
import asyncio
import contextlib
import secrets
import socket
import webbrowser
from pathlib import Path

from workerlab.experiments.environment import interpreters
from workerlab.experiments.lesson import SHIPPED, Lesson, read
from workerlab.experiments.live import recording
from workerlab.experiments.live.stage import Stage
from workerlab.model import EnvironmentProblem, UsageError
from workerlab.report import publish
from workerlab.report.messages import text
from workerlab.server.preflight import Interpreter
from workerlab.server.worker_classes import CLASSES
from workerlab.terminal.console import tell
from workerlab.terminal.interrupt import Stopped

FORGOTTEN_S = 600.0  # without a tab
LOOK_S = 0.5


def command(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C, or record the lesson. Returns the exit code."""
    (found,) = interpreters(options).values()
    if found.note is not None:
        tell(text(found.note))
    lesson = read(Path(options.lesson) if options.lesson else SHIPPED)
    if options.record:
        return _record(options, found, lesson)
    return _serve(options, found, lesson)


def _record(options: argparse.Namespace, found: Interpreter, lesson: Lesson) -> int:
    path = Path(options.record).expanduser()
    publish.check(path.absolute().parent)
    for step in lesson.steps:
        if why := found.lacks(step.cell.server.worker_class):
            raise EnvironmentProblem(f"{step.title}: {why}")
    try:
        recording.record(path, found.python, found.asked, lesson)
    except Stopped as signal:
        tell(f"stopped: {options.record} is not written")
        return signal.exit_code
    except OSError as error:
        raise EnvironmentProblem(f"{options.record} cannot be written: {error}") from None
    tell(f"wrote {options.record}")
    return 0


def _serve(options: argparse.Namespace, found: Interpreter, lesson: Lesson) -> int:
    from workerlab.experiments.live import serving  # which no other way of it needs

    missing = {name: why for name in CLASSES if (why := found.lacks(name))}
    token, sock = secrets.token_urlsafe(16), _listening(options.port or 0)
    address = f"http://127.0.0.1:{sock.getsockname()[1]}/{token}/"
    tell(f"the live lesson: {address}")
    tell("Ctrl-C ends it")
    stage = Stage(found.python, found.asked, missing, lesson, begin=options.begin)
    try:  # a signal ends the lab, which is what it is for
        if not options.no_browser:
            with contextlib.suppress(webbrowser.Error):
                webbrowser.open(address)
        asyncio.run(serving.serve(stage, token, sock, FORGOTTEN_S))
    except Stopped:
        pass
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
