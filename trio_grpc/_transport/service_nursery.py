"""Background tasks that outlive a body, and never touch its exceptions.

A plain nursery would do three things that a library must not do to its user: wrap the body's exception in a group,
cancel the background tasks together with the body (so that a ``finally`` in it could finish no call), and let a fault
of ours cancel the body. Here each task runs in a shielded scope made before it starts; the scopes are cancelled after
the body has ended, and the body's exception is not shown to the nursery at all.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import trio
from trio.lowlevel import enable_ki_protection

_logger = logging.getLogger("trio_grpc")


class ServiceNursery:
    """An async context manager over background tasks.

    Args:
        farewell: awaited after the body has ended and before the tasks are cancelled, shielded and within
            ``farewell_time`` seconds, so that goodbyes can be flushed; None where the body has seen to that.
        farewell_time: the bound for it, in seconds.

    Attributes:
        closing: the body has ended, or its owner has said that it closes.
    """

    __slots__ = ("_farewell", "_farewell_time", "_manager", "_nursery", "_over", "_scopes", "closing")

    def __init__(self, farewell: Callable[[], Awaitable[object]] | None = None, farewell_time: float = 1.0) -> None:
        self._farewell = farewell
        self._farewell_time = farewell_time
        self._manager: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery | None = None
        self._scopes: set[trio.CancelScope] = set()
        self._over = False
        self.closing: bool = False

    async def __aenter__(self) -> ServiceNursery:  # noqa: PYI034 # typing.Self is 3.11's
        # Not in the constructor: what holds a service nursery may be made before trio runs.
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        return self

    def start_soon(
        self, async_fn: Callable[..., Awaitable[object]], *args: Any, name: object = None
    ) -> trio.CancelScope:
        """Start a task whose only end is its own, or the returned scope's cancellation."""
        assert self._nursery is not None
        scope = trio.CancelScope(shield=True)
        self._scopes.add(scope)
        if self._over:
            # Started by a task that was cancelled at its last step, such as a connection attempt that succeeded.
            scope.cancel()
        self._nursery.start_soon(self._run, scope, async_fn, args, name=name or async_fn)
        return scope

    # A KeyboardInterrupt belongs to the user's code, never to a task that would then leave a connection half written.
    @enable_ki_protection
    async def _run(
        self, scope: trio.CancelScope, async_fn: Callable[..., Awaitable[object]], args: tuple[Any, ...]
    ) -> None:
        try:
            with scope:
                await async_fn(*args)
        except Exception:
            # A defect of ours: tasks handle the peer's faults themselves. The body must not pay for it.
            _logger.exception("internal error in a background task of trio_grpc")
        finally:
            self._scopes.discard(scope)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._nursery is not None
        assert self._manager is not None
        self.closing = True
        try:
            if self._farewell is not None:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + self._farewell_time):
                    await self._farewell()
        finally:
            self._over = True
            for scope in tuple(self._scopes):
                scope.cancel()
            # All that is left are tasks that have just been cancelled; waiting for them must not be cut short.
            self._nursery.cancel_scope.shield = True
            await self._manager.__aexit__(None, None, None)
