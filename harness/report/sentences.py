"""What a colleague would say about a report: lines of text that every readable format shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from harness.analysis.case import titled
from harness.model import CellResult, ClassResult, Server
from harness.numbers.units import format_duration, three_digits
from harness.report.document import SweepResult
from harness.report.messages import text
from harness.report.values import finite

Name = Callable[[Server], int]

SETTINGS: Mapping[str, Name] = {
    "workers": lambda server: server.workers,
    "threads": lambda server: server.threads,
    "backlog": lambda server: server.backlog,
    "worker connections": lambda server: server.worker_connections,
}


def amount(value: float) -> str:
    """A rate or a knee as one says it: '4', '3.98', '12.5', '1250'."""
    text = three_digits(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def connections(knee: float) -> str:
    """A knee as one says it: nobody believes its second decimal. '4', '6.8', '125'."""
    return amount(round(knee, 1))


def listed(words: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun[:-1] if count == 1 and noun.endswith('s') else noun}"


def varying(servers: Iterable[Server]) -> list[str]:
    """The settings that differ within a class, so that a table must show them.

    Threads that differ because only gthread has them are said once above.
    """
    values: dict[str, dict[str, set[int]]] = {name: {} for name in SETTINGS}
    for server in servers:
        for name, get in SETTINGS.items():
            values[name].setdefault(server.worker_class, set()).add(get(server))
    return [name for name, found in values.items() if any(len(each) > 1 for each in found.values())]


def constants(report: SweepResult) -> str:
    """What is the same in all rows, said once."""
    if not report.cells:
        return "No trial has been finished."
    servers = [cell.trial.cell.server for cell in report.cells]
    differ, first = varying(servers), servers[0]
    parts = []
    if "workers" not in differ:
        parts.append(_counted(first.workers, "workers"))
    threaded = [c for c in report.cells if c.worker_class.threaded(c.trial.cell.server)]
    threads = {cell.trial.cell.server.threads for cell in threaded}
    if len(threads) == 1:
        names = list(dict.fromkeys(cell.worker_class.name for cell in threaded))
        parts.append(f"{_counted(threads.pop(), 'threads')} each in {listed(names)}")
    if "backlog" not in differ:
        parts.append(f"backlog {first.backlog}")
    heeded = any("worker_connections" not in one.worker_class.ignores for one in report.cells)
    if "worker connections" not in differ and heeded:
        parts.append(_counted(first.worker_connections, "worker connections"))
    tools = {cell.trial.cell.tool for cell in report.cells}
    if len(tools) == 1:
        processes = {cell.trial.cell.processes for cell in report.cells}
        several = f" with {max(processes)} processes" if min(processes) > 1 else ""
        parts.append(f"load by {tools.pop()}{several if len(processes) == 1 else ''}")
    if all(cell.trial.cell.keepalive for cell in report.cells):
        parts.append("connections kept alive")
    trials = max(cell.trial.number for cell in report.cells)
    parts.append(_counted(trials, "trials") + (" each" if trials > 1 else ""))
    return f"{', '.join(parts)}; {_apps(report.cells)}."


def _apps(cells: Sequence[CellResult]) -> str:
    users: dict[str, list[str]] = {}
    for cell in cells:
        classes = users.setdefault(cell.app, [])
        if cell.trial.cell.server.worker_class not in classes:
            classes.append(cell.trial.cell.server.worker_class)
    sleeps = {cell.sleep_s for cell in cells}
    sleep = sleeps.pop() if len(sleeps) == 1 else None
    tail = f", which sleeps {format_duration(sleep)}" if sleep else ""
    if len(users) == 1:
        return f"app {next(iter(users))}{tail}"
    each = [f"{app} ({', '.join(classes)})" for app, classes in users.items()]
    return f"apps {listed(each)}{tail.replace('which sleeps', 'which sleep')}"


def label(
    server: Server,
    tool: str,
    differ: Sequence[str],
    tools: int,
    kept: bool = False,
    processes: int = 1,
) -> str:
    """A class's name, with what sets it apart from its namesakes: 'gthread (4 threads, wrk)'.

    `kept`: to say that it keeps connections alive, where others do not. `processes`: of the tool.
    """
    parts = [_set(name, SETTINGS[name](server)) for name in differ]
    if tools > 1 or processes > 1:
        parts.append(tool + (f" with {processes} processes" if processes > 1 else ""))
    if kept:
        parts.append("keep-alive")
    return server.worker_class + (f" ({', '.join(parts)})" if parts else "")


def _set(name: str, value: int) -> str:
    return f"{name} {value}" if name == "backlog" else _counted(value, name)


def class_lines(report: SweepResult) -> list[str]:
    """Per class, where it stops serving more."""
    differ = varying(group.server for group in report.classes)
    tools = len({group.tool for group in report.classes})
    mixed = len({group.keepalive for group in report.classes}) > 1
    lines = []
    for group in report.classes:
        name = label(
            group.server, group.tool, differ, tools, group.keepalive and mixed, group.processes
        )
        cells = _cells_of(group, report.cells)
        lines.append(f"{name}: {_stops(group, cells)}.{_why(group, cells)}")
    return lines


def _why(group: ClassResult, cells: Sequence[CellResult]) -> str:
    """What the group's most telling cell says of itself, where requests wait in it."""
    most = next((cell for cell in cells if cell.trial.key == group.telling), None)
    if most is None or not _loses(most):
        return ""
    said = f"{text(most.reason)}."
    if most.diagnosis is not None:  # the line has named the server
        server = titled(most.trial.cell.server, most.worker_class)
        said = text(most.diagnosis).removeprefix(f"{server}: ")
    return f" At {most.trial.cell.concurrency}: {said}"


