"""Keepalive: whether a quiet peer is still there, and how often a client may ask (gRFC A8, A9).

Neither reads nor writes: PINGs go through the control buffer, and that the peer lives is seen by the time of the last
byte that the reader read. So a connection whose reader waits for its replies to leave, or whose writer stands in a
write that nobody takes, is given up like one whose peer has vanished.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import trio

from trio_grpc._options import KeepaliveEnforcement
from trio_grpc._transport.frames import ConnectionFault, ErrorCode
from trio_grpc._transport.timers import Timer, call_at

#: The payload of keepalive PINGs; others belong to bandwidth probes and drains.
KEEPALIVE_PING = b"trio_kal"
#: What a server's GOAWAY says to a client that asks too often; clients that read it ask half as often.
TOO_MANY_PINGS = b"too_many_pings"
#: Strikes that are forgiven (gRFC A8).
_MAX_STRIKES = 2
#: Seconds between two PINGs of a client without calls that may not ask then (gRFC A8: TCP's own keepalive time).
_IDLE_MIN_TIME = 7200.0


class KeepaliveTimer:
    """Asks a quiet peer whether it is there, from `begin` to `end`.

    Args:
        time: seconds without a byte after which to ask.
        timeout: seconds after that without a byte after which the peer is dead.
        last_read: trio's time of the last byte that came.
        busy: whether to ask at all now: a client without calls may not. Then `wake` is called when that changes.
        ask: queues a PING.
        on_dead: called once, when the peer does not answer.

    Attributes:
        asked: how often it has asked so far.
    """

    __slots__ = (
        "_ask",
        "_asked_at",
        "_asked_since",
        "_busy",
        "_dormant",
        "_last_read",
        "_on_dead",
        "_time",
        "_timeout",
        "_timer",
        "asked",
    )

    def __init__(
        self,
        time: float,
        timeout: float,
        *,
        last_read: Callable[[], float],
        busy: Callable[[], bool],
        ask: Callable[[], None],
        on_dead: Callable[[], None],
    ) -> None:
        self._time = time
        self._timeout = timeout
        self._last_read = last_read
        self._busy = busy
        self._ask = ask
        self._on_dead = on_dead
        self._timer: Timer | None = None
        self.asked: int = 0
        self._dormant = False
        #: The last byte before the last PING, and when that PING went: while no other byte came, it is unanswered.
        self._asked_since = -inf
        self._asked_at = -inf

    def begin(self) -> None:
        """Ask from now on whenever it is time to."""
        now = trio.current_time()
        while True:
            last_read = self._last_read()
            due = last_read + self._time
            if now < due:
                break
            if self._asked_since == last_read:
                deadline = self._asked_at + self._timeout
                if now >= deadline:
                    self._on_dead()
                    return
                # A time shorter than the timeout must not make the next PING late.
                due = min(deadline, now + self._time)
                break
            if not self._busy():
                self._dormant = True
                return
            # Compared with the time of the last byte and not with now: an answer may come in no time.
            self._asked_since = last_read
            self._asked_at = now
            self.asked += 1
            self._ask()
        self._timer = call_at(due, self.begin)

    def wake(self) -> None:
        """There are calls again. On a connection that has been quiet for long a PING goes out before their headers."""
        if self._dormant:
            self._dormant = False
            self.begin()

    def end(self) -> None:
        """Ask no more."""
        self._dormant = False
        if self._timer is not None:
            self._timer.cancel()


class PingStrikes:
    """Counts a client's PINGs that come too early (gRFC A8, "Server Enforcement").

    Args:
        enforcement: what the server's owner permits.
        busy: whether calls are open.
        spoken: a number that changes when HEADERS or DATA are written.
    """

    __slots__ = ("_busy", "_enforcement", "_last_valid", "_seen", "_spoken", "_strikes")

    def __init__(
        self, enforcement: KeepaliveEnforcement, *, busy: Callable[[], bool], spoken: Callable[[], int]
    ) -> None:
        self._enforcement = enforcement
        self._busy = busy
        self._spoken = spoken
        self._seen = 0
        self._strikes = 0
        self._last_valid = -inf

    def receive(self, now: float) -> None:
        """Judge a PING.

        Raises:
            ConnectionFault: that was one too many.
        """
        spoken = self._spoken()
        if spoken != self._seen:
            # The client may have had reasons: to measure the bandwidth of what it got, for one.
            self._seen = spoken
            self._strikes = 0
            self._last_valid = -inf
        enforcement = self._enforcement
        min_time = enforcement.min_time if enforcement.permit_without_calls or self._busy() else _IDLE_MIN_TIME
        if now >= self._last_valid + min_time:
            self._last_valid = now
            return
        self._strikes += 1
        if self._strikes > _MAX_STRIKES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, TOO_MANY_PINGS.decode("ascii"))
