"""Command lines; invalid ones end with one sentence and exit code 2, and start nothing."""

import argparse
import itertools
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.builders.conditions import LONG_S
from tests.builders.processes import default_signals, started
from workerlab import __version__
from workerlab.cli import main, parse
from workerlab.errors import UsageError
from workerlab.experiments import COMMANDS
from workerlab.options import in_turn
from workerlab.server import preflight


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory. Limits that a command raises are restored."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **_: object) -> None:
        raise AssertionError(f"started {arguments}")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(os, "fork", refuse)
    monkeypatch.setattr(os, "posix_spawn", refuse)


def refused(argv: list[str], capsys: pytest.CaptureFixture[str], here: Path) -> str:
    """The sentence with which the command refuses these arguments."""
    files = sorted(here.rglob("*"))
    code = main(argv)
    output = capsys.readouterr()
    assert (code, output.out) == (2, ""), output.err
    assert output.err.endswith("\n")
    (line,) = output.err.splitlines()
    assert line.startswith("workerlab: ")
    assert sorted(here.rglob("*")) == files
    return line.removeprefix("workerlab: ")


GOOD = ["sync", "4"]
# Arguments of `sweep`, and a part of the error message
BAD = {
    "unknown class": (["snyc", "4"], "unknown worker class 'snyc': did you mean sync?"),
    "unknown class in a list": (["sync,evenlet", "4"], "did you mean eventlet?"),
    "class like none": (["zzzzzz", "4"], "choose from sync, gthread"),
    "class in capitals": (["Gevent", "4"], "did you mean gevent?"),
    "file as a class": (["sync,gunicorn.conf.py", "4"], "pass it with --config"),
    "empty classes": (["", "4"], "CLASSES"),
    "empty class": (["sync,,gevent", "4"], "empty entry"),
    "no levels": (["sync"], "LEVELS"),
    "no words": ([], "CLASSES"),
    "concurrency 0": (["sync", "0"], "0"),
    "concurrency 0 in a list": (["sync", "4,0"], "0"),
    "concurrency -1": (["sync", "-1"], "-1"),
    "concurrency not a number": (["sync", "4,x"], "'x'"),
    "concurrency with a hole": (["sync", "4,,8"], "empty entry"),
    "concurrency with an end": (["sync", "4,"], "empty entry"),
    "empty concurrency": (["sync", ""], "empty entry"),
    "blank concurrency": (["sync", " "], "empty entry"),
    "concurrency in other digits": (["sync", "\u0664"], "whole number"),
    "concurrency with a fraction": (["sync", "4.5"], "whole number"),
    "concurrency with an exponent": (["sync", "1e3"], "whole number"),
    "concurrency underscored": (["sync", "1_000"], "whole number"),
    "concurrency above the limits": (["sync", "1000000000"], "choose a level of at most"),
    "workers 0": ([*GOOD, "--workers", "0"], "--workers"),
    "workers negative": ([*GOOD, "--workers", "-2"], "--workers"),
    "workers not a number": ([*GOOD, "--workers", "2,two"], "'two'"),
    "threads 0": ([*GOOD, "--threads", "0"], "--threads"),
    "backlog 0": ([*GOOD, "--backlog", "0"], "--backlog"),
    "worker connections 0": ([*GOOD, "--worker-connections", "0"], "--worker-connections"),
    "sleep negative": ([*GOOD, "--sleep", "-1"], "--sleep"),
    "sleep nan": ([*GOOD, "--sleep", "nan"], "nan"),
    "sleep infinite": ([*GOOD, "--sleep", "inf"], "inf"),
    "sleep for days": ([*GOOD, "--sleep", "1e9"], "3600"),
    "sleep not a number": ([*GOOD, "--sleep", "long"], "'long'"),
    "rounds 1": ([*GOOD, "--rounds", "1"], "--rounds"),
    "requests 0": ([*GOOD, "--requests", "0"], "--requests"),
    "trials 0": ([*GOOD, "--trials", "0"], "--trials"),
    "keep-alive perhaps": ([*GOOD, "--keepalive", "maybe"], "neither off nor on"),
    "keep-alive in a list": ([*GOOD, "--keepalive", "on,1"], "'1'"),
    "empty keep-alive": ([*GOOD, "--keepalive", ""], "empty entry"),
    "rate 0": ([*GOOD, "--tool", "fast", "--rate", "0"], "invalid rate 0"),
    "rate negative": ([*GOOD, "--tool", "fast", "--rate", "-5"], "invalid rate -5"),
    "rate above the capacity": ([*GOOD, "--tool", "fast", "--rate", "120%"], "at most 100%"),
    "jobs 0": ([*GOOD, "--jobs", "0"], "must be at least 1"),
    "two signs": ([*GOOD, "--rounds=--5"], "argument --rounds: '--5' is not a whole number"),
    "jobs of another kind": ([*GOOD, "--jobs", "many"], "neither a whole number nor auto"),
    "no time": ([*GOOD, "--tool", "fast", "--duration", "0"], "greater than 0 seconds"),
    "target without a unit": ([*GOOD, "--slo", "p95<300"], "argument --slo: column 8: 300 needs"),
    "no target to fail on": ([*GOOD, "--fail-on-slo"], "--fail-on-slo needs a target: --slo 'p95"),
    "unknown tool": ([*GOOD, "--tool", "wkr"], "did you mean wrk?"),
    "unknown format": ([*GOOD, "--format", "yaml"], "--format"),
    "header without colon": ([*GOOD, "--header", "Accept"], "'Accept'"),
    "header without name": ([*GOOD, "--header", ": x"], "--header"),
    "header of two lines": ([*GOOD, "--header", "A: b\nC: d"], "--header"),
    "env without value": ([*GOOD, "--env", "NAME"], "'NAME'"),
    "env without name": ([*GOOD, "--env", "=x"], "'=x'"),
    "path without slash": ([*GOOD, "--path", "cart"], "'cart'"),
    "path with a space": ([*GOOD, "--path", "/a b"], "--path"),
    "path with a line break": ([*GOOD, "--path", "/a\nb"], "--path"),
    "method of two words": ([*GOOD, "--method", "GET /"], "--method"),
    "status too low": ([*GOOD, "--expect-status", "99"], "99"),
    "status too high": ([*GOOD, "--expect-status", "600"], "600"),
    "status not a number": ([*GOOD, "--expect-status", "ok"], "'ok'"),
    "no such body file": ([*GOOD, "--body-file", "body"], "body"),
    "no such config": ([*GOOD, "--config", "own.py"], "own.py"),
    "no such directory": ([*GOOD, "--chdir", "shop"], "shop"),
    "app without module": ([*GOOD, "--app", ":app"], "':app'"),
    "app with a path": ([*GOOD, "--app", "shop/wsgi.py"], "shop/wsgi.py"),
    "no such interpreter": ([*GOOD, "--python", "no-such-python"], "no-such-python"),
    "unknown option": ([*GOOD, "--wokers", "4"], "--wokers"),
    "a word too much": ([*GOOD, "8"], "8"),
    "option without value": ([*GOOD, "--workers"], "--workers"),
    "resume and more": (["--resume", "run", *GOOD], "--resume"),
    "no such run to resume": (["--resume", "no-such-run"], "no-such-run"),
}


