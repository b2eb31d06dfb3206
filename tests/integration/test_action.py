"""The script of action.yml on two checkouts of an app, with a fake `gh`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import LONG_S, ROOT, CommandResult, Lab, app_text, fake_program

pytestmark = pytest.mark.once

# Lists the comments in $COMMENTS; records the text and the address of a new comment
GH = """\
#!/bin/sh
[ -n "$GH_TOKEN" ] || { echo "not logged in" >&2; exit 4; }
case " $* " in
  *" --paginate "*) echo "$COMMENTS" ;;
  *) echo "$3 $4" >"$HERE/comment.to" && cp "${6#body=@}" "$HERE/comment.md" ;;
esac
"""


def run_action(lab: Lab, *, base_s: float, head_s: float, **env: str) -> CommandResult:
    """Runs it on checkouts whose app sleeps that long. The job summary is in summary.md."""
    for name, sleep_s in (("base", base_s), ("the head", head_s)):
        (lab.place / name).mkdir()
        (lab.place / name / "shop.py").write_text(app_text("sync", wait_s=sleep_s))
    program = lab.place / "workerlab"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m workerlab "$@"\n')
    program.chmod(0o755)
    inputs = {
        "WORKERLAB": str(program), "BASE": "base", "HEAD": "the head", "APP": "shop:app",
        "CLASSES": "sync", "LEVELS": "2", "FAIL_IF": "p50>+100%",
        "OPTIONS": "--workers 1 --duration 0.5 --header 'X-Shop: of tests' --budget 30s",
        "TITLE": 'What does "it" change?', "GITHUB_REPOSITORY": "someone/shop",
        "GITHUB_STEP_SUMMARY": str(lab.place / "summary.md"), "HERE": str(lab.place),
        "PULL_REQUEST": "7", "GH_TOKEN": "t",
    }  # fmt: skip
    with fake_program(lab.place, "gh", GH) as fakes:
        path = os.pathsep.join([str(fakes), str(Path(sys.executable).parent), os.environ["PATH"]])
        result = subprocess.run(
            [ROOT / "scripts" / "action.sh"],
            cwd=lab.place,
            env={**lab.env, "PATH": path, **inputs, **env},
            capture_output=True,
            text=True,
            timeout=5 * LONG_S,
        )
    return CommandResult(result.returncode, result.stdout, result.stderr)


def test_a_slower_head_fails_and_is_commented_on(lab: Lab) -> None:
    result = run_action(lab, base_s=0.02, head_s=0.2, COMMENTS="")
    assert result.code == 4, result.err
    summary = (lab.place / "summary.md").read_text()
    assert '\n### What does "it" change?\n' in summary
    assert "No. Exceeded: p50>+100%" in summary
    assert summary.endswith("\nExit code 4\n")
    address = (lab.place / "comment.to").read_text()
    assert address == "POST repos/someone/shop/issues/7/comments\n"
    assert (lab.place / "comment.md").read_text() == summary


def test_an_equal_head_passes_and_replaces_the_comment(lab: Lab) -> None:
    result = run_action(lab, base_s=0.1, head_s=0.1, COMMENTS="41\n42")
    assert result.code == 0, result.err
    summary = (lab.place / "summary.md").read_text()
    assert "sync at 2 connections" in summary
    assert "Exit code" not in summary
    address = (lab.place / "comment.to").read_text()
    assert address == "PATCH repos/someone/shop/issues/comments/41\n"


def test_failures_to_comment_or_compare_are_reported(lab: Lab) -> None:
    result = run_action(lab, base_s=0, head_s=0, GH_TOKEN="", FAIL_IF="p50")
    assert result.code == 2
    assert "--fail-if" in result.err
    assert "::warning::Could not comment" in result.out
    assert not (lab.place / "comment.md").exists()
    assert (lab.place / "summary.md").read_text().endswith("\nExit code 2\n")


def test_without_a_pull_request_there_is_no_comment(lab: Lab) -> None:
    result = run_action(lab, base_s=0, head_s=0, PULL_REQUEST="", OPTIONS="'unclosed")
    assert result.code != 0
    assert "unmatched single quote" in result.err
    assert not (lab.place / "comment.to").exists()
