"""Requested versions of Gunicorn, installed by real installers from wheels made here."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path

import pytest

from tests.builders.conditions import LONG_S, until
from tests.builders.gunicorns import WORKERS, files_of
from tests.builders.processes import started
from workerlab.errors import EnvironmentProblem
from workerlab.server import preflight, versions

ROOT = Path(__file__).resolve().parents[3]
Wheel = Callable[..., None]
CODE = "from workerlab.server.versions import provide; print(provide('{}'))"
PRINT_PROBLEM = """
from workerlab.errors import EnvironmentProblem
from workerlab.server.versions import provide
try:
    provide("99.1")
except EnvironmentProblem as problem:
    print(problem)
"""


def may_mount() -> bool:
    """Whether this user may mount file systems in a new namespace."""
    if not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


@pytest.fixture(autouse=True)
def _isolated_installers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installers without the user's settings and caches."""
    for name in [name for name in os.environ if name.startswith(("UV_", "PIP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """Makes a wheel of Gunicorn in the only directory that the installers search."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (tmp_path / "uv.toml").write_text("[pip]\nno-index = true\n")  # uv has no variable for this
    monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "uv.toml"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for tool in ("UV", "PIP"):
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(wheels))

    def make(version: str, app: str = "", size: int = 0, requires: str = ">=3.10") -> None:
        info = f"gunicorn-{version}.dist-info"
        files = {
            **files_of(version, app, requires),
            "gunicorn/data": "x" * size,
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
        with zipfile.ZipFile(wheels / f"gunicorn-{version}-py3-none-any.whl", "w") as archive:
            for name, text in {**files, f"{info}/RECORD": record}.items():
                archive.writestr(name, text)

    return make


def cached(tmp_path: Path) -> set[str]:
    """The entries of the cache, except the lock."""
    return {entry.name for entry in (tmp_path / "cache/workerlab/gunicorn").iterdir()} - {".lock"}


def test_a_version_is_installed_once_and_is_imported_first(tmp_path: Path, wheel: Wheel) -> None:
    wheel("99.1")
    packages = versions.provide("99.1")
    (tmp_path / "wheels/gunicorn-99.1-py3-none-any.whl").unlink()
    assert versions.provide("99.1") == packages
    assert cached(tmp_path) == {"99.1"}
    env = versions.with_version("99.1", {"PYTHONPATH": "/srv/own"})
    assert env == {"PYTHONPATH": f"{packages}{os.pathsep}/srv/own"}
    argv = [sys.executable, "-c", "import gunicorn; print(gunicorn.__version__)"]
    result = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True)
    assert result.stdout.strip() == "99.1"


def test_without_a_version_nothing_is_installed(tmp_path: Path) -> None:
    assert versions.with_version("", {"PYTHONPATH": "here"}) == {}
    assert not (tmp_path / "cache").exists()


def why_not_provided(version: str, tmp_path: Path) -> str:
    """The reason why this version cannot be provided; nothing is cached."""
    with pytest.raises(EnvironmentProblem) as problem:
        versions.provide(version)
    assert cached(tmp_path) == set()
    return str(problem.value)


def test_a_version_that_does_not_exist_cannot_be_installed(tmp_path: Path, wheel: Wheel) -> None:
    wheel("99.1")
    why = "Gunicorn 99.2 cannot be installed: there is no such version"
    assert why_not_provided("99.2", tmp_path) == why


def test_a_version_needs_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    for name in ("UV_DEFAULT_INDEX", "PIP_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")  # no server listens there
    assert why_not_provided("27.0.1", tmp_path) == (
        "Gunicorn 27.0.1 cannot be installed: "
        "the package index does not respond (is there a network connection?)"
    )


def output_of_lab_with(packages: Path, version: str) -> str:
    """The last line printed by a lab with the Gunicorn in `packages` that provides a version."""
    argv = [sys.executable, "-c", CODE.format(version)]
    env = {**os.environ, "PYTHONPATH": f"{packages}{os.pathsep}{ROOT / 'harness'}"}
    result = subprocess.run(argv, env=env, capture_output=True, text=True)
    return (result.stdout or result.stderr).strip().splitlines()[-1]


@pytest.mark.usefixtures("wheel")  # nothing can be fetched
def test_the_labs_own_gunicorn_is_copied_unless_modified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    version, packages = versions.lab_version(), tmp_path / "packages"
    for file in metadata.files("gunicorn") or ():
        if ".." not in file.parts:
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.locate(), packages / file)
    with (packages / "gunicorn/arbiter.py").open("a") as arbiter:
        arbiter.write("# changed\n")
    assert f"Gunicorn {version} cannot be installed" in output_of_lab_with(packages, version)
    assert cached(tmp_path) == set()
    original = Path(sysconfig.get_path("purelib")) / "gunicorn/arbiter.py"
    shutil.copyfile(original, packages / "gunicorn/arbiter.py")
    copy = tmp_path / "cache/workerlab/gunicorn" / version
    assert output_of_lab_with(packages, version) == str(copy)
    assert filecmp.cmp(copy / "gunicorn/arbiter.py", original, shallow=False)


def test_a_version_that_cannot_be_imported_is_not_cached(tmp_path: Path, wheel: Wheel) -> None:
    wheel("99.1", app="import nowhere\n")
    why = why_not_provided("99.1", tmp_path)
    assert re.search("cannot be imported: .*nowhere", why)


def test_a_cache_that_is_not_a_directory_is_reported(tmp_path: Path, wheel: Wheel) -> None:
    wheel("99.1")
    (tmp_path / "cache").touch()
    with pytest.raises(EnvironmentProblem, match=r"cannot be stored in .*XDG_CACHE_HOME"):
        versions.provide("99.1")


@pytest.mark.skipif(not may_mount(), reason="mounting requires Linux and root")
@pytest.mark.parametrize(
    ("mount", "expected"),
    [
        ("ro", "cannot be stored in {}: Read-only file system; set XDG_CACHE_HOME to another"),
        ("size=200k", "only 0 MB are left in {}"),
    ],
)
def test_a_cache_that_is_read_only_or_full_is_reported(
    tmp_path: Path, wheel: Wheel, mount: str, expected: str
) -> None:
    wheel("99.1", size=1_000_000)
    (tmp_path / "cache").mkdir()
    script = 'mount -t tmpfs -o "$1" none cache && "$2" -c "$3" && ls -A cache/workerlab/gunicorn'
    argv = ["unshare", "--mount", "sh", "-c", script, "-", mount, sys.executable, PRINT_PROBLEM]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "harness")}
    result = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True)
    message, *entries = result.stdout.splitlines()
    assert expected.format(tmp_path / "cache/workerlab/gunicorn") in message
    assert entries in ([], [".lock"])


