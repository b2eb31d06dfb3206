"""All scenarios of the corpus, by name."""

from __future__ import annotations

from tests.diagnosis.scenarios_of_causes import (
    cpu_bound,
    faults,
    identical_servers,
    load_tools,
    open_loads,
    random_sleeps,
    shared_resources,
)
from tests.diagnosis.scenarios_of_slots import (
    accept_queues,
    async_apps,
    blocked_loops,
    distributed_connections,
    load_levels,
)

GROUPS = (
    load_levels, async_apps, accept_queues, distributed_connections, blocked_loops, cpu_bound,
    shared_resources, faults, random_sleeps, load_tools, open_loads, identical_servers,
)  # fmt: skip
SCENARIOS = {scenario.name: scenario for group in GROUPS for scenario in group()}
