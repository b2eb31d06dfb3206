"""Every sentence the lab prints about what a run showed, by the code of what was found. Nothing
else has any; but what ends a command or a trial is an error, and said where it is raised.

A sentence is a template, as `workerlab.numbers.formats` describes it; a finding among its values is
said by its own template. {+code} is another template, which stands above.

TEXTS holds them as `code = template`, or `code, code = template`. A template may go on in indented
lines, joined by a blank, but by nothing before [[. `heading.COLUMN` stands above a column of that
name, `meaning.COLUMN` tells below the table what it holds; `heading.TABLE:COLUMN` is for one table,
or for all whose titles begin so.
"""

import re
from collections.abc import Mapping
from typing import Any

from workerlab import finding, model
from workerlab.model import Column, Finding, Label
from workerlab.numbers.formats import Formatter


class _Formatter(Formatter):
    """Says the findings among the values."""

    def format_field(self, value: Any, spec: str) -> str:
        if isinstance(value, Finding):
            value = text(value)
        elif isinstance(value, list | tuple):
            value = [text(item) if isinstance(item, Finding) else item for item in value]
        return super().format_field(value, spec)


_FORMATTER = _Formatter()


def text(label: Label | None) -> str:
    """The sentence of a finding (KeyError for an unknown code), a name as it is, "" for none."""
    if not isinstance(label, Finding):
        return str(label or "")
    return _FORMATTER.fill(TEMPLATES[label.code], label.values)


model.SENTENCE_OF = text


def short(note: finding.Finding) -> finding.Finding:
    """The same in a few words, where it has some (`CODE.short`)."""
    code = f"{note.code}.short"
    return Finding(code, note.values) if code in TEMPLATES else note


def say(code: str, **values: Any) -> str:
    """The sentence of a code that nobody hands on."""
    return text(Finding(code, values))


def question_of(answer: finding.Finding) -> str:
    """The question it answers, "" where nobody asked."""
    if not isinstance(answer, Finding) or not answer.question:
        return answer.question
    return text(Finding(answer.question, answer.values))


def heading(column: Column, table: str = "") -> str:
    """The words above a column; where TEXTS has none, its name without its unit, which stands
    below, or beside each value."""
    name = column.name.removesuffix("_bytes").replace("_rps", " req/s")
    name = name.removesuffix("_s") if column.form == "seconds" else name
    return column.heading or _of_column("heading", column, table) or name.replace("_", " ")


def meaning(column: Column, table: str = "") -> str:
    """What a column holds, where its heading does not tell; "" where it does."""
    return column.meaning or _of_column("meaning", column, table)


def _of_column(kind: str, column: Column, table: str) -> str:
    """Under "KIND.table.cells:name", "KIND.table:name" or "KIND.name"."""
    places = (f"{table}:", f"{table.partition('.')[0]}:", "")
    codes = (f"{kind}.{place}{column.name}" for place in places)
    return next((TEMPLATES[code] for code in codes if code in TEMPLATES), "")


