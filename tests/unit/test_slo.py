"""The syntax of targets: valid targets, and the errors of invalid ones."""

import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.slo import METRICS, TargetSyntaxError, Term, canonical, parse

GOOD = {
    "p95<300ms": Term("p95", "<", 0.3),
    "p95<0.3s": Term("p95", "<", 0.3),
    "p95<.3 s": Term("p95", "<", 0.3),
    " P95  <  300  MS ": Term("p95", "<", 0.3),
    "p95 < = 300ms": Term("p95", "<=", 0.3),
    "p95≤300ms": Term("p95", "<=", 0.3),
    "rps ≥ 50": Term("rps", ">=", 50.0),
    "mean<1m": Term("mean", "<", 60.0),
    "max<=2 min": Term("max", "<=", 120.0),
    "p50<250us": Term("p50", "<", 0.00025),
    "p50<250µs": Term("p50", "<", 0.00025),
    "p99<5 seconds": Term("p99", "<", 5.0),
    "p90<1.s": Term("p90", "<", 1.0),
    "errors<0.1%": Term("errors", "<", 0.001),
    "errors<=.001": Term("errors", "<=", 0.001),
    "Errors < 1 %": Term("errors", "<", 0.01),
    "rps>=50": Term("rps", ">=", 50.0),
    "rps>50/s": Term("rps", ">", 50.0),
    "rps > 1.2k": Term("rps", ">", 1200.0),
    "rps>=1.2 K req / s": Term("rps", ">=", 1200.0),
    "RPS>=50rps": Term("rps", ">=", 50.0),
}
# The column, counted from 1, and a part of the message
BAD = {
    "": (1, "expected p50, p90, p95, p99, max, mean, errors or rps"),
    "  ": (3, "expected p50"),
    "p95": (4, "quote it"),
    "p95 300ms": (5, "expected <, <=, > or >= after p95"),
    "p95=300ms": (4, "after p95, not ="),
    "p95<>300ms": (4, "not <>"),
    "p95<": (5, "expected a number after p95<"),
    "p95<ms": (5, "expected a number"),
    "p95<300": (8, "300 needs a unit: us, ms, s or m"),
    "p95<300 , max<1s": (8, "300 needs a unit"),
    "p95<300kg": (8, "unknown unit 'kg' after 300: us, ms, s or m"),
    "p95 < 300 %": (11, "unknown unit '%'"),
    "p95<1e-3s": (6, "unknown unit 'e-'"),
    "errors<1ms": (9, "unknown unit 'ms'"),
    "rps>=50ms": (8, "unknown unit 'ms'"),
    "p96<3s": (1, "unknown metric 'p96'"),
    "p95<3s, latency<3s": (9, "unknown metric 'latency'"),
    "p95>300ms": (4, "needs an upper limit, such as p95<300ms"),
    "errors>=1%": (7, "need an upper limit, such as errors<0.1%"),
    "rps<50": (4, "needs a lower limit, such as rps>=50"),
    "p95<-3s": (5, "must be above 0"),
    "p95<0ms": (5, "must be above 0"),
    "p95<61m": (5, "at most 60 minutes"),
    "rps>=2000k": (6, "at most 1,000,000 requests/s"),
    "errors<=0": (9, "no number of requests can show"),
    "errors<5": (8, "for 5 of 100 requests, write 5%"),
    "errors<100%": (8, "must be less than 1"),
    "errors<150%": (8, "must be less than 1"),
    "p95<0,3s": (6, "decimals with a point"),
    "rps>=1,200": (7, "decimals with a point"),
    "p95<3s,": (8, "expected p50"),
    "p95<3s,,max<4s": (8, "expected p50"),
    "p95<3s max<4s": (8, "expected a comma before 'max<4s'"),
    "p95<3s\nmax<4s": (8, "expected a comma before"),
    "p95<3s<4s": (7, "expected a comma before '<4s'"),
    "p95<3s, p95<4s": (9, "p95 already has a limit: p95<3s"),
    "p95<3s,P95<=3s": (8, "p95 already has a limit"),
    "p95<" + "9" * 400 + "s": (5, "at most 60 minutes"),
    "p95<3s; max<4s": (7, "expected a comma before '; max<4s'"),
    "p95<٣s": (5, "expected a number"),
}


@pytest.mark.parametrize("text", GOOD)
def test_valid_targets_are_parsed(text: str) -> None:
    assert parse(text) == (GOOD[text],)


@pytest.mark.parametrize("text", BAD, ids=repr)
def test_an_error_names_its_column(text: str) -> None:
    column, part = BAD[text]
    message = rf"\Acolumn {column}: .*{re.escape(part)}.*\Z"
    with pytest.raises(TargetSyntaxError, match=message):  # `.` matches no line break
        parse(text)


def test_terms_keep_their_order() -> None:
    target = " errors < 1 %,p95 <= .25s , rps>1k "
    assert [term.metric for term in parse(target)] == ["errors", "p95", "rps"]
    assert canonical(target) == "errors<1%,p95<=250ms,rps>1000"


def test_quotes_are_suggested_only_if_the_shell_may_have_redirected() -> None:
    for text in ("p95, max<1s", "p95=3s", "p95 3s"):
        with pytest.raises(TargetSyntaxError) as error:
            parse(text)
        assert "quote it" not in str(error.value)


def term_strategy(
    metrics: Iterable[str], operators: list[str], max_limit: float
) -> st.SearchStrategy[Term]:
    limits = st.floats(0, max_limit, exclude_min=True)
    return st.builds(Term, st.sampled_from(sorted(metrics)), st.sampled_from(operators), limits)


TERMS = st.one_of(
    term_strategy(set(METRICS) - {"errors", "rps"}, ["<", "<="], 3600),
    term_strategy(["errors"], ["<", "<="], 0.999),
    term_strategy(["rps"], [">", ">="], 1e6),
)


@given(st.lists(TERMS, min_size=1, unique_by=lambda term: term.metric))
def test_printed_targets_round_trip(terms: list[Term]) -> None:
    text = ",".join(map(str, terms))
    assert parse(text) == tuple(terms)
    assert canonical(text) == text


# Random characters rarely form a target
PIECES = ["p95", "max", "rps", "errors", "<", "<=", ">=", "9", "0.5", "ms", "s", "%", "k", ",", " "]


@given(
    st.text(alphabet="p95<>=, .%msrk0/xrops", max_size=30)
    | st.lists(st.sampled_from(PIECES), min_size=4, max_size=9).map("".join)
    | st.lists(TERMS, min_size=1, max_size=2).map(lambda terms: ",".join(map(str, terms)))
)
def test_any_text_is_a_target_or_an_error_within_it(text: str) -> None:
    try:
        terms = parse(text)
    except TargetSyntaxError as error:
        column = int(str(error).partition(":")[0].removeprefix("column "))
        assert 1 <= column <= len(text) + 1
    else:
        assert parse(",".join(map(str, terms))) == terms


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("p95<300ms", 0.3, False),
        ("p95<=300ms", 0.3, True),
        ("p95<300ms", 0.29, True),
        ("rps>50", 50.0, False),
        ("rps>=50", 50.0, True),
        ("rps>=50", 49.9, False),
    ],
)
def test_comparison_with_the_limit(text: str, value: float, *, holds: bool) -> None:
    assert parse(text)[0].holds(value) is holds
