"""Cancellation at every point where trio can deliver it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.lowlevel import Task, current_task


class Checkpoints(trio.abc.Instrument):
    """Counts the checkpoints of one task and calls ``action`` at the one with a given number.

    Both kinds count: those at which the task goes to sleep or yields (seen by the instrument, with the task already
    asleep), and those that only look for cancellation (`checkpoint_if_cancelled`, which is wrapped in all our rooms).
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._task: Task | None = None
        self._left = 0
        self._action: Callable[[], None] | None = None
        original = trio.lowlevel.checkpoint_if_cancelled

        async def checkpoint_if_cancelled() -> None:
            if self._task is not None and current_task() is self._task:
                self._count()
            await original()

        for name, module in list(sys.modules.items()):
            if name.startswith("trio_grpc") and getattr(module, "checkpoint_if_cancelled", None) is original:
                monkeypatch.setattr(module, "checkpoint_if_cancelled", checkpoint_if_cancelled)
        monkeypatch.setattr(trio.lowlevel, "checkpoint_if_cancelled", checkpoint_if_cancelled)

    def after_task_step(self, task: Task) -> None:
        if task is self._task:
            self._count()

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            assert self._action is not None
            self._action()

    def arm(self, task: Task, number: int, action: Callable[[], None]) -> None:
        """Call ``action`` at this task's checkpoint with this number, counted from 1 and from now."""
        self._task, self._left, self._action = task, number, action

    def disarm(self) -> bool:
        """Stop counting; whether the checkpoint with the number was reached."""
        self._task = None
        return self._left <= 0

    async def cancel_at(self, number: int, operation: Callable[[], Awaitable[object]]) -> bool:
        """Run an operation and cancel it at its n-th checkpoint; False when it ended without getting there."""
        with trio.CancelScope() as scope:
            self.arm(current_task(), number, scope.cancel)
            try:
                await operation()
            finally:
                reached = self.disarm()
        return reached


class counting:  # noqa: N801 # a context manager
    """Installs `Checkpoints` for the length of a block."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._checkpoints = Checkpoints(monkeypatch)

    def __enter__(self) -> Checkpoints:
        trio.lowlevel.add_instrument(self._checkpoints)
        return self._checkpoints

    def __exit__(self, *_: object) -> None:
        trio.lowlevel.remove_instrument(self._checkpoints)
