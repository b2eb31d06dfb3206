"""The scripts, with stubs for package managers, root and the network.

tests/packaging runs setup.sh without stubs.
"""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.conditions import LONG_S
from tests.builders.processes import started

ROOT = Path(__file__).parents[2]
SHELL = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]
PROGRAMS = [
    "bash", "sh", "cat", "chmod", "cksum", "cp", "dirname", "env", "find", "install", "mkdir", "rm",
    "tail",
]  # fmt: skip
TALLY = runpy.run_path(str(ROOT / "scripts" / "tally.py"))
tally, run_again = TALLY["tally"], TALLY["run_again"]

# A stub that creates and fills environments at once, and otherwise runs the real Python, without
# `site` to start quickly
PYTHON = """#!/bin/sh
case "$1 $2" in
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip")
    [ -z "$PIP_FAILS" ] || { echo "no such package" >&2; exit 1; }
    for name in workerlab tox; do
      program="$(dirname "$0")/$name"
      printf '#!/bin/sh\\necho %s "$PWD" "$@"\\n[ -z "$TOX_FAILS" ]\\n' "$name" >"$program"
      chmod +x "$program"
    done ;;
  "-c " | "-c import ensurepip, venv") ;;
  *) exec "REAL" -S "$@" ;;
esac
"""


class Checkout:
    """A copy of the scripts, and a PATH with only these programs and the test's own."""

    def __init__(self, tmp_path):
        self.root, self.bin = tmp_path / "check out", tmp_path / "bin"
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        for name in ("pyproject.toml", "constraints.txt", "tox.ini"):
            shutil.copy(ROOT / name, self.root)
        self.bin.mkdir()
        for program in PROGRAMS:
            (self.bin / program).symlink_to(shutil.which(program))
        self.stub("id", "echo 1000")
        self.stub("python3", PYTHON.replace("REAL", sys.executable))

    @property
    def env(self):
        system = self.root.parent / "system"
        return {"PATH": str(self.bin), "HOME": str(self.root), "WORKERLAB_SYSTEM": str(system)}

    def stub(self, name, text="exit 0"):
        path = self.bin / name
        path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(self, script, *arguments, **env):
        argv = [self.root / "scripts" / script, *arguments]
        options = {"capture_output": True, "text": True, "timeout": LONG_S}
        return subprocess.run(argv, env=self.env | env, cwd=self.bin, **options)

    def setup(self, *arguments, **env):
        """The messages of setup.sh, which must succeed."""
        result = self.run("setup.sh", *arguments, **env)
        assert result.returncode == 0, result.stderr
        return result.stderr


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


@pytest.fixture
def equipped(checkout):
    checkout.stub("ab")
    checkout.stub("wrk")
    return checkout


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_scripts_are_executable_and_parse(path):
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", path], check=True)


def test_the_tests_need_only_their_own_environment_and_no_browser(equipped):
    messages = equipped.setup("--tox")
    assert "setup: pip install tox tox-uv" in messages
    assert "the report page is not tested in a browser" in messages
    assert not (equipped.root / ".venv").exists()
    assert equipped.setup("--tox") == ""


def test_an_incomplete_environment_is_created_again(equipped):
    equipped.setup()
    for damage in ("incomplete", "broken", "outdated", "moved"):
        if damage == "incomplete":
            (equipped.root / ".venv/.complete").unlink()
        elif damage == "broken":
            (equipped.root / ".venv/bin/python").write_text("#!/no/such/python\n")
        elif damage == "outdated":
            with (equipped.root / "constraints.txt").open("a") as file:
                file.write("# one more line\n")
        else:
            equipped.root = equipped.root.rename(equipped.root.with_name("moved"))
        assert "pip install" in equipped.setup(), damage
        assert equipped.setup() == "", damage


def test_without_rights_the_embedded_tool_and_sqlite_are_announced_once(checkout):
    checkout.stub("apt-get", "echo must not run >&2")
    messages = checkout.setup()
    assert "the embedded load tool 'fast' will be used" in messages
    assert "'--tool wrk' is unavailable" in messages
    assert "must not run" not in messages
    assert checkout.setup() == ""
    assert "the ladder uses SQLite" in checkout.setup("--ladder")
    assert checkout.setup("--ladder") == ""


