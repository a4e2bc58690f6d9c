"""What a peer may have for nothing, as numbers: a bucket that fills with time and with useful work.

HTTP/2 lets a peer send frames that cost it little and that flow control does not bound: streams that are reset at once
(rapid reset, CVE-2023-44487), empty frames, PING, SETTINGS (CVE-2019-9511 to 9518). All of them have honest uses. So
they are not forbidden but paid for (RFC 9113, 10.5): a burst is free, and what a peer does beyond it must keep step
with the time, or with calls and messages.

nghttp2 has the bucket that fills with time, Envoy the share of premature resets among all streams, Tomcat the overhead
that useful frames make good. Here an empty bucket is filled from all of these. Only then: as long as it lasts it costs
one subtraction, and nothing at all on frames that carry something.

Pure arithmetic: the time is an argument, and progress is any number that only grows.
"""

from __future__ import annotations

from math import inf


class Budget:
    """A bucket.

    Args:
        burst: what it holds at first and at most; None for no end.
        per_second: what a second adds.
        per_progress: what one unit of progress adds.

    Attributes:
        left: what is left. Take from it as you spend; below zero, ask `refill` before you go on.
    """

    __slots__ = ("_burst", "_filled_at", "_per_progress", "_per_second", "_progress", "left")

    def __init__(self, burst: int | None, *, per_second: float, per_progress: float) -> None:
        self.left: float = inf if burst is None else burst
        self._burst = self.left
        self._per_second = per_second
        self._per_progress = per_progress
        self._filled_at = 0.0
        self._progress = 0

    def begin(self, now: float) -> None:
        """Let time count from now on."""
        self._filled_at = now

    def refill(self, now: float, progress: int) -> bool:
        """Add what was earned since last time; say whether that covers what was spent.

        Args:
            now: the time in seconds.
            progress: all of the progress so far.
        """
        earned = (now - self._filled_at) * self._per_second + (progress - self._progress) * self._per_progress
        self._filled_at = now
        self._progress = progress
        self.left += min(earned, self._burst)
        return self.left >= 0