def counts_text(counts: Mapping[str, int]) -> str:
    """ "no_files 8982, reset 1"."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _read(texts: str) -> dict[str, str]:
    """The templates by their codes."""
    found: dict[str, str] = {}
    for line in texts.replace("\n    [[", "[[").replace("\n    ", " ").splitlines():
        if line and not line.startswith("# "):
            codes, _, template = line.partition(" = ")
            template = re.sub(r"\{\+([\w.]+)\}", lambda match: found[match[1]], template)
            found.update(dict.fromkeys(codes.split(", "), template))
    return found


TEXTS = """
# --- what stands around the findings, in a terminal and in Markdown ---------------------------
text.notes = Notes:
text.explain = With --explain: {parts:list}.
text.explain.notes = {notes:# note}
text.explain.evidence = evidence
text.explain.columns = what the columns mean
text.missing = -: missing.
text.blank = Missing in all rows: {columns:, }.
text.hidden = Columns hidden (terminal too narrow): {columns:, }.

title.project = {title} ({names:, } from pyproject.toml)

# --- a sweep: its title, what cells are called --------------------------------------------------
sweep.title = {settings:, }; {apps:list}[[, which sleeps {sleep_s:duration}]]
    [[, served by {served}]].
served = {python}[[ with Gunicorn {gunicorn}]]
sweep.app = app {app}[[ ({classes:, })]]
sweep.empty = No trial has been finished.
setting.workers = {n:# worker}[[ ({not_taken:; })]]
setting.threads = {n:# thread}[[ ({not_taken:; })]]
setting.threads_each = {n:# thread} each in {classes:list}
setting.backlog = backlog {n}[[ ({not_taken:; })]]
setting.worker_connections = {n} worker connections[[ ({not_taken:; })]]
setting.cpu_s = {n:duration} of CPU per request
setting.cores = server on {n:# core}
setting.gunicorn = Gunicorn {n}
setting.python = {n}
setting.in_force = {n} in force[[ with {classes:list}]]
setting.ignored = ignored by {classes:list}
setting.tool = {tool}[[ with {processes:# process/processes}]]
setting.load = load by {tool}[[ with {processes:# process/processes}]]
setting.keepalive, heading.keepalive = keep-alive
setting.kept_alive = connections kept alive
setting.trials = {n:# trial/trials each}
series.name = {worker_class}[[ ({apart:, })]]
level.trials = {level} ({noun:trial/trials} {numbers:list})
cells.all = every cell
cells.some = {series:, }
cells.series = {series} at {levels:list}
cells.invalid = Invalid: {cells}: {text}.
cells.inconclusive = Inconclusive: {cells}. {text:sentence}[[ (These figures are of {one}.)]]
cells.disturbed = Disturbed: {cells}. {text}[[ (These figures are of {one}.)]]
cells.note = {cells}: {text}
cells.routes = {cells}: {failed} of {requests:# request} to {route} failed
    [[, with status {statuses:list}]][[ ({causes:counts})]][[: {answer}]]

# --- a sweep: where each class stops, and what the run cost ---------------------------------------
sweep.overhead = Overhead: the load took {factor:.3f} times the ideal (no idle slot)[[, start and
    stop {beside_s:duration} per cell]].
sweep.setup = Overhead: start and stop took {beside_s:duration} per cell.
overhead.by_class = load time, times the ideal: {classes:, }
overhead.of_class = {worker_class} {factor:.3f}
setup.stages = medians per cell: {stages:, }
setup.start = start {seconds:duration}
setup.warmup = warm-up {seconds:duration}
setup.stop = stop {seconds:duration}

ab.identities = ab with {load}: time taken x concurrency = {time_taken_s:duration} x {concurrency} =
    {busy_s:duration}, time per request x requests = {time_per_request_s:duration} x {requests} =
    {requests_s:duration}: {mean}. Time taken / requests = {each_s:duration}, time per request
    across all = {time_per_request_across_s:duration}: {across}.[[ Its connection times (total) add
    up to {share:percent} of the first product.]]
ab.holds = holds
ab.broken = does not hold


# --- a sweep: its tables --------------------------------------------------------------------------
table.cells = Cells
table.breakdown = Where the time goes, mean of {part}
part_of_load.steady = the steady part
part_of_load.whole = the whole load
part_of_load.mixed = the steady part (where the load stalled, of the whole load)
table.keepalive = Kept-alive connections stay with the worker that accepted them
table.open = Closed and open: the same server under N clients, and under arrivals at a rate
table.routes = The routes of the mix
note.routes_left_out = {routes:# route} of each cell left out, those with the fewest requests and no
    more failures; the JSON has them all.
table.ab = What ab printed
table.ab_times = Connection times as ab printed them
table.classes = Where each class stops
note.lower_bound = generator-bound: the load tool was the limit, so the figures are a lower bound of
    the server.
note.closed_and_open = Closed: each client waits for its answer before it asks again, so a slow
    server slows its own load. Open: requests arrive[[ {arrivals}]], whether others were answered or
    not, and are timed from the moment each was due.[[ {one_trial}]]
breakdown.exact = Exact: every request was followed from the client into the app.
breakdown.estimated = Estimate, each part from a source of its own: {parts:, }.[[ {why}.]]
breakdown.mixed = {+breakdown.exact} {+breakdown.estimated}
breakdown.estimated.short, breakdown.mixed.short = [[Where the time goes: {why}.]]
breakdown.part = {part} ({sources: or })
value.in_force = {n} ({in_force} in force)
value.ignored = {n} (ignored)
value.unlimited = unlimited
value.unknown = not known
value.closed = closed, {connections} conn.
value.open = open, {rate}
value.interval = {low:.4g} to {high:.4g}
heading.worker_class, heading.series, chart.class = class
heading.worker_connections = w. conn.
heading.table:cpu_s = CPU s
heading.knee_per_worker_predicted = predicted per worker
meaning.knee_per_worker_predicted, meaning.knee_predicted = what sleep, CPU per request, slots and
    cores allow; Gunicorn's own CPU is not in it
heading.tool_processes, heading.processes = proc.
heading.concurrency, heading.connections = conn.
heading.slots_configured = slots set
heading.slots_measured = slots used
heading.occupancy = slots busy
heading.throughput_rps = req/s
heading.throughput_half_rps = ± req/s
heading.response_p50_s = p50
heading.response_p95_s = p95
heading.response_p99_s = p99
heading.response_max_s = max
heading.table:response_mean_s = response
heading.table:unattributed_s = rest
heading.time_per_request_s = per request
heading.time_per_request_across_s = across all
heading.total_transferred_bytes = total
heading.html_transferred_bytes = HTML
heading.transfer_rate_bytes_per_s = received/s
heading.time_of = time
meaning.time_per_request_s = "Time per request (mean)": time taken x concurrency / requests
meaning.time_per_request_across_s = "(mean, across all concurrent requests)": time taken / requests
meaning.time_of = connect: until connected; processing: from then until the server closed; waiting:
    until the first byte; in whole ms, over all requests, the lone first one included
heading.split_prediction_rps = by worker req/s
heading.lag_p95_s = lag
heading.capacity_ci95_rps = 95 % interval
meaning.tool_processes = processes of the load tool
meaning.slots_configured = requests that can be served at once by the settings
meaning.slots_measured = the most that were served at once
meaning.occupancy = the part of the slots that was taken, on average over the steady part, or the
    whole load where that stalled
meaning.throughput_half_rps = half of the 95 % interval of the throughput, as this one load knows it
meaning.target = whether the cell keeps the target (--slo), or which of its metrics do not
meaning.bound_rps = what connections or slots allow at best
heading.mean_s = mean
meaning.table.cells:mean_s = mean response time while the load is steady, by Little's law; where the
    load stalled, of the whole load
meaning.table.cells:response_p50_s = response time
meaning.table.cells:response_p95_s = response time
meaning.table.cells:response_max_s = response time
meaning.table.breakdown:connect_s = until the client was connected
meaning.table.breakdown:accept_queue_s = until a worker accepted the connection
meaning.table.breakdown:in_worker_s = accepted, not yet in the app
meaning.table.breakdown:service_s = in the app
meaning.table.breakdown:transfer_s = until the client had the last byte
meaning.table.breakdown:unattributed_s = what the parts leave unexplained, never spread over them
meaning.table.breakdown:exact = whether every request was followed
meaning.split_prediction_rps = what the connections per worker allow: each works on no more than it
    has slots
meaning.table.routes:requests = complete answers
meaning.table.routes:response_p50_s = response time of successes
meaning.table.routes:response_p95_s = response time of successes
meaning.table.routes:response_max_s = response time of successes
meaning.table.open:sent_rps = of what was due; of Poisson arrivals chance decides how many are
meaning.table.open:response_p50_s = response time, open: since the request was due
meaning.table.open:response_p95_s = response time, open: since the request was due
meaning.table.open:response_p99_s = response time, open: since the request was due
meaning.table.open:response_max_s = response time, open: since the request was due
meaning.table.open:lag_p95_s = how late requests were sent, 95th percentile

# --- the page: what stands around the findings ----------------------------------------------
page.title = workerlab: {run}
page.run = workerlab, run {run}
page.heading.findings = Findings
page.heading.charts = Charts
page.heading.throughput, chart.throughput = Throughput against concurrency
page.heading.breakdown = Where the time went
page.heading.keepalive = What kept-alive connections allow
page.heading.loops = Closed loop and open model
page.heading.cells = Request by request
page.heading.invalid = Invalid cells: their numbers are withheld
page.heading.notes = Notes
page.heading.environment = Environment
page.measured_on = What it was measured on
page.evidence = Evidence
page.words = In words
page.words_and_numbers = In words and numbers
page.chart_failed = This chart could not be drawn; its description and numbers are below.
page.no_scripts = The charts need scripts; everything else, numbers included, is above.
page.cell = {load}: {verdict}[[, {rate_rps:number} requests/s]]
page.play = Play it: where each request was
page.play.named = As its client, the probe and the kernel saw it. A hollow dot was accepted by a
    worker as far as the length of the queue tells.
page.play.in_app = The load tool did not name its requests: only what was in the app is known one by
    one, and what waits as a number.
page.play.part = These are the first {length_s:duration} of the load.
page.cell.where = {name} at {load}
page.filter = rows with
page.missing = Missing: {names:list}.
page.more = More of this cell: {names:, }
page.observation.queue = the accept queue
page.observation.usage, sampler.processes = CPU and memory
page.cells_left_out = To keep this page small, {count:# cell is/cells are} not shown over time
    [[: {names:list}]]. As pictures: --png DIR.

# --- its first line
page.headline.inconclusive = Every cell of this run is inconclusive; the reasons are below.
page.headline.nothing = No cell of this run is valid, so it answers nothing; the reasons are below.
page.headline = With {connections:# connection}, {best} answers {best_rate}[[; {worst}
    {worst_rate}]][[ ({one:# trial} each)]].
page.headline.tie = With {connections:# connection}, {names:list} tie at about {best_rate}
    [[; {worst} {worst_rate}]][[ ({one:# trial} each)]].
page.headline.chance = With {connections:# connection}, {names:list} answer {least_rps:number} to
    {most_rps:number} requests/s, a difference that may be chance[[; {worst} {worst_rate}]]
    [[ ({one:# trial} each)]].
page.headline.rate = {rate_rps:number} requests/s[[, each in {response_s:duration}]]
    [[, {wait_s:duration} of it waiting {where}]]
page.headline.connect = until connected
page.headline.accept_queue = in the accept queue
page.headline.in_worker = inside a worker

# --- parts of a response time ---------------------------------------------------------------
part.connect, heading.connect_s = connect
part.accept_queue, heading.accept_queue_s, chart.accept_queue, sampler.queue = accept queue
heading.in_worker_s = in worker
part.in_worker = in the worker
heading.service_s = service
part.service = in the app
part.pool = pool
part.storage = storage
part.redis = Redis
part.serialise = serialise
part.template = template
part.other = other code
part.transfer, heading.transfer_s = transfer
part.unattributed = unattributed

# --- charts: axes, legends, and what a pointer shows ------------------------------------------
chart.series = series
chart.line = line
chart.place = name
chart.trial = trial
chart.verdict = verdict
chart.worker = worker
chart.load = load
chart.state = state
chart.connections = connections
chart.connections_busy, meaning.concurrency = connections kept busy
chart.rate = requests/s
chart.bound = bound
chart.split_prediction = prediction by worker
chart.measured = measured
chart.knee = knee: waiting begins
chart.interval = 95 % interval
chart.knee_connections = knee, connections
chart.response, heading.response_s = response
chart.median = median
chart.p95 = 95 %
chart.median_in = median, {unit}
chart.p95_in = 95 %, {unit}
chart.response_in = response time, {unit}
chart.mean_response = mean response time, {unit}
chart.in_app_in = in the app, {unit}
chart.since_load_began = {unit} since the load began
chart.waiting = waiting
chart.steady = steady part
chart.limit = limit
chart.sockets = sockets
chart.syn_step = the kernel repeats a dropped SYN
chart.server = server
chart.load_tool, heading.tool = load tool
chart.host = host
chart.cores = cores
chart.host_busy = % busy
chart.megabytes = MB
chart.phase.ramp-up = ramp-up
chart.phase.drain = drain
chart.phase.steady = steady
chart.phase.churn = churn
chart.loops.closed = closed: median to 95 %
chart.loops.open = open: median to 95 %
chart.phases.solid = median, or ESTABLISHED at the client
chart.phases.dashed = 95 %, or closing at either end

# --- charts: titles, captions, and what they show in words ------------------------------------
chart.part = {title} ({number} of {parts})
chart.own_axis = Each picture has an axis of its own.
chart.axes = {y} by {x}.
chart.range = from, to
chart.level = Line across, {name}: {y:number}.
chart.cloud = {name}: {points:# point} between {low:number} and {high:number}.
chart.named_point = {name} {y:number} at {x:number}
chart.point = {y:number} at {x}
chart.value = {name} {y:number}
chart.points = {name}: {points:, }.
chart.left_out = Not shown, as they are 0 or missing: {points}.
chart.throughput.caption = Requests per second in {part}. Dashed: what connections and slots allow
    at best.[[ That continues above the chart, up to {highest_bound_rps:number}.]]
chart.throughput.interval = Upright lines: the 95 % interval of a throughput, as one load knows it.
chart.throughput.side_by_side = Points that would hide each other stand side by side.
chart.throughput.knees = Dotted: the knee, from where more connections only wait.
chart.throughput.by_connections = Throughput by connections.
chart.throughput.growth = {name}: {rate_rps:number} requests/s at {connections:# connection}
    [[, {last_rps:number} at {last_connections}]][[, knee at {knee:number}]].
chart.breakdown = {name}: where the time went
chart.breakdown.exact = Mean of {part}. Every request was followed by its id.
chart.breakdown.estimated = Mean of {part}. Each part is an estimate from a source of its own.
chart.breakdown.short = Too short to be seen, at most {longest_s:duration}: {parts:list}.
chart.breakdown.missing = No source: {parts:list}.
chart.breakdown.mean = Mean response time of {name} by where it was spent.
chart.breakdown.spent = At {connections:# connection} {response_s:duration}: {parts:, }.
chart.breakdown.part = {part} {time_s:duration}
chart.keepalive = {name}: what kept-alive connections allow
chart.keepalive.caption = A kept-alive connection stays with its worker. Bound: every slot could
    serve any of them. Prediction by worker: each worker serves only its own.
chart.loops = Closed loop and open model, {name}
chart.loops.caption = From the median to 95 % of the response times, against requests per second.
    {+note.closed_and_open}
chart.loops.response_times = Response times of {name}.
chart.loops.cell = {load}: {rate_rps:number} requests/s, half within {median_s:duration}, 95 %
    within {p95_s:duration}.
chart.timeline = {where}, request by request
chart.timeline.caption = Each thick bar is a request inside the app, on a row of the worker that
    served it.
chart.timeline.waits_below = Each thin bar below is one of them before that, from its client's start
    until the app was called.
chart.timeline.waits_under_worker = Each thin bar under a worker is one of them before that, from
    its client's start until the app was called.
chart.timeline.queue_below = Below, on the same time axis: connections waiting in the accept queue.
chart.timeline.queue_empty = When the requests arrived is not known; meanwhile the accept queue was
    empty in every sample.
chart.timeline.unknown = When the requests arrived is not known, nor how long the accept queue was.
chart.timeline.entered_in = entered the app, {unit}
chart.timeline.waited_before_in = waited before, {unit}
chart.timeline.waited_in = waited, {unit}
chart.timeline.arrived = arrived
chart.timeline.requests = {requests:# request} on {workers:# worker}, {service_s:duration} in the
    app each (median)[[; before that they waited {wait_s:duration} (median)]][[, at most
    {longest_wait_s:duration}]][[; the accept queue held at most {longest_queue}]].
chart.timeline.at_once = At most {slots} were served at once[[, {rate_rps:number} per second]].
chart.of_cell = {what}, {where}
chart.queue = Accept queue
chart.queue.caption = Connections that no worker has accepted yet.[[ The limit is {limit}; the
    kernel lets one more in.]]
chart.queue.most = Accept queue of {where}: at most {longest:# connection}.[[ The limit is {limit};
    the kernel lets one more in.]]
chart.states, page.observation.states = TCP states
chart.states.caption = Sockets by end and state, all rows on one scale; the number is the highest of
    the row.
chart.states.most = Most sockets in each TCP state, {where}: {counts:, }.
chart.connects = Time to connect
chart.connects.time = time to connect, s
chart.connects.between = {since} to {until} s
chart.connects.from = from, s
chart.connects.until = until, s
chart.connects.caption = All connections of the load by how long connecting took.
chart.connects.steps = Dashed: when this kernel repeats a SYN that was not answered. A connection at
    one of these lines was turned away by a full accept queue and tried again.
chart.connects.late = Time to connect, {where}: {prompt} in less than {late_after_s} s, {late}
    later.
chart.cpu = CPU
chart.cpu.caption = CPU seconds per second, of the server with its workers and of the load tool;
    below it, how busy all cores of the machine were.
chart.cpu.most = CPU of {where}, at most: server [[{server:.2f} cores]]{server:missing}; load
    tool [[{load_tool:.2f} cores]]{load_tool:missing}; host [[{host:percent} busy]]{host:missing}.
chart.memory = Memory
chart.memory.caption = Resident memory of the server with its workers and of the load tool (1 MB =
    1024² bytes); pages that processes share count in each of them.
chart.memory.most = Memory of {where}, at most: server [[{server:bytes}]]{server:missing}; load
    tool [[{load_tool:bytes}]]{load_tool:missing}.
chart.phases = Phases
chart.phases.of = Phases of {where}.
chart.phases.in_app = Times inside the app, as requests left it
chart.phases.responses = Response times
chart.phases.caption = {times}, and the load's sockets below. They define the phases.

# --- the ladder ---------------------------------------------------------------------------------

# --- advise ---------------------------------------------------------------------------------------
advise.title = {rate_rps:number} requests/s arriving {arrivals}, with {slo}; app {app}
    [[, served by {served}]]; {cores:number} {cores:core/cores}[[ (launched on {here:number})]]
    [[; Gunicorn {versions:list}]].
advise.question.which = Which worker class, how many workers?
advise.question.meets = Does it meet the target?
advise.question.reach = Up to which rate?
advise.question.costs = What does it cost?
advise.question.limit = What would have to change?
advise.question.file = Where is the configuration?
advise.question.blocking = What holds up the event loop?
advise.meets = {terms: }
advise.blocking = With {connections:# connection} to {workers:# worker} of {worker_class}:
    {lines: }[[ The event loop of {others:list} shows the same
    sign, with the same app.]]
advise.blocking.unnamed = With {connections:# connection} to {workers:# worker} of {worker_class}
    something does, but no line was seen for 1 % of the time.[[ The event loop of
    {others:list} shows the same sign, with the same app.]]
advise.limits = {limit}
advise.term.unshown = {outcome}.
advise.candidate = {worker_class}, {workers:# worker}[[ of {threads:# thread}]][[ of
    {worker_connections:# connection}]]
advise.recommended = {candidate}.[[ {further}]][[ {untried}]][[ {more}]]
advise.further = {candidate} went further, up to {rps:number} requests/s, but it was not launched
    often enough at the target's rate.
advise.more = Go on with --resume {run} and a longer --budget.
advise.untried = No launch of {classes:list} fitted into the budget, so that only the forecast is
    known.
advise.unsendable = No answer: nothing was launched, since the load tool cannot send so many
    requests on this machine.
advise.nothing = No setting is known that meets the target.[[ Of those launched {candidate} comes
    nearest.]]
advise.undecidable = The target cannot be decided: it lies where response times jump.
advise.noisy = Inconclusive: other programs took the cores in {voids:# launch/launches}, so that too
    few say anything. Stop them, or try again later.
advise.unfinished = Inconclusive so far: no candidate has been shown to meet the target.[[
    {candidate} comes nearest.]] Go on with --resume {run}, and with a longer --budget if it was
    used up.
advise.no_class = No worker class could serve the app. {left_out: }
advise.value.time = {value:duration}
advise.value.errors = {value:percent}
advise.value.rps = {value:number} req/s
advise.term.met = {term}: met. {value} on average over {launches:# launch/launches}; the
    next one is predicted to stay within {bound} (97.5 %).
advise.term.broken = {term}: broken[[, {value} on average over
    {launches:# launch/launches}]][[; only {bound} can be promised of the next one (97.5 %)]].
advise.term.open = {term}: not known yet. {value} on average over {launches:# launch/launches}.
advise.term.undecidable = {term}: undecidable. {note}
advise.errors = {term}: met. {failed:count} of {requests:count} requests failed, at
    {rate_rps:number}[[ to {last_rps:number}]] requests/s.
advise.reach.between = {last}; {first}.[[ {gap}]]
advise.reach.gap = No rate between the two was tried.
advise.reach.open = {last}, and it may hold beyond[[: {discarded}]].
advise.reach.discarded = {launches:# launch/launches} at higher rates had to be discarded, since
    other programs took the cores or the machine stood still
advise.written = Measured by `workerlab advise`, run {run}:
advise.reach.none = {first:sentence}
advise.reach.last = The target[[ (but {but:list}, which is not shown)]] holds up to {rps:number}
    requests/s ({launches:# launch/launches}[[; {voids} more discarded]])
advise.reach.last.few = The target was kept at {rps:number} requests/s in
    {launches:# launch/launches}[[ ({voids} more discarded)]],
    too few to promise it
advise.reach.first = at {rps:number} requests/s {broke} of {launches:# launch/launches} broke
    it[[: {why:; }]]
advise.reach.first.few = at {rps:number} requests/s {broke} of {launches:# launch/launches} broke
    it, which does not show that it breaks there[[: {why:; }]]
advise.reach.first.close = at {rps:number} requests/s {launches:# launch/launches} kept it, but not
    by enough to promise the next one[[: {why:; }]]
advise.why.failed = {failed:count} of {requests:count} requests failed[[ ({causes:counts})]]
advise.why.value = {metric} was {value}
advise.why.pool = about {under_way:number} of the {pool:count} requests that the app can work on
    at once were under way
advise.busy = the server used {server_cores:cores}[[, the load tool
    {tool_cores:cores}]][[, other programs {others_cores:cores}]], and this machine was
    {host_busy:percent} busy[[; {occupancy:percent} of the slots were taken]]
advise.costs = At {rate_rps:number} requests/s it takes[[ about {memory_bytes:bytes} of memory and]]
    {cores:.2f} cores[[; it starts in {start_s:duration}]][[ and stops in {stop_s:duration}]].[[
    {stop}]][[ {preload}]]
advise.stop.own = A stop takes all of graceful_timeout, even with nothing under way (in
    each of {launches:# launch/launches}): as long as your file allows.
advise.stop.mended = A stop takes all of graceful_timeout, even with nothing under way (in
    each of {launches:# launch/launches}): the file sets it to {grace_s:count} s instead of
    Gunicorn's {default_s:count} s, and a request that takes longer is cut then.
advise.stop.default = A stop takes all of graceful_timeout, even with nothing under way (in
    each of {launches:# launch/launches}), which is {default_s:count} s unless it is set.
advise.overridden = Kept, but measured without: {setting} = {value} was overridden, since {why}.
advise.preload = With preload_app it would be {memory_bytes:bytes}, as far as a load of {workers}
    workers that share what they loaded shows: what requests write to is shared no longer.
advise.file = {place}. Start it: {start} -c {place}[[ with Gunicorn {gunicorn}, as it was measured]]
advise.file.missing = It could not be written.
advise.question.cautions = What else was seen?
advise.cautions = {cautions: }
advise.caution.changes = In {launches:# launch/launches} of {of}: {finding}
advise.caution.memory_grows = Memory grew in each launch, by {per_request_bytes:bytes} per request
    or
    more: at this rate about {hour_bytes:bytes} an hour. max_requests restarts workers before that
    matters.
advise.limit.alone = Requests that have the server to themselves take too long for {term}: {metric}
    is {value_s:duration}[[; too slow are {share:percent} of all, those of {routes:list}]]. No
    setting of Gunicorn changes that.
advise.limit.memory = The memory is the limit: the smallest candidate takes about
    {least_bytes:bytes}, of {limit_bytes:bytes}.
advise.limit.load_tool = The load tool {tool} is the limit, so that this says nothing of the
    server.
advise.limit.unsendable = Against a server that does nothing {tool} reaches {rps:number} requests/s
    here.[[ {cpu}]]
advise.limit.cpu.too = The server would be the limit, too: in a short load a request computes for
    {cpu_s:duration}, so that this rate would take about {needed:number} cores that are
    {busy:percent} busy, and there are {cores:number}.
advise.limit.cpu = The cores are too few: a request computes for {cpu_s:duration}, so that this
    rate takes about {needed:number} cores that are {busy:percent} busy, and there are
    {cores:number}.
advise.limit.pool = The app's own limit of {pool:count} requests at once is the limit: at this rate
    about {under_way:number} are under way.
advise.limit.slots = The slots are too few: a request holds one for {hold_s:duration}, so that
    about {under_way:number} are taken at this rate, and the largest of the candidates has {slots}.
advise.more_cores = {cores:number} cores are more than the {here:number} of this machine: the
    forecast is for those, the launches are on these
advise.needs = {worker_class}: a request waits {wait_s:duration} and computes
    {cpu_s:duration}[[, blocks the event loop for {blocked_s:duration}]][[, holds its slot for
    {gap_s:duration} beyond that]], on average over {requests:# request}[[; memory
    {shared_bytes:bytes} and {private_bytes:bytes} per worker]][[; starts in {start_s:duration}]]
advise.tried = {rps:number} requests/s: p95 {p95:list}
advise.left_out = Left out: {classes:list}: {why:sentence}
advise.left_out.unavailable = {why}
advise.left_out.removed = Gunicorn {version} removed it; to consider it all the same, name it in
    --classes
advise.left_out.limits = no settings keep to {limits:list}
advise.left_out.fault = {why}[[; {detail}]]
advise.left_out.unknown = what its requests need is not known: {why}
advise.void.late = the load tool sent {late_s:duration} late (p95), by which alone it
    breaks {terms:list}
advise.void.disturbed = other programs kept it from a core for {share:percent} of the response time
advise.void.stood_still = for up to {paused_s:duration} of {load_s:duration} the lab itself was not
    run, though it waited for no core: this machine stood still, or the lab was stopped
advise.voids = Discarded and repeated: {reasons:, }
advise.voids.disturbed = {launches:# launch/launches} that other programs kept from a core
advise.voids.stood_still = {launches:# launch/launches} in which the machine or the lab stood still
advise.voids.late = {launches:# launch/launches} in which the load tool was late
advise.voids.invalid = {launches:# invalid launch/invalid launches}
advise.status.recommended = recommended
advise.status.memory = {memory_bytes:bytes} of memory are too much
advise.status.reaches_less = meets it, breaks at a lower rate
advise.status.costs_more = meets it, costs more
advise.status.meets = meets it
advise.status.broken = breaks {term}
advise.status.undecidable = {term} undecidable
advise.status.fails_at = breaks at {rps:number} req/s
advise.status.expected_broken = not launched: forecast broken
advise.status.expected_less = not launched: forecast lower
advise.status.bounded_less = not launched: forecast at most {rps:number} req/s
advise.status.too_few = too few launches
advise.status.void = {launches:# launch/launches}, all discarded
advise.status.not_tried = not launched
advise.table.candidates = Candidates
advise.table.all = All candidates
advise.table.launches = Launches
advise.table.note.short = [[{more:# more candidate} with --explain.]]
advise.table.note = Expected: simulated from what a request needs, at the arrivals of a schedule of
    its
    own. Bound: what the next launch is predicted to stay within (97.5 %).
heading.expected_highest_rps = forecast up to req/s
heading.highest_rps = holds up to req/s
heading.failing_rps = breaks at req/s
heading.candidate = candidate
heading.advise.table:memory_bytes = memory
meaning.expected_highest_rps = the highest rate at which the target is expected to hold
meaning.highest_rps = the highest rate that was measured to hold it, below any that broke it
meaning.failing_rps = the lowest rate that was shown to break it, else at which a launch broke it
meaning.advise.table:memory_bytes = of the master and all workers, shared pages counted once
meaning.advise.table.launches:requests = requests that were due
meaning.advise.table.launches:schedule = launches with the same number had the same arrivals
meaning.advise.table.launches:void = why it says nothing of the candidate
meaning.advise.table.launches:lag_p95_s = how late requests were sent, 95th percentile
meaning.advise.table.launches:kept = what this launch made of the target
advise.kept = kept
advise.broke = broken
heading.advise.table.launches:rate_rps = at req/s
heading.advise.table.launches:void = discarded
heading.advise.table.launches:kept = target
advise.chart = {metric} response time against {cost}
advise.chart.memory = memory, MB
advise.chart.workers, chart.workers = workers
advise.chart.response = {metric} response time, {unit}
advise.chart.target = target: {term}
advise.chart.expected = expected
advise.chart.measured = measured
advise.chart.recommended = recommended, measured: {candidate}
advise.chart.note = At the rate of the target. Each point is a candidate and leads to its launches,
    or where it has none to its row among all candidates. Whiskers: the range that is expected; of
    what was measured, up to what the next launch is predicted to stay within (97.5 %).[[ Not shown,
    as more than {times} times the limit is expected: {far:# candidate}.]][[ Not shown, as their
    memory is not known: {unknown:# candidate}.]]
advise.chart.rates = Highest rate that keeps the target
advise.chart.rates.note = A rate that was measured to hold says nothing of higher ones, unless the
    rate at which the target breaks stands beside it.
advise.chart.candidate = candidate
advise.chart.rps = requests/s
advise.chart.expected_rps = expected to hold up to
advise.chart.holds_rps = measured to hold at
advise.chart.breaks_rps = measured to break at
# --- what is known before a run starts ------------------------------------------------------------

# --- runs of any kind -----------------------------------------------------------------------------

# --- bottleneck -----------------------------------------------------------------------------------

heading.errors = causes
heading.achieved_concurrency = in flight

# --- compare: what another version, interpreter or setting changes --------------------------------
compare.group = {a}[[ ({apart:, })]][[ against {b}]] at {load}

# --- limits: how far one client goes --------------------------------------------------------------
limits.not_measured = not measured: {why}

# --- the analysis ------------------------------------------------------------------------------

# faults of a trial, found while it ran
fault.interrupted, fault.server, fault.tool = {reason}[[; {detail}]]
fault.answer, fault.storage, fault.unmeasured = {reason}[[; {detail}]]
fault.unavailable = unavailable: {reason}[[; {detail}]]


# breakdown: its sources, and what it leaves out
source.client = the client
source.client_whole_load = the client, over the whole load
source.client_bytes = the client's first and last byte, over the whole load
source.queue = queue length, by Little's law
source.queue_and_half_open = queue length and half-open connections, by Little's law
source.accept = accept timed in the workers
source.accept_and_start = accept and start timed in the workers
source.unread = unread requests, by Little's law
source.spans = the workers' spans
source.spans_and_client = spans and the client
breakdown.not_followed = {tool} follows every request only where they are counted, or over a ramp,
    not for a --duration alone, so each part is an estimate
breakdown.left_out = the breakdown leaves out {requests:# request} that failed
breakdown.failures = no breakdown: {share:percent} of the answers were failures, and nothing tells
    which requests these were
breakdown.sent_late = no breakdown: requests were sent {lag_s:duration} late on average, as they
    found no free connection or the load tool was busy

# phases: what marks each
phase.rises = ESTABLISHED only rises, from {first} to {last} of the load's connections
phase.established = 1 LISTEN and {established} ESTABLISHED, both ends of {connections} connections
phase.ramp_up = {+phase.rises}[[ until {until_s:duration}; then response times rise to their level]]
phase.never_steady = {+phase.rises}; response times rose until the load ended, so no part of it is
    steady: raise --duration
phase.drain = no new connections, and response times fall from {before_s:duration} to
    {after_s:duration}
phase.steady = {+phase.established}[[; responses take {p50_s:duration}, 90 % of them {p5_s:duration}
    to {p95_s:duration}]]
phase.steady_in_app = {+phase.established}; requests spend {p50_s:duration} inside the app, 90 % of
    them {p5_s:duration} to {p95_s:duration}
phase.churn = connections close: {closing} more sockets in TIME_WAIT, FIN_WAIT or
    CLOSE_WAIT[[ (at most {states:counts})]], {left} of {most} still ESTABLISHED[[; responses take
    {p50_s:duration}, 90 % of them {p5_s:duration} to {p95_s:duration}]]

# timelines: what was left out and how
timeline.cut = Drawn are the first {drawn_s:duration} of {load_s:duration}, {drawn:,} of
    {requests:,} requests.
timeline.never_ended = {requests:# request} never ended; drawn to the end.
timeline.queue_peaks = The accept queue is drawn at its longest of every {every_s:duration}.
timeline.partial = Shown only in part: {sampler} ({why}).
sampler.connections = TCP connections
sampler.counters = kernel counters
sampler.services = CPU of storage and cache
sampler.app_metrics = app metrics
sampler.workers = CPU of each worker
sampler.memory = memory of the workers

# what a request needs
needs.no_requests = no request was seen in the app
needs.failed = {failed:percent} of its requests were not answered as
    expected[[ ({causes:counts})]][[, with status {statuses:list}]]
needs.mixed = {worker_class}: {failed:percent} of the requests that show what one needs
    failed[[ ({causes:counts})]], and are in the mean
needs.no_cpu = The CPU of the workers was not seen, so what a request needs is not known
needs.no_memory = What the workers hold of memory is missing: this system does not say what they
    share
needs.contended = The forecast for {classes:list} is uncertain: in the load that it is made from,
    requests in one worker kept each other waiting, and how long each waits by itself is not known.
    What was launched does not rest on it
needs.routes_alike = What each kind of request computes is not known: all are taken for the mean of
    their class
needs.gap_alone = {worker_class}: no request waited for a slot, so how long one is held beside the
    app is taken from lone requests
# notes
note.recorded = {text}
note.capacity_needs_trials = capacity with its interval needs at least {trials} trials (--trials
    {trials}) and levels on both sides of the knee
note.pilot = the throughput varied in a load of {pilot_s:duration}, so a longer one followed: the
    figures are those of its {load_s:duration} (--rounds or --duration fix the length)
note.held = in the worker: after the app is done with a request, a slot stays taken for
    {held_s:duration}, and other requests wait for it
note.one_launch = kept connections stay with the worker that accepted them, and each launch deals
    them anew: what is known of the throughput of {worker_classes:list} is that of one launch, the
    interval over launches needs --trials {trials}
note.no_capacity = {worker_class} by {tool}: no capacity, {why}
note.slower_alone = lone requests took {lone_s:duration}, slower than under load, where no request
    holds a slot for more than {most_s:duration} on average: bound and knee are computed from that
note.short_window = the steady part lasted only {length_s:duration}: raise --rounds
note.whole_load = over the whole load, its end included, {whole_rps:number} requests/s succeeded;
    {steady_rps:number} in its steady part, while all connections were busy
note.failures_in_times = no response times: {tool} mixes those of successes with those of
    {requests:# failed request}; --tool {other} times each request
note.missing = {samplers:, } missing: {why}
note.counters_of_others = {counters:values}: counted in the whole network namespace, and nothing
    shows that this server dropped anything
note.beside = {cells:# cell} ran side by side, as sleeping requests leave the cores idle; --jobs 1
    measures one cell after the other
note.again = measured again, alone: beside other cells all of them used {cores:.2f} cores, more than
    leaves the figures as they are
note.waiting_by_little = waiting follows from Little's law: {tool} gives no exact mean response
note.waiting_negative = no waiting time: the mean response of {response_s:duration} is shorter than
    the mean service of {service_s:duration}
note.waiting_never_accepted = no waiting time: {tool}'s response times hold {requests:# request}
    that never reached a worker
note.waiting_unanswered = no waiting time: some requests reached a worker and were never answered
arrivals.poisson = at random (Poisson)
arrivals.even = evenly spaced
note.schedule.late = 95 % were sent no later than {lag_p95_s:duration} after they were due, all
    within {lag_max_s:duration}
note.schedule.poisson = {due:# request was/requests were} due, at random moments that were fixed
    before the load (Poisson, seed {seed})[[; {late}]]
note.schedule.even = {due:# request was/requests were} due, evenly spaced[[; {late}]]
note.sent_late = {lag_s:duration} of the mean response of {response_s:duration} is lag: {tool} sent
    late while connections were free, so these times say little about the server
note.share_of_highest = shares are of the highest throughput that the closed loop reached
    ({rps:number} requests/s); its capacity may be higher: add higher levels
"""


TEMPLATES = _read(TEXTS)
