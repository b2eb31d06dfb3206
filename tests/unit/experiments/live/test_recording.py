"""What was seen, as a page that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import re
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import convert
from msgspec.structs import asdict, replace

from workerlab.experiments.lesson.course import Course
from workerlab.experiments.lesson.steps import read
from workerlab.experiments.lesson.words import LiveFigures
from workerlab.experiments.live.recording import LESSON, PAGE, Recorder, _follow, page, renewed
from workerlab.experiments.live.side import Look
from workerlab.report.player import SCRIPTS
from workerlab.report.player.places import ANSWERED, CONNECTING, Move, PlacesSample

ROOT = Path(__file__).resolve().parents[4]
MS = 1_000_000
SEEN = asdict(PlacesSample(4.0, 2.0, 2.0, 2.1, 0, 9, 8))


class Brief(Course):
    settles_s = measured_s = 0.1


def recorded() -> Recorder:
    one = Recorder()
    one.add(Look([Move(1, CONNECTING, None, 5000 * MS)], 0, 1, 1, []), None)
    one.add(Look([Move(1, ANSWERED, 0, 6000 * MS)], 4, 1, 1, []), SEEN)
    return one


def test_a_trace_begins_with_its_first_move() -> None:
    trace: dict = recorded().trace(read().steps[1])
    (side,) = trace["sides"]
    assert side["moves"] == [[1, CONNECTING, None, 0.0], [1, ANSWERED, 0, 1000.0]]
    assert [sample[1:] for sample in side["samples"]] == [(4.0, 2.0, 2.1, 4, 8)]
    assert (side["slots"], side["workers"], side["law"]["rps"]) == (4, 4, 4)
    assert trace["length_ms"] >= side["samples"][0][0]


def test_what_is_measured_is_of_the_last_look_that_is_recorded() -> None:
    sample = PlacesSample(3.99, 2.01, 2.0, 2.1, 0, 40, 8)
    numbers = count(1)

    class Stub:
        phase = "running"

        def look(self) -> Any:
            move = Move(next(numbers), CONNECTING, None, 5000 * MS)
            return Look([move], 0, 1, 1, []), SimpleNamespace(sample=lambda: SEEN)

        def measured(self, over_s: float) -> LiveFigures:
            return LiveFigures(sample, 2.2, 1.0)

    course = Brief(read())
    course.guess(None)
    _follow(Stub(), course, None)  # type: ignore[arg-type]
    (step,) = course.recorded["steps"]  # type: ignore[misc]
    assert len(step["trace"]["sides"][0]["moves"]) == next(numbers) - 1


def test_a_recorded_page_gets_todays_words_and_keeps_its_numbers() -> None:
    recorded = lzma.decompress((ROOT / "docs" / "lesson.html.xz").read_bytes()).decode()
    lesson = read()
    fewer = replace(lesson, steps=tuple(replace(step, cores=0.5) for step in lesson.steps))
    before, after = (data_of(page)["steps"] for page in (recorded, renewed(recorded, fewer)))
    for old, new in zip(before, after, strict=True):
        assert old["measured"] == new["measured"]
        assert convert(old["seen"], LiveFigures) == convert(new["seen"], LiveFigures)
        (old_side,), (new_side,) = old["trace"]["sides"], new["trace"]["sides"]
        for name in ("moves", "samples", "load", "server"):
            assert old_side[name] == new_side[name]
        assert new["outcome"][0].startswith("Measured in the last ")
    assert after[7]["trace"]["sides"][0]["law"]["rps"] == 4  # with the cores that it had
    assert after[8]["trace"]["sides"][0]["law"]["queue"] == pytest.approx(1.42, abs=0.01)


def data_of(page: str) -> Any:
    return json.loads(re.findall(r'id="lab-recorded-data">(.*?)</script>', page, re.DOTALL)[0])


def test_the_page_holds_all_it_needs_and_lets_nothing_else_run() -> None:
    title = "A <b>lesson</b> & more</script>"
    steps = [{"title": title, "trace": recorded().trace(read().steps[1])}]
    whole = page({"title": title, "steps": steps})
    assert "<b>lesson" not in whole
    assert not re.search(r"<!--[A-Z]+-->", whole)  # no place is left unfilled
    assert not re.search(r"(src|href)=\"(?!data:)", whole)
    assert "http://" not in whole
    assert "https://" not in whole
    data = re.search(r'id="lab-recorded-data">(.*?)</script>', whole, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["title"] == title
    policy = re.search(r'Security-Policy" content="([^"]*)"', whole)
    assert policy is not None
    for script in re.findall(r"<script>(.*?)</script>", whole, re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
    assert whole.count("<script>") == len(SCRIPTS) + 1


def test_the_page_has_the_scripts_of_the_live_page_in_their_order() -> None:
    live = re.findall(r'<script src="([^"]+)">', (PAGE / "page.html").read_text())
    recorded = [*SCRIPTS, LESSON]
    assert [name for name in live if name in recorded] == recorded
