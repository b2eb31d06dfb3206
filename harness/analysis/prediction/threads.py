"""Workers whose requests each have a slot: a thread, or the whole process."""

from collections import deque

from harness.analysis.prediction.events import Events, Worker


class Threads(Events):
    """Each slot is a thread, or a process of its own."""

    def arrive(self, request: int) -> None:
        if self.layout.hoards:
            # A worker with a thread that computes is slow to accept: it needs the GIL for that
            worker = self.deal([one for one in self.workers if not one.jobs] or self.workers)
            worker.queue.append(request)
            self._serve(worker, worker.queue)
            return
        self.kernel.append(request)
        if len(self.kernel) == 1 and (free := [one for one in self.workers if one.free]):
            self._serve(self.deal(free), self.kernel)

    def _serve(self, worker: Worker, queue: deque[int]) -> None:
        while worker.free and queue:
            worker.free -= 1
            request = queue.popleft()
            self.of[request] = worker
            self.admit(request)

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
        worker.free += 1
        self._serve(worker, worker.queue if self.layout.hoards else self.kernel)