@pytest.mark.usefixtures("no_processes")
@pytest.mark.parametrize(("arguments", "part"), BAD.values(), ids=BAD)
def test_bad_input_of_sweep(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    assert part in refused(["sweep", *arguments], capsys, here)


# The contents of Gunicorn files
FILES = ("raise ValueError('no')", "import no_such_module", "workers = ", "raise SystemExit(3)")
# Detected only after the server's interpreter was queried
LATER = {
    "path not in ASCII": (["--path", "/caf\u00e9"], ""),
    "header name with a space": (["--header", "Not A Name: x"], ""),
    "header value beyond latin-1": (["--header", "X-Mood: \u2603"], ""),
    "path with a bad sleep": (["--path", "/?sleep=abc"], ""),
    "path with a negative sleep": (["--path", "/?sleep=-1"], ""),
    "path with sleep nan": (["--path", "/?sleep=nan"], ""),
    "sleep of another app": (["--app", "shop:app", "--sleep", "1"], "--sleep"),
    **{text: (["--config", f"{number}.py"], f"{number}.py") for number, text in enumerate(FILES)},
}


@pytest.mark.parametrize(("arguments", "part"), LATER.values(), ids=LATER)
def test_bad_input_that_is_detected_later(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str], here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for number, text in enumerate(FILES):
        (here / f"{number}.py").write_text(text)
    monkeypatch.setattr("workerlab.run_store.create", lambda *_: pytest.fail("a run was created"))
    assert part in refused(["sweep", *GOOD, "--tool", "fast", *arguments], capsys, here)


@pytest.mark.usefixtures("no_processes")
@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "COMMAND"),
        (["swep"], "swep"),
        (["report"], "RUN"),
        (["report", "no-such-run"], "no-such-run"),
        (["report", "run", "--format", "yaml"], "--format"),
        (["--no-such-option"], "COMMAND"),
        (["live", "--share", "--record", "lesson.html"], "--record"),
        (["live", "--share", "school"], "not an IPv4 address"),
        (["live", "--share-port", "8000"], "only with --share"),
        (["live", "--share", "--share-port", "0"], "not a port"),
        (["demo", "--share"], "add --web"),
    ],
)
def test_bad_input_of_other_commands(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    assert part in refused(arguments, capsys, here)


def test_open_files_and_local_ports_limit_the_concurrency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "raise_file_limit", lambda: 1000)
    preflight.check_levels([4, 1000 - preflight.SPARE_FILES])
    with pytest.raises(UsageError, match="open files, but the limit is 1000"):
        preflight.check_levels([4, 1001 - preflight.SPARE_FILES])
    monkeypatch.setattr(preflight, "raise_file_limit", lambda: None)
    monkeypatch.setattr(preflight, "port_range", lambda: (40_000, 40_099))
    preflight.check_levels([100])
    too_few = r"101 local ports, but the range 40000-40099 has only 100: .* level of at most 100"
    with pytest.raises(UsageError, match=too_few):
        preflight.check_levels([101])


