"""The contents of sdist and wheel, and the installed wheel outside a checkout."""

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
from workerlab.experiments import COMMANDS

DATA = f"workerlab-{__version__}.data"
SHARED = {
    "share/bash-completion/completions/workerlab",
    "share/fish/vendor_completions.d/workerlab.fish",
    "share/man/man1/workerlab.1",
    "share/zsh/site-functions/_workerlab",
}


def files_of_checkout() -> Iterator[str]:
    """All files of the package, by their paths in a wheel."""
    sources = {"harness/workerlab": "", "apps": "bundled/apps/", "configs": "bundled/configs/"}
    for source, prefix in sources.items():
        for path in (ROOT / source).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                yield f"workerlab/{prefix}{path.relative_to(ROOT / source)}"


def test_the_wheel_contains_only_the_package(built: Built) -> None:
    names = {PurePosixPath(name) for name in built.names_in_wheel()}
    assert {name.parts[0] for name in names} == {"workerlab", DIST_INFO, DATA}
    shared = {name for name in names if name.parts[0] == DATA}
    assert {str(name.relative_to(f"{DATA}/data")) for name in shared} == SHARED
    package = {str(name) for name in names if name.parts[0] == "workerlab"}
    assert package == set(files_of_checkout())


def test_the_sdist_contains_the_sources_of_the_wheel(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = [PurePosixPath(name) for name in archive.getnames()]
    assert {name.parts[1] for name in names} == {
        *(".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"),
        *("apps", "configs", "harness", "scripts"),
    }


def test_the_metadata_has_a_licence_and_a_readme_with_absolute_links(built: Built) -> None:
    metadata = built.metadata()
    assert metadata["License-Expression"] == "MIT"
    assert f"{DIST_INFO}/licenses/LICENSE" in built.names_in_wheel()
    readme = str(metadata.get_payload())
    assert readme.startswith("# workerlab")
    assert "](docs/" not in readme
    assert f"/blob/v{__version__}/docs/method.md)" in readme
    assert f"/raw/v{__version__}/docs/pictures/" in readme


def test_other_files_name_the_current_version_and_repository() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f'\nrepository-code: "{urls["Repository"]}"\n' in citation
    assert f"\nversion: {__version__}\n" in citation
    assert f"\n## [{__version__}] - " in (ROOT / "CHANGELOG.md").read_text()
    assert f"@v{__version__}\n" in (ROOT / "docs" / "compare.md").read_text()


def test_every_pinned_version_runs_on_the_oldest_python() -> None:
    """Debian 12 has Python 3.11.2."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = f"{project['requires-python'].removeprefix('>=')}.0"
    options = ("--quiet", "--no-deps", "--no-build", "--python-version", oldest)
    uv("pip", "compile", *options, "--output-file", os.devnull, ROOT / "constraints.txt")


def test_the_commands_work_outside_a_checkout(installed: Path, tmp_path: Path) -> None:
    home, cwd = tmp_path / "home", tmp_path / "empty"
    home.mkdir()
    cwd.mkdir()
    env = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    env |= {"HOME": str(home), "NO_COLOR": "1"}
    program = installed / "bin" / "workerlab"

    def output(*arguments: str) -> str:
        done = run(program, *arguments, cwd=cwd, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert output("--version") == f"workerlab {__version__}\n"
    assert "sync: 4 slots" in output("sweep", "sync", "2", "--sleep", "0.1")
    assert [path.name for path in cwd.iterdir()] == ["results"]
    assert "sync: 4 slots" in output("report", "results")
    (cwd / "gunicorn.conf.py").write_text("threads = 4\n")
    assert "threads" in output("settings", "--config", "gunicorn.conf.py")
    argv = [program, "live", "--no-browser"]
    with subprocess.Popen(argv, cwd=cwd, env=env, stderr=subprocess.PIPE, text=True) as live:
        assert live.stderr is not None
        try:
            address = next(line.split()[-1] for line in live.stderr if "http://" in line)
            assert b"<html" in urlopen(address, timeout=60).read()
        finally:
            live.send_signal(signal.SIGTERM)
            live.stderr.read()
    assert live.returncode in (128 + signal.SIGTERM, 0)


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

    def completions(*arguments: str) -> list[str]:
        done = run("bash", "-c", COMPLETE, "bash", script, "workerlab", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert completions("sw") == ["sweep"]
    assert completions("sweep", "--worker") == ["--workers", "--worker-connections"]
    assert "markdown" in completions("report", "--format", "")


def test_all_completions_and_the_man_page_list_all_commands(installed: Path) -> None:
    for path in SHARED:
        text = (installed / path).read_text()
        assert {name for name in COMMANDS if name not in text} == set()
        assert re.search(r"worker(-|\\-)connections", text)


def test_the_man_page_has_examples_of_every_command(installed: Path) -> None:
    page = (installed / "share/man/man1/workerlab.1").read_text()
    assert page.startswith(".TH WORKERLAB")
    for name in COMMANDS:
        assert f"EXAMPLES OF {name.upper()}\n" in page
