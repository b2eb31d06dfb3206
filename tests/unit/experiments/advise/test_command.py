"""The first plan of `advise`, from its command line."""

import re
from pathlib import Path

import pytest

from tests.builders.plan import with_classes
from workerlab.cli import parse
from workerlab.errors import UsageError
from workerlab.experiments.advise.command import plan_of, starts_in
from workerlab.experiments.advise.study import AdviseRequest
from workerlab.model.plan import Plan
from workerlab.server.worker_classes import CLASSES


def plan_for(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, served: tuple[str, ...] = CLASSES
) -> Plan:
    """The plan with an interpreter that has all packages, and a Gunicorn with these classes."""
    with_classes(monkeypatch, served)
    return plan_of(parse(["advise", "--rate", "3", "--slo", "p95<2s", *arguments]))[0]


def test_a_class_that_gunicorn_removed_is_considered_only_if_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for arguments, classes, removed in (
        ((), {*CLASSES} - {"eventlet"}, ("eventlet",)),
        (("--classes", "sync,eventlet"), {"sync", "eventlet"}, ()),
    ):
        plan = plan_for(monkeypatch, *arguments)
        assert {cell.server.worker_class for cell in plan.cells} == classes
        assert AdviseRequest.of(plan).removed == removed
    request = AdviseRequest.of(plan_for(monkeypatch, served=("sync", "gthread")))
    assert request.removed == ()  # naming it would not help
    assert request.left_out["eventlet"] == "Gunicorn 25.3.0 has no worker class eventlet"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--slo", "p95<2s,rps>=3"), "rps>=3 cannot be shown when 3 requests/s arrive"),
        (("--budget", "100"), "about 48 s for 6 worker classes, and the 3 launches .* 54 s: allow"
         " 102 s, or name"),
        (("--budget", "40", "--classes", "sync"), "8 s for 1 worker class, .* allow [0-9]+ s$"),
    ],
)  # fmt: skip
def test_impossible_targets_and_budgets_are_refused(
    arguments: tuple[str, ...], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=why):
        plan_for(monkeypatch, *arguments)
    plan_for(monkeypatch, "--slo", "p95<2s,rps>2", "--budget", "110")
    plan_for(monkeypatch, "--budget", "75", "--classes", "sync,gthread")


def test_the_budget_named_in_a_refusal_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even though a larger budget makes launches longer."""
    variants = "--rate", "500", "--gunicorn", "25.0.0,25.1.0,25.2.0,25.3.0"
    with pytest.raises(UsageError, match="192 s for 24 worker classes") as refusal:
        plan_for(monkeypatch, *variants, "--budget", "100")
    (budget_s,) = re.findall(r"allow ([0-9]+) s", str(refusal.value))
    plan_for(monkeypatch, *variants, "--budget", budget_s)
    with pytest.raises(UsageError, match="allow"):
        plan_for(monkeypatch, *variants, "--budget", str(int(budget_s) - 1))


def test_each_version_is_a_variant_of_each_class(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = "25.3.0", "27.0.1"
    plan = plan_for(monkeypatch, "--classes", "sync,asgi", "--gunicorn", ",".join(versions))
    variants = [(cell.server.worker_class, cell.server.gunicorn) for cell in plan.cells]
    assert variants == [(name, version) for name in ("sync", "asgi") for version in versions]


@pytest.mark.parametrize(
    ("chdir", "write", "own", "app", "expected"),
    [
        (None, "", None, ".", "."),
        ("shop", "", None, "shop", None),  # started elsewhere
        ("shop", "shop/conf.py", None, "shop", "shop"),  # the file is next to the app
        ("shop", "conf.py", None, "shop", None),
        ("shop", "", "/srv", "shop", None),  # --chdir overrides the chdir of the app's own file
        (None, "", "/srv", "/srv", ""),
        (None, "", "shop", "shop", "."),  # a relative chdir in the app's own file
        (None, "", None, "", None),  # a bundled app
    ],
)
def test_the_file_sets_chdir_only_if_gunicorn_may_start_elsewhere(
    chdir: str | None, write: str, own: str | None, app: str, expected: str | None,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    path = str((tmp_path / app).resolve()) if app else ""
    settings = {"chdir": own} if own else {}
    written = str(tmp_path / write) if write else ""
    directory = starts_in(chdir, written, settings, path)
    assert directory == (str((tmp_path / expected).resolve()) if expected else expected)