def test_the_soft_limit_of_open_files_is_raised() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    preflight.check_levels([min(500, hard - preflight.SPARE_FILES)])
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard


def test_paths_are_relative_to_the_caller(here: Path) -> None:
    (here / "own.py").touch()
    arguments = ["--config", "own.py", "--chdir", ".", "--body-file", "../" + here.name + "/own.py"]
    options = parse(["sweep", *GOOD, *arguments])
    assert (options.config, options.chdir) == (str(here / "own.py"), str(here))
    assert Path(options.body_file).samefile(here / "own.py")


def test_lists_have_no_duplicates() -> None:
    lists = ("--workers", "2,1", "--keepalive", "off,on,off")
    options = parse(["sweep", "gevent,sync,gevent", "8, 4,8", *lists])
    assert (options.classes, options.levels) == (("gevent", "sync"), (4, 8))
    assert (options.workers, options.keepalive) == ((2, 1), (False, True))
    assert parse(["sweep", *GOOD]).keepalive == (False,)
    assert parse(["sweep", *GOOD, "--keepalive", "on"]).keepalive == (True,)
    assert parse(["sweep", *GOOD, "--keepalive", "on,off"]).keepalive == (True, False)


ALL_COMMANDS = [[], *([name] for name in COMMANDS)]


@pytest.mark.usefixtures("no_processes")
@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_help_has_examples(
    command: list[str], capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    with pytest.raises(SystemExit) as ending:
        main([*command, "--help"])
    output = capsys.readouterr()
    assert (ending.value.code, output.err) == (0, "")
    assert "examples:\n" in output.out
    assert not re.findall(r"\S*\w-\n", output.out)  # no word is hyphenated
    assert not re.findall(r"\n +\S{57,}", output.out)  # nor too long for its column
    assert " ".join(["  workerlab", *command]) in output.out.partition("examples:\n")[2]
    assert list(here.iterdir()) == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["--version"])
    assert ending.value.code == 0
    assert capsys.readouterr().out == f"workerlab {__version__}\n"


ROOT = Path(__file__).resolve().parents[2]
# Slow imports that --help does not need
SLOW_IMPORTS = {
    *("altair", "asyncio", "email", "http", "importlib.metadata", "jinja2", "psutil"),
    *("rich", "socket", "statistics", "subprocess", "vl_convert"),
    *("workerlab.analysis", "workerlab.experiments.runner", "workerlab.plan"),
    "workerlab.run_store",
}
IMPORTED = """
import sys
from workerlab.__main__ import main
for command in {commands!r}:
    sys.argv[1:] = [*command, "--help"]
    try:
        main()
    except SystemExit:
        print(*command, ":", *sys.modules, file=sys.stderr)
"""


