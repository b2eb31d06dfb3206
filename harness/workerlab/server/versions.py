"""Gunicorn in the version that somebody asks for: each in a directory of its own, made on demand.

A version is put first on the import path of the interpreter that serves the app, whose own
environment stays as it is. Gunicorn is pure Python, so that one directory serves all interpreters;
what it imports beside itself (`packaging`, for gevent and eventlet) is the interpreter's own.

    USER CACHE/workerlab/gunicorn/25.3.0/     whole: it gets this name when an import has checked it
                                  .lock       held while one of them is made
                                  .25.3.0-*   half-made; removed by whoever holds the lock next

The version that the lab itself has is copied, as it was installed. Any other is made by uv where it
is there, else by pip; with uv also where there is no network, if its own cache has the version.
"""

import base64
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from workerlab.model import EnvironmentProblem
from workerlab.user_cache import user_cache

INSTALL_S = 120.0
CHECK = "import gunicorn.app.wsgiapp; print(gunicorn.__version__)"
# What uv and pip say when it is not the version that is missing
NO_INDEX = (
    "from versions: none",
    "Failed to fetch",
    "network was disabled",
    "error sending request",
)
NO_VERSION = ("No matching distribution", "there is no version", "No solution found")


def place_of(version: str) -> Path:
    """Where that version is, or would be."""
    return user_cache("gunicorn", version)


def of_the_lab() -> str:
    """The version in the lab's own environment; "" where it has none."""
    from importlib import metadata  # takes long to import, and few commands ask

    try:
        return metadata.version("gunicorn")
    except metadata.PackageNotFoundError:
        return ""


def provide(version: str) -> Path:
    """The directory of that version of Gunicorn, made if need be. Raises EnvironmentProblem, in one
    sentence, where it cannot be had."""
    place = place_of(version)
    if place.is_dir():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _alone(place.parent):
            if not place.is_dir():  # another lab may have made it meanwhile
                _make(version, place)
    except OSError as error:
        raise EnvironmentProblem(
            f"Gunicorn {version} cannot be kept in {place.parent}: {error.strerror or error};"
            " XDG_CACHE_HOME may name another place"
        ) from error
    return place


def with_version(version: str, env: Mapping[str, str]) -> dict[str, str]:
    """What makes an interpreter with this environment import that version; {}: its own. Raises
    EnvironmentProblem as `provide`."""
    if not version:
        return {}
    path = os.pathsep.join(filter(None, (str(provide(version)), env.get("PYTHONPATH"))))
    return {"PYTHONPATH": path}


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """No other lab makes a version there meanwhile. The kernel lets go of it however this ends."""
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for half_made in directory.glob(".*-*"):
            shutil.rmtree(half_made, ignore_errors=True)
        yield


def _make(version: str, place: Path) -> None:
    """Install it beside its place, check it by an import, and give it its name."""
    half_made = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{version}-"))
    try:
        if version != of_the_lab() or not _copy(half_made):
            _install(version, half_made)
        env = {**os.environ, "PYTHONPATH": str(half_made), "PYTHONDONTWRITEBYTECODE": "1"}
        done = _run([sys.executable, "-c", CHECK], env)
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            raise EnvironmentProblem(f"Gunicorn {version} cannot be imported: {said}")
        half_made.chmod(0o755)
        half_made.rename(place)
    finally:
        shutil.rmtree(half_made, ignore_errors=True)


def _copy(directory: Path) -> bool:
    """The lab's own. False, and nothing is there, where its files are not those of a release:
    somebody works on them."""
    from importlib import metadata

    contents = dict[Path, bytes]()
    for file in metadata.files("gunicorn") or ():
        if not file.parts[0].startswith("gunicorn") or file.hash is None:
            continue
        place = Path(file.locate())
        content = place.read_bytes() if place.is_file() else b""
        digest = base64.urlsafe_b64encode(hashlib.new(file.hash.mode, content).digest())
        if digest.decode().rstrip("=") != file.hash.value:
            return False
        contents[directory / file] = content
    for target, content in contents.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return (directory / "gunicorn").is_dir()


def _install(version: str, directory: Path) -> None:
    """By the first installer that can. Raises EnvironmentProblem with what the last one said."""
    said = ""
    env = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    for argv in _installers():
        shutil.rmtree(directory)  # pip would keep the half that another one left, and call it done
        directory.mkdir()
        done = _run([*argv, "--no-deps", "--target", str(directory), f"gunicorn=={version}"], env)
        if done.returncode == 0 and (directory / "gunicorn").is_dir():
            return
        said = said or done.stdout + done.stderr  # of what was tried with a network
    raise EnvironmentProblem(f"Gunicorn {version} cannot be installed: {_why(said, directory)}")


def _installers() -> Iterator[Sequence[str]]:
    """What may install it, the best first."""
    if uv := _uv():
        install = [*uv, "pip", "install", "--quiet", "--no-progress", "--no-build"]
        yield [*install, "--python", sys.executable]
        yield [*install, "--python", sys.executable, "--offline"]
    for python in dict.fromkeys((sys.executable, getattr(sys, "_base_executable", ""))):
        if python and _run([python, "-c", "import pip"], dict(os.environ)).returncode == 0:
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            yield [*pip, "--no-input", "--retries", "1", "--timeout", "15", "--only-binary=:all:"]


def _uv() -> list[str] | None:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    return [found] if found else None


def _run(argv: Sequence[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=INSTALL_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 1, "", f"no answer within {INSTALL_S:.0f} s")


def _why(said: str, directory: Path) -> str:
    if not said:
        return "neither uv nor pip is here to install it: python -m ensurepip"
    if any(words in said for words in NO_INDEX):
        return "the package index does not answer (is there a network?)"
    if any(words in said for words in NO_VERSION):
        return "there is no such version"
    free = shutil.disk_usage(directory).free
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ").removeprefix("error: ") + (
        "" if free > 10_000_000 else f"; {free / 1e6:.0f} MB are left in {directory.parent}"
    )
