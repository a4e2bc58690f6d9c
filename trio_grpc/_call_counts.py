"""How many calls a channel, one of its subchannels or a server has had, and what they came to."""

from __future__ import annotations

from time import time

import trio


class CallCounts:
    """Counts that somebody keeps as calls begin and end.

    Not everybody counts everything: what can be told from other numbers when somebody asks (`trio_grpc.channelz`) is
    not counted for each call.

    Attributes:
        started: calls begun so far.
        succeeded: those that have ended with OK.
        failed: those that have ended otherwise.
        last_started: when the last one began, in seconds since the epoch; 0.0 before the first.
    """

    __slots__ = ("failed", "last_started", "started", "succeeded")

    def __init__(self) -> None:
        self.started: int = 0
        self.succeeded: int = 0
        self.failed: int = 0
        self.last_started: float = 0.0

    def started_at(self, seconds: float) -> None:
        """The last call may have begun then."""
        self.last_started = max(self.last_started, seconds)


def since_epoch(trio_time: float) -> float:
    """Return what the clock on the wall showed at a time of trio's clock."""
    return time() - (trio.current_time() - trio_time)


__all__ = ["CallCounts", "since_epoch"]