def python(*arguments: str, **env: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return started(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "harness"), **env},
        **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
        preexec_fn=default_signals,
    )


def test_help_imports_nothing_slow() -> None:
    with python("-c", IMPORTED.format(commands=ALL_COMMANDS)) as process:
        out, err = process.communicate(timeout=LONG_S)
    assert out.count("usage: workerlab") == len(ALL_COMMANDS)
    lines = [line.split() for line in err.splitlines()]
    assert [line[: line.index(":")] for line in lines] == ALL_COMMANDS
    for line in lines:
        assert "argparse" in line
        assert SLOW_IMPORTS & set(line) == set(), line[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_imports_ends_the_command_silently(
    here: Path, number: signal.Signals
) -> None:
    (here / "argparse.py").write_text(
        "import time\nprint('importing', flush=True)\nwhile True:\n    time.sleep(0.02)\n"
    )
    path = f"{here}{os.pathsep}{ROOT / 'harness'}"
    with python("-m", "workerlab", "sweep", "sync", "4", PYTHONPATH=path) as process:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=LONG_S)
    assert (process.returncode, out, err) == (128 + number, "", "")


ANSWERS = """
import signal, sys
from workerlab.terminal import interrupt
for number in sys.argv[1:]:
    signal.signal(int(number), signal.SIG_IGN)
interrupt.end_at_once()
interrupt.install()
try:
    while True:
        print(sys.stdin.readline(), end="", flush=True)
except interrupt.Stopped as stopped:
    sys.exit(stopped.exit_code)
"""


@pytest.mark.parametrize("ignored", [(signal.SIGHUP,), (signal.SIGHUP, signal.SIGINT)])
def test_a_closed_terminal_does_not_end_a_command_under_nohup(ignored: tuple[int, ...]) -> None:
    with python("-c", ANSWERS, *(str(int(number)) for number in ignored)) as process:
        for line in ("before\n", "after\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == line
            process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)  # works even if a script's background ignores it
        process.stdin.close()
        assert process.wait(LONG_S) == 130


def stub_commands(monkeypatch: pytest.MonkeyPatch, first_code: int) -> list[object]:
    """Makes commands return this exit code, then the following ones. Returns a list to which each
    command appends its versions of Gunicorn."""
    versions: list[object] = []

    def command(options: argparse.Namespace) -> int:
        versions.append(options.gunicorn)
        return first_code + len(versions) - 1

    monkeypatch.setattr("workerlab.cli.action_of", lambda _name: command)
    return versions


@pytest.mark.parametrize("command", ["bottleneck", "ladder", "demo"])
def test_each_of_several_versions_has_its_own_run(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = stub_commands(monkeypatch, 2)
    assert main([command]) == 2
    assert main([command, "--gunicorn", "25.3.0"]) == 3
    assert "next run" not in capsys.readouterr().err
    assert main([command, "--gunicorn", "25.3.0,27.0.1"]) == 4  # the exit code of the first run
    assert versions == [None, ("25.3.0",), ("25.3.0",), ("27.0.1",)]
    messages = capsys.readouterr().err.splitlines()
    assert messages == ["next run: --gunicorn 25.3.0", "next run: --gunicorn 27.0.1"]


def test_every_version_runs_under_every_interpreter() -> None:
    shell = shutil.which("sh")
    argv = ["bottleneck", "--gunicorn", "25.3.0,27.0.1", "--python", f"{sys.executable},{shell}"]
    runs = [(options.python, options.gunicorn) for _, options in in_turn(parse(argv))]
    pythons, versions = ((sys.executable,), (shell,)), (("25.3.0",), ("27.0.1",))
    assert runs == list(itertools.product(pythons, versions))
    (axes,) = in_turn(parse(["sweep", "sync", "4", "--gunicorn", "25.3.0,27.0.1"]))
    assert axes[1].gunicorn == ("25.3.0", "27.0.1")


def test_no_run_follows_a_stopped_one(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = stub_commands(monkeypatch, 130)
    assert main(["demo", "--gunicorn", "25.3.0,27.0.1"]) == 130
    assert versions == [("25.3.0",)]


def test_a_document_of_several_runs_is_refused(
    no_processes: None, capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    arguments = ["bottleneck", "--gunicorn", "25.3.0,27.0.1", "--format", "json"]
    assert "name one" in refused(arguments, capsys, here)
