"""The charts of a document, on the page and as pictures; names are never markup."""

from __future__ import annotations

import csv
from typing import Any, Literal, get_args

import pytest
from msgspec.structs import replace

from tests.builders.document import full_document
from tests.builders.page import rendered
from workerlab.model.result import (
    Chart,
    ChartForm,
    ChartSeries,
    Column,
    Document,
    Level,
    Mark,
    Table,
)
from workerlab.report.html.chart_figures import chart_figures
from workerlab.report.html.figure import MAX_SERIES, OWN_AXIS_NOTE, grouped, spec
from workerlab.report.html.page import pictures, render
from workerlab.report.values import text

TOPS = {"slow": 40.0, "quick": 2000.0, "slower": 20.0, "quicker": 900.0}


def y_domain(pane: Any) -> Any:
    return spec(pane)["encoding"]["y"]["scale"]["domain"]


def test_findings_come_first_with_their_evidence() -> None:
    text = rendered(full_document()).text
    positions = [text.index(part) for part in (
        "Which generator sends the most at a high rate?",
        "<b> \N{MULTIPLICATION SIGN} sent only 1203",
        "fast µ sent only 70,000",
        "Requests per second",
        "High rate",
        "locust is not installed",
    )]  # fmt: skip
    assert positions == sorted(positions)


def test_a_name_is_never_markup() -> None:
    page = render(full_document())
    assert "threads | &lt;b&gt;" in page
    assert "b" not in [tag for tag, _ in rendered(full_document()).elements]


def test_points_off_a_logarithmic_axis_are_counted() -> None:
    (figure,) = chart_figures(full_document())
    assert figure.caption[-1] == "Points not shown because they are 0 or missing: 1."
    assert [text(head) for head in figure.header] == ["connections", "fast", "threads | <b>"]
    assert figure.rows == (("10", "61,200", "1203"), ("100", "70,000", ""))


@pytest.mark.parametrize("log", [(False, False), (True, True)])
def test_many_lines_are_split_into_several_pictures(log: tuple[bool, bool]) -> None:
    """No picture repeats a colour or a shape; all logarithmic axes are the same, and end near the
    values of all series: 1 to 13."""
    series = tuple(ChartSeries(f"g{i}", ((1.0, i + 1.0), (2.0, i + 2.0))) for i in range(12))
    document = full_document(charts=(Chart("Many", "x", "y", series, log),))
    figures = chart_figures(document)
    assert sum(len(figure.legend) for figure in figures) == 12
    for figure in figures:
        for values in zip(*((key.colour, key.shape) for key in figure.legend), strict=True):
            assert len(set(values)) == len(values) <= MAX_SERIES
    names = ["chart-1-many", "chart-1-many-2", "chart-1-many-3"][: len(figures)]
    assert [figure.name for figure in figures] == names
    axes = {tuple(y_domain(pane)) for figure in figures for pane in figure.panes}
    assert (len(axes) == 1) is log[1]
    if log[1]:
        ((low, high),) = axes
        assert 0.5 < low < 1
        assert 13 < high < 20
    files = dict(pictures(document))
    assert sorted(files) == sorted(f"{name}.{kind}" for name in names for kind in ("png", "svg"))
    assert files["chart-1-many.png"].startswith(b"\x89PNG")


def test_an_axis_of_negative_values_shows_all_and_zero() -> None:
    series = (ChartSeries("change", ((1.0, -20.0), (2.0, -5.0))),)
    (figure,) = chart_figures(full_document(charts=(Chart("Change", "x", "%", series),)))
    low, high = y_domain(figure.panes[0])
    assert low <= -20.0 < 0.0 <= high


@pytest.mark.parametrize("form", ["lines", "bars"])
def test_series_of_another_magnitude_have_their_own_axis(form: Literal["lines", "bars"]) -> None:
    series = tuple(ChartSeries(name, ((0.0, top), (1.0, top / 2))) for name, top in TOPS.items())
    chart = Chart("Rates", "x", "y", series, form=form, names=("a", "b"))
    figures = chart_figures(full_document(charts=(chart,)))
    labels = [[text(key.label) for key in figure.legend] for figure in figures]
    assert labels == [["slow", "slower"], ["quick", "quicker"]]
    assert [text(figure.title) for figure in figures] == ["Rates (1 of 2)", "Rates (2 of 2)"]
    assert all(figure.caption[-1] == OWN_AXIS_NOTE for figure in figures)


def test_groups_keep_all_items_in_order() -> None:
    assert grouped(list("abcdefgh"), max_items=6) == [list("abcd"), list("efgh")]
    assert grouped(["a"], len) == [["a"]]
    assert grouped([]) == []
    assert grouped([5, 100, 7, 60, 50], float, max_items=2) == [[5], [100, 60], [7, 50]]


@pytest.mark.parametrize("form", get_args(ChartForm))
def test_charts_without_a_point_are_left_out(form: ChartForm) -> None:
    empty = Chart("How long", "x", "y", (ChartSeries("a", ()),), form=form, names=("b",))
    full = full_document()
    (figure,) = chart_figures(replace(full, charts=(*full.charts, empty)))
    assert figure.name == "chart-1-requests-per-second"


def test_an_empty_document_is_a_page() -> None:
    nothing = replace(full_document(), findings=(), tables=(), charts=(), notes=(), environment={})
    assert "Load generators on the same server" in rendered(nothing).text


# --- bars ---------------------------------------------------------------------------------


def bars(form: Literal["bars", "stacked"], count: int = 2) -> Document:
    labels = ("connect", "</script>", *(f"s{i}" for i in range(9)))
    looks = {"connect": ("connect", "circle")}
    series = tuple(
        ChartSeries(label, ((0, 1.0 + index), (2, 2.0)), look=looks.get(label))
        for index, label in enumerate(labels[:count])
    )
    names = ("everything that there is", 'it\'s "\u2028less"', "no <b>")
    chart = Chart("How long", "removed", "ms", series, form=form, names=names)
    return full_document(charts=(chart,))


