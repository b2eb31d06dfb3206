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


def heading(column: Column) -> str:
    """The words above a column; where it has none, its name without its unit, which stands below,
    or beside each value."""
    name = column.name.removesuffix("_bytes").replace("_rps", " req/s")
    name = name.removesuffix("_s") if column.form == "seconds" else name
    return column.heading or name.replace("_", " ")


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
