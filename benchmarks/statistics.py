"""The arithmetic of rounds: medians, spreads, ratios of rounds, and the verdict on a target.  Pure functions only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def median(values: Sequence[float]) -> float:
    """Returns the middle of `values`, or the mean of the middle two."""
    if not values:
        raise ValueError("median of nothing")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def spread(values: Sequence[float]) -> float:
    """Returns the distance from the smallest to the largest of `values` as a fraction of their median."""
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


@dataclass(frozen=True)
class Ratio:
    """One figure divided by another.

    Attributes:
        value: The ratio of the two medians.
        lowest: The smallest ratio of one round.
        highest: The largest ratio of one round.
    """

    value: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        """Returns `5.31 (5.10 to 5.62)`, or `5.31` if there is no range to tell of."""
        if self.lowest == self.highest:
            return _short(self.value)
        return f"{_short(self.value)} ({_short(self.lowest)} to {_short(self.highest)})"


def _short(value: float) -> str:
    return "<0.01" if 0 < value < 0.005 else f"{value:.2f}"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Divides the median of `ours` by that of `theirs`; the range is that of the rounds both took part in, in order.

    Args:
        ours: Figures by round.
        theirs: Figures of the same rounds.
    """
    by_round = [mine / other for mine, other in zip(ours, theirs, strict=False) if other]
    if not by_round or not median(theirs):
        raise ValueError("nothing to divide by")
    return Ratio(median(ours) / median(theirs), min(by_round), max(by_round))


def passes(value: float, bound: float, at_least: bool) -> bool:
    """Says whether `value` keeps a bound."""
    return value >= bound if at_least else value <= bound
