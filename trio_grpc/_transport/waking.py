"""Waking a parked task that is told nothing: the most frequent thing that happens between two tasks here.

`trio.lowlevel.reschedule` makes an outcome object for each wake-up, which remembers that it was unwrapped. One object
that may be unwrapped any number of times saves its making, twice for a unary call.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

from outcome import Outcome
from trio.lowlevel import Task, reschedule


class _Nothing(Outcome[None]):
    """The outcome of waiting for something that has no value."""

    __slots__ = ()

    def unwrap(self) -> None:
        return None

    def send(self, gen: Generator[Any, None, Any]) -> Any:
        return gen.send(None)

    async def asend(self, agen: AsyncGenerator[Any, None]) -> Any:
        return await agen.asend(None)


_NOTHING = _Nothing()


def wake(task: Task) -> None:
    """Let a task go on that is parked in `trio.lowlevel.wait_task_rescheduled`, which returns None."""
    reschedule(task, _NOTHING)