def test_with_sudo_the_tools_are_installed(checkout, system):
    messages = checkout.setup()
    assert "setup: apt-get install apache2-utils wrk\n" in messages
    assert "missing" not in messages
    assert messages.count("apt-get") == 2  # the other is apt-get update


def test_a_missing_package_does_not_prevent_the_others(checkout, system):
    messages = checkout.setup(APT_FAILS="wrk")
    assert (checkout.bin / "ab").exists()
    assert "missing and cannot be installed: '--tool wrk' is unavailable" in messages
    assert messages.count("missing") == 1


@pytest.mark.parametrize("lacking", ["", "chromium-headless-shell"])
def test_any_chromium_is_installed(equipped, system, lacking):
    assert "missing" not in equipped.setup("--tox", APT_FAILS=lacking)
    assert (equipped.bin / "chromium-headless-shell").exists() is not bool(lacking)
    assert (equipped.bin / "chromium").exists() is bool(lacking)


# Like apt-get, it installs all packages or none, starts installed services unless a policy forbids
# it, and creates a first database
APT = """
case " $* " in *" $APT_FAILS "*) exit 100 ;; esac
for package in "$@"; do
  case $package in
    apache2-utils) program=ab ;;
    wrk | redis-server | chromium | chromium-headless-shell) program=$package ;;
    postgresql)
      cat "{system}/etc/postgresql-common/createcluster.d/"*.conf >>"{bin}/clusters"
      program=initdb ;;
    *) continue ;;
  esac
  case $package in postgresql | redis-server)
    "{system}/usr/sbin/policy-rc.d" $program start || echo "held $program" >>"{bin}/services" ;;
  esac
  printf '#!/bin/sh\\n' >"{bin}/$program"
  chmod +x "{bin}/$program"
done
"""


@pytest.fixture
def system(checkout):
    """A machine on which packages may be installed."""
    checkout.stub("sudo", 'shift; exec "$@"')
    place = checkout.root.parent / "system"
    (place / "usr/sbin").mkdir(parents=True)
    checkout.stub("apt-get", APT.format(system=place, bin=checkout.bin))
    return place


def everything_in(place):
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


@pytest.mark.parametrize("option", ["--ladder", "--tox"])
def test_servers_are_installed_on_request_and_not_started(equipped, system, option):
    """With --tox a browser is installed as well."""
    assert "apt-get" not in equipped.setup()
    browser = " chromium-headless-shell fonts-dejavu-core" if option == "--tox" else ""
    packages = f"postgresql redis-server{browser}"
    assert f"setup: apt-get install {packages}\n" in equipped.setup(option)
    assert (equipped.bin / "clusters").read_text() == "create_main_cluster = off\n"
    assert (equipped.bin / "services").read_text() == "held initdb\nheld redis-server\n"
    assert everything_in(system) == ["etc", "etc/postgresql-common", "usr", "usr/sbin"]
    assert equipped.setup(option) == ""


def test_an_existing_service_policy_is_kept(equipped, system):
    policy = system / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 104\n")
    policy.chmod(0o755)
    clusters = system / "etc/postgresql-common/createcluster.d"
    clusters.mkdir(parents=True)
    (clusters / "own.conf").write_text("create_main_cluster = on\n")
    equipped.setup("--ladder")
    assert policy.read_text() == "#!/bin/sh\nexit 104\n"
    assert [path.name for path in clusters.iterdir()] == ["own.conf"]


def test_servers_that_cannot_be_installed_leave_no_files_and_are_reported_once(equipped, system):
    messages = equipped.setup("--ladder", APT_FAILS="install")
    assert "the ladder uses SQLite" in messages
    assert "the ladder runs without its Redis cache" in messages
    assert everything_in(system) == ["etc", "etc/postgresql-common", "usr", "usr/sbin"]
    assert equipped.setup("--ladder") == ""


@pytest.mark.parametrize("place", ["usr/lib/postgresql/15", "opt/homebrew/opt/postgresql@17"])
def test_postgresql_outside_the_path_is_recognised(equipped, system, place):
    program = system / place / "bin/initdb"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    messages = equipped.setup("--ladder")
    assert "install postgresql" not in messages
    assert "install redis-server" in messages


def test_setup_shows_a_failure_of_apt_and_continues(checkout):
    checkout.stub("id", "echo 0")
    checkout.stub("apt-get", '[ "$1" = --version ] || { echo could not resolve; exit 100; }')
    messages = checkout.setup()
    assert "could not resolve" in messages
    assert "the embedded load tool 'fast' will be used" in messages


