"""How a claim is judged, on constructed cells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from workerlab.experiments.reproduce.claims import (
    Claim,
    ClaimCorrected,
    ClaimHeld,
    ClaimNotShown,
    ClaimTest,
    Correction,
    Heading,
    MeasuredCell,
    MeasuredParts,
    OriginalRow,
    OriginalTable,
    judge,
)
from workerlab.experiments.reproduce.document import document as document_of_run
from workerlab.experiments.reproduce.document import table_of
from workerlab.plan import null_plan
from workerlab.run_store import Run


class Launch(Struct):
    rps: float | None = None
    failed: int = 0
    verdict: str = "saturated"
    errors: Mapping[str, int] = {}


def measured(
    cores: int = 4, missing: Mapping[str, str] | None = None, **rates: list[float]
) -> MeasuredParts:
    """`rates`: of the launches of each cell."""
    cells = {name: MeasuredCell({}, tuple(map(Launch, values))) for name, values in rates.items()}
    return MeasuredParts(
        cells={name: cell for name, cell in cells.items() if cell.results},
        conclusions={} if missing else {"part": {"it.is.so"}},
        missing=missing or {},
        parts=dict.fromkeys(rates, "part"),
        cores=cores,
    )


def claim(*tests: ClaimTest, instead: Correction | None = None, cores: int = 1) -> Claim:
    return Claim(7, "It doubles.", tests, cores, instead)


def ratio_between(low: float, high: float) -> ClaimTest:
    ratio = ("after.rps", "before.rps")
    return ClaimTest(says="after over before:", ratio=ratio, between=(low, high))


DOUBLES = ratio_between(1.8, 2.2)


@pytest.mark.parametrize(
    ("test", "after", "verdict", "phrase"),
    [
        (DOUBLES, [7.9, 8.0, 8.1], ClaimHeld, "after over before: 2.00 (1.94 to 2.06)"),
        (DOUBLES, [4.0, 4.0, 4.1], ClaimNotShown, "after over before: 1.01 (0.97 to 1.04)"),
        (DOUBLES, [6.0, 8.0, 10.0], ClaimNotShown, "inconclusive; it must lie between 1.8 and 2.2"),
        (ratio_between(1.8, math.inf), [6.0, 8.0, 10.0], ClaimNotShown,
         "inconclusive; it must be 1.8 or more"),
        (DOUBLES, [8.0], ClaimNotShown, "too few launches for an interval (--trials 3)"),
        (DOUBLES, [], ClaimNotShown, "the cell after was not measured"),
        (DOUBLES, [0.0, 0.0], ClaimNotShown, "a launch measured 0, so there is no ratio"),
        (DOUBLES, [7.9, 8.0, 8.1, 0.0], ClaimNotShown, "a launch measured 0, so there is no ratio"),
    ],
)  # fmt: skip
def test_a_ratio_is_judged_by_its_interval(
    test: ClaimTest, after: list[float], verdict: type, phrase: str
) -> None:
    judged = judge(claim(test), measured(after=after, before=[4.0, 4.0, 4.0]))
    assert type(judged) is verdict
    assert phrase in str(judged)
    assert judged.question == "7. It doubles."


def test_a_figure_measured_with_a_stand_in_names_it() -> None:
    parts = measured(after=[7.9, 8.0, 8.1], before=[4.0, 4.0, 4.0])
    stand_in = MeasuredCell({"stand_in": "MongoDB-compatible server"}, parts.cells["after"].results)
    parts = replace(parts, cells={**parts.cells, "after": stand_in})
    judged = str(judge(claim(DOUBLES), parts))
    assert judged.startswith("Held: with a MongoDB-compatible server, after over before: 2.00")
    rows = tuple(OriginalRow(name, name, (4.0,)) for name in ("after", "before"))
    table = table_of(OriginalTable("Rates", (Heading("rps", "req/s", "rps"),), rows), parts)
    assert [row[0] for row in table.rows] == ["after, on a MongoDB-compatible server", "before"]


def test_a_claim_is_corrected_if_its_correction_is_shown() -> None:
    unchanged = replace(ratio_between(0.9, 1.1), says="again:")
    correction = Correction("It stays.", (unchanged,), "By chance.")
    corrected = claim(DOUBLES, instead=correction)
    judged = judge(corrected, measured(after=[4.0, 4.0, 4.1], before=[4.0, 4.0, 4.0]))
    assert isinstance(judged, ClaimCorrected)
    assert str(judged).startswith("Corrected: It stays. By chance. (after over before: 1.01")
    undecided = measured(after=[4.0, 4.0, 5.2], before=[4.0, 4.0, 4.0])
    assert isinstance(judge(corrected, undecided), ClaimNotShown)


def test_a_value_must_hold_in_every_launch() -> None:
    serves = claim(ClaimTest(says="it serves", value="cell.rps", between=(3, 5), original=3.96))
    held = "Held: it serves 3.9 to 4.1, in the write-up 3.96."
    assert str(judge(serves, measured(cell=[3.9, 4.1]))) == held
    assert isinstance(judge(serves, measured(cell=[3.9, 5.1])), ClaimNotShown)
    share = claim(ClaimTest(says="share:", value="cell.rps", over="whole.rps", between=(0.4, 0.6)))
    assert isinstance(judge(share, measured(cell=[2.0], whole=[4.0])), ClaimHeld)
    # Launches of two cells are no pairs: each is divided by the mean of the other cell
    judged = judge(share, measured(cell=[2.0, 2.1], whole=[3.0, 5.0]))
    assert str(judged) == "Held: share: 0.5 to 0.53."
    judged = judge(share, measured(cell=[2.0], whole=[0.0]))
    assert str(judged) == "Not shown: share: a division by zero."


def test_verdicts_and_conclusions_are_judged_by_equality() -> None:
    saturated = claim(ClaimTest(says="it is", value="cell.verdict", equals="saturated"))
    assert str(judge(saturated, measured(cell=[4.0]))) == "Held: it is saturated."
    launches = tuple(Launch(verdict=verdict) for verdict in ("saturated", "at capacity"))
    mixed = replace(measured(), cells={"cell": MeasuredCell({}, launches)}, parts={"cell": "part"})
    assert str(judge(saturated, mixed)).endswith("inconclusive; it must be saturated.")
    concludes = claim(ClaimTest(says="a conclusion", part="part", shows=("it.is.so", "or.so")))
    assert isinstance(judge(concludes, measured()), ClaimHeld)
    assert isinstance(judge(concludes, measured(missing={"part": "no ab"})), ClaimNotShown)
    excludes = ClaimTest(says="a conclusion", part="part", shows=("it.is.so",), lacks=("it.is.so",))
    assert isinstance(judge(claim(excludes), measured()), ClaimNotShown)


def test_the_title_shows_that_the_machine_is_unknown() -> None:
    plan = null_plan("reproduce", (), details={"writeups": ["ab"]})
    document = document_of_run(Run(Path("20261128-101500-reproduce-ab"), plan, {}, {}))
    today = "Today: an unknown system, Python unknown, 2026-11-28."
    assert str(document.title).endswith(today)


def test_missing_parts_and_cores_are_given_as_reasons() -> None:
    missing = measured(missing={"part": "ab is not installed"}, after=[], before=[])
    assert str(judge(claim(DOUBLES), missing)) == "Not shown: ab is not installed."
    on_five_cores = claim(DOUBLES, cores=5)
    judged = judge(on_five_cores, measured(cores=2, after=[4.0] * 3, before=[4.0] * 3))
    assert "it needs 5 cores, but there are 2; after over before: 1.00" in str(judged)
    judged = judge(on_five_cores, measured(cores=2, after=[8.0] * 3, before=[4.0] * 3))
    assert isinstance(judged, ClaimHeld)


def test_json_has_the_claim_as_a_code_with_its_values() -> None:
    judged = judge(claim(DOUBLES), measured(after=[8.0] * 3, before=[4.0] * 3))
    assert judged.code == "ClaimHeld"
    assert list(judged.values) == ["number", "claim", "measured"]
