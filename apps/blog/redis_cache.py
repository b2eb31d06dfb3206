"""The cache beside the workers, in Redis: what one of them has read, all need not read again.

    key      blog:post:17
    value    REVISION SPACE JSON

Two workers may write the same key in any order: a reader that was late with what it had read before
an edit must not put it over the edited post. So a value is only ever replaced by one of the same or
a newer revision, which Redis decides by itself (a script runs alone).

A Redis that does not answer makes the blog slower, not wrong: reads go on to the storage and leave
it alone for PAUSE_S. Edits always tell it, TRIES times, since what they cannot replace stays until
its expiry. What was read is put only by who has just heard from Redis that it is missing: an old
value cannot outlast a Redis that was away, and be put into an empty one after the edit.
"""

import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import redis
import redis.asyncio
import redis.backoff

from apps.blog.blocking import resolve
from apps.blog.metrics import METRICS
from apps.blog.settings import Settings

T = TypeVar("T")

PAUSE_S = 1.0
ANSWERS = 0.25  # of the time a database is given: a cache that takes longer is none
TRIES = 4
FAILURES = (redis.RedisError, OSError)
REPLACE = """
local old = redis.call('GET', KEYS[1])
if old and tonumber(string.match(old, '^%d+')) > tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2], 'PX', ARGV[3])
return 1
"""


class RedisCache:
    """`async_mode`: for ASGI. Connections are made when they are first needed."""

    def __init__(self, settings: Settings, *, async_mode: bool) -> None:
        kind: Any = redis.asyncio if async_mode else redis
        pool = kind.BlockingConnectionPool.from_url(
            settings.redis_url,
            max_connections=settings.pool,
            timeout=None,  # for a free connection: those who have one are bounded themselves
            socket_timeout=ANSWERS * settings.answer_s,
            socket_connect_timeout=ANSWERS * settings.answer_s,
            retry=kind.retry.Retry(redis.backoff.NoBackoff(), 0),
        )
        self._client: Any = kind.Redis(connection_pool=pool)
        self._replace = self._client.register_script(REPLACE)
        self._silent_until_s = 0.0

    async def get(self, key: str) -> bytes | None:
        """The JSON of a value; b"" where Redis has none, None where it does not answer."""
        if time.monotonic() < self._silent_until_s:
            return None
        try:
            stored = await self._trip(lambda: self._client.get(f"blog:{key}"))
        except FAILURES:
            return None
        finally:
            METRICS.add("redis_asked")  # now, so that what is under way is in neither of the two
        if stored is None:
            return b""
        METRICS.add("redis_hits")
        return bytes(stored).partition(b" ")[2]

    async def put(
        self, key: str, value: bytes, revision: int, expiry_s: float, *, sure: bool = False
    ) -> None:
        """Unless a newer revision is there. `sure`: tried TRIES times."""
        expiry_ms = int(expiry_s * 1000)
        if expiry_ms <= 0:
            return
        arguments = [revision, value, expiry_ms]
        for _ in range(TRIES if sure else 1):
            with contextlib.suppress(*FAILURES):
                await self._trip(lambda: self._replace(keys=[f"blog:{key}"], args=arguments))
                return

    async def _trip(self, call: Callable[[], T | Awaitable[T]]) -> T:
        """Raises FAILURES."""
        METRICS.add("redis_trips")
        with METRICS.timed("redis_ns"):
            try:
                return await resolve(call())
            except FAILURES:
                METRICS.add("redis_failed")
                self._silent_until_s = time.monotonic() + PAUSE_S
                raise

    async def stop(self) -> None:
        close = getattr(self._client, "aclose", self._client.close)
        await resolve(close())
