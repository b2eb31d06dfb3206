"""The scripts, in a checkout of stubs: no network, no package manager, no root."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.builders.conditions import LONG_S
from tests.builders.processes import started

ROOT = Path(__file__).parents[2]
SHELL = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]
PROGRAMS = [
    "bash",
    "sh",
    "cat",
    "chmod",
    "cksum",
    "cp",
    "dirname",
    "env",
    "find",
    "mkdir",
    "mktemp",
]
PROGRAMS += ["rm", "tail", "tee", "uname"]
TALLY = runpy.run_path(str(ROOT / "scripts" / "tally.py"))
tally, run_again = TALLY["tally"], TALLY["run_again"]

# Makes environments and fills them as python3 does, in no time, and can do it; is the real one
# otherwise, which starts quickly without its site.
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
    """A copy of the scripts beside a PATH on which stands what the test put there."""

    def __init__(self, tmp_path):
        self.root, self.bin = tmp_path / "check out", tmp_path / "bin"
        for name in ("pyproject.toml", "constraints.txt", "tox.ini"):
            self.root.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, self.root)
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
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
        return subprocess.run(
            [self.root / "scripts" / script, *arguments],
            env=self.env | env,
            cwd=self.bin,
            capture_output=True,
            text=True,
            timeout=LONG_S,
        )


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


@pytest.fixture
def equipped(checkout):
    checkout.stub("ab")
    checkout.stub("wrk")
    return checkout


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_is_executable_and_parses(path):
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", path], check=True)


def test_the_tests_need_no_environment_but_their_own(equipped):
    done = equipped.run("setup.sh", "--tox")
    assert done.returncode == 0
    assert "setup: pip install tox tox-uv" in done.stderr
    assert not (equipped.root / ".venv").exists()
    assert equipped.run("setup.sh", "--tox").stderr == ""


def test_sets_up_once_and_says_so_on_standard_error_only(equipped):
    done = equipped.run("setup.sh")
    assert (done.returncode, done.stdout) == (0, "")
    assert "setup: pip install -e .[all]" in done.stderr
    assert (equipped.root / ".venv/bin/workerlab").exists()
    assert not (equipped.root / ".venv-tox").exists()
    again = equipped.run("setup.sh")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_what_is_not_whole_is_made_again(equipped):
    equipped.run("setup.sh")
    for harm in ("half-made", "broken", "outdated", "moved"):
        if harm == "half-made":
            (equipped.root / ".venv/.complete").unlink()
        elif harm == "broken":
            (equipped.root / ".venv/bin/python").write_text("#!/no/such/python\n")
        elif harm == "outdated":
            with (equipped.root / "constraints.txt").open("a") as file:
                file.write("# one more line\n")
        else:
            equipped.root = equipped.root.rename(equipped.root.with_name("moved"))
        assert "pip install" in equipped.run("setup.sh").stderr, harm
        assert equipped.run("setup.sh").stderr == "", harm


def test_without_rights_the_embedded_tool_is_announced_once(checkout):
    checkout.stub("apt-get", "echo must not run >&2")
    done = checkout.run("setup.sh")
    assert done.returncode == 0
    assert "the embedded load tool 'fast' will be used" in done.stderr
    assert "'--tool wrk' is unavailable" in done.stderr
    assert "must not run" not in done.stderr
    assert checkout.run("setup.sh").stderr == ""


def test_with_sudo_the_tools_are_installed(checkout):
    checkout.stub("sudo", 'shift; exec "$@"')
    # apt-get names packages; the program of apache2-utils is ab.
    checkout.stub(
        "apt-get",
        f"""for word; do
case $word in apache2-utils) word=ab ;; wrk) ;; *) continue ;; esac
printf '#!/bin/sh\\n' >"{checkout.bin}/$word"; chmod +x "{checkout.bin}/$word"
done""",
    )
    done = checkout.run("setup.sh")
    assert done.returncode == 0
    assert "setup: apt-get install apache2-utils" in done.stderr
    assert "missing" not in done.stderr
    assert done.stderr.count("apt-get update") == 1


def test_tests_get_a_browser_where_it_can_be_installed(equipped):
    equipped.stub("sudo", 'shift; exec "$@"')
    equipped.stub(
        "apt-get",
        f"""case "$*" in *chromium*) printf '#!/bin/sh\\n' >"{equipped.bin}/chromium"
