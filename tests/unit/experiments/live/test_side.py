"""Polling a live server, with a real listener and scripted client events."""

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


@pytest.mark.skipif(sys.platform != "linux", reason="reads the tables of a Linux kernel")
def test_the_first_poll_queues_no_more_requests_than_the_backlog_admits(
    stack: ExitStack, tmp_path: Path
) -> None:
    """The page replays all events between two polls."""
    listener = stack.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(2)
    events, client_end = os.pipe()
    os.set_blocking(events, False)
    for end in (events, client_end):
        stack.callback(os.close, end)
    host, port = listener.getsockname()
    launch = SimpleNamespace(server=ServerSettings(backlog=2).server(), trial=tmp_path)
    process = SimpleNamespace(pid=os.getpid())
    server = SimpleNamespace(process=process, launch=launch, host=host, port=port, proofs={})
    live = LiveServer(cast(Any, server), cast(Any, process), client_end, events)
    for number in range(1, 8):
        os.write(client_end, b"b %d %d -\nc %d %d -\n" % (number, number, number, number))
    moves = live.poll().moves
    assert sum(move.place == QUEUED for move in moves) == 3
