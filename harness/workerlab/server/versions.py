"""Gunicorn in any requested version: each in a directory of its own, installed on demand.

The version comes first on the import path of the interpreter that serves the app, whose own
environment does not change. Gunicorn is pure Python, so one directory serves all interpreters; its
dependencies (`packaging`, for gevent and eventlet) are those of the interpreter.

    USER CACHE/workerlab/gunicorn/25.3.0/     complete: renamed to this once an import succeeded
                                  .lock       held while a version is installed
                                  .25.3.0-*   incomplete; removed by the next holder of the lock

The lab's own version is copied from its environment. Other versions are installed by uv if
available, else by pip; uv also works without a network, if its cache has the version.
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

from workerlab.errors import EnvironmentProblem
from workerlab.paths import user_cache

INSTALL_S = 120.0
CHECK = "import gunicorn.app.wsgiapp; print(gunicorn.__version__)"
# Messages of uv and pip if the index cannot be reached
NO_INDEX = (
    "from versions: none",
    "Failed to fetch",
    "network was disabled",
    "error sending request",
)
NO_VERSION = ("No matching distribution", "there is no version", "No solution found")


def directory_of(version: str) -> Path:
    """The directory of that version, whether or not it exists."""
    return user_cache("gunicorn", version)


def lab_version() -> str:
    """The version in the lab's own environment; "" if it has none."""
    from importlib import metadata  # slow to import, and few commands need it

    try:
        return metadata.version("gunicorn")
    except metadata.PackageNotFoundError:
        return ""


def provide(version: str) -> Path:
    """The directory of that version of Gunicorn, installed if needed. Raises EnvironmentProblem if
    that fails."""
    directory = directory_of(version)
    if directory.is_dir():
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _locked(directory.parent):
            if not directory.is_dir():  # another process may have installed it meanwhile
                _make(version, directory)
    except OSError as error:
        raise EnvironmentProblem(
            f"Gunicorn {version} cannot be stored in {directory.parent}: {error.strerror or error};"
            " set XDG_CACHE_HOME to another directory"
        ) from error
    return directory


def with_version(version: str, env: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that make an interpreter import that version; {} for "", its own.
    Raises EnvironmentProblem, like `provide`."""
    if not version:
        return {}
    path = os.pathsep.join(filter(None, (str(provide(version)), env.get("PYTHONPATH"))))
    return {"PYTHONPATH": path}


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the lock on that directory. The kernel releases it even if this process is killed."""
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for incomplete in directory.glob(".*-*"):
            shutil.rmtree(incomplete, ignore_errors=True)
        yield


def _make(version: str, directory: Path) -> None:
    """Install to a temporary directory next to `directory`, test an import, and rename."""
    incomplete = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{version}-"))
    try:
        if version != lab_version() or not _copy(incomplete):
            _install(version, incomplete)
        env = {**os.environ, "PYTHONPATH": str(incomplete), "PYTHONDONTWRITEBYTECODE": "1"}
        result = _run([sys.executable, "-c", CHECK], env)
        if result.returncode != 0:
            why = (result.stderr.strip().splitlines() or ["no error message"])[-1]
            raise EnvironmentProblem(f"Gunicorn {version} cannot be imported: {why}")
        incomplete.chmod(0o755)
        incomplete.rename(directory)
    finally:
        shutil.rmtree(incomplete, ignore_errors=True)


def _copy(directory: Path) -> bool:
    """Copy the lab's own version. False, without copying, if its files were changed after the
    installation."""
    from importlib import metadata

    contents = dict[Path, bytes]()
    for file in metadata.files("gunicorn") or ():
        if not file.parts[0].startswith("gunicorn") or file.hash is None:
            continue
        source = Path(file.locate())
        content = source.read_bytes() if source.is_file() else b""
        digest = base64.urlsafe_b64encode(hashlib.new(file.hash.mode, content).digest())
        if digest.decode().rstrip("=") != file.hash.value:
            return False
        contents[directory / file] = content
    for target, content in contents.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return (directory / "gunicorn").is_dir()


def _install(version: str, directory: Path) -> None:
    """Install with the first installer that works. Raises EnvironmentProblem with the first one's
    output."""
    output = ""
    env = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    for argv in _installers():
        shutil.rmtree(directory)  # pip would accept an incomplete installation
        directory.mkdir()
        result = _run([*argv, "--no-deps", "--target", str(directory), f"gunicorn=={version}"], env)
        if result.returncode == 0 and (directory / "gunicorn").is_dir():
            return
        output = output or result.stdout + result.stderr  # the first installer may use the network
    raise EnvironmentProblem(f"Gunicorn {version} cannot be installed: {_why(output, directory)}")


def _installers() -> Iterator[Sequence[str]]:
    """Commands that may install a package, the best first."""
    if uv := _uv():
        install = [*uv, "pip", "install", "--quiet", "--no-progress", "--no-build"]
        yield [*install, "--python", sys.executable]
        yield [*install, "--python", sys.executable, "--offline"]
    for python in dict.fromkeys((sys.executable, getattr(sys, "_base_executable", ""))):
        if python and _run([python, "-c", "import pip"], dict(os.environ)).returncode == 0:
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            yield [*pip, "--no-input", "--retries", "1", "--timeout", "15", "--only-binary=:all:"]


def _uv() -> list[str] | None:
    sibling = Path(sys.executable).with_name("uv")
    program = str(sibling) if sibling.exists() else shutil.which("uv")
    return [program] if program else None


def _run(argv: Sequence[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=INSTALL_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 1, "", f"timed out after {INSTALL_S:.0f} s")


def _why(output: str, directory: Path) -> str:
    if not output:
        return "neither uv nor pip is available; install pip with: python -m ensurepip"
    if any(message in output for message in NO_INDEX):
        return "the package index does not respond (is there a network connection?)"
    if any(message in output for message in NO_VERSION):
        return "there is no such version"
    free = shutil.disk_usage(directory).free
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ").removeprefix("error: ") + (
        "" if free > 10_000_000 else f"; only {free / 1e6:.0f} MB are left in {directory.parent}"
    )
