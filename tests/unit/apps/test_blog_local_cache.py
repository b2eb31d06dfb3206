"""The cache of a worker, with a simulated clock."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from apps.blog.local_cache import RENEWAL_SHARE, LocalCache

EXPIRY_S = 10.0
RENEWAL_S = EXPIRY_S * RENEWAL_SHARE
KEYS = "abcde"


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def local(clock: Clock) -> LocalCache[str]:
    return LocalCache(3, clock)


def put(local: LocalCache[str], key: str, value: str = "", revision: int = 1) -> None:
    local.put(key, value or key, revision, local.clock(), EXPIRY_S)


def test_an_entry_is_stored(local: LocalCache[str]) -> None:
    assert local.get("a") is None
    put(local, "a", "one")
    assert local.get("a") == "one"
    assert local.get("b") is None
    assert len(local) == 1


def test_the_least_recently_used_is_evicted_first(local: LocalCache[str]) -> None:
    for key in ("a", "b", "c"):
        put(local, key)
    local.get("a")
    put(local, "d")
    assert [local.get(key) for key in ("a", "b", "c", "d")] == ["a", None, "c", "d"]
    put(local, "c", "new")
    put(local, "e")
    assert [local.get(key) for key in ("a", "c", "d", "e")] == [None, "new", "d", "e"]


def test_a_value_expires_relative_to_its_request(local: LocalCache[str], clock: Clock) -> None:
    requested_s = clock()
    clock.now_s += 6  # the request takes a while
    local.put("a", "one", 1, requested_s, EXPIRY_S)
    clock.now_s = requested_s + RENEWAL_S - 0.1
    assert local.get("a") == "one"
    clock.now_s = requested_s + EXPIRY_S
    assert local.get("a") is None
    assert len(local) == 0


@pytest.mark.parametrize(("took_s", "expiry_s"), [(EXPIRY_S, EXPIRY_S), (0.0, 0.0)])
def test_a_value_that_arrives_expired_is_not_stored(
    local: LocalCache[str], clock: Clock, took_s: float, expiry_s: float
) -> None:
    local.put("a", "one", 1, clock() - took_s, expiry_s)
    assert local.get("a") is None


def test_one_reader_renews_and_others_get_the_old_value(
    local: LocalCache[str], clock: Clock
) -> None:
    put(local, "a", "old")
    clock.now_s += RENEWAL_S
    assert [local.get("a") for _ in range(4)] == [None, "old", "old", "old"]
    put(local, "a", "new")
    clock.now_s += RENEWAL_S - 0.1
    assert local.get("a") == "new"


def test_a_failed_renewal_leaves_the_value_until_its_expiry(
    local: LocalCache[str], clock: Clock
) -> None:
    put(local, "a", "old")
    clock.now_s += RENEWAL_S
    assert local.get("a") is None
    clock.now_s += EXPIRY_S - RENEWAL_S - 0.1
    assert local.get("a") == "old"
    clock.now_s += 0.1
    assert local.get("a") is None


def test_only_one_of_many_threads_renews(clock: Clock) -> None:
    local: LocalCache[str] = LocalCache(3, clock)
    barrier = threading.Barrier(8)

    def look(_: int) -> str | None:
        barrier.wait()
        return local.get("a")

    with ThreadPoolExecutor(8) as threads:
        for _ in range(50):
            put(local, "a", "old")
            clock.now_s += RENEWAL_S
            values = list(threads.map(look, range(8)))
            assert sorted(values, key=str) == [None, *["old"] * 7]


@pytest.mark.parametrize(
    ("revision", "late_s", "stays"),
    [(1, 0, "first"), (3, 0, "second"), (2, 1, "first"), (2, 0, "second")],
    ids=["older revision", "newer revision", "requested earlier", "requested later"],
)
def test_the_newer_of_two_values_stays(
    local: LocalCache[str], clock: Clock, revision: int, late_s: int, stays: str
) -> None:
    """The newer revision, or the later request if revisions are equal, as for lists."""
    put(local, "a", "first", revision=2)
    local.put("a", "second", revision, clock() - late_s, EXPIRY_S)
    assert local.get("a") == stays


def test_an_expired_newer_revision_is_replaced(local: LocalCache[str], clock: Clock) -> None:
    """As after restoring a database from a backup."""
    put(local, "a", "new", revision=5)
    clock.now_s += EXPIRY_S
    put(local, "a", "old", revision=1)
    assert local.get("a") == "old"


class CacheInvariants(RuleBasedStateMachine):
    """The size is limited, no entry is served after its expiry, and no newer revision is replaced
    while all keys fit."""

    @initialize(max_entries=st.sampled_from([1, 2, 3, len(KEYS)]))
    def start(self, max_entries: int) -> None:
        self.clock, self.max_entries = Clock(), max_entries
        self.local: LocalCache[tuple[str, int, float]] = LocalCache(max_entries, self.clock)
        self.newest: dict[str, tuple[int, float]] = {}

    @rule(seconds=st.integers(0, 12))
    def wait(self, seconds: int) -> None:
        self.clock.now_s += seconds

    @rule(key=st.sampled_from(KEYS), revision=st.integers(1, 5), late_s=st.integers(0, 12))
    def store(self, key: str, revision: int, late_s: int) -> None:
        requested_s = self.clock() - late_s
        self.local.put(key, (key, revision, requested_s), revision, requested_s, EXPIRY_S)
        newest = self.newest.get(key)
        expired = newest is not None and self.clock() >= newest[1] + EXPIRY_S
        if newest is None or expired or (revision, requested_s) >= newest:
            self.newest[key] = (revision, requested_s)

    @rule(key=st.sampled_from(KEYS))
    def look(self, key: str) -> None:
        entry = self.local.get(key)
        if entry is None:
            return
        name, revision, requested_s = entry
        assert name == key
        assert self.clock() < requested_s + EXPIRY_S
        if self.max_entries == len(KEYS):
            assert (revision, requested_s) == self.newest[key]

    @invariant()
    def size_is_limited(self) -> None:
        if hasattr(self, "local"):
            assert len(self.local) <= self.max_entries


TestCacheInvariants = CacheInvariants.TestCase