chmod +x "{equipped.bin}/chromium" ;; esac""",
    )
    assert "chromium" not in equipped.run("setup.sh").stderr
    assert "setup: apt-get install chromium" in equipped.run("setup.sh", "--tox").stderr
    assert equipped.run("setup.sh", "--tox").stderr == ""


def test_without_a_browser_the_tests_go_on_and_it_is_said_once(equipped):
    done = equipped.run("setup.sh", "--tox")
    assert done.returncode == 0
    assert "the report page is not tested in a browser" in done.stderr
    assert equipped.run("setup.sh", "--tox").stderr == ""


# What apt-get does to a system that lets it: starts what it installs, and makes a first database
APT = """
case "$*" in
  *postgresql*)
    cat "{system}/etc/postgresql-common/createcluster.d/"*.conf >>"{bin}/clusters"
    set -- initdb ;;
  *redis-server*) set -- redis-server ;;
  *) exit 0 ;;
esac
"{system}/usr/sbin/policy-rc.d" "$1" start || echo "held $1" >>"{bin}/services"
[ -z "$APT_FAILS" ] || exit 100
printf '#!/bin/sh\\n' >"{bin}/$1"
chmod +x "{bin}/$1"
"""


@pytest.fixture
def system(equipped):
    """A machine whose packages may be installed."""
    equipped.stub("sudo", 'shift; exec "$@"')
    place = equipped.root.parent / "system"
    (place / "usr/sbin").mkdir(parents=True)
    equipped.stub("apt-get", APT.format(system=place, bin=equipped.bin))
    return place


def everything_in(place):
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


@pytest.mark.parametrize("word", ["--ladder", "--tox"])
def test_servers_are_installed_and_not_started(equipped, system, word):
    done = equipped.run("setup.sh", word)
    assert done.returncode == 0
    assert "setup: apt-get install postgresql" in done.stderr
    assert "setup: apt-get install redis-server" in done.stderr
    assert (equipped.bin / "clusters").read_text() == "create_main_cluster = off\n"
    assert (equipped.bin / "services").read_text() == "held initdb\nheld redis-server\n"
    assert everything_in(system) == ["etc", "etc/postgresql-common", "usr", "usr/sbin"]
    assert equipped.run("setup.sh", word).stderr == ""


def test_servers_are_not_installed_unasked(equipped, system):
    assert "postgresql" not in equipped.run("setup.sh").stderr


def test_what_holds_services_already_stays(equipped, system):
    policy = system / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 104\n")
    policy.chmod(0o755)
    clusters = system / "etc/postgresql-common/createcluster.d"
    clusters.mkdir(parents=True)
    (clusters / "own.conf").write_text("create_main_cluster = on\n")
    assert equipped.run("setup.sh", "--ladder").returncode == 0
    assert policy.read_text() == "#!/bin/sh\nexit 104\n"
    assert [path.name for path in clusters.iterdir()] == ["own.conf"]


def test_servers_that_cannot_be_installed_leave_nothing_and_are_told_once(equipped, system):
    done = equipped.run("setup.sh", "--ladder", APT_FAILS="1")
    assert done.returncode == 0
    assert "the ladder uses SQLite" in done.stderr
    assert "the ladder goes without the cache" in done.stderr
    assert everything_in(system) == ["etc", "etc/postgresql-common", "usr", "usr/sbin"]
    assert equipped.run("setup.sh", "--ladder").stderr == ""


def test_without_rights_the_ladder_stands_on_sqlite(equipped):
    done = equipped.run("setup.sh", "--ladder")
    assert done.returncode == 0
    assert "the ladder uses SQLite" in done.stderr


def test_debians_postgresql_outside_the_path_is_found(equipped, system):
    program = system / "usr/lib/postgresql/15/bin/initdb"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    done = equipped.run("setup.sh", "--ladder")
    assert "install postgresql" not in done.stderr
    assert "install redis-server" in done.stderr


def test_ladder_hands_over(equipped):
    done = equipped.run("ladder.sh", "--quick")
    assert done.stdout == f"workerlab {equipped.bin} ladder --quick\n"


def test_demo_hands_over(equipped):
    done = equipped.run("demo.sh", "--yes")
    assert done.stdout == f"workerlab {equipped.bin} demo --yes\n"


def test_a_failing_apt_is_shown_and_does_not_stop_it(checkout):
    checkout.stub("id", "echo 0")
    checkout.stub("apt-get", "echo could not resolve; exit 100")
    done = checkout.run("setup.sh")
    assert done.returncode == 0
    assert "could not resolve" in done.stderr
    assert "the embedded load tool 'fast' will be used" in done.stderr


def test_a_failing_pip_is_shown_and_ends_with_3(equipped):
    done = equipped.run("setup.sh", PIP_FAILS="1")
    assert done.returncode == 3
    assert "no such package" in done.stderr
    assert "pip could not install into" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("python", ["missing", "old"])
def test_without_a_python_it_ends_with_3_and_a_sentence(equipped, python):
    (equipped.bin / "python3").unlink()
    if python == "old":
        old = f"""case "$*" in *version_info*) exit 1 ;; --version) echo Python 3.9.2 ;;