def test_an_installation_that_was_killed_is_repeated(tmp_path: Path, wheel: Wheel) -> None:
    """The next process finds no partial version. The check of the version hangs until the first
    process is killed."""
    wheel("99.1", app="import os, time\nif 'HANG' in os.environ:\n    time.sleep(600)\n")
    argv, env = [sys.executable, "-c", CODE.format("99.1")], {**os.environ, "HANG": "1"}
    cache = tmp_path / "cache/workerlab/gunicorn"
    with subprocess.Popen(argv, env=env, start_new_session=True) as lab:
        try:
            until(lambda: list(cache.glob(".99.1-*")) or lab.poll() is not None, "it starts")
            assert lab.poll() is None
        finally:
            os.killpg(lab.pid, signal.SIGKILL)
    assert cached(tmp_path) != {"99.1"}
    versions.provide("99.1")
    assert cached(tmp_path) == {"99.1"}


def test_two_labs_at_once_install_a_version_once(
    tmp_path: Path, wheel: Wheel, stack: ExitStack
) -> None:
    wheel("99.1")
    argv = [sys.executable, "-c", CODE.format("99.1")]
    labs = [stack.enter_context(started(argv, stdout=subprocess.PIPE)) for _ in range(2)]
    outputs = {lab.communicate(timeout=LONG_S)[0].strip() for lab in labs}
    assert outputs == {str(tmp_path / "cache/workerlab/gunicorn/99.1")}
    assert cached(tmp_path) == {"99.1"}


def test_a_version_has_only_its_own_worker_classes(tmp_path: Path, wheel: Wheel) -> None:
    wheel("99.1")
    interpreter = preflight.interpreter(sys.executable, tmp_path, None, gunicorn="99.1")
    assert (interpreter.gunicorn, interpreter.requested) == ("99.1", "99.1")
    assert list(interpreter.worker_classes) == ["sync"]
    assert interpreter.why_unavailable("sync") is None
    assert interpreter.why_unavailable("eventlet") == "Gunicorn 99.1 has no worker class eventlet"


def test_an_interpreter_too_old_for_a_version_is_reported(tmp_path: Path, wheel: Wheel) -> None:
    wheel("99.1")
    metadata = versions.provide("99.1") / "gunicorn-99.1.dist-info/METADATA"
    metadata.write_text(metadata.read_text().replace(">=3.10", ">=3.99"))
    interpreter = preflight.interpreter(sys.executable, tmp_path, None, gunicorn="99.1")
    why = f"Gunicorn 99.1 needs Python >=3.99, but {sys.executable} is 3."
    assert interpreter.why_unavailable("sync").startswith(why)


def test_another_gunicorn_next_to_the_app_is_refused(tmp_path: Path, wheel: Wheel) -> None:
    wheel("99.1")
    (tmp_path / "gunicorn").mkdir()
    (tmp_path / "gunicorn/__init__.py").write_text("__version__ = '1.0'\n")
    (tmp_path / "gunicorn/workers.py").write_text(WORKERS)
    with pytest.raises(EnvironmentProblem, match=r"imports Gunicorn 1\.0 instead of 99\.1"):
        preflight.interpreter(sys.executable, tmp_path, None, gunicorn="99.1")
