"""The cache inside a worker, against a clock that tests turn."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from apps.blog.local_cache import RENEW, LocalCache

EXPIRY_S = 10.0
KEYS = "abcde"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

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


def test_what_was_put_is_there(local: LocalCache[str]) -> None:
    assert local.get("a") is None
    put(local, "a", "one")
    assert local.get("a") == "one"
    assert local.get("b") is None
    assert len(local) == 1


def test_the_longest_unused_goes_first(local: LocalCache[str]) -> None:
    for key in ("a", "b", "c"):
        put(local, key)
    local.get("a")
    put(local, "d")
    assert [local.get(key) for key in ("a", "b", "c", "d")] == ["a", None, "c", "d"]
    put(local, "c", "again")
    put(local, "e")
    assert [local.get(key) for key in ("a", "c", "d", "e")] == [None, "again", "d", "e"]


def test_its_time_counts_from_before_it_was_asked_for(local: LocalCache[str], clock: Clock) -> None:
    asked_s = clock()
    clock.now_s += 6  # on its way
    local.put("a", "one", 1, asked_s, EXPIRY_S)
    clock.now_s = asked_s + EXPIRY_S * RENEW - 0.1
    assert local.get("a") == "one"
    clock.now_s = asked_s + EXPIRY_S
    assert local.get("a") is None
    assert len(local) == 0


def test_what_came_too_late_is_never_shown(local: LocalCache[str], clock: Clock) -> None:
    asked_s = clock()
    clock.now_s += EXPIRY_S
    local.put("a", "one", 1, asked_s, EXPIRY_S)
    assert local.get("a") is None


def test_an_expiry_of_nothing_keeps_nothing(local: LocalCache[str], clock: Clock) -> None:
    local.put("a", "one", 1, clock(), 0.0)
    assert local.get("a") is None


def test_one_reader_renews_and_the_others_are_served(local: LocalCache[str], clock: Clock) -> None:
    put(local, "a", "old")
    clock.now_s += EXPIRY_S * RENEW
    assert [local.get("a") for _ in range(4)] == [None, "old", "old", "old"]
    put(local, "a", "new")
    clock.now_s += EXPIRY_S * RENEW - 0.1
    assert local.get("a") == "new"


def test_a_renewal_that_fails_leaves_it_until_its_time(
    local: LocalCache[str], clock: Clock
) -> None:
    put(local, "a", "old")
    clock.now_s += EXPIRY_S * RENEW
    assert local.get("a") is None
    clock.now_s += EXPIRY_S * (1 - RENEW) - 0.1
    assert local.get("a") == "old"
    clock.now_s += 0.1
    assert local.get("a") is None


def test_of_many_threads_one_renews(clock: Clock) -> None:
    local: LocalCache[str] = LocalCache(3, clock)
    barrier = threading.Barrier(8)

    def look(_: int) -> str | None:
        barrier.wait()
        return local.get("a")

    with ThreadPoolExecutor(8) as threads:
        for _ in range(50):
            put(local, "a", "old")
            clock.now_s += EXPIRY_S * RENEW
            found = list(threads.map(look, range(8)))
            assert sorted(found, key=str) == [None, *["old"] * 7]


def test_a_late_old_value_does_not_replace_a_newer_one(
    local: LocalCache[str], clock: Clock
) -> None:
    asked_s = clock()
    put(local, "a", "edited", revision=2)
    local.put("a", "old", 1, asked_s, EXPIRY_S)
    assert local.get("a") == "edited"


def test_of_the_same_revision_the_one_asked_for_later_stays(
    local: LocalCache[str], clock: Clock
) -> None:
    """Lists have no revision."""
    early_s = clock()
    clock.now_s += 1
    local.put("a", "later", 0, clock(), EXPIRY_S)
    local.put("a", "earlier", 0, early_s, EXPIRY_S)
    assert local.get("a") == "later"
    local.put("a", "again", 0, clock(), EXPIRY_S)
    assert local.get("a") == "again"


def test_an_expired_newer_one_is_replaced(local: LocalCache[str], clock: Clock) -> None:
    """As after a database was set back to what it held before."""
    put(local, "a", "new", revision=5)
    clock.now_s += EXPIRY_S
    put(local, "a", "old", revision=1)
    assert local.get("a") == "old"


class Promises(RuleBasedStateMachine):
    """However it is used: bounded, nothing shown for longer than its time, no revision undone while
    there is room for all."""

    @initialize(most=st.sampled_from([1, 2, 3, len(KEYS)]))
    def start(self, most: int) -> None:
        self.clock, self.most = Clock(), most
        self.local: LocalCache[tuple[str, int, float]] = LocalCache(most, self.clock)
        self.newest: dict[str, tuple[int, float]] = {}

    @rule(seconds=st.integers(0, 12))
    def wait(self, seconds: int) -> None:
        self.clock.now_s += seconds

    @rule(key=st.sampled_from(KEYS), revision=st.integers(1, 5), late_s=st.integers(0, 12))
    def store(self, key: str, revision: int, late_s: int) -> None:
        asked_s = self.clock() - late_s
        self.local.put(key, (key, revision, asked_s), revision, asked_s, EXPIRY_S)
        held = self.newest.get(key)
        if held is None or self.clock() >= held[1] + EXPIRY_S or (revision, asked_s) >= held:
            self.newest[key] = (revision, asked_s)

    @rule(key=st.sampled_from(KEYS))
    def look(self, key: str) -> None:
        found = self.local.get(key)
        if found is None:
            return
        name, revision, asked_s = found
        assert name == key
        assert self.clock() < asked_s + EXPIRY_S
        if self.most == len(KEYS):
            assert (revision, asked_s) == self.newest[key]

    @invariant()
    def bounded(self) -> None:
        if hasattr(self, "local"):
            assert len(self.local) <= self.most


TestPromises = Promises.TestCase