def test_a_series_has_the_same_colour_in_all_charts() -> None:
    looks = {"Redis": ("class-5", "circle"), "storage": ("class-6", "circle"), "a": None, "b": None}
    series = [ChartSeries(name, ((0, 1.0), (1, 2.0)), look=look) for name, look in looks.items()]
    charts = [
        Chart("Time", "x", "y", tuple(part), form="stacked", names=("c", "d"))
        for part in (series, series[::-1], series[1::2], series[2:])
    ]
    colours: dict[str, set[str]] = {}
    for figure in chart_figures(full_document(charts=tuple(charts))):
        for key in figure.legend:
            colours.setdefault(text(key.label), set()).add(key.colour)
    assert len(colours) == len({*map(tuple, colours.values())}) == 4
    assert all(len(names) == 1 for names in colours.values())


@pytest.mark.parametrize("form", ["bars", "stacked"])
def test_bars_are_named_and_never_markup(form: Literal["bars", "stacked"]) -> None:
    document = bars(form)
    (figure,) = chart_figures(document)
    assert figure.rows[1] == ("no <b>", "2", "2")
    assert "connect: 1 at everything that there is, 2 at no <b>." in map(text, figure.alternative)
    assert [key.colour for key in figure.legend] == ["connect", "class-1"]
    page = render(document)
    assert page.count("</script>") == render(full_document()).count("</script>")
    files = dict(pictures(document))
    assert files["chart-1-how-long.png"].startswith(b"\x89PNG")


def test_each_stacked_part_has_its_own_colour() -> None:
    (figure,) = chart_figures(bars("stacked", count=8))
    assert len({key.colour for key in figure.legend}) == 8


# --- points with names --------------------------------------------------------------------


def scattered(log: bool = False, **more: Any) -> Chart:
    """Two expected points, one of which was also measured, and a target of 300."""
    expected = ChartSeries(
        "expected",
        ((40.0, 80.0), (0.0, 250.0)),
        (Mark("a <b>", 70.0, 400.0, link="row-a"), Mark("c", link="row-c")),
    )
    measured = ChartSeries("measured", ((40.0, 90.0),), (Mark("a <b>", 90.0, 120.0, "row-a"),))
    chart = Chart("Times", "MB", "ms", (expected, measured), (log, False), form="scatter",
                  level=Level("target: p95<300ms", 300.0))  # fmt: skip
    return replace(chart, **more)


def document_of(chart: Chart) -> Document:
    columns = Column("candidate", "text"), Column("launches", "count")
    table = Table("All candidates", columns, (("a <b>", 3), ("c", None)),
                  anchors=("row-a", "row-c"), links=("row-c", ""))  # fmt: skip
    return full_document(charts=(chart,), tables=(table,))


def test_points_are_described_in_text_and_table() -> None:
    (figure,) = chart_figures(document_of(scattered()))
    assert [text(line) for line in figure.alternative] == [
        "ms by MB.",
        "Horizontal line, target: p95<300ms: 300.",
        "expected: a <b> 80 at 40, c 250 at 0.",
        "measured: a <b> 90 at 40.",
    ]
    assert figure.rows == (
        ("a <b>", "measured", "40", "90", "90 to 120"),
        ("a <b>", "expected", "40", "80", "70 to 400"),
        ("c", "expected", "0", "250", "-"),
    )
    assert [(key.label, key.shape) for key in figure.legend][-1] == ("target: p95<300ms", "dashed")


def test_a_tooltip_has_four_digits_of_short_and_long_times() -> None:
    times = ChartSeries("open", ((39.0, 5.2393), (40.0, 0.0052)),
                        (Mark("a", 0.103868, 5.2393), Mark("b", 0.0042, 0.0052)))  # fmt: skip
    (figure,) = chart_figures(document_of(scattered(series=(times,), level=None)))
    (points,) = (text for text in spec(figure.panes[0])["datasets"].values() if "range" in text)
    ranges = [row["range"] for row in csv.DictReader(points.splitlines())]
    assert ranges == ["0.1039 to 5.239", "0.0042 to 0.0052"]


def test_the_axis_of_a_scatter_includes_its_line_and_whiskers() -> None:
    (figure,) = chart_figures(document_of(scattered()))
    low, high = spec(figure.panes[0])["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert low <= 70 < 400 < high


def test_points_off_the_axis_of_a_scatter_are_counted() -> None:
    (figure,) = chart_figures(document_of(scattered(log=True)))
    assert figure.caption[-1] == "Points not shown because they are 0 or missing: 1."
    assert len(figure.rows) == len(figure.links) == 2


def test_points_link_to_table_rows() -> None:
    page = rendered(document_of(scattered()))
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    links = [attributes["href"] or "" for tag, attributes in page.elements if tag == "a"]
    assert sorted(links) == ["#row-a", "#row-a", "#row-c", "#row-c"]
    assert {link[1:] for link in links} <= ids


def test_pictures_have_all_points_and_no_links() -> None:
    """Even if there is only one series."""
    two_series = scattered()
    for chart in (two_series, replace(two_series, series=two_series.series[:1])):
        files = dict(pictures(document_of(chart)))
        assert files["chart-1-times.png"].startswith(b"\x89PNG")
        svg = files["chart-1-times.svg"]
        assert b"NaN" not in svg
        assert b"row-a" not in svg  # the targets of links are on the page only
        points = sum(len(series.points) for series in chart.series)
        assert svg.count(b'stroke="#ffffff"') >= points
