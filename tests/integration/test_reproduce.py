"""A reproduction from end to end: its parts are runs of other commands. `--resume` keeps finished
parts and tries unavailable ones again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Lab

pytestmark = [pytest.mark.once, pytest.mark.classes("sync")]

PROGRAM = """
import sys
from pathlib import Path
from workerlab.experiments.reproduce import claims
claims.WRITEUPS_FILE = Path("writeups.toml")
from workerlab.cli import main
sys.exit(main())
"""
WRITE_UPS = """
[[writeup]]
name = "small"
title = "Two connections on one worker"
machine = "made up"
[writeup.cells]
one = { part = "levels", users = 1 }
two = { part = "levels", users = 2 }
[[writeup.part]]
name = "levels"
command = ""
quick = "sweep sync 1,2 --workers 1 --sleep 0.1 --tool fast --rounds 4 --trials 2"
takes_s = [9, 3]
[[writeup.part]]
name = "wrk"
command = ""
quick = "sweep sync 2 --tool wrk"
takes_s = [9, 3]
[[writeup.table]]
title = "Both"
chart = "rps"
x_title = "connections"
headings = [{ name = "rps", heading = "req/s", path = "throughput_rps" }]
rows = [
    { label = "1", cell = "one", then = [10], line = "sync", x = 1 },
    { label = "2", cell = "two", then = [10], line = "sync", x = 2 },
]
[[writeup.claim]]
number = 1
text = "One of two waits for the other."
tests = [{ says = "mean:", value = "two.response.mean", between = [0.15, inf] }]
[[writeup.claim]]
number = 2
text = "wrk agrees."
tests = [{ says = "it does", part = "wrk", shows = ["SeriesLimits"] }]
"""


def test_parts_run_once_and_decide_claims(lab: Lab, tmp_path: Path) -> None:
    (lab.place / "writeups.toml").write_text(WRITE_UPS)
    lab.program = [sys.executable, "-c", PROGRAM]
    lab.env["PATH"] = str(tmp_path / "empty")
    report = lab.report("reproduce", "small", "--quick", code=1)  # a part is missing
    summary, twice, agrees = (finding["answer"] for finding in report["findings"])
    assert summary["values"]["claims"] == 2
    assert (twice["code"], agrees["code"]) == ("ClaimHeld", "ClaimNotShown")
    assert "wrk" in agrees["values"]["reason"]
    assert [row["rps_then"] for row in report["tables"][0]["rows"]] == [10, 10]
    assert len(report["charts"][0]["series"]) == 2
    parts = lab.run / "parts"
    modified_ns = {path: path.stat().st_mtime_ns for path in parts.rglob("*")}
    assert modified_ns
    resumed = lab("reproduce", "--resume", str(lab.run))
    assert resumed.code == 1
    assert "left out: wrk" in resumed.err
    assert modified_ns == {path: path.stat().st_mtime_ns for path in parts.rglob("*")}
