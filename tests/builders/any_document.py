"""Strategies for any sweep and any other document, for properties of all formats."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from tests.builders.analysis import sentence
from workerlab.finding import Inconclusive, Note
from workerlab.model.evidence import Counters, Summary
from workerlab.model.plan import Cell, Server, Trial
from workerlab.model.result import (
    Breakdown,
    Chart,
    ChartSeries,
    ClassResult,
    Column,
    Document,
    Invalid,
    Report,
    Result,
    Table,
    Usage,
    Value,
)
from workerlab.report.values import PARTS

figures = st.floats(0, 1e9) | st.sampled_from([float("nan"), float("inf"), 1e-12])
numbers = st.none() | figures
counts = st.none() | st.integers(0, 10**9)
words = st.text(st.characters(exclude_characters="nN"), max_size=30)
summaries = st.builds(Summary, numbers, numbers, numbers, numbers, numbers)
# One fixed server, so that a class often has cells and a page charts
servers = st.just(Server("sync", 4, 1, 2048, 1000)) | st.builds(
    Server,
    st.sampled_from(["sync", "gthread", "eventlet", "gevent", "tornado", "asgi", "uvicorn"]),
    *[st.integers(1, 5000)] * 4,
)
tools = st.sampled_from(["ab", "wrk", "fast"])
cells = st.builds(Cell, servers, tools, st.integers(1, 1000), st.booleans())
trials = st.builds(Trial, cells, st.integers(1, 9))
per_pid = st.dictionaries(st.integers(1, 99999), st.integers(0, 99), max_size=3)
sentences = words.map(sentence)
breakdowns = st.builds(
    Breakdown,
    *[numbers] * 7,
    exact=st.booleans(),
    sources=st.dictionaries(st.sampled_from(tuple(PARTS)), sentences, max_size=3),
)
invalid_cells = st.builds(Invalid, trials, words, numbers, sentences, notes=st.tuples(sentences))
valid_cells = st.builds(
    Result,
    trial=trials,
    app=words,
    sleep_s=numbers,
    verdict=st.sampled_from(["below capacity", "at capacity", "saturated"]),
    reason=sentences,
    requests=st.integers(1, 10**9),
    failed=st.integers(0, 10**9),
    errors=st.dictionaries(words, st.integers(1, 99), max_size=3),
    slots_configured=counts,
    slots_measured=st.integers(0, 10**9),
    throughput_rps=figures,
    tool_rps=numbers,
    bound_rps=numbers,
    response=summaries,
    connect=summaries,
    service=summaries,
    waiting=summaries,
    requests_per_worker=per_pid,
    load_s=figures,
    ideal_s=numbers,
    breakdown=breakdowns,
    counters=st.builds(Counters, counts, counts, counts, counts),
    accept_queue_max=counts,
    accept_queue_limit=counts,
    usage=st.builds(Usage, numbers, numbers, numbers, counts, counts),
    connections_per_worker=st.none() | per_pid,
    split_prediction_rps=numbers,
    diagnosis=st.none() | sentences,
    notes=st.tuples(sentences),
)
classes = st.builds(
    ClassResult,
    server=servers,
    tool=tools,
    slots_configured=counts,
    slots_measured=counts,
    capacity_rps=numbers,
    capacity_ci95=st.none() | st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)),
    knee=numbers,
    knee_note=sentences,
    keepalive=st.booleans(),
    diagnosis=st.none() | sentences,
)
environments: st.SearchStrategy[Mapping[str, object]] = st.dictionaries(
    words, st.recursive(numbers | words | counts, lambda inner: st.lists(inner, max_size=3))
)
reports = st.builds(
    Report,
    words,
    environments,
    numbers,
    st.lists(valid_cells | invalid_cells, max_size=6).map(tuple),
    st.lists(classes, max_size=4).map(tuple),
    st.fixed_dictionaries({"start": numbers, "warmup": numbers, "stop": numbers}),
    st.lists(sentences, max_size=2).map(tuple),
)

columns = st.lists(
    st.builds(
        Column,
        st.from_regex("[a-z][a-z_]{0,8}", fullmatch=True),
        st.sampled_from(["text", "count", "number", "seconds", "bytes", "percent"]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda column: column.name,
)
values: st.SearchStrategy[Value] = st.none() | st.booleans() | counts | numbers | words


@st.composite
def any_table(draw: st.DrawFn) -> Table:
    drawn_columns = draw(columns)
    row = st.tuples(*[values for _ in drawn_columns])
    rows = tuple(draw(st.lists(row, max_size=4)))
    unit = draw(st.sampled_from(["", "s", "ms"]))
    return Table(
        draw(words), tuple(drawn_columns), rows, draw(words), draw(st.integers(1, 3)), unit
    )


points = st.lists(st.tuples(st.floats(), st.floats()), max_size=4).map(tuple)
series = st.lists(
    st.builds(ChartSeries, words, points), max_size=4, unique_by=lambda line: line.name
)
charts = st.builds(
    Chart, *(words, words, words), series.map(tuple), st.tuples(st.booleans(), st.booleans()), words
)
plain = words.map(Note)
findings = st.builds(
    Inconclusive,
    words,
    question=st.sampled_from(["", "Which class?"]),
    evidence=st.lists(plain, max_size=3).map(tuple),
)
documents = st.builds(
    Document,
    run=words,
    kind=st.sampled_from(["generators", "ladder"]),
    title=sentences,
    environment=environments,
    findings=st.lists(findings, max_size=3).map(tuple),
    tables=st.lists(any_table(), max_size=3).map(tuple),
    charts=st.lists(charts, max_size=2).map(tuple),
    notes=st.lists(sentences, max_size=2).map(tuple),
    valid=st.booleans(),
)
