"""`workerlab advise` on real servers: stopped and resumed; its file; an infeasible target."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import urllib.request
from typing import Any

import pytest

from tests.builders.versions import VERSIONS
from tests.integration.conftest import LONG_S, Lab, advise, app_text, until

pytestmark = pytest.mark.once

RATE = "20"  # low: requests take most of the CPU of a launch
RULE_OF_THUMB = 2 * (os.cpu_count() or 1) + 1
ADVISE = (
    "advise", "--app", "waits:app", "--rate", RATE, "--max-workers", str(RULE_OF_THUMB),
    "--classes", "sync", "--seed", "3",
)  # fmt: skip


@pytest.fixture
def app_lab(lab: Lab) -> Lab:
    text = app_text("sync", setup="import random", wait_s="random.choice([0.04, 0.08])")
    (lab.place / "waits.py").write_text(text)
    return lab


def response_of(lab: Lab, command: str) -> bytes:
    """A response of Gunicorn started by this command, on any port."""
    argv = ["sh", "-c", command.replace(" && ", " && exec ") + " --bind 127.0.0.1:0"
            " --no-control-socket"]  # fmt: skip
    log = lab.place / "gunicorn.log"
    with log.open("wb") as file:
        server = subprocess.Popen(argv, cwd="/", stdout=file, stderr=file)
    try:
        url = until(lambda: re.search(r"http://\S+", log.read_text()), "a listening server")
        body: bytes = urllib.request.urlopen(url[0], timeout=LONG_S).read()
        return body
    finally:
        server.terminate()
        server.wait(LONG_S)


def candidates(report: dict[str, Any]) -> list[dict[str, Any]]:
    (table,) = (table for table in report["tables"] if table["title"] == "All candidates")
    return [row["candidate"]["values"] for row in table["rows"]]


def test_a_resumed_run_writes_a_file_that_starts(app_lab: Lab) -> None:
    process = app_lab.at_work(
        *ADVISE,
        *("--slo", "p50<400ms", "--budget", "240"),  # a busy machine is slow to launch
        when=lambda: list(app_lab.place.glob(f"results/*/raw/*-r{RATE}-s1-*/tool/stdout")),
        what="a launch at the target's rate",
        timeout_s=4 * LONG_S,
    )
    result = app_lab.end(process, signal.SIGINT)
    assert result.code == 130, result.err
    assert "Which worker class, how many workers?" in result.out
    assert "advise --resume" in result.err
    assert (result.out + result.err).count("--resume") == 1
    assert not (app_lab.run / "gunicorn.conf.py").exists()

    report = advise(app_lab, "--resume", str(app_lab.run))
    assert report["findings"][0]["answer"]["code"] == "Recommended"
    assert RULE_OF_THUMB in {values["workers"] for values in candidates(report)}
    values = (finding["answer"]["values"] for finding in report["findings"])
    (command,) = (command for entry in values if (command := entry.get("start")))
    assert command.startswith(f"cd {app_lab.place} && ")
    assert response_of(app_lab, command) == b"ok"
    assert "\nchdir = " not in (app_lab.run / "gunicorn.conf.py").read_text()


def test_versions_of_gunicorn_are_candidates_too(app_lab: Lab) -> None:
    target = ("--slo", "p50<400ms", "--budget", "40", "--format", "json")
    result = app_lab(*ADVISE, *target, "--gunicorn", f"{VERSIONS[2]},{VERSIONS[-1]}")
    if "cannot be installed" in result.err:
        pytest.skip("no package index, and not in the cache")
    assert result.code in (0, 1), result.err  # the budget is too short for a busy machine
    kinds = [f"sync, Gunicorn {version}" for version in (VERSIONS[2], VERSIONS[-1])]
    listed = {values["worker_class"] for values in candidates(result.report)}
    assert listed
    all_values = [finding["answer"]["values"] for finding in result.report["findings"]]
    excluded = [name for values in all_values for name in values.get("classes", ())]
    assert sorted({*listed, *excluded}) == kinds
    proven = {record["proof"]["gunicorn"] for record in app_lab.records() if record["proof"]}
    assert proven == {VERSIONS[2], VERSIONS[-1]}


def test_an_infeasible_target_exits_with_4(app_lab: Lab) -> None:
    findings = app_lab.report(*ADVISE, "--slo", "p95<5ms", "--budget", "40", code=4)["findings"]
    answer = findings[0]["answer"]
    assert (answer["code"], answer["values"]["outcome"]) == ("NoRecommendation", "nothing")
    assert "What would have to change?" in [finding["question"] for finding in findings]
    assert not (app_lab.run / "gunicorn.conf.py").exists()
