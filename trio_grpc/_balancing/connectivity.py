"""gRPC's connectivity states, and who waits for them to change."""

from __future__ import annotations

import enum

import trio


class ConnectivityState(enum.Enum):
    """What a channel, or its connection to one backend, can do for a call right now (gRPC connectivity semantics).

    Attributes:
        IDLE: there is no connection and nobody tries to make one; the next call, or `Channel.connect`, will.
        CONNECTING: names are resolved or a connection is made; calls wait.
        READY: calls go out at once.
        TRANSIENT_FAILURE: attempts have failed and go on in the background, with backoff. Calls fail with UNAVAILABLE,
            those with ``wait_for_ready=True`` wait.
        SHUTDOWN: closed.
    """

    IDLE = "idle"
    CONNECTING = "connecting"
    READY = "ready"
    TRANSIENT_FAILURE = "transient failure"
    SHUTDOWN = "shutdown"


class ConnectivityTracker:
    """A state that tasks can wait for.

    Attributes:
        state: the state right now.
    """

    __slots__ = ("_changed", "state")

    def __init__(self) -> None:
        self.state: ConnectivityState = ConnectivityState.IDLE
        self._changed = trio.Event()

    def set(self, state: ConnectivityState) -> None:
        """Take another state, for good after SHUTDOWN."""
        if state is not self.state and self.state is not ConnectivityState.SHUTDOWN:
            self.state = state
            changed, self._changed = self._changed, trio.Event()
            changed.set()

    async def wait_for_change(self, last: ConnectivityState) -> ConnectivityState:
        """Return the first state seen that is not ``last``. States that come and go between may be missed.

        Raises:
            trio.ClosedResourceError: ``last`` is SHUTDOWN: a wait for what never comes would be for ever.
        """
        await trio.lowlevel.checkpoint()
        if last is ConnectivityState.SHUTDOWN:
            raise trio.ClosedResourceError("channel closed")
        while self.state is last:
            await self._changed.wait()
        return self.state
