"""Waits 50 ms for a database that serves four requests at a time, over all workers."""

import fcntl
import os
import tempfile
import time

from common import app_that

LOCKS = [os.path.join(tempfile.gettempdir(), f"workerlab-pool-{os.getuid()}-{i}") for i in range(4)]


def take(handles: list[int]) -> None:
    """Wait until one of the files is unlocked, and lock it."""
    while True:
        for handle in handles:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            return
        time.sleep(0.001)


def query() -> None:
    handles = [os.open(path, os.O_CREAT | os.O_RDWR, 0o600) for path in LOCKS]
    try:
        take(handles)
        time.sleep(0.05)
    finally:
        for handle in handles:
            os.close(handle)


app = app_that(query)
