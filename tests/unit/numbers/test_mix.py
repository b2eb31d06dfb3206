"""The sequence of requests of a mix."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.numbers.schedule import sequence

WEIGHTS = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20)


@given(WEIGHTS, st.integers(0, 2**64))
def test_the_same_seed_gives_the_same_requests(weights: list[float], seed: int) -> None:
    first, second = (list(islice(sequence(weights, seed), 50)) for _ in range(2))
    assert first == second
    assert set(first) <= set(range(len(weights)))


def test_other_seeds_give_other_requests() -> None:
    sequences = {tuple(islice(sequence((1, 2, 3), seed), 50)) for seed in range(20)}
    assert len(sequences) == 20


@pytest.mark.parametrize("weights", [(1, 2, 7), (0.6, 0.39, 0.01), (1,)])
@pytest.mark.parametrize("seed", range(3))
def test_each_request_comes_as_often_as_its_weight(weights: tuple[float, ...], seed: int) -> None:
    """Within five standard deviations of the binomial distribution."""
    n = 20_000
    counts = Counter(islice(sequence(weights, seed), n))
    for place, weight in enumerate(weights):
        share = weight / sum(weights)
        assert abs(counts[place] - n * share) <= 5 * (n * share * (1 - share)) ** 0.5


def test_the_sequence_is_the_same_in_every_python() -> None:
    """Stored runs are read later, and load hosts have their own Python."""
    numbers = [2, 2, 2, 1, 2, 2, 2, 0, 2, 2, 2, 2, 0, 2, 0, 0, 2, 1, 2, 0]
    assert list(islice(sequence((1, 2, 7), 4), 20)) == numbers
