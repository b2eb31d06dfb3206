"""Posts in PostgreSQL, through psycopg.

Connections come from a pool per worker; waiting for a free one is measured separately from waiting
for the response. A restarted server has closed them: the socket shows that without a round trip,
before a connection is used. A server that hangs is detected only by a timeout.
"""

import math
import os
import select
import threading
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from apps.blog.blocking import resolve
from apps.blog.metrics import METRICS
from apps.blog.posts import Unreachable
from apps.blog.settings import Settings
from apps.blog.storage.pool import Pool
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

CONNECT_S = 2  # libpq accepts only whole seconds, and at least 2
PREPARE_S = 15.0  # other workers may hold the lock, and each step is written to the disk
LOCK = 0x626C6F67  # "blog": held while the schema is changed
SERIAL = "bigserial PRIMARY KEY"
FAILURES = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.InternalError,  # a standby, which is read-only
    TimeoutError,
)


class _Bounded:
    """Adds to psycopg's two kinds of connection a timeout for responses, and the methods that Pool
    needs. A connection is unusable after a timeout."""

    pgconn: Any
    answer_s: float

    def wait(self, generator: Any, **options: Any) -> Any:
        """Called for every exchange with the server. Raises psycopg.OperationalError."""
        options.setdefault("timeout", self.answer_s)
        return super().wait(generator, **options)  # type: ignore[misc]

    @property
    def usable(self) -> bool:
        if self.pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return not poll.poll(0)  # an idle server sends nothing until it disconnects

    def drop(self) -> None:
        self.pgconn.finish()


class _Blocking(_Bounded, psycopg.Connection[Any]):  # type: ignore[misc]
    pass


class _Preparing(_Blocking):
    answer_s = PREPARE_S


class _Async(_Bounded, psycopg.AsyncConnection[Any]):  # type: ignore[misc]
    pass


class Storage(Sql):
    def __init__(self, settings: Settings, *, async_mode: bool) -> None:
        self._url, self._pool_size = settings.storage_url, settings.pool
        self._async_mode = async_mode
        self._answer_s = settings.answer_s
        self._pool: Pool | None = None
        self._pid = 0
        self._lock = threading.Lock()

    async def prepare(self) -> None:
        try:
            with _Preparing.connect(self._url, connect_timeout=CONNECT_S) as db:
                db.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
                db.execute(CREATE_SCHEMA)
                (current,) = db.execute(CURRENT_STEP).fetchone() or (0,)
                for number, step in missing_steps(current, SERIAL):
                    db.execute(step)
                    db.execute(_with_markers(ADD_STEP), (number,))
        except psycopg.Error as problem:
            raise Unreachable(str(problem)) from problem

    async def server_version(self) -> str:
        (rows,) = await self._run([("SHOW server_version", ())])
        return f"PostgreSQL {rows[0][0]}"

    async def stop(self) -> None:
        if self._pool is not None and self._pid == os.getpid():
            self._pool.close()
            self._pool = None

    async def _run(self, statements: Sequence[Statement]) -> list[list[Row]]:
        pool = self._own_pool()
        METRICS.add("storage_trips", trips(statements))
        try:
            with METRICS.timed("pool_ns"):
                db = await pool.take()
            try:
                with METRICS.timed("storage_ns"):
                    return await self._carry_out(db, statements)
            finally:
                pool.give(db)
        except FAILURES as problem:
            METRICS.add("storage_failed")
            raise Unreachable(str(problem)) from problem

    async def _carry_out(self, db: Any, statements: Sequence[Statement]) -> list[list[Row]]:
        """A single statement is its own transaction; several share a transaction. If one of these
        fails, the connection is dropped within the transaction, which rolls it back."""
        if len(statements) > 1:
            await resolve(db.execute("BEGIN"))
        results = []
        for sql, values in statements:
            cursor = await resolve(db.execute(_with_markers(sql), values))
            results.append(await resolve(cursor.fetchall()) if cursor.description else [])
        if len(statements) > 1:
            await resolve(db.execute("COMMIT"))
        return results

    async def _connect(self) -> Any:
        kind: Any = _Async if self._async_mode else _Blocking
        limit_s = max(CONNECT_S, math.ceil(self._answer_s))
        db = await resolve(kind.connect(self._url, autocommit=True, connect_timeout=limit_s))
        db.answer_s = self._answer_s
        return db

    def _own_pool(self) -> Pool:
        """This worker's pool; one that was created before a fork is not used."""
        with self._lock:
            if self._pool is None or self._pid != os.getpid():
                self._pool = Pool(
                    self._connect, self._pool_size, self._answer_s, async_mode=self._async_mode
                )
                self._pid = os.getpid()
            return self._pool


def _with_markers(sql: str) -> str:
    """The statement with psycopg's placeholder, %s."""
    return sql.replace("?", "%s")
