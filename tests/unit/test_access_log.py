"""Access logs: the requests of a mix, and the lines that are left out."""

import gzip
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.errors import UsageError
from workerlab.mix import MAX_PATHS, count_requests, mix_of_log, route_of
from workerlab.model.plan import Route
from workerlab.report.values import text

DATE = "[10/Oct/2025:13:55:36 +0200]"
AGENT = '"-" "Mozilla/5.0 (X11; Linux x86_64; rv:131.0) Gecko/20100101 Firefox/131.0"'


def line(request: str, status: int = 200, client: str = "203.0.113.9 - -", extra: str = "") -> str:
    return f'{client} {DATE} "{request}" {status} 2326{extra}\n'


def get(path: str, status: int = 200) -> str:
    return line(f"GET {path} HTTP/1.1", status)


def write_log(directory: Path, *lines: str) -> Path:
    path = directory / "access.log"
    path.write_bytes("".join(lines).encode("latin-1"))
    return path


def mix(directory: Path, *lines: str) -> dict[str, float]:
    routes, _ = mix_of_log(write_log(directory, *lines))
    return {f"{route.method} {route.path}": route.weight for route in routes}


@pytest.mark.parametrize(
    "entry",
    [
        line("GET /cart HTTP/1.1"),
        line("GET /cart HTTP/1.1", extra=f" {AGENT}"),
        line("GET /cart HTTP/2.0", client="2001:db8::8a2e:370:7334 - -"),
        line("GET /cart HTTP/3", client="shop.example:443 203.0.113.9 - alice"),
        line("GET /cart HTTP/1.0", client='"203.0.113.9, 10.0.0.1" - "alice smith"'),
        line("GET /cart HTTP/1.1", extra=r' "http://a.b/\"x\"" "curl \"8\"" 0.012 backend-3'),
        line("GET http://shop.example:8080/cart HTTP/1.1"),
        line("GET /cart?token=secret&q=1 HTTP/1.1"),
        line("GET /cart HTTP/1.1").replace(" 2326", " -"),
        line("GET /cart HTTP/1.1", 304),
    ],
)
def test_lines_of_both_formats_are_read(tmp_path: Path, entry: str) -> None:
    assert mix(tmp_path, entry) == {"GET /cart": 1}


def test_addresses_users_agents_and_queries_are_not_kept(tmp_path: Path) -> None:
    client = "203.0.113.9 - alice"
    entry = line("GET /cart?token=secret HTTP/1.1", client=client, extra=f" {AGENT}")
    result = repr(mix_of_log(write_log(tmp_path, entry)))
    assert not re.findall(r"203\.0|alice|Mozilla|token|secret", result)


def test_queries_are_kept_on_request(tmp_path: Path) -> None:
    lines = (get("/search?q=a"), get("/search?q=b"), get("/search?q=a"), get("/cart?"))
    assert mix(tmp_path, *lines) == {"GET /search": 3, "GET /cart": 1}
    routes, _ = mix_of_log(write_log(tmp_path, *lines), queries=True)
    assert {(route.label, route.path, route.weight) for route in routes} == {
        ("GET /search", "/search?q=a", 2), ("GET /search", "/search?q=b", 1),
        ("GET /cart", "/cart", 1),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (r"/a\"b", '/a"b'),  # Apache
        (r"/a\x22b", '/a"b'),  # nginx
        (r"/caf\xC3\xA9", "/caf%C3%A9"),
        ("/caf\xc3\xa9", "/caf%C3%A9"),  # unescaped bytes
        ("//double//slash", "//double//slash"),
        ("/a:b@c/%20d#e", "/a:b@c/%20d"),
        ("https://shop.example", "/"),
    ],
)
def test_paths_are_sent_as_logged(tmp_path: Path, target: str, path: str) -> None:
    assert mix(tmp_path, get(target)) == {f"GET {path}": 1}


def test_lines_that_are_left_out_are_counted(tmp_path: Path) -> None:
    lines = (
        *[get("/")] * 6,
        line("HEAD / HTTP/1.1"),
        line("POST /login HTTP/1.1", 302),
        line("OPTIONS * HTTP/1.1"),
        line("-", 408),
        line("", 400),
        line(r"\x16\x03\x01\x02", 400),
        line("GET / ", 400),
        line("GET cart HTTP/1.1"),
        f'10.0.0.1 - - {DATE} "GET / HTTP',
        "\n\n",
        "# a comment\n",
        *[get("/gone", 404)] * 2,
        get("/broken", 500),
    )
    _, note = mix_of_log(write_log(tmp_path, *lines))
    assert text(note)
    expected = {"used": 7, "paths": 2, "routes": 2, "exact": 1.0, "share": 1.0, "failing_paths": 2,
                "failing": 3, "other_methods": 2, "unreadable": 7}  # fmt: skip
    assert {name: note.values[name] for name in expected} == expected


