"""The load tools, by name. To add one, write a module with its `Tool`, and add it to TOOLS."""

from operator import attrgetter

from workerlab.load import locust
from workerlab.load.ab import AB
from workerlab.load.fast import FAST
from workerlab.load.h2load import H2LOAD
from workerlab.load.mistakes import MISTAKES
from workerlab.load.oha import OHA
from workerlab.load.programs import Program
from workerlab.load.tool import Tool
from workerlab.load.wrk import WRK

TOOLS: dict[str, Tool] = {
    tool.NAME: tool
    for tool in (
        AB,
        WRK,
        FAST,
        H2LOAD,
        OHA,
        Program(
            "processes",
            NEEDS=("requests",),
            PROCESS_PER="connection",
            FLOOR_RPS=100.0,
            MAX_CEILING_CONNECTIONS=16,
        ),
        Program("threads", NEEDS=("requests",), FLOOR_RPS=100.0, MAX_CEILING_CONNECTIONS=64),
        Program("coroutines", NEEDS=("aiohttp",), FLOOR_RPS=300.0),
        Program(
            "processes-coroutines",
            NEEDS=("aiohttp",),
            PROCESSES=True,
            PROCESS_PER="core",
            FLOOR_RPS=300.0,
        ),
        locust.HTTP,
        locust.FAST,
    )
}

DEFAULT, BUNDLED = AB, FAST  # BUNDLED if DEFAULT is not installed or cannot send the load
ALIASES = {"python": "fast", "processes\u00d7coroutines": "processes-coroutines"}


def tool_named(name: str) -> Tool:
    """The tool with that name or alias, or one of the deliberate mistakes, which no option offers.
    Raises KeyError for any other name."""
    key = ALIASES.get(name, name)
    return TOOLS[key] if key in TOOLS else MISTAKES[key]


def faster_tools(name: str) -> tuple[str, ...]:
    """The tools that send clearly more requests/s than the named one, fastest last."""
    exceeded_rps = max(tool_named(name).FLOOR_RPS, DEFAULT.FLOOR_RPS)
    faster = [tool for tool in TOOLS.values() if exceeded_rps < tool.FLOOR_RPS]
    return tuple(tool.NAME for tool in sorted(faster, key=attrgetter("FLOOR_RPS")))
