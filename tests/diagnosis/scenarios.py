"""All scenarios of the corpus, by name. What they are made of stands in `truth`."""

from __future__ import annotations

from tests.diagnosis.of_causes import (
    chance,
    computing,
    load_tools,
    open_loads,
    same,
    sharing,
    troubles,
)
from tests.diagnosis.of_slots import awaiting, dealing, levels, loops, overflow

GROUPS = (levels, awaiting, overflow, dealing, loops, computing, sharing, troubles, chance,
          load_tools, open_loads, same)  # fmt: skip
SCENARIOS = {scenario.name: scenario for group in GROUPS for scenario in group()}
