"""The arithmetic of rounds: medians, spreads, ratios, changes and their noise, verdicts.  Pure functions only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, variance


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


@dataclass(frozen=True)
class Change:
    """How much a figure changed, as a fraction of what it was: 0.05 is five percent more.

    Attributes:
        value: The change that was seen; infinite if the figure was 0 and is not any more.
        low: The lower end of the interval that holds the true change with the confidence asked for; None if there
            were too few rounds to know any noise.
        high: Its upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def beyond_noise(self) -> bool | None:
        """Whether noise alone does not explain the change; None if nothing is known of the noise."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Returns the regularised incomplete beta function, by its continued fraction from a fixed depth upwards."""
    if x > (a + 1) / (a + b + 2):
        # Beyond this the fraction converges slowly, and its mirror image fast.
        return 1 - _incomplete_beta(b, a, 1 - x)
    if not x:
        return 0.0
    fraction = 1.0
    for depth in range(100, 0, -1):
        m = depth // 2
        if depth % 2:
            numerator = -(a + m) * (a + b + m) / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            numerator = m * (b - m) / ((a + 2 * m - 1) * (a + 2 * m))
        fraction = 1 + numerator * x / fraction
    beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return math.exp(a * math.log(x) + b * math.log1p(-x) - beta) / (a * fraction)


@lru_cache(maxsize=1024)
def t_quantile(confidence: float, freedom: float) -> float:
    """Returns the bound that |t| of Student's distribution keeps with a probability of `confidence`.

    Args:
        confidence: The probability, above 0 and below 1.
        freedom: The degrees of freedom, 1 or more, not necessarily whole.
    """
    if not 0 < confidence < 1 or not freedom >= 1:
        raise ValueError(f"no quantile for confidence {confidence} and {freedom} degrees of freedom")

    def exceeded(bound: float) -> float:
        return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + bound * bound))

    low, high = 0.0, 1.0
    while exceeded(high) > 1 - confidence:
        high *= 2
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        if exceeded(middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _as_fraction(part: float, whole: float) -> float:
    if whole:
        return part / abs(whole)
    return math.copysign(math.inf, part) if part else 0.0


def change(before: Sequence[float], after: Sequence[float], confidence: float = 0.95) -> Change:
    """Compares the rounds of two sittings by the interval of Welch's t-test.

    Why this test: sittings have three to ten rounds.  With three against three no test of ranks or permutations
    can ever reach 95 % (two of twenty arrangements are extreme), so it would call everything noise.  Welch's test
    works from two rounds a side, at the price of supposing that rounds are independent and roughly normal, which
    the figure of a round mostly is: it is itself the mean or a percentile of thousands of operations.  It does not
    suppose that both sides are equally noisy, which a change of code often changes.  What no test can see is that
    the machine was in another mood for the whole of one sitting: `paired` is for that.

    The interval is that of the difference of the means.  Figures that are counted may not vary at all; then the
    interval is a point, and every difference is a real one.

    Args:
        before: The figure in each round of the first sitting.
        after: The same of the second one.
        confidence: How surely the interval holds the true change.
    """
    if not before or not after:
        raise ValueError("change of nothing")
    base = fmean(before)
    difference = fmean(after) - base
    value = _as_fraction(difference, base)
    if len(before) < 2 or len(after) < 2:
        return Change(value)
    errors = [variance(values) / len(values) for values in (before, after)]
    margin = 0.0
    if sum(errors):
        freedom = sum(errors) ** 2 / (errors[0] ** 2 / (len(before) - 1) + errors[1] ** 2 / (len(after) - 1))
        # Rounding may leave it a hair below the bound that it cannot pass.
        margin = t_quantile(confidence, max(1.0, freedom)) * math.sqrt(sum(errors))
    return Change(value, _as_fraction(difference - margin, base), _as_fraction(difference + margin, base))


def paired_change(ratios: Sequence[float], confidence: float = 0.95) -> Change:
    """Sums up rounds in which two things ran side by side and swapped places after each.

    The logarithms of the ratios are averaged: a place that is faster by some factor multiplies the ratio in one
    round and divides it in the next, so it leaves their mean alone (that of the ratios themselves it would raise).
    The noise is what varies among rounds of one seating; that the two seatings differ is no noise, so each has its
    own mean, and there are two degrees of freedom less than rounds.

    Args:
        ratios: The second thing's figure divided by the first's, all above 0, by round; an even number of rounds.
        confidence: How surely the interval holds the true change.
    """
    if not ratios or len(ratios) % 2:
        raise ValueError(f"{len(ratios)} rounds cannot have been swapped evenly")
    logarithms = [math.log(ratio) for ratio in ratios]
    mean = fmean(logarithms)
    freedom = len(ratios) - 2
    if not freedom:
        return Change(math.expm1(mean))
    seatings = (logarithms[::2], logarithms[1::2])
    squares = sum((value - fmean(seating)) ** 2 for seating in seatings for value in seating)
    margin = t_quantile(confidence, freedom) * math.sqrt(squares / freedom / len(ratios)) if squares else 0.0
    return Change(math.expm1(mean), math.expm1(mean - margin), math.expm1(mean + margin))
