"""Timers that are no tasks: one task per run calls them all, and it is there only while there are any.

A task that sleeps until a deadline takes more than 2 KB. A connection has something to do in two hours' time, and a
server has thousands of connections. So theirs are entries of a heap, of some hundred bytes each.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from math import inf

import trio

_logger = logging.getLogger("trio_grpc")


class Timer:
    """Something to be done at a time, unless it is cancelled first. Made by `call_at`."""

    __slots__ = ("_call", "_clock", "_when")

    def __init__(self, clock: _Clock, when: float, call: Callable[[], None]) -> None:
        self._clock = clock
        self._when = when
        self._call: Callable[[], None] | None = call

    def __lt__(self, other: Timer) -> bool:
        return self._when < other._when

    def cancel(self) -> None:
        """Do not do it, if it was not done yet; idempotent."""
        if self._call is not None:
            self._call = None
            self._clock.forget()


class _Clock:
    """The timers of one run, and the task that waits for the first of them."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        #: How many of them were cancelled.
        self._cancelled = 0
        self._running = False
        self._sleep = trio.CancelScope()

    def add(self, when: float, call: Callable[[], None]) -> Timer:
        timer = Timer(self, when, call)
        heapq.heappush(self._heap, timer)
        if not self._running:
            self._running = True
            trio.lowlevel.spawn_system_task(self._run, name="timers of trio_grpc")
        elif self._heap[0] is timer:
            self._sleep.deadline = when
        return timer

    def forget(self) -> None:
        """Take out the cancelled ones once they are the majority, so that each costs little."""
        self._cancelled += 1
        if 2 * self._cancelled > len(self._heap):
            self._heap = [timer for timer in self._heap if timer._call is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0
            if not self._heap:
                # Nothing to wait for.
                self._sleep.deadline = -inf

    async def _run(self) -> None:
        while True:
            self._call_due()
            if not self._heap:
                self._running = False
                return
            with trio.CancelScope(deadline=self._heap[0]._when) as self._sleep:
                await trio.sleep_forever()

    def _call_due(self) -> None:
        now = trio.current_time()
        while self._heap and self._heap[0]._when <= now:
            timer = heapq.heappop(self._heap)
            call, timer._call = timer._call, None
            if call is None:
                self._cancelled -= 1
                continue
            try:
                call()
            except Exception:
                # A defect of ours. The others go on, and so does the run, which a system task's exception would end.
                _logger.exception("internal error in a timer of trio_grpc")


_clock: trio.lowlevel.RunVar[_Clock] = trio.lowlevel.RunVar("timers of trio_grpc")


def call_at(when: float, call: Callable[[], None]) -> Timer:
    """Call something at a time of trio's clock. It must not block."""
    try:
        clock = _clock.get()
    except LookupError:
        clock = _Clock()
        _clock.set(clock)
    return clock.add(when, call)
