"""Rules between packages beyond their imports, which are contracts in pyproject.toml."""

import ast
from collections.abc import Iterator
from pathlib import Path

LAB = Path(__file__).parents[2] / "harness" / "workerlab"


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def test_load_tools_open_no_file() -> None:
    """Except the lab's own programs, which run as separate processes."""
    opening = {"open", "read_text", "read_bytes", "write_text", "write_bytes"}
    tools = {path.stem: path for path in (LAB / "load").glob("*.py")}
    assert {"ab", "wrk", "locust", "fast"} <= set(tools)
    for tool, path in tools.items():
        calls = (node.func for node in nodes(path) if isinstance(node, ast.Call))
        names = {getattr(function, "attr", getattr(function, "id", "")) for function in calls}
        assert not names & opening, tool


def test_only_the_codec_reads_with_msgspec() -> None:
    """It inspects each type once, and never in two threads at the same time."""
    reading = {"msgspec.json.decode", "msgspec.json.Decoder", "msgspec.convert"}
    names = {name.rpartition(".")[2] for name in reading}
    readers: dict[str, set[str]] = {}
    for path in LAB.rglob("*.py"):
        if "msgspec" not in path.read_text(encoding="utf-8"):
            continue
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("msgspec"):
                # Imported names would not be noticed below
                assert not {alias.name for alias in node.names} & {*names, "json"}, path
            elif isinstance(node, ast.Attribute) and node.attr in names:
                readers.setdefault(path.name, set()).add(ast.unparse(node))
    calls_by_file = {name: calls & reading for name, calls in readers.items() if calls & reading}
    assert calls_by_file == {"codec.py": reading}
