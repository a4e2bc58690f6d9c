"""Latencies in little memory: a histogram whose buckets grow by two per cent."""

from __future__ import annotations

import math
from collections.abc import Iterator

#: Each bucket is so much wider than the one before. What is read from one is off by half of that, one per cent.
_GROWTH = 1.02
_LOG_GROWTH = math.log(_GROWTH)
#: Seconds; the first bucket ends here. No call is quicker.
_SMALLEST = 1e-6


class Histogram:
    """Counts durations. Sums and extremes are exact, percentiles within one per cent.

    Attributes:
        count: how many there are.
        total: seconds of all together.
        smallest, largest: seconds; 0 where there are none.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.smallest = 0.0
        self.largest = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """Count one duration."""
        index = 0 if seconds <= _SMALLEST else math.ceil(math.log(seconds / _SMALLEST) / _LOG_GROWTH)
        self._buckets[index] = self._buckets.get(index, 0) + 1
        self.smallest = seconds if not self.count else min(self.smallest, seconds)
        self.largest = max(self.largest, seconds)
        self.count += 1
        self.total += seconds

    @property
    def mean(self) -> float:
        """Seconds; 0 where there are none."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """Return the seconds that so many per cent of all durations do not exceed; 0 where there are none."""
        wanted = math.ceil(self.count * percent / 100)
        seen = 0
        for index in sorted(self._buckets):
            seen += self._buckets[index]
            if seen >= wanted:
                middle: float = _SMALLEST * _GROWTH ** (index - 0.5)
                return min(max(middle, self.smallest), self.largest)
        return self.largest

    def rows(self, most: int) -> Iterator[tuple[float, int]]:
        """Give at most so many bars for a picture: up to how many seconds each goes, and how many durations it has.

        The bars are equally wide on a logarithmic axis, and none is missing in between.
        """
        if not self.count:
            return
        first, last = min(self._buckets), max(self._buckets)
        width = max(1, math.ceil((last - first + 1) / most))
        for start in range(first, last + 1, width):
            inside = sum(self._buckets.get(index, 0) for index in range(start, start + width))
            yield _SMALLEST * _GROWTH ** (start + width - 1), inside


__all__ = ["Histogram"]
