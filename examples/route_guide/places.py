"""The island of the route guide: a small database of places, made from nothing.

Always the same hundred places, so that client, server and tests can talk about them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from route_guide_pb2 import Place, Point

#: The map is a square with sides of this many metres.
SIDE = 10_000

FIRST = ("North", "Old", "Long", "Green", "Stone", "Heron", "Miller's", "Upper", "Little", "Salt")
SECOND = ("Bay", "Bridge", "Cross", "Farm", "Ford", "Harbour", "Hill", "Lighthouse", "Meadow", "Wood")


def make_places() -> Iterator[Place]:
    """Scatter a place for each pair of words over the map, no two on one line."""
    for number, (first, second) in enumerate(product(FIRST, SECOND)):
        # Both factors have no divisor in common with SIDE, so that no number below SIDE comes twice.
        east, north = number * 7_549 % SIDE, number * 5_699 % SIDE
        yield Place(name=f"{first} {second}", at=Point(east=east, north=north))


PLACES = tuple(make_places())
