"""How long a server keeps a connection: until it has been idle for too long, or has reached its age (gRFC A9).

It knows when, and the connection knows how: a drain in two steps, after which the calls that are open finish.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import trio

from trio_grpc._options import ConnectionLifetime

#: What GOAWAY says (gRFC A9).
MAX_IDLE = b"max_idle"
MAX_AGE = b"max_age"
#: Each connection's age is this much shorter or longer, so that those which came together do not go together.
_JITTER = 0.1


class LifetimeTimer:
    """The clock of one connection, which starts when it is made.

    Args:
        lifetime: what the server's owner wants.
        busy: whether calls are open.

    Attributes:
        max_age_grace: seconds that calls have after that age.
    """

    __slots__ = ("_ages_at", "_busy", "_idle_since", "_max_idle", "max_age_grace")

    def __init__(self, lifetime: ConnectionLifetime, *, busy: Callable[[], bool]) -> None:
        now = trio.current_time()
        self.max_age_grace: float = lifetime.max_age_grace
        self._max_idle = lifetime.max_idle
        self._busy = busy
        self._idle_since = now
        self._ages_at = now + lifetime.max_age * random.uniform(1 - _JITTER, 1 + _JITTER)

    def on_idle(self) -> None:
        """The last call has ended."""
        self._idle_since = trio.current_time()

    async def wait(self) -> bytes:
        """Return why the connection is to end when its time has come."""
        while True:
            now = trio.current_time()
            if now >= self._ages_at:
                return MAX_AGE
            # A busy connection cannot have been idle for so long before now + max_idle: no need to be told of calls.
            idle_at = (now if self._busy() else self._idle_since) + self._max_idle
            if now >= idle_at:
                return MAX_IDLE
            await trio.sleep_until(min(self._ages_at, idle_at))
