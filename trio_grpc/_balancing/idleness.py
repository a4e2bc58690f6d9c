"""When a channel has had no calls for so long that it lets go of its connections."""

from __future__ import annotations

from collections.abc import Callable

import trio

#: Looks at the activity per timeout. Calls leave no note of their time, which each of them would pay for: a channel is
#: called idle after its timeout and up to one look more.
_LOOKS = 8


async def watch_idleness(timeout: float, activity: Callable[[], object | None]) -> None:
    """Return when there has been no activity for ``timeout`` seconds, or a little more.

    Args:
        timeout: seconds.
        activity: returns something that differs after each call, or None while one is in flight.
    """
    last: object | None = None
    idle_looks = 0
    while idle_looks < _LOOKS:
        await trio.sleep(timeout / _LOOKS)
        now = activity()
        idle_looks = idle_looks + 1 if now is not None and now == last else 0
        last = now
