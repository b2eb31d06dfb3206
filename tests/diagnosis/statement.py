"""A statement that a report makes or should make: a verdict, a finding, a law, a contradiction
between cells. Its outcome:

    right     reported and true
    false     reported but not true
    missing   true but not reported
    excused   true but not reported, in a cell that is rightly inconclusive
    allowed   reported; may be true or not
"""

from __future__ import annotations

from msgspec import Struct

from workerlab.model.result import TrialResult

FALSE, MISSING, RIGHT, EXCUSED, ALLOWED = "false", "missing", "right", "excused", "allowed"


class Statement(Struct, frozen=True):
    scenario: str
    where: str  # the level or rate, tool and trial; or the series
    noisy: bool
    kind: str  # verdict, finding, premise, law, contradiction, comparison, exit
    code: str
    outcome: str
    sentence: str = ""

    @property
    def wrong(self) -> bool:
        return self.outcome in (FALSE, MISSING)


def level_of(result: TrialResult) -> str:
    """The key of the cell in a Scenario."""
    rate = result.trial.cell.rate
    return str(result.trial.cell.concurrency) if rate is None else rate.label


def name_of(result: TrialResult) -> str:
    rate = "" if result.trial.cell.rate is None else "/s"
    return f"{level_of(result)}{rate} by {result.trial.cell.tool}, trial {result.trial.number}"
