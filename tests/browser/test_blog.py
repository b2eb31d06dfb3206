"""The blog in a browser, under real Gunicorn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from apps.blog.posts import render
from tests.browser.conftest import TIMEOUT_MS, listen
from tests.builders.blog import picture
from tests.builders.launch import launch
from workerlab.model.plan import App, Server
from workerlab.server.serve import serve

WINDOW = {"width": 1200, "height": 800}
SCRIPT = "<script>document.title = 'it ran'</script>"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an empty blog."""
    directory = tmp_path_factory.mktemp("blog")
    env = {"BLOG_STORAGE": f"sqlite:///{directory}/blog.db", "BLOG_UPLOADS": f"{directory}/uploads"}
    planned, app = Server("gthread", 2, 4, 64, 100), App("apps.blog.wsgi:app", "")
    with serve(launch(directory, planned, app, env=tuple(env.items()))) as server:
        yield f"http://{server.host}:{server.port}"


class Reader:
    """A user with a browser. `complaints`: messages and errors of its pages."""

    def __init__(self, browser: Any, address: str) -> None:
        self.context = browser.new_context(base_url=address, viewport=WINDOW)
        self.context.set_default_timeout(TIMEOUT_MS)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        listen(self.page, self.complaints)

    def write(self, title: str, body: str) -> str:
        """Save a post, which is then shown, and return its path."""
        self.page.goto("/posts/new")
        self.page.get_by_label("Title").fill(title)
        self.page.get_by_label("Body").fill(body)
        self.save()
        return "/posts/" + self.page.url.rpartition("/")[2]

    def save(self) -> None:
        """Save the form and wait until the post is shown."""
        self.page.get_by_role("button", name="Save").click()
        self.page.wait_for_url(re.compile(r"/posts/[0-9]+$"))

    def text_of(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())


@pytest.fixture(scope="module")
def first_reader(browser: Any, address: str) -> Iterator[Reader]:
    reader = Reader(browser, address)
    yield reader
    reader.context.close()


@pytest.fixture
def reader(first_reader: Reader) -> Iterator[Reader]:
    """The same page for all tests, because opening one is slow, but reset after each."""
    yield first_reader
    first_reader.page.unroute_all()
    first_reader.page.goto("about:blank")
    first_reader.context.clear_cookies()
    first_reader.page.set_viewport_size(WINDOW)
    first_reader.page.emulate_media(color_scheme="light")
    first_reader.complaints.clear()


def test_a_post_is_written_listed_and_edited(reader: Reader) -> None:
    page = reader.page
    page.goto("/")
    page.get_by_role("link", name="Write", exact=True).click()
    page.get_by_label("Title").fill("On queues")
    page.get_by_label("Body").fill("They are *long*.\n\n- one\n- two")
    reader.save()
    assert reader.text_of("h1") == "On queues"
    assert reader.text_of("article em") == "long"
    assert page.locator("article li").count() == 2
    page.goto("/")
    page.get_by_role("link", name="On queues").click()
    page.get_by_role("link", name="Edit").click()
    assert page.get_by_label("Body").input_value() == "They are *long*.\n\n- one\n- two"
    page.get_by_label("Body").fill("They are **short** now.")
    reader.save()
    assert reader.text_of("article strong") == "short"
    assert "revision 2" in reader.text_of(".about")
    page.reload()
    assert reader.text_of("article strong") == "short"
    assert reader.complaints == []


def test_a_markdown_file_becomes_a_post(reader: Reader) -> None:
    page = reader.page
    page.goto("/posts/new")
    page.get_by_label("Title").fill("From a file")
    file = {"name": "x.md", "mimeType": "text/markdown", "buffer": b"# Read\r\n\r\nfrom disk"}
    page.get_by_label("or a Markdown file").set_input_files(file)
    reader.save()
    assert "from disk" in reader.text_of("article")


def test_an_image_is_added_and_shown_in_a_post(reader: Reader) -> None:
    page = reader.page
    page.goto("/images")
    file = {"name": "../x.svg", "mimeType": "image/png", "buffer": picture()}
    page.locator("input[type=file]").set_input_files(file)
    page.get_by_role("button", name="Add").click()
    markdown = reader.text_of("main code")
    assert markdown.startswith("![what it shows](/images/")
    reader.write("With a picture", f"See: {markdown}")
    size = page.locator("article img").evaluate(
        "async (it) => { await it.decode(); return [it.naturalWidth, it.naturalHeight]; }"
    )
    assert size == [40, 30]
    assert reader.complaints == []


