"""Waiting for what happens beyond trio: in a thread of grpcio's, or in another process."""

from __future__ import annotations

from collections.abc import Callable

import trio


async def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds; a test's watchdog bounds the wait."""
    while not condition():  # noqa: ASYNC110 -- nobody there could set an event
        await trio.sleep(0.005)
