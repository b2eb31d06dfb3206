"""Posts in PostgreSQL, by psycopg.

Connections come from a pool per worker, opened by the worker that first needs one; waiting for a
free one is counted apart from waiting for the answer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import psycopg
import psycopg_pool

from apps.blog.blocking import settled
from apps.blog.ledger import LEDGER
from apps.blog.posts import Unreachable
from apps.blog.settings import Settings
from apps.blog.storage.sql import AT, MADE, STEPPED, Row, Sql, Statement, missing_steps

ANSWER_S = 2.0  # a database that takes longer is called unreachable
LOCK = 0x626C6F67  # "blog": held by whoever changes the schema
SERIAL = "bigserial PRIMARY KEY"
FAILURES = (psycopg.OperationalError, psycopg.InterfaceError, psycopg_pool.PoolTimeout)


class Storage(Sql):
    def __init__(self, settings: Settings, *, waiting: bool) -> None:
        self._url, self._most, self._waiting = settings.storage_url, settings.pool, waiting
        self._pool: Any = None
        self._pid = 0
        self._lock = threading.Lock()

    async def prepare(self) -> None:
        try:
            with self._connected() as db:
                db.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
                db.execute(MADE)
                (at,) = db.execute(AT).fetchone() or (0,)
                for number, step in missing_steps(at, SERIAL):
                    db.execute(step)
                    db.execute(_worded(STEPPED), (number,))
        except psycopg.Error as problem:
            raise Unreachable(str(problem)) from problem

    async def answers(self) -> str:
        ((rows),) = await self._run([("SHOW server_version", ())])
        return f"PostgreSQL {rows[0][0]}"

    async def stop(self) -> None:
        if self._pool is not None and self._pid == os.getpid():
            await settled(self._pool.close())
            self._pool = None

    def _connected(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._url, connect_timeout=int(ANSWER_S))

    async def _run(self, statements: Sequence[Statement]) -> list[list[Row]]:
        pool = await self._opened()
        LEDGER.add("storage_trips", len(statements))
        try:
            with LEDGER.timed("pool_ns"):
                db = await settled(pool.getconn(ANSWER_S))
            try:
                with LEDGER.timed("storage_ns"):
                    return await self._carry_out(db, statements)
            finally:
                await settled(pool.putconn(db))
        except FAILURES as problem:
            LEDGER.add("storage_failed")
            raise Unreachable(str(problem)) from problem

    async def _carry_out(self, db: Any, statements: Sequence[Statement]) -> list[list[Row]]:
        """One statement is its own transaction; several are made one, in as many trips."""
        if len(statements) > 1:
            await settled(db.execute("BEGIN"))
        found = []
        for sql, words in statements:
            cursor = await settled(db.execute(_worded(sql), words))
            found.append(await settled(cursor.fetchall()))
        if len(statements) > 1:
            await settled(db.execute("COMMIT"))
        return found

    async def _opened(self) -> Any:
        """The pool of this worker: one made before a fork is not used after it."""
        if self._pool is None or self._pid != os.getpid():
            with self._lock:  # threads of a worker; tasks do not meet here, nothing is awaited
                if self._pool is None or self._pid != os.getpid():
                    kind: Any = (
                        psycopg_pool.AsyncConnectionPool
                        if self._waiting
                        else psycopg_pool.ConnectionPool
                    )
                    options = {"autocommit": True, "connect_timeout": int(ANSWER_S)}
                    pool = kind(
                        self._url,
                        min_size=1,
                        max_size=self._most,
                        open=False,
                        kwargs=options,
                        timeout=ANSWER_S,
                        reconnect_timeout=ANSWER_S,
                        check=None,
                    )
                    opening = pool.open()
                    self._pool, self._pid = pool, os.getpid()
                else:
                    opening = None
            if opening is not None:
                await settled(opening)
        return self._pool


def _worded(sql: str) -> str:
    """psycopg marks a value by %s."""
    return sql.replace("?", "%s")
