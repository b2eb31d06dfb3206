"""`workerlab advise` on real servers: stopped, resumed, its file started; a target out of reach."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import urllib.request
from typing import Any

import pytest

from tests.builders.versions import VERSIONS
from tests.integration.conftest import LONG_S, Lab, advised, app_text, until

pytestmark = pytest.mark.once

RATE = "20"  # few requests: most of a launch's CPU is theirs
THUMB = 2 * (os.cpu_count() or 1) + 1
WORDS = ("advise", "--app", "waits:app", "--rate", RATE, "--max-workers", str(THUMB), "--seed", "3")


@pytest.fixture
def own(lab: Lab) -> Lab:
    text = app_text("sync", setup="import random", wait_s="random.choice([0.04, 0.08])")
    (lab.place / "waits.py").write_text(text)
    return lab


def started(lab: Lab, command: str) -> bytes:
    """What a Gunicorn answers that is started as advised, but for the port."""
    argv = ["sh", "-c", command.replace(" && ", " && exec ") + " --bind 127.0.0.1:0"
            " --no-control-socket"]  # fmt: skip
    log = lab.place / "gunicorn.log"
    with log.open("wb") as file:
        server = subprocess.Popen(argv, cwd="/", stdout=file, stderr=file)
    try:
        place = until(lambda: re.search(r"http://\S+", log.read_text()), "a listening server")
        answer: bytes = urllib.request.urlopen(place[0], timeout=LONG_S).read()
        return answer
    finally:
        server.terminate()
        server.wait(LONG_S)


def candidates(report: dict[str, Any]) -> list[dict[str, Any]]:
    (table,) = (table for table in report["tables"] if table["title"] == "All candidates")
    return [row["candidate"]["values"] for row in table["rows"]]


def test_it_is_stopped_and_resumed_and_its_file_starts(own: Lab) -> None:
    # On a busy machine a minute is over before the first launch
    words = (*WORDS, "--classes", "sync", "--slo", "p50<400ms", "--budget", "240")
    process = own.at_work(
        *words,
        when=lambda: list(own.place.glob(f"results/*/raw/*-r{RATE}-s1-*/tool/stdout")),
        what="a launch at the target's rate",
        timeout_s=4 * LONG_S,
    )
    done = own.end(process, signal.SIGINT)
    assert done.code == 130, done.err
    assert "Which worker class, how many workers?" in done.out
    assert "advise --resume" in done.err
    assert (done.out + done.err).count("--resume") == 1
    assert not (own.run / "gunicorn.conf.py").exists()

    report = advised(own, "--resume", str(own.run))
    assert report["findings"][0]["answer"]["code"] == "Recommended"
    assert THUMB in {values["workers"] for values in candidates(report)}
    values = (finding["answer"]["values"] for finding in report["findings"])
    (command,) = (command for entry in values if (command := entry.get("start")))
    assert command.startswith(f"cd {own.place} && ")
    assert started(own, command) == b"ok"
    assert "\nchdir = " not in (own.run / "gunicorn.conf.py").read_text()


def test_versions_of_gunicorn_are_candidates_too(own: Lab) -> None:
    target = ("--classes", "sync", "--slo", "p50<400ms", "--budget", "40", "--format", "json")
    done = own(*WORDS, *target, "--gunicorn", f"{VERSIONS[2]},{VERSIONS[-1]}")
    if "cannot be installed" in done.err:
        pytest.skip("no package index, and not in the cache")
    assert done.code in (0, 1), done.err  # too short for a busy machine
    kinds = [f"sync, Gunicorn {version}" for version in (VERSIONS[2], VERSIONS[-1])]
    shown = {values["worker_class"] for values in candidates(done.report)}
    values_of_findings = [finding["answer"]["values"] for finding in done.report["findings"]]
    out = [values["classes"] for values in values_of_findings if "classes" in values]
    assert sorted({*shown, *(name for names in out for name in names)}) == kinds
    assert shown
    proven = {record["proof"]["gunicorn"] for record in own.records() if record["proof"]}
    assert proven == {VERSIONS[2], VERSIONS[-1]}


def test_what_no_setting_can_reach_exits_4(own: Lab) -> None:
    target = ("--classes", "sync", "--slo", "p95<5ms", "--budget", "40")
    findings = own.report(*WORDS, *target, code=4)["findings"]
    answer = findings[0]["answer"]
    assert (answer["code"], answer["values"]["outcome"]) == ("NoRecommendation", "nothing")
    assert "What would have to change?" in [finding["question"] for finding in findings]
    assert not (own.run / "gunicorn.conf.py").exists()
