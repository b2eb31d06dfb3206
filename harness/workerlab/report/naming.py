"""What the series and cells of a sweep are called: the worker class, and what sets it apart."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from workerlab.bundled import BUNDLED_GUNICORN
from workerlab.model import Cell, CellResult, ClassResult, Look, Server
from workerlab.numbers.formats import counted, fill, listed

AMOUNTS = ("workers", "threads", "backlog", "worker_connections")  # of a Server
# What servers of a worker class may differ in
SETTINGS: Mapping[str, str] = {
    "workers": "{value:# worker}",
    "threads": "{value:# thread}",
    "backlog": "backlog {value}",
    "worker_connections": "{value} worker connections",
    "cpu_s": "{value:duration} of CPU per request",
    "cores": "server on {value:# core}",
    "gunicorn": "Gunicorn {value}",
    "python": "{value}",
}
KEEPALIVE = "keep-alive"
PARTS: Mapping[str, str] = {  # of a response time
    "connect": "connect",
    "accept_queue": "accept queue",
    "in_worker": "in the worker",
    "service": "in the app",
    "transfer": "transfer",
    "unattributed": "unattributed",
}


# What stands for each of them on a page
PART_LOOKS: Mapping[str, Look] = {part: (part.replace("_", "-"), "circle") for part in PARTS}


def varying(servers: Iterable[Server]) -> dict[str, set[str]]:
    """The settings that differ within a worker class, so that a table must show them, and in which.

    Threads that differ because only gthread has them are told once, in the title.
    """
    values: dict[tuple[str, str], set[object]] = {}
    for server in servers:
        for name in SETTINGS:
            values.setdefault((name, server.worker_class), set()).add(getattr(server, name))
    classes: dict[str, set[str]] = {}
    for (name, worker_class), of_class in values.items():
        if len(of_class) > 1:
            classes.setdefault(name, set()).add(worker_class)
    return {name: classes[name] for name in SETTINGS if name in classes}


def by_series(cells: Iterable[CellResult]) -> Mapping[Cell, list[CellResult]]:
    """The cells of each series, by its key."""
    series: dict[Cell, list[CellResult]] = {}
    for cell in cells:
        series.setdefault(cell.trial.cell.series, []).append(cell)
    return series


def setting(name: str, value: int | str, exceptions: Iterable[str] = ()) -> str:
    """'4 workers'. `exceptions`: as `not_taken` names them."""
    values = {"value": value, "exceptions": tuple(exceptions)}
    return fill(f"{SETTINGS[name]}[[ ({{exceptions:; }})]]", values)


def load_tool(cell: Cell | ClassResult) -> str:
    """'ab', 'ab with 2 processes'."""
    processes = counted(cell.processes, "process/processes")
    return f"{cell.tool} with {processes}" if cell.processes > 1 else cell.tool


def taken(name: str, cell: CellResult) -> bool:
    """Whether the server has that setting as asked, as far as is known. A single thread is what a
    class without threads has."""
    requested = getattr(cell.server, name)
    in_force = cell.in_force.get(name, requested)
    return bool(in_force == requested or (name == "threads" and requested == 1))


def not_taken(name: str, cells: Sequence[CellResult]) -> Iterator[str]:
    """What other values than was asked for are in force, and in which worker classes."""
    every_class = {cell.server.worker_class for cell in cells}
    classes_of: dict[int | None, dict[str, None]] = {}
    for cell in cells:
        if not taken(name, cell):
            classes_of.setdefault(cell.in_force[name], {})[cell.server.worker_class] = None
    for value, classes in classes_of.items():
        if value is None:
            yield f"ignored by {listed(list(classes))}"
        else:
            some = () if len(classes) == len(every_class) else tuple(classes)
            values = {"value": value, "classes": some}
            yield fill("{value} in force[[ with {classes:list}]]", values)


def interpreter(python: str, gunicorn: object = None) -> str:
    """'.venv/bin/python with Gunicorn 23.0.0'."""
    values = {"python": python, "gunicorn": gunicorn}
    return fill("{python}[[ with Gunicorn {gunicorn}]]", values)


def served(environment: Mapping[str, object], servers: Iterable[Server]) -> str | None:
    """What serves the user's app: its interpreter and Gunicorn; of a bundled app a Gunicorn that is
    not the usual one; None where that is the usual one. What differs between the servers is told
    elsewhere. `environment`: the run's."""
    every = tuple(servers)
    users = any(server.app.chdir for server in every)
    differs = {
        name: any(getattr(server, name) for server in every) for name in ("python", "gunicorn")
    }
    gunicorn = None if differs["gunicorn"] else environment.get("gunicorn")
    python = environment.get("server_python") if users and not differs["python"] else None
    if python is None:
        usual = gunicorn is None or (not users and gunicorn == BUNDLED_GUNICORN)
        return None if usual else setting("gunicorn", str(gunicorn))
    places = {server.app.chdir for server in every}
    place = f"{places.pop()}/" if len(places) == 1 else ""
    return interpreter(str(python).removeprefix(place), gunicorn)


def level(cell: Cell) -> str:
    """'16', '80% (open)', '3/s (open)'."""
    if cell.rate is None:
        return str(cell.concurrency)
    return f"{cell.rate.label}{'/s' if cell.rate.share is None else ''} (open)"


class Names:
    """Of the cells of one run."""

    def __init__(self, cells: Sequence[CellResult]) -> None:
        planned = [cell.trial.cell for cell in cells]
        self.settings = varying(cell.server for cell in planned)
        self.tools = len({cell.tool for cell in planned}) > 1
        self.processes = len({cell.processes for cell in planned}) > 1
        self.keepalive = len({cell.keepalive for cell in planned}) > 1
        self.trials = any(cell.trial.number > 1 for cell in cells)
        self._cells = cells

    def series(self, cell: Cell | ClassResult) -> str:
        """'gthread (4 threads, wrk)'."""
        apart = []
        for name, classes in self.settings.items():
            if cell.server.worker_class in classes:
                results = [result for result in self._cells if result.server == cell.server]
                value = getattr(cell.server, name)
                apart += [setting(name, value), *not_taken(name, results)]
        if self.tools or cell.processes > 1:
            apart.append(load_tool(cell))
        if cell.keepalive and self.keepalive:
            apart.append(KEEPALIVE)
        values = {"worker_class": cell.server.worker_class, "apart": apart}
        return fill("{worker_class}[[ ({apart:, })]]", values)

    def places(self, cells: Sequence[CellResult]) -> str:
        """'every cell', or 'sync at 4 and 8 (trial 2), gthread at 16'."""
        if len(cells) == len(self._cells) > 1:
            return "every cell"
        series: dict[str, list[CellResult]] = {}
        for cell in cells:
            series.setdefault(self.series(cell.trial.cell), []).append(cell)
        return ", ".join(
            f"{name} at {listed(list(self._levels(results)))}" for name, results in series.items()
        )

    def _levels(self, cells: Sequence[CellResult]) -> Iterator[str]:
        """Each level once, with its trials where there are others of it."""
        for cell in dict.fromkeys(cell.trial.cell for cell in cells):
            numbers = [str(result.trial.number) for result in cells if result.trial.cell == cell]
            alone = len(numbers) == sum(result.trial.cell == cell for result in self._cells)
            values = {"level": level(cell), "noun": len(numbers), "numbers": numbers}
            trials = fill("{level} ({noun:trial/trials} {numbers:list})", values)
            yield level(cell) if alone else trials
