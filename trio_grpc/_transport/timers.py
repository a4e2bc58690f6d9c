"""Timers that are neither tasks nor cancel scopes: one task per run calls them all, and ends with the last of them.

A task that sleeps until a deadline takes more than 2 KB. A connection has something to do in two hours' time, and a
server has thousands of connections. So theirs are entries of a heap, of some hundred bytes each.

A cancel scope with a deadline costs more than all the rest of an empty unary call: trio enters it into its heap of
deadlines, and takes it out again, through several context managers. A call that has a timeout is parked in one known
place while it waits for its server, so a timer can end its stream instead: a third less CPU for a client whose calls
have a deadline, a token and a trace (100 at once, CPython 3.11).
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from itertools import count
from math import inf
from typing import Any

import trio

_logger = logging.getLogger("trio_grpc")

# The items of a timer.
_WHEN = 0
_CALL = 2
_CLOCK = 3


class Timer(list[Any]):
    """Something to be done at a time, unless it is cancelled first. Made by `call_at`.

    A list of the time, a number that no other has, what to call (None once that is over), and the clock: lists compare
    themselves in C, and a heap does little else.
    """

    __slots__ = ()

    def cancel(self) -> None:
        """Do not do it, if it was not done yet; idempotent."""
        if self[_CALL] is not None:
            self[_CALL] = None
            self[_CLOCK].forget()


class _Clock:
    """The timers of one run, and the task that waits for the first of them."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._numbers = count()
        #: How many of them were cancelled.
        self._cancelled = 0
        self._running = False
        self._sleep = trio.CancelScope()
        self._wakes_at = inf

    def add(self, when: float, call: Callable[[], None]) -> Timer:
        timer = Timer((when, next(self._numbers), call, self))
        heapq.heappush(self._heap, timer)
        if not self._running:
            self._running = True
            trio.lowlevel.spawn_system_task(self._run, name="timers of trio_grpc")
        elif when < self._wakes_at:
            self._wake_at(when)
        return timer

    def forget(self) -> None:
        """Take out the cancelled ones once they are the majority, so that each costs little."""
        self._cancelled += 1
        if 2 * self._cancelled >= len(self._heap):
            self._heap = [timer for timer in self._heap if timer[_CALL] is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0
            if not self._heap:
                # Nothing to wait for.
                self._wake_at(-inf)
            elif self._heap[0][_WHEN] == inf:
                # No clock shall tick for nothing: a virtual one would jump.
                self._wake_at(inf)

    def _wake_at(self, when: float) -> None:
        self._wakes_at = when
        self._sleep.deadline = when

    async def _run(self) -> None:
        while True:
            self._call_due()
            if not self._heap:
                self._running = False
                return
            self._sleep = trio.CancelScope()
            self._wake_at(self._heap[0][_WHEN])
            with self._sleep:
                await trio.sleep_forever()

    def _call_due(self) -> None:
        now = trio.current_time()
        while self._heap and self._heap[0][_WHEN] <= now:
            timer = heapq.heappop(self._heap)
            call, timer[_CALL] = timer[_CALL], None
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


def keep_task() -> Timer:
    """Keep the task, whose start costs as much as a call, until this timer is cancelled."""
    return call_at(inf, _nothing)


def _nothing() -> None:
    raise AssertionError("the end of time")
