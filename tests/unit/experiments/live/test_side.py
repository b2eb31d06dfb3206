"""What a look at a live server says, of a socket that listens and of clients that are written."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from workerlab.experiments.lesson.settings import ServerSettings
from workerlab.experiments.live.side import LiveServer
from workerlab.report.player.places import QUEUED

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's tables are Linux's")


@linux
def test_before_the_first_look_the_queue_takes_no_more_than_its_backlog(
    stack: ExitStack, tmp_path: Path
) -> None:
    """The picture plays what happened between two looks."""
    listener = stack.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(2)
    events, clients = os.pipe()
    os.set_blocking(events, False)
    for end in (events, clients):
        stack.callback(os.close, end)
    host, port = listener.getsockname()
    launch = SimpleNamespace(server=ServerSettings(backlog=2).server(), trial=tmp_path)
    here = SimpleNamespace(pid=os.getpid())
    server = SimpleNamespace(process=here, launch=launch, host=host, port=port, proofs={})
    live = LiveServer(cast(Any, server), cast(Any, here), clients, events)
    for number in range(1, 8):
        os.write(clients, b"b %d %d -\nc %d %d -\n" % (number, number, number, number))
    moves = live.look().moves
    assert sum(move.place == QUEUED for move in moves) == 3
