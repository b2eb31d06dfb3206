"""Who may import whom: the rooms of the house keep to themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATHS = sorted(path.relative_to(ROOT) for path in (ROOT / "harness" / "workerlab").rglob("*.py"))
MEASURING = ("workerlab.server", "workerlab.observe", "workerlab.load")
MEANING = ("workerlab.analysis", "workerlab.report")
STARTING = ("subprocess", "multiprocessing", "concurrent", "asyncio", "os", "shutil", "tempfile")
FILES = {"open", "read_text", "read_bytes", "write_text", "write_bytes"}

# What the modules of a room must not import, but for what is allowed; all rooms they are in count
RULES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "workerlab": (("apps", "configs"), ()),
    "workerlab.model": (("workerlab",), ()),
    "workerlab.numbers": (("workerlab",), ("workerlab.numbers",)),
    "workerlab.server": (MEANING, ()),
    "workerlab.server.inside": (("workerlab",), ()),
    "workerlab.observe": (MEANING, ()),
    "workerlab.load": (MEANING, ()),
    "workerlab.analysis": ((*MEASURING, "workerlab.report"), ()),
    "workerlab.report": (MEASURING, ()),
}
# To be mended; nothing may be added
STILL: set[tuple[str, str]] = set()
# The load tools but not our own generators and mistakes, which are programs and run as such
PROGRAMS = {"generators", "__main__.py"}
TOOLS = [path for path in PATHS if "load" in path.parts and PROGRAMS.isdisjoint(path.parts)]


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removeprefix("harness.").removesuffix(".__init__")


def within(module: str, rooms: tuple[str, ...]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Those that import or call."""
    every = ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    return tuple(node for node in every if isinstance(node, ast.Import | ast.ImportFrom | ast.Call))


def imports(path: Path) -> Iterator[str]:
    """Every module that is imported anywhere in the file; of `from a import b` both a.b and a, for
    b may be a module."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def violations(path: Path) -> Iterator[tuple[str, str]]:
    module = module_of(path)
    for room, (forbidden, allowed) in RULES.items():
        if within(module, (room,)):
            for name in imports(path):
                if within(name, forbidden) and not within(name, allowed):
                    yield str(path), name


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_a_room_imports_what_it_may(path: Path) -> None:
    assert set(violations(path)) - STILL == set()


@pytest.mark.parametrize("path", TOOLS, ids=str)
def test_load_starts_no_process_and_opens_no_file(path: Path) -> None:
    assert not [name for name in imports(path) if within(name, STARTING)]
    calls = [node.func for node in nodes(path) if isinstance(node, ast.Call)]
    names = {getattr(call, "attr", getattr(call, "id", "")) for call in calls}
    assert not names & FILES


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_only_the_codec_reads_with_msgspec(path: Path) -> None:
    """What it reads by, it must not work out in two threads at once."""
    calls = {ast.unparse(node.func) for node in nodes(path) if isinstance(node, ast.Call)}
    reading = {"msgspec.json.decode", "msgspec.json.Decoder", "msgspec.convert"}
    assert not [name for name in imports(path) if within(name, ("msgspec.json", "msgspec.convert"))]
    assert calls & reading == (reading if path.name == "codec.py" else set())


@pytest.mark.parametrize("package", ["apps", "harness"])
def test_modules_import_each_other_in_no_circle(package: str) -> None:
    paths = [path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")]
    modules = {module_of(path) for path in paths}
    graph = {
        module_of(path): {
            name if name in modules else name.rpartition(".")[0] for name in imports(path)
        }
        & modules - {module_of(path)}
        for path in paths
    }
    assert list(TopologicalSorter(graph).static_order())  # CycleError names the circle


def test_what_has_been_mended_is_on_no_list() -> None:
    assert set().union(*map(set, map(violations, PATHS))) >= STILL


def test_a_forbidden_import_would_be_seen() -> None:
    assert list(imports(Path("tests/unit/test_rooms.py"))) == [
        "__future__.annotations",
        "ast",
        "collections.abc.Iterator",
        "functools.cache",
        "graphlib.TopologicalSorter",
        "pathlib.Path",
        "pytest",
    ]
    assert not within("workerlab.loading", MEASURING)
    assert within("workerlab.load.ab", MEASURING)
