"""What is seen of servers on several ports, added up: to the load they are one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from harness.model import ConnectionSample, QueueSample
from harness.observe.tcp import Connections, Listener

Places = Collection[tuple[str, int]]  # host and port


class Queues:
    """The accept queues of all of them."""

    def __init__(self, places: Places) -> None:
        self._listeners = [Listener(host, port) for host, port in places]

    def sample(self) -> QueueSample:
        """Raises Unseen where one of them is not to be seen."""
        found = [listener.sample() for listener in self._listeners]
        lengths, limits = sum(one.length for one in found), sum(one.limit for one in found)
        return QueueSample(found[0].at_ns, lengths, limits)

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()


class AllConnections:
    """The connections of all of them, and of all their `workers`."""

    def __init__(self, places: Places, workers: Collection[int]) -> None:
        self._each = [Connections(host, port, workers) for host, port in places]

    def sample(self) -> ConnectionSample:
        """Raises OSError where the kernel does not tell."""
        found = [connections.sample() for connections in self._each]
        server, client, held = Counter[str](), Counter[str](), Counter[int]()
        for one in found:
            server.update(one.server)
            client.update(one.client)
            held.update(one.per_worker)
        return ConnectionSample(
            found[0].at_ns, dict(server), dict(client), dict(held), sum(one.unread for one in found)
        )