*) exec "{sys.executable}" "$@" ;; esac"""
        equipped.stub("python3", old)
    done = equipped.run("sweep.sh", "sync", "4")
    assert done.returncode == 3
    assert done.stderr.startswith("setup: Python 3.11 or newer is needed, and ")
    assert done.stderr.count("\n") == 1


def test_two_at_once_set_up_once(equipped):
    argv = [equipped.root / "scripts" / "setup.sh"]
    with ExitStack() as stack:
        both = [
            stack.enter_context(started(argv, env=equipped.env, stderr=subprocess.PIPE))
            for _ in range(2)
        ]
        said = [process.communicate(timeout=LONG_S)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert "".join(said).count("pip install") == 1


def test_sweep_hands_over_in_the_callers_directory(equipped):
    done = equipped.run("sweep.sh", "sync,gevent", "4,8", "--out", "a b")
    assert done.stdout == f"workerlab {equipped.bin} sweep sync,gevent 4,8 --out a b\n"


@pytest.mark.parametrize("fails", ["", "1"])
def test_test_counts_last_and_ends_as_tox_does(equipped, fails):
    results = equipped.root / ".tox"
    results.mkdir()
    (results / "junit-old.xml").write_text("<testsuites><testcase/></testsuites>")
    done = equipped.run("test.sh", "-e", "unit", TOX_FAILS=fails)
    tox, last = done.stdout.splitlines()
    assert tox == f"tox {equipped.bin} run -c {equipped.root}/tox.ini -e unit"
    assert last == "0 passed, 0 failed, 0 skipped"
    assert (done.returncode != 0) is bool(fails)


def test_all_tests_run_several_environments_at_once(equipped):
    tox, _ = equipped.run("test.sh").stdout.splitlines()
    assert tox.startswith(f"tox {equipped.bin} run-parallel -c {equipped.root}/tox.ini --parallel ")


def test_tally(tmp_path):
    first, second = tmp_path / "1.xml", tmp_path / "2.xml"
    first.write_text(
        "<testsuites><testsuite><testcase/><testcase><skipped/></testcase>"
        "<testcase><failure/><error/></testcase></testsuite></testsuites>"
    )
    second.write_text("<testsuites><testsuite><testcase><error/></testcase></testsuite>")
    assert tally([first, tmp_path / "none.xml"]) == "1 passed, 1 failed, 1 skipped"
    assert tally([first, second]) == "1 passed, 2 failed, 1 skipped"


def test_what_was_run_again_is_told_with_its_failure(tmp_path):
    path = tmp_path / "1.xml"
    path.write_text(
        '<testsuites><testsuite><testcase classname="tests.a" name="one"><properties>'
        '<property name="run again" value="assert 1 == 2"/></properties></testcase>'
        '<testcase classname="tests.a" name="two"/></testsuite></testsuites>'
    )
    assert list(run_again(path)) == ["tests.a::one (assert 1 == 2)"]
    assert tally([path]) == "2 passed, 0 failed, 0 skipped"
