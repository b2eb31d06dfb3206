"""What a load tool is: a program, how it is run, and what its output means."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from workerlab.model import Command, Load, Measurement, Output, ParseError


class Tool(ABC):
    """It starts no process and opens no file: the harness runs the command in a directory of its
    own, and hands back what it left there."""

    NAME: str  # what the user calls it; the key in TOOLS
    PROGRAM: str | None = None  # to look for on PATH; None: it comes with the lab
    NEEDS: tuple[str, ...] = ()  # Python packages that it imports, from the lab's own environment
    VERSION_ARGV: tuple[str, ...] | None = None  # prints it first, whatever the exit code
    COUNTED = True  # it sends `load.requests`; False: it runs for `load.duration_s`
    TIMED = False  # it can run for `load.duration_s`
    LONE_FIRST = False  # its first request is sent alone, the others when that one was answered
    GOOD: range | None = None  # statuses that it counts as good; None: what it was told to expect
    NAMES_REQUESTS = False  # each request bears a name of its own in the header X-Workerlab-Request
    OPEN_MODEL = False  # it can send at `load.rate_rps`
    PROCESSES = False  # it can send from `load.processes`
    RAMPS = False  # it can begin its connections one after the other, over `load.ramp_s`
    LINGERS = False  # its clients can close late, by `load.linger_s`
    MIX = False  # it can send requests of several kinds, `load.mix`
    DISTRIBUTES = False  # it can send from `load.hosts`
    # Worker classes with which it cannot keep connections alive, and what happens
    NO_KEEPALIVE: Mapping[str, str] = {}
    OUTPUT_FILES: tuple[str, ...] = ()  # in its directory, that `parse` wants to read

    @property
    def INSTALL_HINT(self) -> str:
        """What to do where it is missing: a sentence."""
        return "Install it with: pip install 'workerlab[generators]'."

    def cores_used(self, concurrency: int, processes: int) -> int:
        """How many it can keep busy at once: what its CPU is judged against."""
        return processes

    def check(self, load: Load) -> None:  # noqa: B027
        """Raises UsageError, in one sentence, for a load the tool cannot produce."""

    @abstractmethod
    def command(self, load: Load, url: str, workdir: str) -> Command:
        """The words to run in `workdir` (absolute), and files to write there first."""

    @abstractmethod
    def parse(self, output: Output) -> Measurement:
        """What the output says. Raises ParseError, and only that, for text it cannot read with
        certainty: aborted, partial, truncated, zero bytes, garbage."""

    def ended_well(self, output: Output) -> None:
        """ParseError with its last words unless it ended with exit code 0."""
        if output.exit_code != 0:
            last = output.stderr.strip().rpartition("\n")[2]
            raise ParseError(f"{self.NAME} ended with exit code {output.exit_code}", last)


def table_lines(text: str | None, tool: str, name: str, header: str) -> list[str]:
    """The lines of a file below its header. ParseError where it is missing or cut short."""
    if not text:
        raise ParseError(f"{tool} left no {name}")
    first, *lines = text.split("\n")
    if first != header:
        raise ParseError(f"{name} has other columns", first)
    if not lines or lines.pop():
        raise ParseError(f"{name} is cut short", text.rpartition("\n")[2])
    return lines


def given_twice(load: Load) -> str | None:
    """The first of the headers, by name, that are there more than once."""
    for headers in (load.headers, *(route.headers for route in load.mix)):
        names = [name.lower() for name, _ in headers]
        if twice := min((name for name in names if names.count(name) > 1), default=None):
            return twice
    return None
