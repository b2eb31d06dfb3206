"""`[tool.workerlab]` of a project's pyproject.toml: defaults of options."""

import sys
from pathlib import Path
from typing import Any

import pytest

from workerlab.cli import main, parse
from workerlab.project import with_project

TABLE = """
[tool.workerlab]
app = "shop:app"
python = "env/python"
slo = "p95 < 300ms"
mix = "load/shop.mix"
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with all keys, as the current directory."""
    for name in ("env", "load", "inner"):
        (tmp_path / name).mkdir()
    (tmp_path / "env" / "python").symlink_to(sys.executable)
    (tmp_path / "load" / "shop.mix").write_text("1 GET /\n")
    (tmp_path / "pyproject.toml").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


SWEEP = ("sweep", "sync", "4")


def options_of(*argv: str) -> Any:
    return with_project(argv, parse(argv), parse)


def test_project_values_are_defaults(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = options_of(*SWEEP, "--workers", "2")
    assert (options.app, options.slo, options.workers) == ("shop:app", "p95<300ms", (2,))
    assert options.python == (str(shop / "env" / "python"),)
    assert options.mix == str(shop / "load" / "shop.mix")
    assert options.chdir == str(shop)
    assert options.project == ("app", "python", "slo", "mix")
    assert capsys.readouterr().err == "app, python, slo, mix from pyproject.toml\n"


def test_the_nearest_pyproject_applies(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(*SWEEP)
    monkeypatch.chdir(shop / "inner")
    assert options_of(*SWEEP) == options
    (shop / "inner" / "pyproject.toml").write_text("[project]\nname = 'inner'\n")  # without table
    assert options_of(*SWEEP) == parse(SWEEP)


def test_chdir_selects_the_project_and_the_import_path(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    options = options_of(*SWEEP, "--chdir", str(shop / "inner"))
    assert (options.app, options.chdir) == ("shop:app", str(shop / "inner"))


@pytest.mark.parametrize(
    ("flag", "remaining"),
    [
        (["--app", "other:app"], ("python", "slo", "mix")),
        (["--python", sys.executable], ("app", "slo", "mix")),
        (["--slo", "p99<1s"], ("app", "python", "mix")),
        (["--mix", "load/shop.mix"], ("app", "python", "slo")),
        (["--path", "/cart"], ("app", "python", "slo")),
        (["--access-log", "load/shop.mix"], ("app", "python", "slo")),
    ],
)
def test_a_flag_overrides_the_table(
    shop: Path, flag: list[str], remaining: tuple[str, ...]
) -> None:
    options, parsed = options_of(*SWEEP, *flag), parse([*SWEEP, *flag])
    assert options.project == remaining
    for name in {"app", "python", "slo", "mix"} - set(remaining):
        assert getattr(options, name) == getattr(parsed, name)
    assert options.chdir == (str(shop) if "app" in remaining else None)


@pytest.mark.usefixtures("shop")
def test_a_bundled_app_uses_no_project_values() -> None:
    options = parse(SWEEP).replace(app="@sleep_wsgi")
    assert with_project(SWEEP, options, parse) is options


@pytest.mark.parametrize(
    ("argv", "keys"),
    [
        (["advise", "--rate", "3"], ("app", "python", "slo", "mix")),
        (["compare", *SWEEP[1:], "--a", "workers=1", "--b", "workers=2"], ("app", "python", "mix")),
        (["settings", "sync"], ("python",)),
        (["limits"], ()),
        (["generators"], ()),
        (["schema", "sweep"], ()),
        (["report", "results"], ()),
        (["sweep", "--resume", "results"], ()),
        (["compare", "results/one", "results/other"], ()),
        (["compare", "--baseline", "results/one"], ()),
    ],
)
def test_a_command_takes_the_keys_that_are_its_options(
    shop: Path, argv: list[str], keys: tuple[str, ...]
) -> None:
    options = options_of(*argv)
    assert options.project == keys
    if not keys:  # an invalid table is ignored
        assert options == parse(argv)
        shop.joinpath("pyproject.toml").write_text("[tool.workerlab\n")
        assert options_of(*argv) == parse(argv)


def test_python_may_be_several_names_or_paths(shop: Path) -> None:
    shop.joinpath("pyproject.toml").write_text('[tool.workerlab]\npython = "env/python, python3"\n')
    first, second = options_of(*SWEEP).python
    assert first == str(shop / "env" / "python")
    assert Path(second).name == "python3"


BAD = {
    "not TOML": ("[tool.workerlab\n", "cannot be read"),
    "not UTF-8": ("# \udcff\n", "cannot be read"),
    "not a table": ("[tool]\nworkerlab = 1\n", "not a table"),
    "a misspelt key": ("[tool.workerlab]\npyhton = 'x'\n", "did you mean python?"),
    "another key": ("[tool.workerlab]\nlevels = '4'\n", "choose from app, python, slo, mix"),
    "not a string": ("[tool.workerlab]\napp = 1\n", "app in [tool.workerlab] must be a string"),
    "no target": ("[tool.workerlab]\nslo = 'p95'\n", "--slo"),
    "no such interpreter": ("[tool.workerlab]\npython = './no'\n", "/no is not an executable"),
    "no such mix": ("[tool.workerlab]\nmix = 'no.mix'\n", "no.mix is not a file"),
}


@pytest.mark.parametrize(("text", "part"), BAD.values(), ids=BAD)
def test_an_invalid_table_is_refused_and_nothing_is_started(
    shop: Path, capsys: pytest.CaptureFixture[str], text: str, part: str
) -> None:
    shop.joinpath("pyproject.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    files = sorted(shop.rglob("*"))
    assert main([*SWEEP, "--tool", "fast"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"workerlab: {shop / 'pyproject.toml'}")
    assert part in err
    assert sorted(shop.rglob("*")) == files
