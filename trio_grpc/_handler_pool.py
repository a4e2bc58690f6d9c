"""Where handlers run: a nursery of one connection, with workers that are used again.

Starting a trio task and entering a cancel scope cost 15 to 20 µs together, waking a parked task 1.5 µs (measured on
CPython 3.11, trio 0.35). So a worker whose handler ended well waits for the next one, inside a cancel scope that has
not been used up. Its deadline is set anew for each RPC and left as it is in between, because each change costs several
µs; if it comes while the worker is idle, that is the worker's end. Each RPC gets a context of its own, so no context
variable passes from one to the next. A worker whose handler raised or was cancelled is not used again. And once in a
while all that are idle end, because a connection that makes no calls should cost little.

No more handlers run at once than the limit says. Streams alone do not bound them: a stream that was reset no longer
counts as open while its handler may still run (rapid reset). A call that comes meanwhile waits for its turn: the
client, who sees a free stream, has done nothing wrong.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType

import trio
from trio.lowlevel import Abort, RaiseCancelT, Task, current_task, wait_task_rescheduled

from trio_grpc._status import StatusCode
from trio_grpc._transport.stream import Stream
from trio_grpc._transport.timers import Timer, call_at
from trio_grpc._transport.waking import wake

#: Runs one RPC inside the worker's scope, whose deadline it sets; True when the worker may be used again.
Job = Callable[[trio.CancelScope], Awaitable[bool]]

#: Idle workers kept per connection: a burst of more calls pays for new tasks.
_MAX_IDLE = 128
#: Seconds that a worker is kept idle, at most. Where they are in use, starting them anew so rarely costs nothing.
_IDLE_TIME = 1.0


class HandlerPool:
    """An async context manager: leaving it cancels the handlers that still run, and waits for them.

    Args:
        limit: handlers that may run at once.

    Attributes:
        running: handlers that run now.
    """

    __slots__ = (
        "_context",
        "_idle",
        "_jobs",
        "_limit",
        "_manager",
        "_nursery",
        "_release_timer",
        "_waiting",
        "running",
    )

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._manager = trio.open_nursery()
        self._nursery: trio.Nursery | None = None
        self._context = contextvars.copy_context()
        self._idle: list[Task] = []
        self._jobs: dict[Task, Job] = {}
        self._release_timer: Timer | None = None
        self._waiting: deque[tuple[Stream, Job]] | None = None
        self.running = 0

    async def __aenter__(self) -> HandlerPool:  # noqa: PYI034 # typing.Self is 3.11's
        self._nursery = await self._manager.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()
        self._refuse_waiting()
        try:
            return await self._manager.__aexit__(exc_type, exc_value, traceback)
        finally:
            if self._release_timer is not None:
                self._release_timer.cancel()

    def cancel(self) -> None:
        """Cancel all handlers."""
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()

    def start(self, stream: Stream, job: Job) -> None:
        """Run a stream's job in an idle worker or a new one, now or when there are fewer. Never blocks."""
        if self.running >= self._limit:
            self._wait(stream, job)
            return
        self.running += 1
        if self._idle:
            task = self._idle.pop()
            self._jobs[task] = job
            # `Task.context` is public; trio reads it at the task's next step.
            task.context = self._context.copy()
            wake(task)
        else:
            self._start_worker(job)

    def _start_worker(self, job: Job) -> None:
        assert self._nursery is not None
        self._context.run(self._nursery.start_soon, self._work, job)

    async def _work(self, job: Job) -> None:
        task = current_task()
        abort = partial(self._abort_idle, task)
        with trio.CancelScope() as scope:
            while True:
                try:
                    reusable = await job(scope)
                finally:
                    self.running -= 1
                    if self._waiting:
                        self._start_waiting()
                if not reusable or len(self._idle) >= _MAX_IDLE:
                    return
                self._idle.append(task)
                if self._release_timer is None:
                    self._release_timer = call_at(trio.current_time() + _IDLE_TIME, self._release_idle)
                # A worker that sleeps must not keep the last call alive.
                del job
                await wait_task_rescheduled(abort)
                if task not in self._jobs:
                    return
                job = self._jobs.pop(task)
                if scope.cancel_called:
                    # The deadline of the RPC before came after this one was handed over.
                    self._start_worker(job)
                    return

    def _release_idle(self) -> None:
        """Let the workers that are idle right now end; whichever is idle next starts the timer anew."""
        self._release_timer = None
        while self._idle:
            wake(self._idle.pop())

    def _wait(self, stream: Stream, job: Job) -> None:
        if self._waiting is None:
            # An empty deque has room for 64: most connections never need it.
            self._waiting = deque()
        waiting = self._waiting
        if len(waiting) >= 2 * self._limit:
            # Live streams are bounded by the same limit, so at least half of these have been reset.
            live = [one for one in waiting if one[0].cancelled is None]
            waiting.clear()
            waiting.extend(live)
        waiting.append((stream, job))

    def _refuse_waiting(self) -> None:
        while self._waiting:
            stream, _ = self._waiting.popleft()
            stream.refuse(StatusCode.UNAVAILABLE, "server is shutting down")

    def _start_waiting(self) -> None:
        assert self._nursery is not None
        if self._nursery.cancel_scope.cancel_called:
            self._refuse_waiting()
        while self._waiting and self.running < self._limit:
            stream, job = self._waiting.popleft()
            if stream.cancelled is None:
                self.start(stream, job)

    def _abort_idle(self, task: Task, _: RaiseCancelT) -> Abort:
        # The connection ends, or the deadline of the worker's last RPC has come.
        self._idle.remove(task)
        return Abort.SUCCEEDED
