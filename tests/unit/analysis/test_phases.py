"""Phases that are known, from sockets and response times that were made for them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from tests.builders.analysis import asking, derived, evidence, ns, seeing
from workerlab.analysis.facts import Facts
from workerlab.analysis.phases import Response, Sockets, over_time, phases, phases_of
from workerlab.model import ConnectionSample, Phase


class Story(Struct, frozen=True):
    """A load: the seconds each phase lasts, 0 for one that is absent; users; response times when
    all is steady, and right after the ramp-up."""

    ramp_s: float = 3.0
    drain_s: float = 2.0
    steady_s: float = 6.0
    churn_s: float = 1.0
    users: int = 100
    response_s: float = 0.1
    after_ramp_s: float = 0.4
    every_s: float = 0.1
    left_over: int = 12  # TIME_WAIT of the warm-up

    @property
    def ends(self) -> tuple[float, float, float, float]:
        drained = self.ramp_s + self.drain_s
        steady = drained + self.steady_s
        return self.ramp_s, drained, steady, steady + self.churn_s

    def open_at(self, at_s: float) -> int:
        ramp_s, _, steady_s, end_s = self.ends
        if at_s < ramp_s:
            return round(self.users * at_s / ramp_s)
        if at_s <= steady_s:
            return self.users
        return round(self.users * max(0.0, end_s - at_s) / self.churn_s)

    def sockets(self) -> list[Sockets]:
        count = round(self.ends[-1] / self.every_s)
        return [
            Sockets(at, now := self.open_at(at), now, self.left_over + self._closed(at))
            for at in (i * self.every_s for i in range(count + 1))
        ]

    def _closed(self, at_s: float) -> int:
        return self.users - self.open_at(at_s) if at_s > self.ends[2] else 0

    def responses(self) -> list[Response]:
        ramp_s, drained_s, _, end_s = self.ends
        found = []
        for i in range(round(end_s * 40)):
            at, took = i / 40, self.response_s
            if at < ramp_s:
                took = self.response_s + (self.after_ramp_s - self.response_s) * at / ramp_s
            elif at < drained_s:
                took = self.after_ramp_s
            found.append((at, took * (1.02 if i % 2 else 0.98)))
        return found

    def told(self) -> tuple[Phase, ...]:
        return phases(self.sockets(), self.responses())


def names(found: tuple[Phase, ...]) -> list[str]:
    return [phase.name for phase in found]


def test_all_four_in_order_and_where_they_are() -> None:
    story = Story()
    found = story.told()
    assert names(found) == ["ramp-up", "drain", "steady", "churn"]
    for phase, end_s in zip(found, story.ends, strict=True):
        assert phase.end_s == pytest.approx(end_s, abs=0.5)  # a part of 20, and 95 % of the users
    assert [phase.why.code for phase in found] == [
        "ConnectionsRise",
        "ResponsesFall",
        "ConnectionsStay",
        "ConnectionsClose",
    ]
    assert found[2].why.values["established"] == 200
    assert found[3].why.values["closing"] == 100


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        (Story(drain_s=0, after_ramp_s=0.1), ["ramp-up", "steady", "churn"]),
        (Story(churn_s=0), ["ramp-up", "drain", "steady"]),
        (Story(ramp_s=0, drain_s=0), ["steady", "churn"]),
        (Story(ramp_s=0, drain_s=0, churn_s=0), ["steady"]),
    ],
)
def test_any_may_be_absent(story: Story, expected: list[str]) -> None:
    assert names(story.told()) == expected


@given(
    st.builds(
        Story,
        ramp_s=st.floats(1, 10),
        drain_s=st.floats(2, 5),
        steady_s=st.floats(6, 30),
        churn_s=st.floats(0.5, 3),
        users=st.integers(5, 5000),
        response_s=st.floats(0.001, 2),
        every_s=st.floats(0.05, 0.3),
        left_over=st.integers(0, 500),
    ).map(lambda one: replace(one, after_ramp_s=3 * one.response_s))
)
def test_known_phases_are_found(story: Story) -> None:
    found = story.told()
    assert names(found) == ["ramp-up", "drain", "steady", "churn"]
    assert all(before.end_s == after.start_s for before, after in pairwise(found))
    parts_s = (story.drain_s + story.steady_s) / 20
    for phase, end_s in zip(found[:3], story.ends, strict=False):
        slack_s = story.every_s + 0.05 * story.ramp_s + 2 * parts_s
        assert abs(phase.end_s - end_s) <= slack_s


@given(
    st.lists(
        st.tuples(st.floats(0, 9), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)),
        max_size=30,
    ),
    st.lists(st.tuples(st.floats(-1, 12), st.floats(0, 5)), max_size=50),
)
def test_whatever_was_seen_phases_follow_each_other(
    seen: list[tuple[float, int, int, int]], responses: list[Response]
) -> None:
    found = phases([Sockets(*one) for one in sorted(seen)], responses)
    assert all(phase.start_s <= phase.end_s for phase in found)
    assert all(one.end_s <= other.start_s for one, other in pairwise(found))
    order = ["ramp-up", "drain", "steady", "churn"]
    assert names(found) == [name for name in order if name in names(found)]


def rising(until_s: float) -> list[Response]:
    """Response times that rise from the end of the ramp on, as a backlog does; never, where
    `until_s` is over."""
    return [(i / 40, 0.1 + 0.5 * max(0.0, min(i / 40, until_s) - 1.0)) for i in range(40 * 10)]


def test_a_load_that_ends_while_times_still_rise_was_never_steady() -> None:
    story = Story(ramp_s=1.0, drain_s=0, steady_s=9.0, churn_s=1.0)
    found = phases(story.sockets(), rising(until_s=100))
    assert names(found) == ["ramp-up", "churn"]
    assert found[0].end_s == found[1].start_s
    assert found[0].why.code == "NeverSteady"


def test_the_ramp_lasts_until_times_have_reached_their_level() -> None:
    story = Story(ramp_s=1.0, drain_s=0, steady_s=9.0, churn_s=1.0)
    found = phases(story.sockets(), rising(until_s=4.0))
    assert names(found) == ["ramp-up", "steady", "churn"]
    assert 3.0 <= found[0].end_s <= 4.5
    assert found[0].why.values["until_s"] == pytest.approx(1.0, abs=0.1)


def test_times_inside_the_app_are_not_called_responses() -> None:
    story = Story()
    told = phases(story.sockets(), story.responses(), in_app=True)
    (steady,) = [phase for phase in told if phase.name == "steady"]
    assert "inside the app" in str(steady.why)
    by_client = next(one for one in story.told() if one.name == "steady").why
    assert "inside the app" not in str(by_client)
    assert replace(by_client, timed=steady.why.timed) == steady.why


def test_leftovers_of_the_warm_up_are_no_churn() -> None:
    """TIME_WAIT ends after a minute: what was there before only becomes less."""
    story = Story(churn_s=0, left_over=0)
    fading = [one._replace(closing=max(0, 40 - i)) for i, one in enumerate(story.sockets())]
    assert names(phases(fading, story.responses())) == ["ramp-up", "drain", "steady"]


def test_connections_that_come_and_go_are_no_ramp() -> None:
    seen = [Sockets(i / 10, 50 if i % 2 else 20, 0, 0) for i in range(40)]
    assert "ramp-up" not in names(phases(seen, []))


# --- of a trial -----------------------------------------------------------------------------


def kept(story: Story) -> Facts:
    """A trial on kept connections that were seen as the story tells."""
    trial = evidence(connections=8, tool="fast")
    samples = tuple(
        ConnectionSample(
            ns(one.at_s),
            {"ESTABLISHED": one.server},
            {"ESTABLISHED": one.client, "TIME_WAIT": one.closing},
            {},
            0,
        )
        for one in story.sockets()
    )
    return derived(seeing(asking(trial, keepalive=True), connections=samples))


def test_a_trial_is_told_by_its_own_sockets() -> None:
    assert names(phases_of(kept(Story(drain_s=0)))) == ["ramp-up", "steady", "churn"]


def test_without_keep_alive_there_are_none() -> None:
    assert phases_of(derived(evidence())) == ()


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 5)), max_size=200))
def test_response_times_over_time(responses: list[Response]) -> None:
    found = over_time(responses, 20.0)
    took = [one for _, one in responses]
    assert len(found) <= 100
    assert all(min(took) <= half <= high <= max(took) for _, half, high in found)
    assert [at for at, _, _ in found] == sorted({at for at, _, _ in found})