def test_a_path_with_mostly_errors_is_left_out(tmp_path: Path) -> None:
    half = [get("/half"), get("/half", 503)]
    mostly = [get("/mostly"), get("/mostly", 404), get("/mostly", 500)]
    assert mix(tmp_path, *half, *mostly, get("/moved", 301)) == {"GET /half": 2, "GET /moved": 1}


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/", "/"),
        ("/post/17", "/post/{id}"),
        ("/post/17-a.html", "/post/{id}-a.html"),
        ("/v1/user/42/orders/7?page=3", "/v1/user/{id}/orders/{id}"),
        ("/f/0b9a7d6c-1f2e-4a3b-8c4d-5e6f7a8b9c0d.png", "/f/{id}.png"),
        ("/commit/deadbeef01", "/commit/{id}"),
        ("/facade/accede", "/facade/accede"),  # words of hexadecimal letters
        ("/facedeed", "/facedeed"),
        ("/md5/css3", "/md5/css3"),
        ("/2026/11/22/", "/{id}/{id}/{id}/"),
    ],
)
def test_numbers_uuids_and_hexadecimal_ids_become_placeholders(path: str, route: str) -> None:
    assert route_of(path) == route


def test_a_route_of_one_path_keeps_its_name(tmp_path: Path) -> None:
    routes, _ = mix_of_log(write_log(tmp_path, get("/post/1"), get("/user/1"), get("/user/2")))
    assert {route.path: route.label for route in routes} == {
        "/post/1": "GET /post/1",
        "/user/1": "GET /user/{id}",
        "/user/2": "GET /user/{id}",
    }


NAMES = [f"{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(250)]


def test_every_route_has_a_path_and_the_weight_of_all_its_requests(tmp_path: Path) -> None:
    """The pages alone would fill the mix, but most of the requests are for posts."""
    posts = [get(f"/post/{number}") for number in range(1000)]
    pages = [get(f"/page-{name}") for name in NAMES[:199]] * 2
    routes, note = mix_of_log(write_log(tmp_path, *posts, *pages))
    assert len(routes) == MAX_PATHS
    assert [route.weight for route in routes if route.label == "GET /post/{id}"] == [1000]
    assert note.values["routes"] == 200
    assert note.values["share"] == 1.0
    assert note.values["exact"] == pytest.approx((1 + 398) / 1398)


def test_the_most_frequent_of_too_many_routes_are_kept(tmp_path: Path) -> None:
    paths = [f"/{name}" for name in NAMES]
    routes, note = mix_of_log(write_log(tmp_path, *map(get, paths), *map(get, paths[50:])))
    assert [route.path for route in routes] == paths[50:]
    assert note.values["share"] == note.values["exact"] == pytest.approx(400 / 450)


@pytest.mark.parametrize("name", ["access.log.gz", "rotated"])
def test_a_zipped_log_is_read_unless_truncated(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(get("/").encode()))
    assert mix_of_log(path)[0] == (Route("/", "GET", 1.0),)
    path.write_bytes(gzip.compress(get("/").encode() * 1000)[:-20])
    with pytest.raises(UsageError, match="cannot be read as an access log"):
        mix_of_log(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "no valid line"),
        ("some text\n", "no valid line"),
        (line("POST / HTTP/1.1"), "no GET or HEAD request"),
        (get("/", 404), "no path that was mostly answered with 2xx or 3xx"),
    ],
)
def test_a_log_without_a_mix_is_refused(tmp_path: Path, content: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        mix_of_log(write_log(tmp_path, content))


@given(st.lists(st.text(max_size=80)), st.booleans())
def test_any_lines_are_counted(lines: list[str], queries: bool) -> None:
    counts = count_requests(lines, queries=queries)
    assert counts.unreadable == sum(bool(line.strip()) for line in lines)


CHARACTERS = st.characters(
    min_codepoint=33, max_codepoint=255, exclude_characters='"\\#\x7f\x85\xa0'
)
REQUESTS = st.tuples(
    st.sampled_from(["GET", "HEAD", "POST", "DELETE"]),
    st.text(CHARACTERS),
    st.sampled_from([200, 302, 404, 500]),
)


@given(st.lists(REQUESTS))
def test_every_line_is_in_one_of_the_counts(requests: list[tuple[str, str, int]]) -> None:
    lines = [line(f"{method} /{path} HTTP/1.1", status) for method, path, status in requests]
    counts = count_requests(lines, queries=True)
    assert counts.unreadable == 0
    assert sum(n for n, _ in counts.responses.values()) + counts.other_methods == len(requests)
    errors = sum(status >= 400 for method, _, status in requests if method in ("GET", "HEAD"))
    assert sum(n for _, n in counts.responses.values()) == errors
    assert all(path.isascii() and path.isprintable() for _, path in counts.responses)
