"""Waits 50 ms for a database that takes four requests at a time, from all workers together."""

import fcntl
import os
import tempfile
import time

from common import app_that

PLACES = [
    os.path.join(tempfile.gettempdir(), f"workerlab-pool-{os.getuid()}-{i}") for i in range(4)
]


def take(handles: list[int]) -> None:
    """Wait until one of them is free, and hold it."""
    while True:
        for handle in handles:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            return
        time.sleep(0.001)


def query() -> None:
    handles = [os.open(place, os.O_CREAT | os.O_RDWR, 0o600) for place in PLACES]
    try:
        take(handles)
        time.sleep(0.05)
    finally:
        for handle in handles:
            os.close(handle)


app = app_that(query)
