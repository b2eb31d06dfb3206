"""All storages, used by blocking and by async code, on real servers: they behave alike."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from apps.blog.blocking import finish
from apps.blog.posts import Conflict, Draft, Line, NoSuchPost, Post, Unreachable
from apps.blog.settings import POSTS_PER_PAGE, Settings
from apps.blog.storage import Storage, mongodb, sql, sqlite
from tests.integration.conftest import ROOT
from tests.ladder.conftest import (
    ANSWER_S,
    VARIANTS,
    Prepared,
    RestartableServer,
    Variant,
    restartable_mongodb,
    restartable_postgresql,
)

BLOCKING = [variant for variant in VARIANTS if "blocking" in str(variant.id)]
ASYNC = [variant for variant in VARIANTS if "async" in str(variant.id)]
# MongoDB has transactions only in replica sets
TRANSACTIONAL = [variant for variant in VARIANTS if "mongodb" not in str(variant.id)]


def draft(title: str, body: str = "Some *text*.") -> Draft:
    return Draft.of(title, body)


@pytest.fixture
def storage(variant: Variant) -> Prepared:
    return Prepared(variant)


async def at_once(variant: Variant, calls: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    """The results or errors of concurrent calls: by threads if they block, otherwise by tasks."""
    if variant.async_mode:
        return list(await asyncio.gather(*calls, return_exceptions=True))

    def result(call: Coroutine[Any, Any, Any]) -> Any:
        try:
            return finish(call)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(result, calls))


# --- posts -----------------------------------------------------------------------------------


async def test_added_posts_are_numbered_and_listed_newest_first(storage: Storage) -> None:
    before = int(time.time())
    added = await storage.add([draft("one"), draft("two")])
    added += await storage.add([draft("three")])
    assert [post.title for post in added] == ["one", "two", "three"]
    assert [post.id for post in added] == [1, 2, 3]
    for post in added:
        assert post.revision == 1
        assert before <= post.created == post.edited <= time.time()
        assert await storage.post(post.id) == post
    lines = [Line(post.id, post.title, post.created) for post in reversed(added)]
    page = await storage.page(1)
    assert (list(page.lines), page.posts, page.number) == (lines, 3, 1)
    (old,) = await storage.add([draft("old")], at=1_000_000_000)
    assert old.created == old.edited == 1_000_000_000


async def test_pages_beyond_the_last_are_empty(storage: Storage) -> None:
    empty = await storage.page(1)
    assert (empty.lines, empty.posts) == ((), 0)
    posts = 2 * POSTS_PER_PAGE + 1
    await storage.add([draft(f"post {number}") for number in range(1, posts + 1)])
    results = [await storage.page(number) for number in (1, 2, 3)]
    assert [line.id for page in results for line in page.lines] == [*range(posts, 0, -1)]
    for number in (4, 10**9, 2**62, 10**30):
        beyond = await storage.page(number)
        assert (beyond.lines, beyond.posts, beyond.number) == ((), posts, number)


@pytest.mark.parametrize(
    "text", ["żółw 🐢 日本", "a'b\"; DROP TABLE posts; --", "?%s$1{x}", "\\u0001"]
)
async def test_any_text_is_stored_unchanged(text: str, storage: Storage) -> None:
    (added,) = await storage.add([draft(text, text * 20)])
    post = await storage.post(added.id)
    assert (post.title, post.body) == (text, text * 20)


async def test_an_edit_needs_the_current_revision_of_an_existing_post(storage: Storage) -> None:
    (added,) = await storage.add([draft("old")], at=1_000_000_000)
    edited = await storage.edit(added.id, draft("new", "other"), 1)
    assert (edited.title, edited.body, edited.revision) == ("new", "other", 2)
    assert edited.created == 1_000_000_000 < edited.edited
    assert await storage.post(added.id) == edited
    for revision in (1, 3, 0, -1, 2**31 - 1, 2**63, 10**30):
        with pytest.raises(Conflict) as conflict:
            await storage.edit(added.id, draft("late"), revision)
        assert conflict.value.revision == 2
    for number in (2, 0, -1, 2**63, 10**30):
        assert await storage.post(number) is None
        with pytest.raises(NoSuchPost):
            await storage.edit(number, draft("none"), 1)
    assert await storage.post(added.id) == edited


async def test_one_of_many_concurrent_edits_wins(variant: Variant, storage: Storage) -> None:
    (post,) = await storage.add([draft("0")])
    for revision in range(1, 6):
        edits = [storage.edit(post.id, draft(f"{revision}.{n}"), revision) for n in range(12)]
        results = await at_once(variant, edits)
        (winner,) = [result for result in results if isinstance(result, Post)]
        conflicts = [result for result in results if isinstance(result, Conflict)]
        assert len(conflicts) == 11, results
        assert winner.revision == revision + 1
        assert {conflict.revision for conflict in conflicts} == {revision + 1}
        assert await storage.post(post.id) == winner


async def test_posts_added_concurrently_get_distinct_numbers(
    variant: Variant, storage: Storage
) -> None:
    groups = [[draft(f"{group}.{n}") for n in range(5)] for group in range(12)]
    results = await at_once(variant, [storage.add(group) for group in groups])
    assert all(isinstance(posts, list) for posts in results), results
    for group, posts in zip(groups, results, strict=True):
        assert [post.title for post in posts] == [added.title for added in group]
        assert sorted(post.id for post in posts) == [post.id for post in posts]
    assert len({post.id for posts in results for post in posts}) == 60
    assert (await storage.page(1)).posts == 60


def test_a_storage_reports_its_version(variant: Variant) -> None:
    version = variant.run(lambda storage: storage.server_version())
    assert version.startswith(("SQLite 3", "PostgreSQL 1", "MongoDB", "a server"))


# --- the schema ------------------------------------------------------------------------------

PREPARE = """
import asyncio, json, multiprocessing, sys
from apps.blog.blocking import finish
from apps.blog.settings import Settings
from apps.blog.storage import storage_of

