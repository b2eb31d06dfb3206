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
# --- a sweep: its title, what cells are called --------------------------------------------------
served = {python}[[ with Gunicorn {gunicorn}]]

# --- a sweep: where each class stops, and what the run cost ---------------------------------------

ab.identities = ab with {load}: time taken x concurrency = {time_taken_s:duration} x {concurrency} =
    {busy_s:duration}, time per request x requests = {time_per_request_s:duration} x {requests} =
    {requests_s:duration}: {mean}. Time taken / requests = {each_s:duration}, time per request
    across all = {time_per_request_across_s:duration}: {across}.[[ Its connection times (total) add
    up to {share:percent} of the first product.]]
ab.holds = holds
ab.broken = does not hold


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
sampler.queue = accept queue
sampler.processes = CPU and memory
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
