"""The blog as people meet it: in a browser, under real Gunicorn."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from apps.blog.posts import render
from tests.browser.conftest import LONG_MS, listen
from tests.builders.launch import launch
from workerlab.model.plan import App, Server
from workerlab.server.serve import serve

Image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
WINDOW = {"width": 1200, "height": 800}
SCRIPT = "<script>document.title = 'it ran'</script>"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of an empty blog."""
    place = tmp_path_factory.mktemp("blog")
    env = {"BLOG_STORAGE": f"sqlite:///{place}/blog.db", "BLOG_UPLOADS": f"{place}/uploads"}
    planned, app = Server("gthread", 2, 4, 64, 100), App("apps.blog.wsgi:app", "")
    with serve(launch(place, planned, app, env=tuple(env.items()))) as server:
        yield f"http://{server.host}:{server.port}"


class Reader:
    """Somebody with a browser. `complaints`: what it said went wrong."""

    def __init__(self, browser: Any, address: str) -> None:
        self.context = browser.new_context(base_url=address, viewport=WINDOW)
        self.context.set_default_timeout(LONG_MS)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        listen(self.page, self.complaints)

    def write(self, title: str, body: str) -> str:
        """The path of the new post, which is then shown."""
        self.page.goto("/posts/new")
        self.page.get_by_label("Title").fill(title)
        self.page.get_by_label("Body").fill(body)
        self.save()
        return "/posts/" + self.page.url.rpartition("/")[2]

    def save(self) -> None:
        """And wait until the post is shown."""
        self.page.get_by_role("button", name="Save").click()
        self.page.wait_for_url(re.compile(r"/posts/[0-9]+$"))

    def says(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())


@pytest.fixture(scope="module")
def first_reader(browser: Any, address: str) -> Iterator[Reader]:
    reader = Reader(browser, address)
    yield reader
    reader.context.close()


@pytest.fixture
def reader(first_reader: Reader) -> Iterator[Reader]:
    """Always the same, as a page takes long to open, who remembers nothing."""
    yield first_reader
    first_reader.page.unroute_all()
    first_reader.page.goto("about:blank")
    first_reader.context.clear_cookies()
    first_reader.page.set_viewport_size(WINDOW)
    first_reader.page.emulate_media(color_scheme="light")
    first_reader.complaints.clear()


def test_a_post_is_written_found_edited_and_seen_to_have_changed(reader: Reader) -> None:
    page = reader.page
    page.goto("/")
    page.get_by_role("link", name="Write", exact=True).click()
    page.get_by_label("Title").fill("On queues")
    page.get_by_label("Body").fill("They are *long*.\n\n- one\n- two")
    reader.save()
    assert reader.says("h1") == "On queues"
    assert reader.says("article em") == "long"
    assert page.locator("article li").count() == 2
    page.goto("/")
    page.get_by_role("link", name="On queues").click()
    page.get_by_role("link", name="Edit").click()
    assert page.get_by_label("Body").input_value() == "They are *long*.\n\n- one\n- two"
    page.get_by_label("Body").fill("They are **short** now.")
    reader.save()
    assert reader.says("article strong") == "short"
    assert "revision 2" in reader.says(".about")
    page.reload()
    assert reader.says("article strong") == "short"
    assert reader.complaints == []


def test_a_markdown_file_becomes_a_post(reader: Reader) -> None:
    page = reader.page
    page.goto("/posts/new")
    page.get_by_label("Title").fill("From a file")
    file = {"name": "x.md", "mimeType": "text/markdown", "buffer": b"# Read\r\n\r\nfrom disk"}
    page.get_by_label("or a Markdown file").set_input_files(file)
    reader.save()
    assert "from disk" in reader.says("article")


def test_an_image_is_added_and_shown_in_a_post(reader: Reader) -> None:
    buffer = io.BytesIO()
    Image.effect_noise((64, 48), 60).save(buffer, "PNG")
    page = reader.page
    page.goto("/images")
    file = {"name": "../x.svg", "mimeType": "image/png", "buffer": buffer.getvalue()}
    page.locator("input[type=file]").set_input_files(file)
    page.get_by_role("button", name="Add").click()
    words = reader.says("main code")
    assert words.startswith("![what it shows](/images/")
    reader.write("With a picture", f"See: {words}")
    size = page.locator("article img").evaluate(
        "async (it) => { await it.decode(); return [it.naturalWidth, it.naturalHeight]; }"
    )
    assert size == [64, 48]
    assert reader.complaints == []


