"""The phases of a load on kept connections: response times and sockets over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from harness.model import Finding, Timeline
from harness.report.document import changing, phase_finding
from harness.report.html.colours import var
from harness.report.html.figures import Figure, by_name, count_axis, data, key, unit, y_axis
from harness.report.html.over_time import Lines, Stretch, lines, time_axis, whole
from harness.report.messages import say

COLOURS = {"ramp-up": "accept-queue", "drain": "transfer", "steady": "service", "churn": "connect"}
OPEN, CLOSING = "client ESTABLISHED", ("_WAIT", "FIN_WAIT1", "FIN_WAIT2", "LAST_ACK", "CLOSING")
FAINT = 0.16


def phases(seen: Timeline, name: str, where: Finding) -> Figure | None:
    """None where none were found, or nothing but a steady load."""
    if not changing(seen.phases) or not seen.responses:
        return None
    why = tuple(map(phase_finding, seen.phases))
    times = "chart.phases.in_app" if seen.in_app else "chart.phases.responses"
    names = dict.fromkeys(phase.name for phase in seen.phases)
    return Figure(
        name=name,
        title=Finding("chart.phases", {"where": where}),
        heading=Finding("chart.phases.heading"),
        caption=(Finding("chart.phases.caption", {"times": Finding(times)}), *why),
        alternative=(Finding("chart.phases.of", {"where": where}), *why),
        panes=(_responses(seen), _sockets(seen)),
        legend=(
            *(key(f"phase.{one}", COLOURS[one]) for one in names),
            key("phases.solid", "ink", "solid"),
            key("phases.dashed", "ink", "dashed"),
        ),
    )


def _stretch(seen: Timeline) -> Stretch:
    ends = (*(phase.end_s for phase in seen.phases), *(at for at, _, _ in seen.responses[-1:]))
    return 0.0, max(whole(seen)[1], *ends)


def _pane(
    seen: Timeline,
    solid: Sequence[tuple[float, float]],
    dashed: Sequence[tuple[float, float]],
    down: Mapping[str, Any],
    mark: str,
) -> Any:
    every: Lines = {
        say("chart.phases.solid"): ("solid", solid),
        say("chart.phases.dashed"): ("dashed", dashed),
    }
    stretch, lowest = _stretch(seen), mark == "sockets"
    factor = unit(stretch[1])[1]
    rows = [(one.name, one.start_s * factor, one.end_s * factor) for one in seen.phases]
    source = data(("phase", "from", "to"), rows, words=("phase",))
    bands = alt.Chart(source, name=f"phases-of-{mark}").mark_rect(opacity=FAINT)
    colours = {name: var(colour) for name, colour in COLOURS.items()}
    across = time_axis("from:Q", stretch, titled=lowest)
    return alt.layer(
        bands.encode(x=across, x2="to:Q", color=by_name(alt.Color, "phase", colours)),
        lines(every, stretch, down, mark, titled=lowest),
    ).properties(height=150)


def _responses(seen: Timeline) -> Any:
    name, factor = unit(max(high for _, _, high in seen.responses))
    title = say("chart.in_app_in" if seen.in_app else "chart.response_in", unit=name)
    down = {"title": title, "axis": y_axis(), "scale": alt.Scale(domainMin=0)}
    median = [(at, half * factor) for at, half, _ in seen.responses]
    p95 = [(at, high * factor) for at, _, high in seen.responses]
    return _pane(seen, median, p95, down, "responses")


def _sockets(seen: Timeline) -> Any:
    established, closing = dict[float, int](), dict[float, int]()
    for at, state, count in seen.states:
        established[at] = established.get(at, 0) + (count if state == OPEN else 0)
        closing[at] = closing.get(at, 0) + (count if state.endswith(CLOSING) else 0)
    most = max([1, *established.values(), *closing.values()])
    down = {"title": say("chart.sockets"), "axis": count_axis(most)}
    return _pane(seen, list(established.items()), list(closing.items()), down, "sockets")
