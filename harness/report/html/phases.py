"""The phases of a load on kept connections: response times and sockets over time."""

from __future__ import annotations

from typing import Any

import altair as alt

from harness.model import Timeline
from harness.report.html.colours import var
from harness.report.html.figures import Figure, Key, count_axis, data, unit, y_axis
from harness.report.html.series import corners, time_axis, whole
from harness.report.phases import said, tells

COLOURS = {"ramp-up": "accept-queue", "drain": "transfer", "steady": "service", "churn": "connect"}
OPEN, CLOSING = "client ESTABLISHED", ("_WAIT", "FIN_WAIT1", "FIN_WAIT2", "LAST_ACK", "CLOSING")
FAINT = 0.16


def phases(view: Timeline, name: str, where: str) -> Figure | None:
    """None where none were found, or nothing but a steady load."""
    if not tells(view) or not view.responses:
        return None
    words = " ".join(map(said, view.phases))
    ended = "Times inside the app, as requests left it" if view.in_app else "Response times"
    met = dict.fromkeys(phase.name for phase in view.phases)
    return Figure(
        name=name,
        title=f"Phases, {where}",
        heading="Phases",
        caption=f"{ended}, and the load's sockets below. The phases are found in these. {words}",
        alternative=f"Phases of {where}. {words}",
        panes=(_responses(view), _sockets(view)),
        legend=(
            *(Key(one, COLOURS[one], "box") for one in met),
            Key("median, or ESTABLISHED at the client", "ink", "solid"),
            Key("95 %, or closing at either end", "ink", "dashed"),
        ),
    )


def _shown(view: Timeline) -> tuple[float, float]:
    return 0.0, max(whole(view)[1], *(phase.end_s for phase in view.phases))


def _bands(view: Timeline, factor: float, across: Any, mark: str) -> Any:
    rows = [(one.name, one.start_s * factor, one.end_s * factor) for one in view.phases]
    names = list(COLOURS)
    colours = alt.Scale(domain=names, range=[var(COLOURS[one]) for one in names])
    return (
        alt.Chart(data(("phase", "from", "to"), rows, words=("phase",)), name=mark)
        .mark_rect(opacity=FAINT)
        .encode(x=across, x2="to:Q", color=alt.Color("phase:N", scale=colours, legend=None))
    )


def _lines(view: Timeline, rows: list[tuple[str, float, float]], down: Any, mark: str) -> Any:
    name, factor = unit(_shown(view)[1])
    title = None if mark == "responses" else f"{name} since the load began"
    across = time_axis("from:Q", _shown(view), factor, title)
    dashes = alt.Scale(domain=["first", "second"], range=[[1, 0], [6, 4]])
    tips = [
        alt.Tooltip("from:Q", title=name, format=".4~g"),
        alt.Tooltip("value:Q", title=mark, format=".4~g"),
    ]
    lines = (
        alt.Chart(data(("line", "from", "value"), rows, words=("line",)), name=mark)
        .mark_line(color=var("ink"), strokeWidth=1.5, clip=True)
        .encode(
            x=across,
            y=down,
            strokeDash=alt.StrokeDash("line:N", scale=dashes, legend=None),
            tooltip=tips,
        )
    )
    bands = _bands(view, factor, across, f"phases-of-{mark}")
    return alt.layer(bands, lines).properties(height=150)


def _responses(view: Timeline) -> Any:
    _, across = unit(_shown(view)[1])
    name, factor = unit(max(high for _, _, high in view.responses))
    rows = [("first", at * across, half * factor) for at, half, _ in view.responses]
    rows += [("second", at * across, high * factor) for at, _, high in view.responses]
    title = f"{'inside the app' if view.in_app else 'response'}, {name}"
    down = alt.Y("value:Q", title=title, axis=y_axis(), scale=alt.Scale(domainMin=0))
    return _lines(view, rows, down, "responses")


def _sockets(view: Timeline) -> Any:
    _, factor = unit(_shown(view)[1])
    opened, closing = dict[float, int](), dict[float, int]()
    for at, state, count in view.states:
        opened[at] = opened.get(at, 0) + (count if state == OPEN else 0)
        closing[at] = closing.get(at, 0) + (count if state.endswith(CLOSING) else 0)
    most = max([1, *opened.values(), *closing.values()])
    rows = [("first", at * factor, float(count)) for at, count in corners(list(opened.items()))]
    rows += [("second", at * factor, float(count)) for at, count in corners(list(closing.items()))]
    down = alt.Y("value:Q", title="sockets", axis=count_axis(most))
    return _lines(view, rows, down, "sockets")
