"""What a server made of its settings: the kernel may cut one, and a worker class ignore it."""

from collections.abc import Mapping

from workerlab.analysis.facts import TrialData

SETTINGS = ("workers", "threads", "backlog", "worker_connections")


def in_force(data: TrialData, queue_limit: int | None = None) -> Mapping[str, int | None]:
    """By setting: the value that is in force, None where the class ignores it; what is not known is
    not in there. `queue_limit`: of the accept queue, as the kernel was seen to have it; else as
    the workers asked it."""
    proof = data.record.proof if data.record else {}
    limit = queue_limit or proof.get("accept_queue_limit")
    values: dict[str, int | None]
    values = {name: value for name in SETTINGS if isinstance(value := proof.get(name), int)}
    values |= dict.fromkeys(data.worker_class.ignores)
    values |= {"backlog": limit} if isinstance(limit, int) and limit else {}
    return {name: values[name] for name in SETTINGS if name in values}


def served_by(data: TrialData) -> Mapping[str, str]:
    """The versions of Gunicorn and Python that its workers proved; what is not known is missing."""
    proof = data.record.proof if data.record else {}
    versions = {name: proof.get(name) for name in ("gunicorn", "python")}
    return {name: version for name, version in versions.items() if isinstance(version, str)}
