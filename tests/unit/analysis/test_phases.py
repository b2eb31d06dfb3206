"""Phases of a load, from synthetic sockets and response times with known phases."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from tests.builders.analysis import derived, evidence, ns, with_cell, with_observations
from workerlab.analysis.facts import Facts
from workerlab.analysis.phases import Response, Sockets, over_time, phases, phases_of
from workerlab.model.evidence import ConnectionSample
from workerlab.model.result import Phase


class Load(Struct, frozen=True):
    """Lengths of the phases, 0 for an absent one; response times in the steady phase and right
    after the ramp-up; the interval of samples."""

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
        def sample(at_s: float) -> Sockets:
            users = self.open_at(at_s)
            closed = self.users - users if at_s > self.ends[2] else 0
            return Sockets(at_s, users, users, self.left_over + closed)

        count = round(self.ends[-1] / self.every_s)
        return [sample(i * self.every_s) for i in range(count + 1)]

    def responses(self) -> list[Response]:
        ramp_s, drained_s, _, end_s = self.ends
        responses = []
        for i in range(round(end_s * 40)):
            at_s, length_s = i / 40, self.response_s
            if at_s < ramp_s:
                length_s += (self.after_ramp_s - self.response_s) * at_s / ramp_s
            elif at_s < drained_s:
                length_s = self.after_ramp_s
            responses.append((at_s, length_s * (1.02 if i % 2 else 0.98)))
        return responses

    def phases(self) -> tuple[Phase, ...]:
        return phases(self.sockets(), self.responses())


def names(detected: tuple[Phase, ...]) -> list[str]:
    return [phase.name for phase in detected]


def test_each_phase_has_its_reason() -> None:
    ramp, drain, steady, churn = (phase.why for phase in Load().phases())
    assert (ramp.code, drain.code) == ("ConnectionsRise", "ResponsesFall")
    assert (steady.code, steady.values["established"]) == ("ConnectionsStay", 200)
    assert (churn.code, churn.values["closing"]) == ("ConnectionsClose", 100)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (Load(drain_s=0, after_ramp_s=0.1), ["ramp-up", "steady", "churn"]),
        (Load(churn_s=0), ["ramp-up", "drain", "steady"]),
        (Load(ramp_s=0, drain_s=0), ["steady", "churn"]),
        (Load(ramp_s=0, drain_s=0, churn_s=0), ["steady"]),
    ],
)
def test_any_phase_but_the_steady_one_may_be_absent(load: Load, expected: list[str]) -> None:
    assert names(load.phases()) == expected


def test_few_responses_show_no_drain() -> None:
    load = Load()
    detected = phases(load.sockets(), load.responses()[:2])
    assert names(detected) == ["ramp-up", "steady", "churn"]


def test_a_connection_that_opens_before_another_closes_is_no_ramp() -> None:
    """While connections are replaced, a sample has one connection more than the load."""
    load = Load(drain_s=0, after_ramp_s=0.1, churn_s=0, users=12)
    sockets = [
        sample._replace(closing=sample.closing + max(0, index - 60))
        for index, sample in enumerate(load.sockets())
    ]
    sockets[-5] = sockets[-5]._replace(client=13)
    detected = phases(sockets, load.responses())
    assert names(detected) == ["ramp-up", "steady", "churn"]
    assert detected[-1].start_s == pytest.approx(6.0, abs=0.2)


@given(
    st.builds(
        Load,
        ramp_s=st.floats(1, 10),
        drain_s=st.floats(2, 5),
        steady_s=st.floats(6, 30),
        churn_s=st.floats(0.5, 3),
        users=st.integers(5, 5000),
        response_s=st.floats(0.001, 2),
        every_s=st.floats(0.05, 0.3),
        left_over=st.integers(0, 500),
    ).map(lambda load: replace(load, after_ramp_s=3 * load.response_s))
)
def test_phases_of_any_load_are_found(load: Load) -> None:
    detected = load.phases()
    assert names(detected) == ["ramp-up", "drain", "steady", "churn"]
    assert all(before.end_s == after.start_s for before, after in pairwise(detected))
    parts_s = (load.drain_s + load.steady_s) / 20
    for phase, end_s in zip(detected[:3], load.ends, strict=False):
        slack_s = load.every_s + 0.05 * load.ramp_s + 2 * parts_s
        assert abs(phase.end_s - end_s) <= slack_s


@given(
    st.lists(
        st.tuples(st.floats(0, 9), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)),
        max_size=30,
    ),
    st.lists(st.tuples(st.floats(-1, 12), st.floats(0, 5)), max_size=50),
)
def test_phases_never_overlap(
    samples: list[tuple[float, int, int, int]], responses: list[Response]
) -> None:
    detected = phases([Sockets(*sample) for sample in sorted(samples)], responses)
    assert all(phase.start_s <= phase.end_s for phase in detected)
    assert all(before.end_s <= after.start_s for before, after in pairwise(detected))
    order = ["ramp-up", "drain", "steady", "churn"]
    assert names(detected) == [name for name in order if name in names(detected)]


def with_backlog(until_s: float) -> tuple[Phase, ...]:
    """The phases of a load whose response times rise from the end of the ramp until then."""
    times_s = (i / 40 for i in range(40 * 10))
    responses = [(at_s, 0.1 + 0.5 * max(0.0, min(at_s, until_s) - 1.0)) for at_s in times_s]
    return phases(Load(ramp_s=1.0, drain_s=0, steady_s=9.0).sockets(), responses)


def test_the_ramp_lasts_until_response_times_level_off() -> None:
    detected = with_backlog(until_s=4.0)
    assert names(detected) == ["ramp-up", "steady", "churn"]
    assert 3.0 <= detected[0].end_s <= 4.5
    assert detected[0].why.until_s == pytest.approx(1.0, abs=0.1)
    ramp, churn = with_backlog(until_s=100)
    assert (ramp.name, churn.name) == ("ramp-up", "churn")
    assert ramp.end_s == churn.start_s
    assert ramp.why.code == "NeverSteady"


def test_times_inside_the_app_are_named_as_such() -> None:
    load = Load()
    _, _, by_client, _ = load.phases()
    _, _, in_app, _ = phases(load.sockets(), load.responses(), in_app=True)
    assert "inside the app" in str(in_app.why)
    assert "inside the app" not in str(by_client.why)
    assert replace(by_client.why, timed=in_app.why.timed) == in_app.why


def test_leftover_connections_of_the_warm_up_are_not_churn() -> None:
    """TIME_WAIT ends after a minute, so the number of leftovers only falls."""
    load = Load(churn_s=0, left_over=0)
    falling = [sample._replace(closing=max(0, 40 - i)) for i, sample in enumerate(load.sockets())]
    assert names(phases(falling, load.responses())) == ["ramp-up", "drain", "steady"]


def test_connections_that_come_and_go_are_not_a_ramp() -> None:
    samples = [Sockets(i / 10, 50 if i % 2 else 20, 0, 0) for i in range(40)]
    assert "ramp-up" not in names(phases(samples, []))


# --- of a trial -----------------------------------------------------------------------------


def facts_of_load(load: Load) -> Facts:
    """A trial on keep-alive connections with the sockets of this load."""

    def sample(sockets: Sockets) -> ConnectionSample:
        client = {"ESTABLISHED": sockets.client, "TIME_WAIT": sockets.closing}
        return ConnectionSample(
            ns(sockets.at_s), {"ESTABLISHED": sockets.server}, client, per_worker={}, unread=0
        )

    trial = with_cell(evidence(connections=8, tool="fast"), keepalive=True)
    return derived(with_observations(trial, connections=tuple(map(sample, load.sockets()))))


def test_phases_of_a_trial_come_from_its_sockets() -> None:
    assert names(phases_of(facts_of_load(Load(drain_s=0)))) == ["ramp-up", "steady", "churn"]
    assert phases_of(derived(evidence())) == ()  # without keep-alive


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 5)), max_size=200))
def test_response_times_over_time_stay_within_their_range(responses: list[Response]) -> None:
    points = over_time(responses, 20.0)
    lengths_s = [length_s for _, length_s in responses]
    assert len(points) <= 100
    assert all(min(lengths_s) <= p50 <= high <= max(lengths_s) for _, p50, high in points)
    assert [at for at, _, _ in points] == sorted({at for at, _, _ in points})
