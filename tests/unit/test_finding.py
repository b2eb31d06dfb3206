"""Findings: a sentence must match the fields of its class, or the import fails."""

from types import SimpleNamespace

import pytest

from workerlab.finding import Finding
from workerlab.report.values import text


class Slow(Finding):
    """With {users:# user} a request takes {service_s:duration}
    [[, a single one {lone_s:duration}]]."""

    users: int
    service_s: float
    lone_s: float | None = None


def test_a_finding_has_a_sentence_and_values() -> None:
    assert text(Slow(1, 0.25)) == "With 1 user a request takes 250 ms."
    slow = Slow(users=8, service_s=1.0, lone_s=0.5)
    assert str(slow) == "With 8 users a request takes 1.00 s, a single one 500 ms."
    assert slow.code == "Slow"
    assert slow.values == {"users": 8, "service_s": 1.0, "lone_s": 0.5}
    assert slow.question == ""
    assert slow == Slow(8, 1.0, 0.5)


@pytest.mark.parametrize(
    ("sentence", "why"),
    [
        ("It takes {lone_s:duration}.", "no field 'lone_s'"),
        ("It takes {service_s:durations}.", "no format 'durations'"),
        (None, "no sentence"),
    ],
)
def test_a_sentence_that_does_not_match_is_refused(sentence: str | None, why: str) -> None:
    body = {"__doc__": sentence, "__annotations__": {"service_s": float}}
    with pytest.raises(TypeError, match=why):
        type(Finding)("Wrong", (Finding,), body)


class Nested(Finding):
    """it took {step.took_s:duration}[[ and {step.misspelt:duration}]]"""

    step: SimpleNamespace


def test_a_misspelt_attribute_is_an_error() -> None:
    assert str(Nested(SimpleNamespace(took_s=1.0, misspelt=None))) == "it took 1.00 s"
    with pytest.raises(AttributeError, match="misspelt"):
        str(Nested(SimpleNamespace(took_s=1.0)))
