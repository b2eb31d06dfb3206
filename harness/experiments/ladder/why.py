"""The two questions of a caching ladder that nobody guesses right, answered from what was counted.

Redis: what a hit costs (round trip, and making a value of bytes again) is weighed against what the
storage costs that it saves, both for a lone user, whom nobody makes wait; and the CPU that a
request costs the app with each, which is what throughput is made of where the app is the limit.

sync: a closed loop of N users has a mean response of N / X whatever the class (Little 1961), so
that the mean says nothing that requests/s do not. What a class decides is how it is spread: one
request at a time, in order of arrival, makes all wait alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from harness.experiments.ladder.steps import Factor, Ladder, Step
from harness.experiments.words import amount, percent
from harness.model import Answer
from harness.numbers.units import format_duration
from harness.server.worker_classes import ASGI_CLASSES

CANNOT = "Cannot be said"
LITTLE = 0.8  # of the requests/s before: who loses less than a fifth loses little
MOVED = 1.2  # times further on a logarithmic scale: one moved more than the other
HIT = ("redis", "serialise")
MISS = ("pool", "storage")


# --- Redis --------------------------------------------------------------------------------------


def why_redis(ladder: Ladder) -> Answer:
    question = "Why does losing Redis cost so little?"
    pair = _redis_pair(ladder.crowd)
    if pair is None:
        return Answer(question, f"{CANNOT}: no rung lost Redis and nothing else.")
    before, after = pair
    factor = after.factor
    said, evidence = _lone(ladder, before, after)
    cpu, more = _cpu(before, after, ("with Redis", "without it"))
    answer = f"{_how_much(factor)} {said} {cpu}".strip()
    return Answer(question, answer, (*evidence, *more))


def _redis_pair(steps: Sequence[Step]) -> tuple[Step, Step] | None:
    """The last rung with Redis, and the one after it."""
    for before, after in pairwise(steps):
        one, other = before.rung, after.rung
        same = (one.storage, one.settings) == (other.storage, other.settings)
        if one.cache and not other.cache and same:
            return before, after
    return None


def _how_much(factor: Factor | None) -> str:
    if factor is None:
        return ""
    if not factor.known:
        few = "Too few launches to say what it costs"
        return f"{few}; {factor.ratio:.2f} times as many requests/s came out without it."
    if not factor.differs:
        return "Here it costs nothing that can be told from chance."
    lost = percent(abs(1 - factor.ratio))
    if factor.ratio >= 1:
        return f"Here it costs nothing: {lost} more come out."
    if factor.ratio >= LITTLE:
        return f"Here it costs {lost} of the requests/s."
    return f"Here it does not cost little: {lost} of the requests/s are lost."


def _lone(ladder: Ladder, before: Step, after: Step) -> tuple[str, tuple[str, ...]]:
    """What a hit costs a lone user, beside what it saves."""
    one, other = ladder.twin(before), ladder.twin(after)
    if one is None or other is None:
        return "What a hit saves cannot be said: no lone user was measured on both rungs.", ()
    hit, miss = _sum(one, HIT), _sum(other, MISS)
    if hit is None or miss is None:
        return "What a hit saves cannot be said: the app kept no ledger.", ()
    word = "saves" if miss > hit else "costs more than it saves, by"
    said = (
        f"For a lone user a hit costs {format_duration(hit)} (round trip and serialisation), the"
        f" storage {format_duration(miss)}: Redis {word} {format_duration(abs(miss - hit))}"
    )
    response_s = other.mean(lambda cell: cell.breakdown.response_s)
    if response_s:
        said += f" of a response of {format_duration(response_s)}"
    evidence = tuple(
        f"one user, {label}: {_spelt(step)}"
        for label, step in (("with Redis", one), ("without it", other))
    )
    return f"{said}.", evidence


def _sum(step: Step, names: Sequence[str]) -> float | None:
    known = [value for name in names if (value := step.spent_s(name)) is not None]
    return sum(known) if known else None


def _spelt(step: Step) -> str:
    parts = [
        f"{name} {format_duration(value)}"
        for name in (*HIT, *MISS)
        if (value := step.spent_s(name)) is not None
    ]
    return f"{', '.join(parts)} per request"


# --- CPU, for both ------------------------------------------------------------------------------


def _cpu(before: Step, after: Step, words: tuple[str, str]) -> tuple[str, tuple[str, ...]]:
    one, other = before.app_cpu_s, after.app_cpu_s
    if one is None or other is None:
        return "", ()
    said = (
        f"A request costs the app {format_duration(one)} of CPU {words[0]},"
        f" {format_duration(other)} {words[1]}."
    )
    evidence = tuple(
        f"{step.load.words}, {label}: {amount(step.rps)} requests/s,"
        f" {step.mean(lambda cell: cell.usage.server_cores) or 0.0:.2f} cores of the app"
        for label, step in zip(words, (before, after), strict=True)
    )
    return said, evidence


# --- sync ---------------------------------------------------------------------------------------


def why_sync(ladder: Ladder) -> Answer:
    question = "Why does going from async to sync move p95 more than requests/s?"
    pair = _sync_pair(ladder.crowd)
    if pair is None:
        return Answer(question, f"{CANNOT}: no rung lost async and nothing else.")
    before, after = pair
    spread = [_spread(step) for step in pair]
    p95 = [step.mean(lambda cell: cell.response.p95) for step in pair]
    if None in (*spread, *p95):
        return Answer(question, f"{CANNOT}: the load tool told no percentiles.")
    moved = (p95[1] or 1.0) / (p95[0] or 1.0)
    rps = after.rps / before.rps
    cpu, evidence = _cpu(before, after, ("async", "sync"))
    factor = after.factor
    chance = factor is not None and factor.known and not factor.differs
    doubt = "That requests/s differ at all cannot be told from chance." if chance else ""
    answer = (
        f"{_which(moved, rps)} {doubt} {cpu} By Little's law the mean response of"
        f" {after.load.users} users is users / requests/s: {_little(before)} async,"
        f" {_little(after)} sync. What the class decides is how it is spread: p95 is"
        f" {spread[0]:.1f} times p50 async, {spread[1]:.1f} times sync."
        f" {_alike(spread[0] or 0.0, spread[1] or 0.0)}"
    )
    return Answer(question, " ".join(answer.split()), (*evidence, *map(_told, pair)))


def _sync_pair(steps: Sequence[Step]) -> tuple[Step, Step] | None:
    for before, after in pairwise(steps):
        one, other = before.rung, after.rung
        same = (one.storage, one.cache, one.server.workers) == (
            *(other.storage, other.cache, other.server.workers),
        )
        waits = [rung.server.worker_class in ASGI_CLASSES for rung in (one, other)]
        if same and waits == [True, False]:
            return before, after
    return None


def _spread(step: Step) -> float | None:
    p50, p95 = (
        step.mean(lambda cell: cell.response.p50),
        step.mean(lambda cell: cell.response.p95),
    )
    return p95 / p50 if p50 and p95 is not None else None


def _which(p95: float, rps: float) -> str:
    """`p95`, `rps`: sync over async. Compared as factors, whichever way they go."""
    far, near = max(p95, 1 / p95), max(rps, 1 / rps)
    both = f"p95 changes by a factor of {p95:.2f}, requests/s by {rps:.2f}"
    if far >= MOVED * near:
        return f"It does here: {both}."
    if near >= MOVED * far:
        return f"Here requests/s move more: {both}."
    return f"Here neither moves much more than the other: {both}."


def _little(step: Step) -> str:
    return format_duration(step.load.users / step.rps)


def _alike(waits: float, one_by_one: float) -> str:
    if one_by_one < waits:
        return (
            "sync serves one request at a time, in order of arrival, so that all wait alike; async"
            " begins them all, and some are overtaken."
        )
    return "That sync serves in order of arrival does not show here: something else spreads them."


def _told(step: Step) -> str:
    def at(name: str) -> str:
        return format_duration(step.mean(lambda cell: getattr(cell.response, name)))

    mean = at("mean")
    return f"{step.rung.title}: mean {mean}, p50 {at('p50')}, p95 {at('p95')}"