def _loses(cell: CellResult) -> bool:
    reached, bound = finite(cell.throughput_rps), finite(cell.bound_rps)
    below = reached is not None and bound is not None and reached < 0.95 * bound
    return cell.verdict in ("saturated", "generator-bound") or below


def _cells_of(group: ClassResult, cells: Iterable[CellResult]) -> list[CellResult]:
    return [
        cell
        for cell in cells
        if (asked := cell.trial.cell).server == group.server
        and (asked.tool, asked.processes) == (group.tool, group.processes)
        and asked.keepalive == group.keepalive
        and asked.rate is None
        and cell.verdict != "invalid"
    ]


def _stops(group: ClassResult, cells: Sequence[CellResult]) -> str:
    rates = [rps for cell in cells if (rps := finite(cell.throughput_rps)) is not None]
    if not rates:
        return "nothing is known, for it has no valid cell"
    waits = min((c.trial.cell.concurrency for c in cells if c.verdict == "saturated"), default=None)
    wait = [] if waits is None else [f"saturated from {_counted(waits, 'connections')} on"]
    stops = finite(group.knee)
    if stops is None:
        knee = f"knee {text(group.knee_note) or 'unknown'}"
        return ", ".join([_slots(group), *wait, *_capacity(group), knee])
    most = f"more than {amount(max(rates))} req/s never came out"
    knee = f"knee at {connections(stops)}{_below_slots(group, stops)}: {most}"
    held = [c.trial.cell.concurrency for c in cells if c.verdict == "generator-bound"]
    limit = [f"{group.tool} is the limit from {min(held)} on"] if held else []
    return ", ".join([_slots(group), knee, *wait, *_capacity(group), *limit])


def _below_slots(group: ClassResult, knee: float) -> str:
    """That a class stops before its slots are all busy; its diagnosis says why."""
    slots = group.slots_measured
    return "" if slots is None or knee >= 0.95 * slots else f", below the {slots} slots it used"


def _capacity(group: ClassResult) -> list[str]:
    if group.capacity_rps is None or group.capacity_ci95 is None:
        return []
    low, high = group.capacity_ci95
    return [f"capacity {group.capacity_rps:.4g} req/s (95 % interval {low:.4g} to {high:.4g})"]


def _slots(group: ClassResult) -> str:
    configured, measured = group.slots_configured, group.slots_measured
    if configured == measured and configured is not None:
        return _counted(configured, "slots")
    set_to = "unlimited slots" if configured is None else _counted(configured, "slots")
    if not group.worker_class.slots_known:
        set_to = "slots not known"
    return f"{set_to}, at most {measured} used"


def cost_lines(report: SweepResult) -> list[str]:
    """How much longer than ideal the load took, and what a cell costs beside it."""
    lines = []
    if finite(report.overhead) is not None:
        each = _overheads(report.cells)
        lines.append(
            f"Overhead: the load took {report.overhead:.3f} times as long as it would if no slot"
            f" were ever idle{f' ({each})' if each else ''}."
        )
    names = {"start": "start", "warmup": "warm-up", "stop": "stop"}
    known = {key: v for key, value in report.setup_s.items() if (v := finite(value)) is not None}
    if known:
        each = ", ".join(f"{names.get(key, key)} {format_duration(v)}" for key, v in known.items())
        total = format_duration(sum(known.values()))
        lines.append(f"Beside the load a cell took {total}: {each} (medians).")
    return lines


def _overheads(cells: Iterable[CellResult]) -> str:
    """The same by class: where connections are dealt unevenly, slots are idle by nature."""
    sums: dict[str, tuple[float, float]] = {}
    for cell in cells:
        took_s, best_s = finite(cell.load_s), finite(cell.ideal_s)
        if took_s is not None and best_s and not cell.generator_bound:
            name = cell.trial.cell.server.worker_class
            load_s, ideal_s = sums.get(name, (0.0, 0.0))
            sums[name] = load_s + took_s, ideal_s + best_s
    each = [f"{name} {load_s / ideal_s:.3f}" for name, (load_s, ideal_s) in sums.items()]
    return ", ".join(each) if len(each) > 1 else ""
