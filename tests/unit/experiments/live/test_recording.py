"""The recording of a lesson, as a self-contained page."""

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
from workerlab.experiments.lesson.steps import read_lesson
from workerlab.experiments.lesson.texts import LiveFigures
from workerlab.experiments.live import recording
from workerlab.experiments.live.side import LiveUpdate
from workerlab.report.player import SCRIPTS
from workerlab.report.player.places import ANSWERED, CONNECTING, Move, PlacesSample

ROOT = Path(__file__).resolve().parents[4]
MS = 1_000_000
SAMPLE = PlacesSample(rps=4.0, mean=2.0, p50=2.0, p95=2.1, failed=0, answered=9, under_way=8)


class BriefCourse(Course):
    settling_s = measurement_s = 0.1


def update(move: Move, *, queue: int) -> LiveUpdate:
    return LiveUpdate(moves=[move], queue=queue, connections=1, drawn_one_in=1, counts=[])


def filled_recorder() -> recording.Recorder:
    recorder = recording.Recorder()
    recorder.add(update(Move(1, CONNECTING, None, 5000 * MS), queue=0), None)
    recorder.add(update(Move(1, ANSWERED, 0, 6000 * MS), queue=4), asdict(SAMPLE))
    return recorder


def test_a_trace_begins_with_its_first_move() -> None:
    trace: Any = filled_recorder().trace(read_lesson().steps[1])
    (side,) = trace["sides"]
    assert side["moves"] == ((1, CONNECTING, None, 0.0), (1, ANSWERED, 0, 1000.0))
    assert [sample[1:] for sample in side["samples"]] == [(4.0, 2.0, 2.1, 4, 8)]
    assert (side["slots"], side["workers"], side["law"]["rps"]) == (4, 4, 4)
    assert trace["length_ms"] >= side["samples"][0][0]


def test_figures_cover_the_last_recorded_update() -> None:
    numbers = count(1)

    class RunningSide:
        phase = "running"

        def poll(self) -> Any:
            move = Move(next(numbers), CONNECTING, None, 5000 * MS)
            return update(move, queue=0), SimpleNamespace(sample=lambda: asdict(SAMPLE))

        def read(self, _value_of: object) -> LiveFigures:
            return LiveFigures(SAMPLE, slowest_s=2.2, fastest_s=1.0)

    course = BriefCourse(read_lesson())
    course.guess(None)
    recording._measure(RunningSide(), course, lambda *_: None)
    (step,) = course.recording["steps"]
    assert len(step["trace"]["sides"][0]["moves"]) == next(numbers) - 1


def data_of(page: str) -> Any:
    (data,) = re.findall(r'id="lab-recorded-data">(.*?)</script>', page, re.DOTALL)
    return json.loads(data)


def test_a_rebuilt_page_has_the_current_texts_and_the_recorded_numbers() -> None:
    recorded = lzma.decompress((ROOT / "docs" / "lesson.html.xz").read_bytes()).decode()
    lesson = read_lesson()
    half_a_core = replace(lesson, steps=tuple(replace(step, cores=0.5) for step in lesson.steps))
    pages = (recorded, recording.rebuild_page(recorded, half_a_core))
    before, after = (data_of(page)["steps"] for page in pages)
    for old, new in zip(before, after, strict=True):
        assert old["measured"] == new["measured"]
        assert convert(old["seen"], LiveFigures) == convert(new["seen"], LiveFigures)
        (old_side,), (new_side,) = old["trace"]["sides"], new["trace"]["sides"]
        for name in ("moves", "samples", "load", "server"):
            assert old_side[name] == new_side[name]
        assert new["outcome"][0].startswith("Measured in the last ")
    assert after[7]["trace"]["sides"][0]["law"]["rps"] == 4  # with the recorded cores
    assert after[8]["trace"]["sides"][0]["law"]["queue"] == pytest.approx(1.42, abs=0.01)


def test_the_page_is_self_contained_and_blocks_other_scripts() -> None:
    title = "A <b>lesson</b> & more</script>"
    steps = [{"title": title, "trace": filled_recorder().trace(read_lesson().steps[1])}]
    page = recording.recorded_page({"title": title, "steps": steps})
    assert "<b>lesson" not in page
    assert not re.search(r"<!--[A-Z]+-->", page)  # no placeholder is left
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert not re.search("https?://", page)
    assert data_of(page)["title"] == title
    policy = re.search(r'Security-Policy" content="([^"]*)"', page)
    for script in re.findall(r"<script>(.*?)</script>", page, re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
    assert page.count("<script>") == len(SCRIPTS) + 1


def test_the_page_has_the_scripts_of_the_live_page_in_their_order() -> None:
    live = re.findall(r'<script src="([^"]+)">', (recording.PAGE_DIR / "page.html").read_text())
    recorded = [*SCRIPTS, recording.LESSON_SCRIPT]
    assert [name for name in live if name in recorded] == recorded
