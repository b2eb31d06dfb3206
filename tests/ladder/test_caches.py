"""What is asked of whom, counted; and what must never be shown again once it was edited."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from redis import Redis

from apps.blog import redis_cache
from apps.blog.blocking import finish
from apps.blog.metrics import METRICS
from apps.blog.posts import Draft, Post
from apps.blog.redis_cache import RedisCache
from apps.blog.repository import PostRepository
from apps.blog.settings import Settings
from apps.blog.storage import Storage, storage_of
from tests.integration.conftest import until
from tests.ladder.conftest import ANSWER_S, Blog, Blogs, Face, Mortal, mortal_redis

IMPATIENT_S = 4.0  # for a database; a Redis has a quarter of it
LONG = "3600"  # seconds: nothing expires while a test looks
ONE = {"requests": 1}
FROM_LOCAL = {"local_asked": 1, "local_hits": 1}
FROM_REDIS = {"redis_trips": 1, "redis_asked": 1, "redis_hits": 1}
MISSED_REDIS = {"redis_trips": 2, "redis_asked": 1}  # it is told what was found


def draft(title: str) -> Draft:
    return Draft.of(title, "Some *text*.")


@pytest.fixture
def empty(redis: str) -> str:
    """The address of a Redis that holds nothing."""
    with Redis.from_url(redis) as client:
        client.flushall()
    return redis


# --- round trips -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """What tells a blog where its posts are, and the trips that each of its pages takes there."""

    env: dict[str, str]
    pages: dict[str, int]


@pytest.fixture
def stored(storage: str, request: pytest.FixtureRequest) -> Stored:
    env = {"BLOG_LOCAL_EXPIRY": LONG, "BLOG_REDIS_EXPIRY": LONG}
    if storage != "sqlite":
        env["BLOG_STORAGE"] = request.getfixturevalue(storage)
    of_a_list = 2 if storage == "mongodb" else 1  # it counts posts by a command of its own
    return Stored(env, {"/posts/2": 1, "/api/posts/3": 1, "/": of_a_list})


@pytest.mark.parametrize(
    ("worker_class", "storage"), [("sync", "mongodb"), ("uvicorn", "postgresql")]
)
def test_a_second_read_costs_no_trip_or_one_of_redis(
    worker_class: str, stored: Stored, blog: Blogs, empty: str
) -> None:
    env, pages = stored.env, stored.pages
    with blog(worker_class, 1, **env, BLOG_LOCAL="1", BLOG_REDIS=empty) as site:
        for path, trips in pages.items():
            first, second = _twice(site, path)
            assert first == {**ONE, "local_asked": 1, **MISSED_REDIS, "storage_trips": trips}
            assert second == {**ONE, **FROM_LOCAL}

    with Redis.from_url(empty) as client:
        client.flushall()
    with blog(worker_class, 1, **env, BLOG_REDIS=empty) as site:
        for path, trips in pages.items():
            first, second = _twice(site, path)
            assert first == {**ONE, **MISSED_REDIS, "storage_trips": trips}
            assert second == {**ONE, **FROM_REDIS}


@pytest.mark.parametrize("worker_class", ["sync", "uvicorn"])
@pytest.mark.parametrize("storage", ["postgresql", "mongodb", "sqlite"])
def test_without_caches_each_read_costs_a_trip_of_the_storage(
    worker_class: str, stored: Stored, blog: Blogs
) -> None:
    with blog(worker_class, 1, **stored.env) as site:
        for path, trips in stored.pages.items():
            assert _twice(site, path) == [{**ONE, "storage_trips": trips}] * 2


def _twice(site: Blog, path: str) -> list[dict[str, int]]:
    counts_of_both = []
    for _ in range(2):
        with site.counted() as counts:
            assert site.ask("GET", path).status == 200
        counts_of_both.append(counts)
    return counts_of_both


def test_what_one_worker_has_read_none_of_the_others_asks_the_storage_for(
    blog: Blogs, empty: str
) -> None:
    with blog("sync", 4, BLOG_REDIS=empty, BLOG_REDIS_EXPIRY=LONG) as site:
        with Redis.from_url(empty) as client, site.counted() as counts:
            bodies = {site.ask("GET", "/posts/1").body for _ in range(40)}
            gets = client.info("commandstats")["cmdstat_get"]["calls"]
        assert len(bodies) == 1
        assert counts == {
            "requests": 40,
            "redis_asked": 40,
            "redis_hits": 39,
            "redis_trips": 41,
            "storage_trips": 1,
        }
        assert gets >= 40  # Redis says so as well


def test_an_edit_is_put_where_it_is_read_from(blog: Blogs, empty: str) -> None:
    env = {"BLOG_REDIS": empty, "BLOG_LOCAL": "1", "BLOG_LOCAL_EXPIRY": LONG}
    with blog("sync", 1, **env) as site:
        site.ask("GET", "/posts/1")
        with site.counted() as edit:
            done = site.ask("PUT", "/api/posts/1", {"title": "New", "body": "b", "revision": 1})
        assert done.status == 200
        assert edit == {**ONE, "storage_trips": 1, "redis_trips": 1}
        with site.counted() as read:
            assert ">New<" in site.ask("GET", "/posts/1").body
        assert read == {**ONE, **FROM_LOCAL}


# --- shelves: workers of one process, so that a test decides who is late ---------------------


class Slow:
    """A storage whose answers lie on the way until they are let through."""

    def __init__(self, config: Settings) -> None:
        self._storage = storage_of(config, async_mode=True)
        self.has_read, self.may_answer = asyncio.Event(), asyncio.Event()

    async def post(self, number: int) -> Post | None:
        post = await self._storage.post(number)
        self.has_read.set()
        await self.may_answer.wait()
        return post


@pytest.fixture
def config(tmp_path: Path, empty: str) -> Settings:
    """Both caches, long lives, and a storage with a post."""
    settings = Settings(
        answer_s=ANSWER_S,
        storage_url=f"sqlite:///{tmp_path}/posts.db",
        redis_url=empty,
        local=True,
        local_expiry_s=3600,
        redis_expiry_s=3600,
        pool=3,
    )

    async def fill(storage: Storage) -> None:
        await storage.prepare()
        await storage.add([draft("one")])

    Face(settings, False).run(fill)
    return settings


def repository(config: Settings, storage: Any = None) -> PostRepository:
    """As another worker has it."""
    return PostRepository(
        config, storage or storage_of(config, async_mode=True), RedisCache(config, async_mode=True)
    )


def kept(url: str, key: str = "blog:post:1") -> int | None:
    """The revision that Redis holds."""
    with Redis.from_url(url) as client:
        stored_value = client.get(key)
    return int(stored_value.partition(b" ")[0]) if stored_value else None


async def test_a_late_reader_puts_nothing_old_over_an_edit(config: Settings) -> None:
    slow = Slow(config)
    late, editor, other = repository(config, slow), repository(config), repository(config)
    reading = asyncio.ensure_future(late.post(1))
    await slow.has_read.wait()
    await editor.edit(1, draft("two"), 1)
    slow.may_answer.set()
    assert (await reading).revision == 1  # it began before the edit was answered
    assert kept(config.redis_url) == 2
    assert (await other.post(1)).title == "two"


async def test_an_editor_who_was_overtaken_keeps_the_newer_edit(config: Settings) -> None:
    first, second = repository(config), repository(config)
    await first.edit(1, draft("two"), 1)
    newest = await second.edit(1, draft("three"), 2)
    two = replace(newest, title="two", revision=2)
    await first._cache(two, 0.0)  # the way back took long
    assert kept(config.redis_url) == 3
    assert (await repository(config).post(1)).title == "three"


@given(revisions=st.lists(st.integers(1, 2**31), min_size=1, max_size=12))
@examples(
    max_examples=40,
    deadline=None,  # machines are shared
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_redis_never_goes_back(revisions: list[int], empty: str) -> None:
    with Redis.from_url(empty) as client:
        client.flushall()
    cache = RedisCache(Settings(redis_url=empty, answer_s=ANSWER_S), async_mode=False)
    for number, revision in enumerate(revisions, 1):
        finish(cache.put("post:1", b'{"n": %d}' % revision, revision, 3600))
        assert kept(empty) == max(revisions[:number])
    assert finish(cache.get("post:1")) == b'{"n": %d}' % max(revisions)
    finish(cache.stop())


def test_nor_when_many_tell_it_at_once(empty: str) -> None:
    cache = RedisCache(Settings(redis_url=empty, answer_s=ANSWER_S, pool=4), async_mode=False)

    def put(revision: int) -> None:
        finish(cache.put("post:1", b"{}", revision, 3600))

    with ThreadPoolExecutor(16) as threads:
        for top in range(20, 400, 20):
            list(threads.map(put, range(top, top - 20, -1)))
            assert kept(empty) == top
    finish(cache.stop())


async def test_what_expires_at_once_is_not_put(config: Settings) -> None:
    """0 seconds are no expiry that Redis takes, and no reason to think it ill."""
    none = replace(config, local_expiry_s=0)
    posts = repository(none)
    failed = METRICS.total("redis_failed")
    for _ in range(2):
        assert (await posts.page(1)).posts == 1
    assert METRICS.total("redis_failed") == failed
    assert kept(config.redis_url, "blog:page:1") is None


async def test_cancelled_readers_give_their_connections_back(config: Settings) -> None:
    bare = replace(config, local=False)
    posts = repository(bare)
    await posts.post(1)
    failed = METRICS.total("redis_failed")
    for turn in range(80):
        calls = [asyncio.ensure_future(posts.post(1)) for _ in range(9)]
        for _ in range(turn % 16):
            await asyncio.sleep(0)
        for call in calls[turn % 3 :: 2]:
            call.cancel()
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(results) for results in done} <= {Post, asyncio.CancelledError}, done
    results = await asyncio.gather(*(posts.post(1) for _ in range(9)))
    assert {post.title for post in results} == {"one"}
    assert METRICS.total("redis_failed") == failed
    await posts.stop()


# --- a Redis that goes away ------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Mortal]:
    with mortal_redis() as server:
        yield server


@pytest.fixture
def frail(config: Settings, server: Mortal) -> Settings:
    with Redis.from_url(server.url) as client:
        client.flushall()
    return replace(config, redis_url=server.url, local=False)


async def test_without_redis_it_is_slower_and_not_wrong(
    frail: Settings, server: Mortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_cache, "PAUSE_S", 3600.0)
    posts = repository(frail)
    await posts.post(1)
    server.kill()
    try:
        trips = METRICS.total("redis_trips")
        for _ in range(5):
            assert (await posts.post(1)).revision == 1
        assert METRICS.total("redis_trips") == trips + 1  # then it is left alone by readers
        assert (await posts.edit(1, draft("two"), 1)).revision == 2
        assert METRICS.total("redis_trips") == trips + 1 + redis_cache.TRIES
        assert (await posts.post(1)).title == "two"
    finally:
        server.begin()
    assert (await repository(frail).post(1)).title == "two"


async def test_a_hung_redis_is_given_up(frail: Settings, server: Mortal) -> None:
    impatient = replace(frail, answer_s=IMPATIENT_S)
    posts = repository(impatient)
    await posts.post(1)
    with server.hung():
        assert (await posts.post(1)).revision == 1
        assert (await posts.edit(1, draft("two"), 1)).revision == 2


def test_blocking_code_gives_up_a_hung_redis_as_well(frail: Settings, server: Mortal) -> None:
    cache = RedisCache(replace(frail, answer_s=IMPATIENT_S), async_mode=False)

    def holds() -> bool:
        """Not where the machine stands still for longer than it waits."""
        finish(cache.put("post:1", b"{}", 1, 60.0))
        return finish(cache.get("post:1")) == b"{}"

    until(holds, "Redis holds it")
    with server.hung():
        assert finish(cache.get("post:1")) is None
        finish(cache.put("post:1", b"{}", 2, 60.0, retry=True))
    finish(cache.stop())


async def test_an_edit_is_told_to_a_redis_that_was_restarted(
    frail: Settings, server: Mortal
) -> None:
    """By a worker whose connections died unused, while another has put the old post there."""
    editor, reader = repository(frail), repository(frail)
    await asyncio.gather(*(editor.post(1) for _ in range(3)))
    server.kill()
    server.begin()
    await reader.post(1)
    assert kept(frail.redis_url) == 1
    await editor.edit(1, draft("two"), 1)
    assert kept(frail.redis_url) == 2
    assert (await reader.post(1)).title == "two"


async def test_nothing_old_is_put_into_a_redis_that_was_away_during_the_edit(
    frail: Settings, server: Mortal
) -> None:
    slow = Slow(frail)
    late, editor = repository(frail, slow), repository(frail)
    server.kill()
    reading = asyncio.ensure_future(late.post(1))
    await slow.has_read.wait()
    await editor.edit(1, draft("two"), 1)  # of which Redis cannot be told
    server.begin()
    slow.may_answer.set()
    assert (await reading).revision == 1
    assert kept(frail.redis_url) is None
    assert (await repository(frail).post(1)).title == "two"