def test_what_is_no_image_is_refused_in_words(reader: Reader) -> None:
    reader.page.goto("/images")
    file = {"name": "x.png", "mimeType": "image/png", "buffer": SCRIPT.encode()}
    reader.page.locator("input[type=file]").set_input_files(file)
    reader.page.get_by_role("button", name="Add").click()
    assert "not a complete PNG" in reader.says("[role=alert]")


def test_a_stored_script_does_not_run(reader: Reader) -> None:
    body = f"{SCRIPT}\n\n<img src=x onerror=\"document.title='it ran'\">\n\n"
    body += "[click](javascript:document.title='it%20ran')"
    reader.write("Harmless", body)
    page = reader.page
    assert "<script>" in reader.says("article"), "it is shown as it was typed"
    assert page.locator(".about ~ *").count() > 0
    assert page.locator(".about ~ * :is(script, img, a), .about ~ :is(script, img, a)").count() == 0
    page.goto("/")
    assert page.title() == "The slow lane"


def test_nor_does_one_that_came_past_the_sanitiser(reader: Reader) -> None:
    """The second lock: a page that holds a script is shown without it being run."""
    path = reader.write("Second lock", "words")
    hostile = f"{SCRIPT}<img src=/nothing onerror=\"document.title='it ran'\">"
    assert hostile not in render(hostile)

    def smuggle(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace("<p>words</p>", hostile))

    reader.page.route("**/posts/*", smuggle)
    reader.page.goto(path, wait_until="load")
    assert reader.page.locator("article script").count() == 1
    assert reader.page.title() == "Second lock"
    assert any("Content Security Policy" in complaint for complaint in reader.complaints)


def test_of_two_who_edit_the_second_sees_both_and_loses_nothing(
    browser: Any, address: str, reader: Reader
) -> None:
    path = reader.write("RedisCache", "as it was")
    other = Reader(browser, address)
    for editor in (reader, other):
        editor.page.goto(f"{path}/edit")
    reader.page.get_by_label("Body").fill("what the first wrote")
    reader.save()
    page = other.page
    page.get_by_label("Body").fill("what the second wrote")
    page.get_by_role("button", name="Save").click()
    assert "in the meantime" in other.says("[role=alert]")
    assert page.get_by_label("Body").input_value() == "what the second wrote"
    page.get_by_text("The current version").click()
    assert "what the first wrote" in other.says("details")
    other.save()
    assert "what the second wrote" in other.says("article")
    other.context.close()


def test_what_cannot_be_posted_is_not_lost(reader: Reader) -> None:
    page = reader.page
    page.goto("/posts/new")
    page.get_by_label("Title").fill("   ")
    page.get_by_label("Body").fill("\n\nfirst lines are empty <b>")
    page.get_by_role("button", name="Save").click()
    assert "needs a title" in reader.says("[role=alert]")
    assert page.get_by_label("Body").input_value() == "\n\nfirst lines are empty <b>"


def test_every_page_fits_and_can_be_read(reader: Reader, screenshots: Path) -> None:
    table = "|" + "column|" * 12 + "\n|" + "-|" * 12 + "\n|" + "value|" * 12
    body = f"Some *words*.\n\n> quoted\n\n{'x' * 300}\n\n    {'code ' * 60}\n\n{table}\n"
    path = reader.write("A title that is a good deal longer than any telephone is wide", body)
    for name, where in (("post", path), ("edit", f"{path}/edit"), ("list", "/"),
                        ("images", "/images"), ("none", "/nothing")):  # fmt: skip
        reader.page.goto(where)
        for scheme, width in product(("light", "dark"), (360, 1200)):
            reader.page.emulate_media(color_scheme=scheme)
            reader.page.set_viewport_size({**WINDOW, "width": width})
            reader.page.wait_for_function(f"innerWidth === {width}")
            inner, outer = reader.page.evaluate(
                "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
            )
            assert inner <= outer, f"{name} is wider than its window of {width}"
            dark, light = reader.page.evaluate(LIGHTNESS)
            assert abs(dark - light) > 0.5, f"{name}: text and paper look alike"
            assert (light > dark) == (scheme == "light")
            reader.page.screenshot(path=screenshots / f"blog-{name}-{scheme}-{width}.png")


# Of the text and of the paper, from 0 (black) to 1
LIGHTNESS = """() => {
    const style = getComputedStyle(document.body);
    return [style.color, style.backgroundColor].map((colour) => {
        const [red, green, blue] = colour.match(/[0-9.]+/g).map(Number);
        return (red + green + blue) / 3 / 255;
    });
}"""
