"""One thing that was said, or that should have been: a verdict, a finding, a law that the numbers
must keep, a contradiction between cells. Its outcome:

    right     said, and so
    false     said, and not so
    missing   so, and not said
    excused   so, and not said, but the cell says that it is inconclusive, and rightly
    allowed   said; may be so or not
"""

from __future__ import annotations

from msgspec import Struct

from workerlab.model.result import TrialResult

FALSE, MISSING, RIGHT, EXCUSED, ALLOWED = "false", "missing", "right", "excused", "allowed"


class Statement(Struct, frozen=True):
    scenario: str
    where: str  # level or rate, and trial; or the series
    noisy: bool
    kind: str  # verdict, finding, premise, law, contradiction, comparison, exit
    code: str
    outcome: str
    sentence: str = ""

    @property
    def wrong(self) -> bool:
        return self.outcome in (FALSE, MISSING)


def level_of(result: TrialResult) -> str:
    """As a Scenario names its cells."""
    rate = result.trial.cell.rate
    return str(result.trial.cell.concurrency) if rate is None else rate.label


def place_of(result: TrialResult) -> str:
    rate = "" if result.trial.cell.rate is None else "/s"
    return f"{level_of(result)}{rate} by {result.trial.cell.tool}, trial {result.trial.number}"
