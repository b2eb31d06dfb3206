"""Posts in MongoDB, through PyMongo and its connection pool.

Ids come from a counter document and rise in the order of adding, as in the SQL storages. Edits
match the revision they were made from, so that one of two concurrent edits wins. The driver's
blocking and asynchronous clients have the same methods; `resolve` accepts both.

A standalone server has no transactions: if it stops while it adds multiple posts, only the first
ones may be stored. Nothing is written twice: MongoDB recognises a retried write, or there is no
retry. Updates return the document from before the change: a server that only speaks MongoDB's
protocol may not copy the changed one, and another client could change it again before it is sent.
"""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from operator import methodcaller
from typing import Any
from urllib.parse import urlsplit

import pymongo
from pymongo.errors import DuplicateKeyError, PyMongoError

from apps.blog import storage
from apps.blog.blocking import resolve
from apps.blog.metrics import METRICS
from apps.blog.posts import MAX_ID, Draft, Line, Page, Post, Unreachable, now
from apps.blog.settings import POSTS_PER_PAGE, Settings

STEPS = 1  # of the schema; documents need none, so the first step is the counter
NUMBERS = "posts"


class Storage(storage.Storage):
    def __init__(self, settings: Settings, *, async_mode: bool) -> None:
        self._url, self._pool_size = settings.storage_url, settings.pool
        self._async_mode = async_mode
        self._database = urlsplit(settings.storage_url).path.strip("/") or "blog"
        limit_ms = int(1000 * settings.answer_s)
        self._timeouts: dict[str, Any] = {
            "timeoutMS": limit_ms,  # of a call, with its retries and the wait for a connection
            "serverSelectionTimeoutMS": limit_ms,
            "connectTimeoutMS": limit_ms,
        }
        self._client: Any = None
        self._pid = 0
        self._lock = threading.Lock()

    async def prepare(self) -> None:
        client: Any = pymongo.MongoClient(self._url, **self._timeouts)
        try:
            schema = client[self._database].blog_schema
            current = (schema.find_one({"_id": "step"}) or {"step": 0})["step"]
            if current > STEPS:
                raise Unreachable(f"its schema is at step {current}, this blog supports {STEPS}")
            counters = client[self._database].blog_counters
            _upsert(counters, NUMBERS, {"$setOnInsert": {"n": 0}})
            _upsert(schema, "step", {"$max": {"step": STEPS}})
        except PyMongoError as problem:
            raise Unreachable(str(problem)) from problem
        finally:
            client.close()

    async def _find(self, number: int) -> Post | None:
        document = await self._trip(lambda db: db.posts.find_one({"_id": number}))
        return _post(document) if document else None

    async def page(self, number: int) -> Page:
        posts = await self._trip(lambda db: db.posts.count_documents({}))
        offset = POSTS_PER_PAGE * (number - 1)
        if offset >= posts:
            return Page(number, (), posts)
        newest = {"sort": [("_id", pymongo.DESCENDING)], "skip": offset, "limit": POSTS_PER_PAGE}
        fields = {"title": 1, "created": 1}
        documents = await self._trip(lambda db: db.posts.find({}, fields, **newest).to_list())
        lines = tuple(Line(doc["_id"], doc["title"], doc["created"]) for doc in documents)
        return Page(number, lines, posts)

    async def add(self, drafts: Sequence[Draft], at: int | None = None) -> list[Post]:
        counter = await self._trip(
            lambda db: db.blog_counters.find_one_and_update(
                {"_id": NUMBERS}, {"$inc": {"n": len(drafts)}}, upsert=True
            )
        )
        at, first = now() if at is None else at, (counter["n"] if counter else 0) + 1
        posts = [
            Post(number, draft.title, draft.body, draft.html, at, at, 1)
            for number, draft in enumerate(drafts, first)
        ]
        await self._trip(lambda db: db.posts.insert_many([_document(post) for post in posts]))
        return posts

    async def drop(self) -> None:
        for name in ("posts", "blog_counters", "blog_schema"):
            await self._trip(methodcaller("drop_collection", name))

    async def _update(self, number: int, draft: Draft, revision: int) -> Post | None:
        changed = {"title": draft.title, "body": draft.body, "html": draft.html, "edited": now()}
        document = await self._trip(
            lambda db: db.posts.find_one_and_update(
                {"_id": number, "revision": min(revision, MAX_ID)},  # the maximum of BSON
                {"$set": changed, "$inc": {"revision": 1}},
            )
        )
        return _post({**document, **changed, "revision": revision + 1}) if document else None

    async def server_version(self) -> str:
        """Only MongoDB's own server reports a git version; servers that imitate it do not."""
        built = await self._trip(lambda db: db.client.admin.command("buildInfo"))
        name = f"MongoDB {built['version']}"
        return name if "gitVersion" in built else f"a server that claims to be {name} but is not"

    async def stop(self) -> None:
        if self._client is not None and self._pid == os.getpid():
            await resolve(self._client.close())
            self._client = None

    async def _trip(self, call: Callable[[Any], Any]) -> Any:
        METRICS.add("storage_trips")
        with METRICS.timed("storage_ns"):
            try:
                return await resolve(call(self._own_client()[self._database]))
            except PyMongoError as problem:
                METRICS.add("storage_failed")
                raise Unreachable(str(problem)) from problem

    def _own_client(self) -> Any:
        """This worker's client; one that was created before a fork is not used."""
        with self._lock:
            if self._client is None or self._pid != os.getpid():
                kind: Any = pymongo.AsyncMongoClient if self._async_mode else pymongo.MongoClient
                self._client = kind(self._url, maxPoolSize=self._pool_size, **self._timeouts)
                self._pid = os.getpid()
            return self._client


def _upsert(collection: Any, name: str, change: dict[str, Any]) -> None:
    """Of two concurrent upserts, the server rejects one, which is retried."""
    try:
        collection.update_one({"_id": name}, change, upsert=True)
    except DuplicateKeyError:
        collection.update_one({"_id": name}, change, upsert=True)


def _document(post: Post) -> dict[str, Any]:
    fields = asdict(post)
    return {"_id": fields.pop("id"), **fields}


def _post(document: dict[str, Any]) -> Post:
    return Post(document.pop("_id"), **document)