def storage(async_mode):
    settings = Settings(storage_url=sys.argv[1], answer_s=float(sys.argv[2]))
    return storage_of(settings, async_mode=async_mode)

def work(number, barrier, outcomes):
    async_mode = bool(number % 2)
    barrier.wait()
    try:
        prepare = storage(async_mode).prepare()
        asyncio.run(prepare) if async_mode else finish(prepare)
        outcomes.put("prepared")
    except Exception as error:
        outcomes.put(repr(error))

def drop():
    finish(storage(False).drop())

storage(False), storage(True)  # imports the drivers once, before the forks
context = multiprocessing.get_context("fork")
for _ in range(3):
    dropping = context.Process(target=drop)
    dropping.start()
    dropping.join()
    assert dropping.exitcode == 0
    barrier, outcomes = context.Barrier(8), context.Queue()
    children = [context.Process(target=work, args=(n, barrier, outcomes)) for n in range(8)]
    for child in children: child.start()
    print(json.dumps([outcomes.get() for _ in children]), flush=True)
    for child in children: child.join()
"""


@pytest.mark.parametrize("variant", BLOCKING, indirect=True)
def test_eight_processes_prepare_a_schema_concurrently(variant: Variant) -> None:
    """Blocking and async ones, three times without a schema."""
    settings = variant.settings
    argv = [sys.executable, "-c", PREPARE, settings.storage_url, str(settings.answer_s)]
    done = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [["prepared"] * 8] * 3

    (post,) = variant.run(lambda storage: storage.add([draft("one")]))
    assert post.id == 1


async def test_preparing_a_prepared_schema_changes_nothing(storage: Storage) -> None:
    await storage.add([draft("one")])
    await storage.prepare()
    await storage.prepare()
    assert (await storage.page(1)).posts == 1
    (second,) = await storage.add([draft("two")])
    assert second.id == 2


def test_an_older_schema_is_migrated_and_a_newer_one_refused(
    variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant.run_prepared(lambda storage: storage.add([draft("old")]))
    with monkeypatch.context() as future:
        future.setattr(sql, "STEPS", (*sql.STEPS, "ALTER TABLE posts ADD COLUMN mood text"))
        future.setattr(mongodb, "STEPS", mongodb.STEPS + 1)

        async def read(storage: Storage) -> None:
            assert (await storage.post(1)).title == "old"
            if isinstance(storage, sql.Sql):
                assert await storage._run([("SELECT mood FROM posts", ())]) == [[(None,)]]

        variant.run_prepared(read)

    with pytest.raises(Unreachable, match=r"schema is at step 2, this blog supports 1"):
        variant.run(lambda storage: storage.prepare())


async def test_a_dropped_schema_can_be_prepared_again(storage: Storage) -> None:
    await storage.add([draft("one")])
    await storage.drop()
    await storage.drop()
    await storage.prepare()
    assert (await storage.page(1)).posts == 0


def test_dropping_leaves_the_data_of_other_apps(mongodb: str) -> None:
    """Even in a MongoDB collection that the blog shares with another app."""
    pymongo = pytest.importorskip("pymongo")
    url = f"{mongodb.rpartition('/')[0]}/shop"
    variant = Variant(Settings(storage_url=url, answer_s=ANSWER_S), False)

    async def add_and_drop(storage: Storage) -> None:
        await storage.add([draft("one")])
        await storage.drop()

    with pymongo.MongoClient(url) as client:
        client.shop.counters.insert_one({"_id": "orders", "n": 17})
        variant.run_prepared(add_and_drop)
        assert client.shop.counters.find_one() == {"_id": "orders", "n": 17}
        assert client.shop.list_collection_names() == ["counters"]
        client.drop_database("shop")


# --- a database that fails -------------------------------------------------------------------


@pytest.fixture(scope="module", params=["postgresql", "mongodb"])
def server(request: pytest.FixtureRequest) -> Iterator[RestartableServer]:
    start = {"postgresql": restartable_postgresql, "mongodb": restartable_mongodb}[request.param]
    with start() as server:
        yield server


@pytest.fixture(params=[False, True], ids=["blocking", "async"])
def failing(request: pytest.FixtureRequest, server: RestartableServer) -> Variant:
    return Variant(Settings(storage_url=server.url, pool=4, answer_s=4.0), request.param)


@pytest.fixture
def failing_storage(failing: Variant) -> Prepared:
    return Prepared(failing)


async def recovers(storage: Storage) -> None:
    """Wait until the same storage object works again."""
    deadline_s = time.monotonic() + 120
    while True:
        try:
            await storage.prepare()
            (post,) = await storage.add([draft("again")])
            assert await storage.post(post.id) == post
            return
        except Unreachable:
            assert time.monotonic() < deadline_s


async def test_a_killed_database_is_unreachable_until_it_restarts(
    failing: Variant, server: RestartableServer, failing_storage: Storage
) -> None:
    (post,) = await failing_storage.add([draft("one")])
    results = await at_once(failing, [failing_storage.post(post.id) for _ in range(12)])
    assert results == [post] * 12  # premise: connections are open
    server.kill()
    for _ in range(2):
        results = await at_once(failing, [failing_storage.post(post.id) for _ in range(12)])
        assert {type(result) for result in results} == {Unreachable}, results
    with pytest.raises(Unreachable):
        await failing_storage.edit(post.id, draft("two"), 1)
    server.start()
    await recovers(failing_storage)
    results = await at_once(failing, [failing_storage.page(1) for _ in range(12)])
    assert {page.lines[0].title for page in results} == {"again"}


async def test_a_restart_between_two_calls_goes_unnoticed(
    failing: Variant, server: RestartableServer, failing_storage: Storage
) -> None:
    """Idle connections that broke are not reused."""
    await at_once(failing, [failing_storage.page(1) for _ in range(12)])
    server.kill()
    server.start()
    if server.kind == "mongodb":  # its driver detects a restart late, and the posts are lost
        await recovers(failing_storage)
    results = await at_once(failing, [failing_storage.page(1) for _ in range(12)])
    assert not [result for result in results if isinstance(result, Exception)], results


async def test_a_hung_database_is_unreachable(
    failing: Variant, server: RestartableServer, failing_storage: Storage
) -> None:
    await failing_storage.page(1)
    with server.paused():
        results = await at_once(failing, [failing_storage.page(1) for _ in range(6)])
        assert {type(result) for result in results} == {Unreachable}, results
    await recovers(failing_storage)


@pytest.mark.parametrize("async_mode", [False, True], ids=["blocking", "async"])
@pytest.mark.parametrize(
    "url",
    ["sqlite:////no/such/directory.db", "postgresql://nobody@127.0.0.1:1/nothing",
     "mongodb://127.0.0.1:1/nothing"],
)  # fmt: skip
def test_a_missing_database_is_unreachable(url: str, async_mode: bool) -> None:
    variant = Variant(Settings(storage_url=url, answer_s=0.5), async_mode)
    with pytest.raises(Unreachable):
        variant.run(lambda storage: storage.prepare())
    with pytest.raises(Unreachable):
        variant.run(lambda storage: storage.page(1))


# --- interrupted calls -----------------------------------------------------------------------


@pytest.mark.parametrize("variant", ASYNC, indirect=True)
def test_cancelled_calls_release_their_connections(variant: Variant) -> None:
    """With fewer connections than calls, many of which are cancelled at different steps."""
    two_connections = replace(variant, settings=replace(variant.settings, pool=2))

    async def use(storage: Storage) -> None:
        (post,) = await storage.add([draft("one")])
        for turn in range(60):
            calls = [asyncio.ensure_future(storage.post(post.id)) for _ in range(8)]
            for _ in range(turn % 12):
                await asyncio.sleep(0)
            for call in calls[turn % 3 :: 2]:
                call.cancel()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(result) for result in results} <= {Post, asyncio.CancelledError}, results
        results = await asyncio.gather(*(storage.post(post.id) for _ in range(8)))
        assert results == [post] * 8

    two_connections.run_prepared(use)


@pytest.mark.parametrize("variant", TRANSACTIONAL, indirect=True)
async def test_a_failed_batch_adds_no_post(variant: Variant, storage: Storage) -> None:
    """And its connection remains usable."""
    is_postgresql = "postgres" in variant.settings.storage_url
    good = draft("good")
    bad = replace(good, title="zero \x00 byte" if is_postgresql else None)
    with pytest.raises(Exception, match=r"NULL|NUL"):
        await storage.add([good, bad])
    assert (await storage.page(1)).posts == 0
    await storage.add([good, good])
    assert (await storage.page(1)).posts == 2


def test_preparing_sqlite_waits_for_another_writer(tmp_path: Any) -> None:
    path = tmp_path / "posts.db"
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    threading.Timer(0.3, writer.execute, ["COMMIT"]).start()

    variant = Variant(Settings(storage_url=f"sqlite:///{path}", answer_s=ANSWER_S), True)
    assert variant.run_prepared(lambda storage: storage.page(1)).posts == 0
    writer.close()


def test_an_error_of_sqlite_other_than_busy_is_not_retried(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "posts.db"
    sqlite3.connect(path).execute("CREATE TABLE posts (number)").connection.close()
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it retries"))
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        sqlite.enable_wal(db)
    db.close()


@pytest.mark.parametrize("variant", [("sqlite", True)], ids=["sqlite-async"], indirect=True)
async def test_an_add_to_sqlite_waits_for_a_writer_but_a_read_does_not(
    storage: Storage, tmp_path: Any
) -> None:
    writer = sqlite3.connect(tmp_path / "posts.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    adding = asyncio.ensure_future(storage.add([draft("one")]))
    assert (await storage.page(1)).posts == 0
    writer.execute("COMMIT")
    writer.close()
    assert [post.title for post in await adding] == ["one"]
