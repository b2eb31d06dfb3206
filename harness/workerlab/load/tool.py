"""The interface of a load tool: its properties, its command, and the parser of its output."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from workerlab.model import Command, Load, Measurement, Output, ParseError


class Tool(ABC):
    """Starts no process and opens no file: the harness runs the command in a directory of its own,
    and passes the output files to `parse`."""

    NAME: str  # what the user calls it; the key in TOOLS
    PROGRAM: str | None = None  # looked up on PATH; None: part of the lab
    NEEDS: tuple[str, ...] = ()  # Python packages that it imports from the lab's environment
    VERSION_ARGV: tuple[str, ...] | None = None  # prints the version first, whatever the exit code
    COUNTED = True  # it sends `load.requests`; False: it runs for `load.duration_s`
    TIMED = False  # it can run for `load.duration_s`
    LONE_FIRST = False  # sends its first request alone, the others once that is answered
    GOOD: range | None = None  # statuses that count as success; None: the expected one
    NAMES_REQUESTS = False  # each request carries its name in the header X-Workerlab-Request
    OPEN_MODEL = False  # it can send at `load.rate_rps`
    PROCESSES = False  # it can send from `load.processes`
    RAMPS = False  # it can spread the start of its connections over `load.ramp_s`
    LINGERS = False  # its clients can close `load.linger_s` late
    MIX = False  # it can send requests of several kinds, `load.mix`
    DISTRIBUTES = False  # it can send from `load.hosts`
    # Worker classes with which it cannot keep connections alive, and what happens
    NO_KEEPALIVE: Mapping[str, str] = {}
    OUTPUT_FILES: tuple[str, ...] = ()  # in its directory, that `parse` wants to read

    @property
    def INSTALL_HINT(self) -> str:
        """How to install it, in one sentence."""
        return "Install it with: pip install 'workerlab[generators]'."

    def cores_used(self, concurrency: int, processes: int) -> int:
        """The number of cores it can keep busy: its CPU usage is compared with that."""
        return processes

    def check(self, load: Load) -> None:  # noqa: B027
        """Raises UsageError for a load that the tool cannot produce."""

    @abstractmethod
    def command(self, load: Load, url: str, workdir: str) -> Command:
        """The argv to run in `workdir` (absolute), and files to write there first."""

    @abstractmethod
    def parse(self, output: Output) -> Measurement:
        """The measurement. Raises ParseError, and nothing else, unless the output is certain:
        aborted or partial runs, truncated or empty files, garbage."""

    def ended_well(self, output: Output) -> None:
        """ParseError with the last line of stderr unless it exited with 0."""
        if output.exit_code != 0:
            last = output.stderr.strip().rpartition("\n")[2]
            raise ParseError(f"{self.NAME} ended with exit code {output.exit_code}", last)


def table_lines(text: str | None, tool: str, name: str, header: str) -> list[str]:
    """The lines of a file below its header. ParseError if it is missing or cut short."""
    if not text:
        raise ParseError(f"{tool} left no {name}")
    first, *lines = text.split("\n")
    if first != header:
        raise ParseError(f"{name} has other columns", first)
    if not lines or lines.pop():
        raise ParseError(f"{name} is cut short", text.rpartition("\n")[2])
    return lines


def given_twice(load: Load) -> str | None:
    """The first header by name that is given more than once."""
    for headers in (load.headers, *(route.headers for route in load.mix)):
        names = [name.lower() for name, _ in headers]
        if twice := min((name for name in names if names.count(name) > 1), default=None):
            return twice
    return None
