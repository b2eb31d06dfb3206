"""What each trial's load tool is held against: its group, other tools, and its ceilings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis.load_tool import Judgement, Suspect, ceilings, judge
from harness.analysis.series import Group


def judgements(
    groups: Sequence[Group], environment: Mapping[str, object]
) -> Mapping[str, Judgement]:
    """Of every believed trial, by its key. `environment`: of the run, which keeps the ceilings."""
    known = ceilings(environment)
    found = {}
    for group in groups:
        levels = group.levels(group.valid)
        for facts in group.valid:
            suspect = Suspect(
                facts, group.lone_s or 0.0, levels, _others(group, groups, facts.concurrency), known
            )
            found[facts.evidence.trial.key] = judge(suspect)
    return found


def _others(group: Group, groups: Sequence[Group], level: int) -> Mapping[str, float]:
    """Requests/s of other tools, or of more or fewer processes, at that level."""
    found = {}
    for other in groups:
        same = (other.server, other.keepalive) == (group.server, group.keepalive)
        rps = other.levels(other.valid).get(level)
        if other is not group and same and rps:
            several = f" with {other.processes} processes" if other.processes > 1 else ""
            found[f"{other.tool}{several}"] = rps
    return found
