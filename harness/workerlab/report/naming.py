"""What the series and cells of a sweep are called: the worker class, and what sets it apart."""

from collections.abc import Iterable, Mapping, Sequence

from workerlab.bundled import BUNDLED_GUNICORN
from workerlab.model import Cell, CellResult, ClassResult, Finding, Label, Server

AMOUNTS = ("workers", "threads", "backlog", "worker_connections")  # of a Server
SETTINGS = (*AMOUNTS, "cpu_s", "cores", "gunicorn", "python")


def varying(servers: Iterable[Server]) -> dict[str, set[str]]:
    """The settings that differ within a worker class, so that a table must show them, and in which.

    Threads that differ because only gthread has them are told once, in the title.
    """
    values: dict[tuple[str, str], set[object]] = {}
    for server in servers:
        for name in SETTINGS:
            values.setdefault((name, server.worker_class), set()).add(getattr(server, name))
    found: dict[str, set[str]] = {}
    for (name, worker_class), those in values.items():
        if len(those) > 1:
            found.setdefault(name, set()).add(worker_class)
    return {name: found[name] for name in SETTINGS if name in found}


def by_series(cells: Iterable[CellResult]) -> Mapping[Cell, list[CellResult]]:
    """The cells of each series, by its key."""
    series: dict[Cell, list[CellResult]] = {}
    for cell in cells:
        series.setdefault(cell.trial.cell.series, []).append(cell)
    return series


def setting(name: str, value: int | str, others: Iterable[Finding] = ()) -> Finding:
    """`others`: what some servers made of it."""
    return Finding(f"setting.{name}", {"n": value, "not_taken": tuple(others)})


def taken(name: str, cell: CellResult) -> bool:
    """Whether the server has that setting as asked, as far as is known. A single thread is what a
    class without threads has."""
    asked = getattr(cell.trial.cell.server, name)
    has = cell.in_force.get(name, asked)
    return bool(has == asked or (name == "threads" and asked == 1))


def not_taken(name: str, cells: Sequence[CellResult]) -> Iterable[Finding]:
    """What other values than was asked for are in force, and in which worker classes."""
    every = {cell.trial.cell.server.worker_class for cell in cells}
    found: dict[int | None, dict[str, None]] = {}
    for cell in cells:
        if not taken(name, cell):
            classes = found.setdefault(cell.in_force[name], {})
            classes[cell.trial.cell.server.worker_class] = None
    for value, classes in found.items():
        some = () if len(classes) == len(every) and value is not None else tuple(classes)
        code = "setting.ignored" if value is None else "setting.in_force"
        yield Finding(code, {"n": value, "classes": some})


def served(environment: Mapping[str, object], servers: Iterable[Server]) -> Finding | None:
    """What serves the user's app: its interpreter and Gunicorn; of a bundled app a Gunicorn that is
    not the usual one. What differs between the servers is told elsewhere. `environment`: the
    run's."""
    every = tuple(servers)
    users = any(server.app.chdir for server in every)
    several = {name: any(getattr(one, name) for one in every) for name in ("python", "gunicorn")}
    gunicorn = None if several["gunicorn"] else environment.get("gunicorn")
    python = environment.get("server_python") if users and not several["python"] else None
    if python is None:
        usual = gunicorn is None or (not users and gunicorn == BUNDLED_GUNICORN)
        return None if usual else setting("gunicorn", str(gunicorn))
    places = {one.app.chdir for one in every}
    place = f"{places.pop()}/" if len(places) == 1 else ""
    values = {"python": str(python).removeprefix(place), "gunicorn": gunicorn}
    return Finding("served", values)


def level(asked: Cell) -> str:
    """'16', '80% (open)', '3/s (open)'."""
    if asked.rate is None:
        return str(asked.concurrency)
    return f"{asked.rate.label}{'/s' if asked.rate.share is None else ''} (open)"


class Names:
    """Of the cells of one run."""

    def __init__(self, cells: Sequence[CellResult]) -> None:
        asked = [cell.trial.cell for cell in cells]
        self.settings = varying(one.server for one in asked)
        self.tools = len({one.tool for one in asked}) > 1
        self.processes = len({one.processes for one in asked}) > 1
        self.keepalive = len({one.keepalive for one in asked}) > 1
        self.trials = any(cell.trial.number > 1 for cell in cells)
        self._cells = cells

    def series(self, asked: Cell | ClassResult) -> Finding:
        """'gthread (4 threads, wrk)'."""
        server = asked.server
        apart = []
        for name, classes in self.settings.items():
            if server.worker_class in classes:
                mine = [cell for cell in self._cells if cell.trial.cell.server == server]
                apart += [setting(name, getattr(server, name)), *not_taken(name, mine)]
        if self.tools or asked.processes > 1:
            processes = asked.processes if asked.processes > 1 else None
            apart.append(Finding("setting.tool", {"tool": asked.tool, "processes": processes}))
        if asked.keepalive and self.keepalive:
            apart.append(Finding("setting.keepalive"))
        values = {"worker_class": server.worker_class, "apart": tuple(apart)}
        return Finding("series.name", values)

    def places(self, cells: Sequence[CellResult]) -> Finding:
        """'every cell', or 'sync at 4 and 8 (trial 2), gthread at 16'."""
        if len(cells) == len(self._cells) > 1:
            return Finding("cells.all")
        series: dict[Finding, list[CellResult]] = {}
        for cell in cells:
            series.setdefault(self.series(cell.trial.cell), []).append(cell)
        each = [
            Finding("cells.series", {"series": name, "levels": tuple(self._levels(mine))})
            for name, mine in series.items()
        ]
        return Finding("cells.some", {"series": tuple(each)})

    def _levels(self, cells: Sequence[CellResult]) -> Iterable[Label]:
        """Each level once, with its trials where there are others of it."""
        for asked in dict.fromkeys(cell.trial.cell for cell in cells):
            mine = [str(cell.trial.number) for cell in cells if cell.trial.cell == asked]
            values = {"level": level(asked), "noun": len(mine), "numbers": tuple(mine)}
            alone = len(mine) == sum(cell.trial.cell == asked for cell in self._cells)
            yield level(asked) if alone else Finding("level.trials", values)
