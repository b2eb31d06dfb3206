"""What a load tool left behind, read from its directory."""

from __future__ import annotations

from pathlib import Path

from harness.load.registry import TOOLS
from harness.model import Output


def read_text(path: Path) -> str:
    """Empty where it is missing."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def output_of(tool: str, workdir: Path, exit_code: int | None) -> Output:
    files = {
        name: read_text(workdir / name)
        for name in TOOLS[tool].OUTPUT_FILES
        if (workdir / name).is_file()
    }
    return Output(read_text(workdir / "stdout"), read_text(workdir / "stderr"), exit_code, files)
