"""Workers whose requests each have a slot: a thread, or the whole process."""

from workerlab.analysis.prediction.events import Events, Worker

LONG_S = 0.002  # of computing: as it takes an idle process at most to wake up and accept


class Threads(Events):
    """A worker accepts as long as it has room, and what it has accepted waits for its threads."""

    def arrive(self, request: int) -> None:
        able = [one for one in self.workers if one.room]
        if not able:
            self.kernel.append(request)
            return
        self._accept(self.deal([one for one in able if not self._computes(one)] or able), request)

    def _computes(self, worker: Worker) -> bool:
        """Then it is slow to accept, for which it needs the GIL. The little that Gunicorn computes
        itself makes no difference: a worker that has just accepted is awake, and of two connections
        within half a millisecond two thirds go to the same of two workers."""
        computing = worker.computing
        return bool(computing) and self.requests[computing[0][0]].cpu_s > LONG_S

    def _accept(self, worker: Worker, request: int) -> None:
        worker.room -= 1
        self.of[request] = worker
        if worker.free:
            worker.free -= 1
            self.admit(request)
        else:
            worker.queue.append(request)

    def begin(self, request: int) -> None:
        if cpu_s := self.requests[request].cpu_s:
            self.compute(request, cpu_s)
        else:
            self.worked(request)

    def worked(self, request: int) -> None:
        if cpu_s := self.requests[request].nogil_s:
            self.compute_beside(request, cpu_s)
        else:
            self.worked_beside(request)

    def worked_beside(self, request: int) -> None:
        need = self.requests[request]
        self.after(need.wait_s + need.blocked_s + self.layout.gap_s, self.answer, request)

    def release(self, request: int) -> None:
        worker = self.of[request]
        worker.room += 1
        if worker.queue:
            self.admit(worker.queue.popleft())
        else:
            worker.free += 1
        if self.kernel:
            self._accept(worker, self.kernel.popleft())
