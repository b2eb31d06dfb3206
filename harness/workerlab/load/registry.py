"""The load tools, one pure file each: how the tool is run, and what its output means.

To add one, write such a file with a `Tool`, and add it to TOOLS.
"""

from workerlab.load import locust
from workerlab.load.ab import AB
from workerlab.load.fast import FAST
from workerlab.load.mistakes.tool import MISTAKES
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
        Program("processes-coroutines", ("aiohttp",), PROCESSES=True, PROCESS_PER="core"),
        locust.HTTP,
        locust.FAST,
    )
}

# Other names that are understood
ALSO = {"python": "fast", "processes\u00d7coroutines": "processes-coroutines"}


def tool_named(name: str) -> Tool:
    """The tool of that name, or of one it is also known by, or one that makes a mistake, which
    nobody is offered. KeyError for others."""
    known = ALSO.get(name, name)
    return TOOLS[known] if known in TOOLS else MISTAKES[known]
