"""The sdist, the wheel built from it, and that wheel in an environment outside the checkout."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from urllib.request import urlopen

from tests.packaging.conftest import DIST_INFO, ROOT, Built, run, uv
from workerlab import __version__
from workerlab.cli import COMMANDS

DATA = f"workerlab-{__version__}.data"
SHARED = {
    "share/bash-completion/completions/workerlab",
    "share/fish/vendor_completions.d/workerlab.fish",
    "share/man/man1/workerlab.1",
    "share/zsh/site-functions/_workerlab",
}


def in_checkout() -> Iterator[str]:
    """Every file of the package, by its place in a wheel."""
    sources = {"harness/workerlab": "", "apps": "bundled/apps/", "configs": "bundled/configs/"}
    for source, place in sources.items():
        for path in (ROOT / source).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                yield f"workerlab/{place}{path.relative_to(ROOT / source)}"


def test_the_wheel_holds_the_package_alone(built: Built) -> None:
    names = {PurePosixPath(name) for name in built.in_wheel()}
    assert {name.parts[0] for name in names} == {"workerlab", DIST_INFO, DATA}
    shared = {name for name in names if name.parts[0] == DATA}
    assert {str(name.relative_to(f"{DATA}/data")) for name in shared} == SHARED
    package = {str(name) for name in names if name.parts[0] == "workerlab"}
    assert package == set(in_checkout())


def test_the_sdist_holds_what_a_wheel_is_built_from(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = [PurePosixPath(name) for name in archive.getnames()]
    assert {name.parts[1] for name in names} == {
        *(".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"),
        *("apps", "configs", "harness", "scripts"),
    }


def test_the_metadata(built: Built) -> None:
    metadata = built.metadata()
    assert metadata["License-Expression"] == "MIT"
    assert f"{DIST_INFO}/licenses/LICENSE" in built.in_wheel()
    readme = str(metadata.get_payload())
    assert readme.startswith("# workerlab")
    assert "](docs/" not in readme
    assert f"/blob/v{__version__}/docs/method.md)" in readme
    assert f"/raw/v{__version__}/docs/pictures/" in readme


def test_every_file_names_this_version_and_address() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f'\nrepository-code: "{urls["Repository"]}"\n' in citation
    assert f"\nversion: {__version__}\n" in citation
    assert f"\n## [{__version__}] - " in (ROOT / "CHANGELOG.md").read_text()
    assert f"@v{__version__}\n" in (ROOT / "docs" / "compare.md").read_text()


def test_every_pinned_version_runs_on_the_oldest_python() -> None:
    """Else no environment can be made on Debian 12, whose Python is 3.11.2."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = f"{project['requires-python'].removeprefix('>=')}.0"
    words = ("--quiet", "--no-deps", "--no-build", "--python-version", oldest)
    uv("pip", "compile", *words, "--output-file", os.devnull, ROOT / "constraints.txt")


def test_it_works_outside_a_checkout(installed: Path, tmp_path: Path) -> None:
    home, place = tmp_path / "home", tmp_path / "empty"
    home.mkdir()
    place.mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    env = {**kept, "HOME": str(home), "NO_COLOR": "1"}
    program = installed / "bin" / "workerlab"
    done = run(program, "--version", cwd=place, env=env)
    assert (done.returncode, done.stdout) == (0, f"workerlab {__version__}\n"), done.stderr
    done = run(program, "sweep", "sync", "2", "--sleep", "0.1", cwd=place, env=env)
    assert done.returncode == 0, done.stderr
    assert "sync: 4 slots" in done.stdout
    assert [path.name for path in place.iterdir()] == ["results"]
    done = run(program, "report", "results", cwd=place, env=env)
    assert (done.returncode, "sync: 4 slots" in done.stdout) == (0, True), done.stderr
    (place / "gunicorn.conf.py").write_text("threads = 4\n")
    done = run(program, "settings", "--config", "gunicorn.conf.py", cwd=place, env=env)
    assert (done.returncode, "threads" in done.stdout) == (0, True), done.stderr
    words = [program, "live", "--no-browser"]
    with subprocess.Popen(words, cwd=place, env=env, stderr=subprocess.PIPE, text=True) as live:
        assert live.stderr is not None
        try:
            address = next(line.split()[-1] for line in live.stderr if "http://" in line)
            assert b"<html" in urlopen(address, timeout=60).read()
        finally:
            live.send_signal(signal.SIGTERM)
            live.stderr.read()
    assert live.returncode == 128 + signal.SIGTERM or live.returncode == 0


COMPLETE = """\
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_shtab_workerlab workerlab "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_bash_completes_commands_and_options(installed: Path) -> None:
    script = installed / "share/bash-completion/completions/workerlab"

    def completions(*words: str) -> list[str]:
        done = run("bash", "-c", COMPLETE, "bash", script, "workerlab", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert completions("sw") == ["sweep"]
    assert completions("sweep", "--worker") == ["--workers", "--worker-connections"]
    assert "markdown" in completions("report", "--format", "")


def test_every_shell_knows_every_command(installed: Path) -> None:
    for place in SHARED:
        text = (installed / place).read_text()
        assert {name for name in COMMANDS if name not in text} == set()
        assert re.search(r"worker(-|\\-)connections", text)


def test_the_man_page_has_examples_of_every_command(installed: Path) -> None:
    page = (installed / "share/man/man1/workerlab.1").read_text()
    assert page.startswith(".TH WORKERLAB")
    for name in COMMANDS:
        assert f"EXAMPLES OF {name.upper()}\n" in page
