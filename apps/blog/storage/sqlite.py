"""Posts in a SQLite file, the default: nothing to install, nothing to start.

Each thread has a connection of its own. Asynchronous code runs its calls in threads: SQLite blocks
the caller, and a writer may hold the file for a while.
"""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from apps.blog.metrics import METRICS
from apps.blog.posts import Unreachable
from apps.blog.settings import Settings
from apps.blog.storage.sql import (
    ADD_STEP,
    CREATE_SCHEMA,
    CURRENT_STEP,
    Row,
    Sql,
    Statement,
    missing_steps,
    trips,
)

BUSY_S = 5.0  # until a file that other processes write to counts as unreachable
RETRY_S = 0.01
SERIAL = "integer PRIMARY KEY AUTOINCREMENT"


class Storage(Sql):
    def __init__(self, settings: Settings, *, async_mode: bool) -> None:
        # As usual: sqlite:///relative.db, sqlite:////absolute.db
        self._path = unquote(urlsplit(settings.storage_url).path)[1:]
        self._async_mode = async_mode
        self._local = threading.local()

    async def prepare(self) -> None:
        try:
            db = self._connect()
            try:
                enable_wal(db)
                db.execute("BEGIN IMMEDIATE")
                db.execute(CREATE_SCHEMA)
                ((current,),) = db.execute(CURRENT_STEP)
                for number, step in missing_steps(current, SERIAL):
                    db.execute(step)
                    db.execute(ADD_STEP, (number,))
                db.execute("COMMIT")
            finally:
                db.close()
        except sqlite3.Error as problem:
            raise Unreachable(f"{self._path}: {problem}") from problem

    async def server_version(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"

    async def stop(self) -> None:
        """Connections are closed when their threads end."""

    async def _run(self, statements: Sequence[Statement]) -> list[list[Row]]:
        METRICS.add("storage_trips", trips(statements))
        with METRICS.timed("storage_ns"):
            if self._async_mode:
                return await asyncio.to_thread(self._carry_out, statements)
            return self._carry_out(statements)

    def _carry_out(self, statements: Sequence[Statement]) -> list[list[Row]]:
        try:
            db = self._own_connection()
            if len(statements) == 1:
                return [db.execute(*statements[0]).fetchall()]
            with db:
                db.execute("BEGIN IMMEDIATE")
                return [db.execute(*statement).fetchall() for statement in statements]
        except sqlite3.Error as problem:
            METRICS.add("storage_failed")
            raise Unreachable(f"{self._path}: {problem}") from problem

    def _own_connection(self) -> sqlite3.Connection:
        """This thread's connection; one that was created before a fork is not used."""
        if getattr(self._local, "pid", None) != os.getpid():
            self._local.db, self._local.pid = self._connect(), os.getpid()
        db: sqlite3.Connection = self._local.db
        return db

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
        db.execute("PRAGMA synchronous = NORMAL")
        return db


def enable_wal(db: sqlite3.Connection) -> None:
    """Switch the file to write-ahead logging. While another process writes, SQLite ignores the
    connection's timeout for this, so workers that boot together would fail."""
    deadline_s = time.monotonic() + BUSY_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as problem:
            busy = problem.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline_s:
                raise
        time.sleep(RETRY_S)
