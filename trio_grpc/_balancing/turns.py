"""Turns in proportion to weights."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping
from heapq import heapify, heapreplace
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT", bound=Hashable)

__all__ = ["Turns"]


class Turns(Generic[ItemT]):
    """Gives each item turns in proportion to its weight, as evenly over time as can be.

    It is the scheduler of gRFC A58, earliest deadline first: an item is due again each time that a period has passed,
    the inverse of its weight, and the one that is due first has its turn. Items begin anywhere in their periods: many
    clients with the same weights shall not run in step. When weights change each item goes on from where it is in its
    period: however often they do, the shares are right.

    Args:
        fraction: returns how much of its first period an item has still to wait, from 0 to 1.
    """

    def __init__(self, fraction: Callable[[], float] = random.random) -> None:
        self._fraction = fraction
        self._items: list[ItemT] = []
        self._periods: list[float] = []
        #: When each is due, and its place in the lists.
        self._due: list[tuple[float, int]] = []
        self._now = 0.0

    def set_weights(self, weights: Mapping[ItemT, float]) -> None:
        """Let these have turns, and no others.

        Args:
            weights: all of them above zero, and none infinite.
        """
        waited = {self._items[place]: (due - self._now) / self._periods[place] for due, place in self._due}
        self._items = list(weights)
        self._periods = [1 / weight for weight in weights.values()]
        # Time begins anew, before it has so many digits that none is left for small periods.
        self._now = 0.0
        self._due = [
            ((waited[item] if item in waited else self._fraction()) * self._periods[place], place)
            for place, item in enumerate(self._items)
        ]
        heapify(self._due)

    def next(self) -> ItemT:
        """Return the item whose turn it is; there must be one."""
        self._now, place = self._due[0]
        heapreplace(self._due, (self._now + self._periods[place], place))
        return self._items[place]