def test_a_file_that_is_not_an_image_is_refused_with_a_message(reader: Reader) -> None:
    reader.page.goto("/images")
    file = {"name": "x.png", "mimeType": "image/png", "buffer": SCRIPT.encode()}
    reader.page.locator("input[type=file]").set_input_files(file)
    reader.page.get_by_role("button", name="Add").click()
    assert "not a complete PNG" in reader.text_of("[role=alert]")


def test_a_stored_script_does_not_run(reader: Reader) -> None:
    body = f"{SCRIPT}\n\n<img src=x onerror=\"document.title='it ran'\">\n\n"
    body += "[click](javascript:document.title='it%20ran')"
    reader.write("Harmless", body)
    page = reader.page
    assert "<script>" in reader.text_of("article"), "the script is shown as text"
    assert page.locator(".about ~ *").count() > 0
    assert page.locator(".about ~ * :is(script, img, a), .about ~ :is(script, img, a)").count() == 0
    page.goto("/")
    assert page.title() == "The slow lane"


def test_the_content_security_policy_blocks_scripts_that_bypass_the_sanitiser(
    reader: Reader,
) -> None:
    path = reader.write("Second lock", "words")
    hostile = f"{SCRIPT}<img src=/nothing onerror=\"document.title='it ran'\">"
    assert hostile not in render(hostile)

    def insert_script(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace("<p>words</p>", hostile))

    reader.page.route("**/posts/*", insert_script)
    reader.page.goto(path, wait_until="load")
    assert reader.page.locator("article script").count() == 1
    assert reader.page.title() == "Second lock"
    assert any("Content Security Policy" in complaint for complaint in reader.complaints)


def test_a_conflicting_edit_shows_both_versions(browser: Any, address: str, reader: Reader) -> None:
    path = reader.write("RedisCache", "as it was")
    second_reader = Reader(browser, address)
    for editor in (reader, second_reader):
        editor.page.goto(f"{path}/edit")
    reader.page.get_by_label("Body").fill("what the first wrote")
    reader.save()
    page = second_reader.page
    page.get_by_label("Body").fill("what the second wrote")
    page.get_by_role("button", name="Save").click()
    assert "in the meantime" in second_reader.text_of("[role=alert]")
    assert page.get_by_label("Body").input_value() == "what the second wrote"
    page.get_by_text("The current version").click()
    assert "what the first wrote" in second_reader.text_of("details")
    second_reader.save()
    assert "what the second wrote" in second_reader.text_of("article")
    second_reader.context.close()


def test_a_refused_form_keeps_its_input(reader: Reader) -> None:
    page = reader.page
    page.goto("/posts/new")
    page.get_by_label("Title").fill("   ")
    page.get_by_label("Body").fill("\n\nfirst lines are empty <b>")
    page.get_by_role("button", name="Save").click()
    assert "needs a title" in reader.text_of("[role=alert]")
    assert page.get_by_label("Body").input_value() == "\n\nfirst lines are empty <b>"


def test_every_page_fits_its_window_and_is_readable(reader: Reader, screenshots: Path) -> None:
    table = "|" + "column|" * 12 + "\n|" + "-|" * 12 + "\n|" + "value|" * 12
    body = f"Some *words*.\n\n> quoted\n\n{'x' * 300}\n\n    {'code ' * 60}\n\n{table}\n"
    path = reader.write("A title that is a good deal longer than any telephone is wide", body)
    for name, address in (("post", path), ("edit", f"{path}/edit"), ("list", "/"),
                          ("images", "/images"), ("none", "/nothing")):  # fmt: skip
        reader.page.goto(address)
        for scheme, width in product(("light", "dark"), (360, 1200)):
            reader.page.emulate_media(color_scheme=scheme)
            reader.page.set_viewport_size({**WINDOW, "width": width})
            reader.page.wait_for_function(f"innerWidth === {width}")
            fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            assert reader.page.evaluate(fits), f"{name} is wider than its window of {width}"
            text, background = reader.page.evaluate(LIGHTNESS)
            assert abs(text - background) > 0.5, f"{name}: too little contrast"
            assert (background > text) == (scheme == "light")
            reader.page.screenshot(path=screenshots / f"blog-{name}-{scheme}-{width}.png")


# Of the text and of the background, from 0 (black) to 1
LIGHTNESS = """() => {
    const style = getComputedStyle(document.body);
    return [style.color, style.backgroundColor].map((colour) => {
        const [red, green, blue] = colour.match(/[0-9.]+/g).map(Number);
        return (red + green + blue) / 3 / 255;
    });
}"""
