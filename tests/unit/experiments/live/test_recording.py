"""What was seen, as a page that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import re

from msgspec.structs import asdict

from workerlab.analysis.places import ANSWERED, CONNECTING, Move, Sample
from workerlab.experiments.live.asked import LoadAsked, ServerAsked
from workerlab.experiments.live.recording import LESSON, PAGE, Recorder, page
from workerlab.experiments.live.side import Looked
from workerlab.report.player import SCRIPTS

MS = 1_000_000
SEEN = asdict(Sample(4.0, 2.0, 2.0, 2.1, 0, 9, 8))


def recorded() -> Recorder:
    one = Recorder()
    one.add(Looked([Move(1, CONNECTING, None, 5000 * MS)], 0, 1, 1, []), None)
    one.add(Looked([Move(1, ANSWERED, 0, 6000 * MS)], 4, 1, 1, []), SEEN)
    return one


def test_a_trace_begins_with_its_first_move() -> None:
    trace: dict = recorded().trace(ServerAsked(), LoadAsked())
    (side,) = trace["sides"]
    assert side["moves"] == [[1, CONNECTING, None, 0.0], [1, ANSWERED, 0, 1000.0]]
    assert [sample[1:] for sample in side["samples"]] == [(4.0, 2.0, 2.1, 4, 8)]
    assert (side["slots"], side["workers"], side["law"]["rps"]) == (4, 4, 4)
    assert trace["length_ms"] >= side["samples"][0][0]


def test_the_page_holds_all_it_needs_and_lets_nothing_else_run() -> None:
    title = "A <b>lesson</b> & more</script>"
    steps = [{"title": title, "trace": recorded().trace(ServerAsked(), LoadAsked())}]
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
