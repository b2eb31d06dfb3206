"""Every sentence the lab prints about a run, by the code of what was found. Nothing else has any.

A sentence is a template. `{name}` is one of the finding's values; after a colon stands how it is
said:

    {wait:duration}        0.25 -> "250 ms"
    {rps:number}           3.984 -> "3.98"
    {n:# connection}       8 -> "8 connections", 1 -> "1 connection"
    {share:percent}        0.25 -> "25 %"
    {size:bytes}           1536 -> "1.50 KB"
    {size:missing}         None -> "missing", anything else -> ""
    {names:list}           ["a", "b"] -> "a and b"; findings in it are said first
    {reasons:; }           joined by what stands after the colon, any of ", " "; " " "
    {inner}                a finding is said by its own template

What stands in [[double brackets]] is left out where one of its values is missing or empty. A
sentence that no template can say is a function of the values.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.model import Answer, Column, Finding, Text
from harness.numbers.units import format_bytes, format_duration, three_digits

Sentence = str | Callable[[Mapping[str, Any]], str]

JOINS = (", ", "; ", " ", " and ", " or ", "\n")
OPTIONAL = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)


def amount(value: float) -> str:
    """A rate or a count in three digits: '4', '3.98', '12.5', '1250', '61,200'."""
    if abs(value) >= 10_000:
        return f"{float(f'{value:.3g}'):,.0f}"
    text = three_digits(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def listed(names: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def counted(count: float, noun: str) -> str:
    """'1 connection', '8 connections'; the plural may be given: 'process/processes'."""
    one, _, many = noun.partition("/")
    return f"{count:,} {one if count == 1 else many or one + 's'}"


class _Formatter(string.Formatter):
    """str.format with the units of this lab."""

    def format_field(self, value: Any, spec: str) -> str:
        if isinstance(value, Finding):
            value = text(value)
        if spec == "duration":
            return format_duration(value)
        if spec == "number":
            return amount(value)
        if spec == "percent":
            return f"{100 * value:.0f} %"
        if spec == "bytes":
            return format_bytes(value)
        if spec == "missing":
            return "missing" if value is None else ""
        if spec.startswith("# "):
            return counted(value, spec[2:])
        if spec == "list":
            return listed([text(one) for one in value])
        if spec in JOINS:
            return spec.join(text(one) for one in value)
        return str(super().format_field(value, spec))


_FORMATTER = _Formatter()


def _names(template: str) -> list[str]:
    return [name for _, name, _, _ in _FORMATTER.parse(template) if name]


def _filled(template: str, values: Mapping[str, Any]) -> str:
    def kept(match: re.Match[str]) -> str:
        known = (values.get(name) for name in _names(match[1]))
        missing = any(one is None or one == "" or one == () or one == [] for one in known)
        return "" if missing else match[1]

    return _FORMATTER.vformat(OPTIONAL.sub(kept, template), (), values)


def text(said: Text) -> str:
    """The sentence of a finding. KeyError for a code that has none."""
    if isinstance(said, str):
        return said
    sentence = SENTENCES[said.code]
    return _filled(sentence, said.values) if isinstance(sentence, str) else sentence(said.values)


def say(code: str, **values: Any) -> str:
    """The sentence of a code that nobody hands on."""
    return text(Finding(code, values))


def question_of(finding: Answer | Finding) -> str:
    """The question it answers, "" where nobody asked."""
    if isinstance(finding, Answer):
        return text(finding.question)
    return text(Finding(finding.question, finding.values)) if finding.question else ""


def answer_of(finding: Answer | Finding) -> str:
    return text(finding.answer if isinstance(finding, Answer) else finding)


def heading(column: Column) -> str:
    """The words above a column: by its name."""
    return column.title or HEADINGS.get(column.name, column.name.replace("_", " "))


SENTENCES: dict[str, Sentence] = {}
HEADINGS: dict[str, str] = {}  # of columns, by their names

# advice: how a worker class gets more slots; the codes stand in its row, `server/worker_classes.py`
SENTENCES |= {
    "advice.more_workers": "More workers serve more at once.",
    "advice.workers_threads_or_async": (
        "More workers, threads (gthread) or an asynchronous class serve more at once."
    ),
    "advice.threads_or_async": (
        "More threads or workers, or an asynchronous class, serve more at once."
    ),
    "advice.worker_connections": (
        "A higher --worker-connections or more workers serve more at once."
    ),
    "advice.tornado": (
        "A WSGI app blocks tornado's loop: more workers, or threads (gthread), serve more at once."
    ),
}

# --- the page: what stands around the findings ----------------------------------------------

SENTENCES |= {
    "page.title": "workerlab: {run}",
    "page.run": "workerlab, run {run}",
    "page.heading.findings": "Findings",
    "page.heading.charts": "Charts",
    "page.heading.throughput": "Throughput against concurrency",
    "page.heading.breakdown": "Where the time went",
    "page.heading.keepalive": "What kept-alive connections allow",
    "page.heading.loops": "Closed loop and open model",
    "page.heading.cells": "Request by request",
    "page.heading.invalid": "Invalid cells: their numbers are withheld",
    "page.heading.notes": "Notes",
    "page.heading.environment": "Environment",
    "page.measured_on": "What it was measured on",
    "page.evidence": "Evidence",
    "page.fact": "fact",
    "page.value": "value",
    "page.words": "In words",
    "page.words_and_numbers": "In words and numbers",
    "page.table.cells": "All cells",
    "page.table.cells_at_rate": "All cells at a rate",
    "page.table.blank": "Missing in all rows: {columns}.",
    "page.chart_failed": "This chart could not be drawn; its description and numbers are below.",
    "page.no_scripts": "The charts need scripts; everything else, numbers included, is above.",
    "page.cell": "{load}: {verdict}[[, {rate_rps:number} requests/s]]",
    "page.cell.where": "{name} at {load}",
    "page.missing": "Missing: {names:list}.",
    "page.observation.queue": "the accept queue",
    "page.observation.states": "TCP states",
    "page.observation.usage": "CPU and memory",
    "page.cells_left_out": (
        "To keep this page small, {count:# cell is/cells are} not shown over time"
        "[[: {names:list}]]. As pictures: --png DIR."
    ),
    # --- its first line
    "page.headline.nothing": "No cell of this run is valid, so it answers nothing: see below why.",
    "page.headline": (
        "With {connections:# connection}, {best} answers {best_rate}[[; {worst} {worst_rate}]]."
    ),
    "page.headline.both": (
        "With {connections:# connection}, both answer about {rate}: {names:, }."
    ),
    "page.headline.all": "With {connections:# connection}, all answer about {rate}: {names:, }.",
    "page.headline.rate": (
        "{rate_rps:number} requests/s[[, each in {response_s:duration}]]"
        "[[, {wait_s:duration} of it waiting {where}]]"
    ),
    "page.headline.connect": "until connected",
    "page.headline.accept_queue": "in the accept queue",
    "page.headline.in_worker": "inside a worker",
}

# --- parts of a response time ---------------------------------------------------------------

SENTENCES |= {
    "part.connect": "connect",
    "part.accept_queue": "accept queue",
    "part.in_worker": "in the worker",
    "part.service": "in the app",
    "part.pool": "pool",
    "part.storage": "storage",
    "part.redis": "Redis",
    "part.serialise": "serialise",
    "part.template": "template",
    "part.other": "other code",
    "part.transfer": "transfer",
    "part.unattributed": "unattributed",
}

# --- charts: axes, legends, and what a pointer shows ------------------------------------------

SENTENCES |= {
    "chart.class": "class",
    "chart.series": "series",
    "chart.line": "line",
    "chart.place": "name",
    "chart.trial": "trial",
    "chart.verdict": "verdict",
    "chart.worker": "worker",
    "chart.load": "load",
    "chart.state": "state",
    "chart.connections": "connections",
    "chart.connections_busy": "connections kept busy",
    "chart.rate": "requests/s",
    "chart.bound": "bound",
    "chart.split_prediction": "prediction by worker",
    "chart.measured": "measured",
    "chart.knee": "knee: waiting begins",
    "chart.knee_connections": "knee, connections",
    "chart.response": "response",
    "chart.median": "median",
    "chart.p95": "95 %",
    "chart.median_in": "median, {unit}",
    "chart.p95_in": "95 %, {unit}",
    "chart.response_in": "response time, {unit}",
    "chart.mean_response": "mean response time, {unit}",
    "chart.in_app_in": "in the app, {unit}",
    "chart.since_load_began": "{unit} since the load began",
    "chart.waiting": "waiting",
    "chart.steady": "steady part",
    "chart.accept_queue": "accept queue",
    "chart.limit": "limit",
    "chart.sockets": "sockets",
    "chart.syn_step": "the kernel repeats a dropped SYN",
    "chart.server": "server",
    "chart.load_tool": "load tool",
    "chart.host": "host",
    "chart.cores": "cores",
    "chart.host_busy": "% busy",
    "chart.megabytes": "MB",
    "chart.phase.ramp-up": "ramp-up",
    "chart.phase.drain": "drain",
    "chart.phase.steady": "steady",
    "chart.phase.churn": "churn",
    "chart.loops.closed": "closed: median to 95 %",
    "chart.loops.open": "open: median to 95 %",
    "chart.phases.solid": "median, or ESTABLISHED at the client",
    "chart.phases.dashed": "95 %, or closing at either end",
}

# --- charts: titles, captions, and what they show in words ------------------------------------

SENTENCES |= {
    "chart.axes": "{y} by {x}.",
    "chart.point": "{y:number} at {x}",
    "chart.points": "{name}: {points:, }.",
    "chart.left_out": "Not shown, as they are 0 or missing: {points}.",
    "chart.throughput": "Throughput against concurrency",
    "chart.throughput.caption": (
        "Requests per second in the steady part. Dashed: what connections and slots allow at best."
        "[[ That continues above the chart, up to {highest_bound_rps:number}.]]"
    ),
    "chart.throughput.knees": "Dotted: the knee, from where more connections only wait.",
    "chart.throughput.by_connections": "Throughput by connections.",
    "chart.throughput.growth": (
        "{name}: {rate_rps:number} requests/s at {connections:# connection}"
        "[[, {last_rps:number} at {last_connections}]][[, knee at {knee:number}]]."
    ),
    "chart.breakdown": "{name}: where the time went",
    "chart.breakdown.exact": "Mean of the steady part. Every request was followed by its id.",
    "chart.breakdown.estimated": (
        "Mean of the steady part. Each part is an estimate from a source of its own."
    ),
    "chart.breakdown.short": "Too short to be seen, at most {longest_s:duration}: {parts:list}.",
    "chart.breakdown.missing": "No source: {parts:list}.",
    "chart.breakdown.mean": "Mean response time of {name} by where it was spent.",
    "chart.breakdown.spent": ("At {connections:# connection} {response_s:duration}: {parts:, }."),
    "chart.breakdown.part": "{part} {time_s:duration}",
    "chart.keepalive": "{name}: what kept-alive connections allow",
    "chart.keepalive.caption": (
        "A kept-alive connection stays with its worker. Bound: every slot could serve any of them."
        " Prediction by worker: each worker serves only its own."
    ),
    "chart.loops": "Closed loop and open model, {name}",
    "chart.loops.caption": (
        "From the median to 95 % of the response times, against requests per second. Closed: each"
        " client waits for its answer before it asks again, so a slow server slows its own load."
        " Open: requests arrive evenly spaced, whether others were answered or not, and are timed"
        " from the moment each was due."
    ),
    "chart.loops.response_times": "Response times of {name}.",
    "chart.loops.cell": (
        "{load}: {rate_rps:number} requests/s, half within {median_s:duration},"
        " 95 % within {p95_s:duration}."
    ),
    "chart.timeline": "{where}, request by request",
    "chart.timeline.worker": "worker {number}",
    "chart.timeline.caption": (
        "Each thick bar is a request inside the app, on a row of the worker that served it."
    ),
    "chart.timeline.waits_below": (
        "Each thin bar below is one of them before that, from its client's start until the app was"
        " called."
    ),
    "chart.timeline.waits_under_worker": (
        "Each thin bar under a worker is one of them before that, from its client's start until the"
        " app was called."
    ),
    "chart.timeline.queue_below": (
        "Below, on the same time axis: connections waiting in the accept queue."
    ),
    "chart.timeline.unknown": (
        "When the requests arrived is not known, nor how long the accept queue was."
    ),
    "chart.timeline.entered_in": "entered the app, {unit}",
    "chart.timeline.waited_before_in": "waited before, {unit}",
    "chart.timeline.waited_in": "waited, {unit}",
    "chart.timeline.arrived": "arrived",
    "chart.timeline.requests": (
        "{requests:# request} on {workers:# worker}, {service_s:duration} in the app each (median)"
        "[[; before that they waited {wait_s:duration} (median)]]"
        "[[, at most {longest_wait_s:duration}]]"
        "[[; the accept queue held at most {longest_queue}]]."
    ),
    "chart.timeline.at_once": (
        "At most {slots} were served at once[[, {rate_rps:number} per second]]."
    ),
    "chart.queue": "Accept queue, {where}",
    "chart.queue.heading": "Accept queue",
    "chart.queue.caption": (
        "Connections that no worker has accepted yet."
        "[[ The limit is {limit}; the kernel lets one more in.]]"
    ),
    "chart.queue.most": (
        "Accept queue of {where}: at most {longest:# connection}."
        "[[ The limit is {limit}; the kernel lets one more in.]]"
    ),
    "chart.states": "TCP states, {where}",
    "chart.states.heading": "TCP states",
    "chart.states.caption": (
        "Sockets by end and state, all rows on one scale; the number is the highest of the row."
    ),
    "chart.states.most": "Most sockets in each TCP state, {where}: {counts:, }.",
    "chart.connects": "Time to connect, {where}",
    "chart.connects.heading": "Time to connect",
    "chart.connects.time": "time to connect, s",
    "chart.connects.between": "{since} to {until} s",
    "chart.connects.from": "from, s",
    "chart.connects.until": "until, s",
    "chart.connects.caption": "All connections of the load by how long connecting took.",
    "chart.connects.steps": (
        "Dashed: when this kernel repeats a SYN that was not answered. A connection at one of these"
        " lines was turned away by a full accept queue and tried again."
    ),
    "chart.connects.late": (
        "Time to connect, {where}: {prompt} in less than {late_after_s} s, {late} later."
    ),
    "chart.cpu": "CPU, {where}",
    "chart.cpu.heading": "CPU",
    "chart.cpu.caption": (
        "CPU seconds per second, of the server with its workers and of the load tool; below it, how"
        " busy all cores of the machine were."
    ),
    "chart.cpu.most": (
        "CPU of {where}, at most: server [[{server:.2f} cores]]{server:missing}; load tool"
        " [[{load_tool:.2f} cores]]{load_tool:missing}; host [[{host:percent} busy]]{host:missing}."
    ),
    "chart.memory": "Memory, {where}",
    "chart.memory.heading": "Memory",
    "chart.memory.caption": (
        "Resident memory of the server with its workers and of the load tool (1 MB = 1024² bytes);"
        " pages that processes share count in each of them."
    ),
    "chart.memory.most": (
        "Memory of {where}, at most: server [[{server:bytes}]]{server:missing}; load tool"
        " [[{load_tool:bytes}]]{load_tool:missing}."
    ),
    "chart.phases": "Phases, {where}",
    "chart.phases.heading": "Phases",
    "chart.phases.of": "Phases of {where}.",
    "chart.phases.in_app": "Times inside the app, as requests left it",
    "chart.phases.responses": "Response times",
    "chart.phases.caption": "{times}, and the load's sockets below. They define the phases.",
}