def test_setup_shows_a_failure_of_pip_and_ends_with_3(equipped):
    result = equipped.run("setup.sh", PIP_FAILS="1")
    assert result.returncode == 3
    assert "no such package" in result.stderr
    assert "pip could not install into" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("python", ["missing", "old"])
def test_without_a_python_setup_ends_with_3(equipped, python):
    (equipped.bin / "python3").unlink()
    if python == "old":
        old = f"""case "$*" in *version_info*) exit 1 ;; --version) echo Python 3.9.2 ;;
*) exec "{sys.executable}" "$@" ;; esac"""
        equipped.stub("python3", old)
    result = equipped.run("sweep.sh", "sync", "4")
    assert result.returncode == 3
    assert result.stderr.startswith("setup: Python 3.11 or newer is needed, and ")
    assert result.stderr.endswith("install it, then try again.\n")
    assert result.stderr.count("\n") == 1


def test_a_missing_python_is_installed_if_that_is_allowed(equipped, system):
    """Under the distribution's name: Debian 13 has no python3.11."""
    (equipped.bin / "python3").rename(equipped.bin / "hidden")
    copy = 'cp "$bin/hidden" "$bin/python3.13"'
    equipped.stub("apt-get", f'bin={equipped.bin}; case "$*" in *venv*) {copy} ;; esac')
    assert "setup: apt-get install ^python3[.]1[1-9]-venv$\n" in equipped.setup()


def test_a_checkout_that_cannot_be_written_ends_with_3(equipped):
    (equipped.root / ".setup").touch()
    result = equipped.run("setup.sh")
    assert result.returncode == 3
    assert result.stderr == f"setup: {equipped.root}/.setup cannot be written.\n"


def test_only_one_of_two_concurrent_setups_installs_packages(equipped, stack):
    argv, options = [equipped.root / "scripts" / "setup.sh"], {"stderr": subprocess.PIPE}
    processes = [stack.enter_context(started(argv, env=equipped.env, **options)) for _ in range(2)]
    messages = [process.communicate(timeout=LONG_S)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert "".join(messages).count("pip install") == 1


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("sweep", ["sync,gevent", "4,8", "--out", "a b"]),
        ("ladder", ["--quick"]),
        ("demo", ["--yes"]),
    ],
)
def test_a_script_runs_its_command_in_the_callers_directory(equipped, command, arguments):
    result = equipped.run(f"{command}.sh", *arguments)
    assert result.stdout == f"workerlab {equipped.bin} {command} {' '.join(arguments)}\n"


@pytest.mark.parametrize("fails", ["", "1"])
def test_the_test_script_prints_counts_and_ends_like_tox(equipped, fails):
    tox_directory = equipped.root / ".tox"
    tox_directory.mkdir()
    (tox_directory / "junit-old.xml").write_text("<testsuites><testcase/></testsuites>")
    result = equipped.run("test.sh", "-e", "unit", TOX_FAILS=fails)
    tox, last = result.stdout.splitlines()
    assert tox == f"tox {equipped.bin} run -c {equipped.root}/tox.ini -e unit"
    assert last == "0 passed, 0 failed, 0 skipped"
    assert (result.returncode != 0) is bool(fails)


def test_all_tests_run_in_parallel_environments(equipped):
    tox, _ = equipped.run("test.sh").stdout.splitlines()
    assert tox.startswith(f"tox {equipped.bin} run-parallel -c {equipped.root}/tox.ini --parallel ")


def test_tests_are_counted_and_repeated_ones_are_listed(tmp_path):
    first, second = tmp_path / "1.xml", tmp_path / "2.xml"
    first.write_text(
        '<testsuites><testsuite><testcase classname="tests.a" name="first"><properties>'
        '<property name="run again" value="assert 1 == 2"/></properties></testcase>'
        "<testcase><skipped/></testcase>"
        "<testcase><failure/><error/></testcase></testsuite></testsuites>"
    )
    second.write_text("<testsuites><testsuite><testcase><error/></testcase></testsuite>")
    assert tally([first, tmp_path / "none.xml"]) == "1 passed, 1 failed, 1 skipped"
    assert tally([first, second]) == "1 passed, 2 failed, 1 skipped"
    assert list(run_again(first)) == ["tests.a::first (assert 1 == 2)"]
