"""Workers that are event loops."""

import math

from workerlab.analysis.prediction.events import Events, Worker


class Loops(Events):
    """Each worker is an event loop: what computes or blocks in it, with the GIL or without, holds
    up all its requests."""

    turn_s = math.inf

    def arrive(self, request: int) -> None:
        self.kernel.append(request)
        idle = [one for one in self.workers if one.free and not one.busy]
        if idle:
            self._poll(self.deal(idle))

    def _poll(self, worker: Worker) -> None:
        """The next rounds of the loop, until one takes time or there is nothing to do."""
        worker.busy = True
        while True:
            if not worker.batch:
                self._accept(worker)
                worker.batch.extend(worker.ready)
                worker.ready.clear()
            if not worker.batch:
                worker.busy = False
                return
            if self._takes_time(worker.batch.popleft()):
                return

    def _accept(self, worker: Worker) -> None:
        most = len(self.kernel) if self.layout.hoards else min(1, len(self.kernel))
        for _ in range(most):
            if not worker.free:
                return
            worker.free -= 1
            request = self.kernel.popleft()
            self.of[request] = worker
            self.admit(request)

    def begin(self, request: int) -> None:
        self._resume(request)

    def _resume(self, request: int) -> None:
        worker = self.of[request]
        worker.ready.append(request)
        if not worker.busy:
            self._poll(worker)

    def _takes_time(self, request: int) -> bool:
        """Whether the loop is now busy with it."""
        need = self.requests[request]
        cpu_s = self._next_s(request)
        if cpu_s:
            self.compute(request, cpu_s)
        elif need.blocked_s and request not in self.waited:
            self.after(need.blocked_s, self._unblocked, request)
        else:
            self._done(request)
            return False
        return True

    def _next_s(self, request: int) -> float:
        """Of its CPU, what comes before or after it waits."""
        need = self.requests[request]
        cpu_s = need.cpu_s + need.nogil_s
        if not need.wait_s + self.layout.gap_s:
            return cpu_s
        first_s = min(cpu_s / 2, self.layout.first_s)
        return cpu_s - first_s if request in self.waited else first_s

    def worked(self, request: int) -> None:
        blocked_s = self.requests[request].blocked_s
        if blocked_s and request not in self.waited:
            self.after(blocked_s, self._unblocked, request)
        else:
            self._unblocked(request)

    def _unblocked(self, request: int) -> None:
        self._done(request)
        self._poll(self.of[request])

    def _done(self, request: int) -> None:
        """With this half of what it needs of the loop."""
        wait_s = self.requests[request].wait_s + self.layout.gap_s
        if request in self.waited or not wait_s:
            self.answer(request)
        else:
            self.waited.add(request)
            self.after(wait_s, self._resume, request)

    def release(self, request: int) -> None:
        worker = self.of[request]
        worker.free += 1
        if self.kernel and not worker.busy:
            self._poll(worker)
