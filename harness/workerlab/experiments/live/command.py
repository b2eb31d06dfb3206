"""`workerlab live`: a page on loopback that shows and controls a real Gunicorn.

With --share, pupils on the network get a second page, on which they can watch and guess. Ctrl-C
stops the lab; it also stops when no page has been open for a while. It leaves nothing behind.
"""

import asyncio
import contextlib
import secrets
import socket
import sys
import webbrowser
from pathlib import Path

from workerlab.errors import EnvironmentProblem, UsageError
from workerlab.experiments.environment import interpreters
from workerlab.experiments.lesson.steps import BUNDLED_LESSON, Lesson, read_lesson
from workerlab.experiments.live import recording
from workerlab.experiments.live.classroom import Classroom, lan_addresses
from workerlab.experiments.live.options import ALL_ADDRESSES, LiveOptions
from workerlab.experiments.live.stage import Stage
from workerlab.report.html import check_writable
from workerlab.server.preflight import Interpreter
from workerlab.terminal.console import tell
from workerlab.terminal.interrupt import Stopped

SHARE_WARNING = """\
Anyone on that network who has the code can watch and guess; no one there can control the lab.
Their page is served over plain HTTP, without encryption, until the lab ends."""
MAX_NO_TABS_S = 600.0  # after which the lab ends
USER_TIMEOUT_MS = 20_000  # a connection that accepts no data for this long is closed


def command(options: LiveOptions) -> int:
    """Serve the page until Ctrl-C, or record the lesson. Returns the exit code."""
    if options.share and options.record:
        raise UsageError("--share cannot be combined with --record")
    if options.given_options(LiveOptions.share_port) and not options.share:
        raise UsageError("--share-port works only with --share")
    (interpreter,) = interpreters(options).values()
    if interpreter.note is not None:
        tell(str(interpreter.note))
    lesson = read_lesson(options.lesson or BUNDLED_LESSON)
    if options.record:
        return _record(options.record, interpreter, lesson)
    return _serve(options, interpreter, lesson)


def _record(path_text: str, interpreter: Interpreter, lesson: Lesson) -> int:
    path = Path(path_text).expanduser()
    check_writable(path.absolute().parent)
    for step in lesson.steps:
        if why := interpreter.why_unavailable(step.server.worker_class):
            raise EnvironmentProblem(f"{step.title}: {why}")
    try:
        recording.record(path, lesson, interpreter)
    except Stopped as stop:
        tell(f"stopped: {path_text} was not written")
        return stop.exit_code
    except OSError as error:
        raise EnvironmentProblem(f"{path_text} cannot be written: {error}") from None
    tell(f"wrote {path_text}")
    return 0


def _serve(options: LiveOptions, interpreter: Interpreter, lesson: Lesson) -> int:
    from workerlab.experiments.live import web

    with contextlib.ExitStack() as stack:
        token = secrets.token_urlsafe(16)
        sock = stack.enter_context(_listen("127.0.0.1", options.port, "--port"))
        port, pupil_sock = options.share_port, None
        if options.share:
            pupil_sock = stack.enter_context(_listen(options.share, port, "--share-port"))
        address = f"http://127.0.0.1:{sock.getsockname()[1]}/{token}/"
        tell(f"the live lesson: {address}")
        classroom = _open_classroom(options.share, port) if options.share else Classroom()
        tell("Ctrl-C ends the lab")
        stage = Stage(interpreter, lesson, classroom, begin=options.begin)
        stack.callback(stage.close)
        with contextlib.suppress(Stopped):  # the normal way to end the lab
            if not options.no_browser:
                with contextlib.suppress(webbrowser.Error):
                    webbrowser.open(address)
            asyncio.run(
                web.serve(
                    stage,
                    token=token,
                    sock=sock,
                    pupil_sock=pupil_sock,
                    max_no_tabs_s=MAX_NO_TABS_S,
                )
            )
    return 0


def _open_classroom(address: str, port: int) -> Classroom:
    """Create the classroom. Prints where pupils join and what people on the network can do."""
    addresses = lan_addresses() if address == ALL_ADDRESSES else [address]
    links = [f"http://{host}:{port}/" for host in addresses or ["127.0.0.1"]]
    classroom = Classroom(links[0])
    tell(f"pupils join at {' or '.join(links)} with the room code {classroom.code}")
    tell(f"or with the link {links[0]}#{classroom.code}")
    tell(SHARE_WARNING)
    if links[0].startswith("http://127."):
        tell(
            "Only this machine can reach that address: the machine has no other, or --share names"
            " a loopback address."
        )
    return classroom


def _listen(address: str, port: int, option: str) -> socket.socket:
    """A listening socket. Raises UsageError if the port is taken or the address is not local."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    try:
        sock.bind((address, port))
    except OSError as error:
        sock.close()
        raise UsageError(f"{option}: cannot listen on {address}:{port}: {error.strerror}") from None
    sock.listen()
    return sock
