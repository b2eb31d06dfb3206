"""The load tools, by name. To add one, write a module with its `Tool` and add that to TOOLS."""

from workerlab.load import locust
from workerlab.load.ab import AB
from workerlab.load.fast import FAST
from workerlab.load.mistakes import MISTAKES
from workerlab.load.programs import Program
from workerlab.load.tool import Tool
from workerlab.load.wrk import WRK

TOOLS: dict[str, Tool] = {
    tool.NAME: tool
    for tool in (
        AB,
        WRK,
        FAST,
        Program("processes", NEEDS=("requests",), PROCESS_PER="connection"),
        Program("threads", NEEDS=("requests",)),
        Program("coroutines", NEEDS=("aiohttp",)),
        Program("processes-coroutines", NEEDS=("aiohttp",), PROCESSES=True, PROCESS_PER="core"),
        locust.HTTP,
        locust.FAST,
    )
}

ALIASES = {"python": "fast", "processes\u00d7coroutines": "processes-coroutines"}


def tool_named(name: str) -> Tool:
    """The tool with that name or alias, or one of the deliberate mistakes, which no option offers.
    Raises KeyError for other names."""
    key = ALIASES.get(name, name)
    return TOOLS[key] if key in TOOLS else MISTAKES[key]
