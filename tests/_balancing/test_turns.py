"""Turns in proportion to weights."""

from __future__ import annotations

import random
from collections import Counter
from itertools import cycle

import pytest

from trio_grpc._balancing.turns import Turns


def turns_of(weights: dict[str, float], fraction: float = 1.0) -> Turns[str]:
    turns: Turns[str] = Turns(lambda: fraction)
    turns.set_weights(weights)
    return turns


def take(turns: Turns[str], count: int) -> str:
    return "".join(turns.next() for _ in range(count))


def test_equal_weights_take_turns() -> None:
    assert take(turns_of({"a": 1, "b": 1, "c": 1}), 7) == "abcabca"
    assert take(turns_of({"a": 7.5, "b": 7.5}), 4) == "abab"


def test_turns_are_spread_evenly() -> None:
    assert take(turns_of({"a": 1, "b": 2, "c": 4}), 14) == "cbccabccbccabc"


@pytest.mark.parametrize("seed", range(3))
def test_shares_are_the_weights(seed: int) -> None:
    turns: Turns[str] = Turns(random.Random(seed).random)
    weights = {"a": 0.5, "b": 1.25, "c": 3.0, "d": 5.25}
    turns.set_weights(weights)
    counts = Counter(take(turns, 1000))
    assert all(abs(counts[item] - 100 * weight) <= 2 for item, weight in weights.items())


def test_items_begin_anywhere() -> None:
    fractions = cycle([0.9, 0.1, 0.5])
    turns: Turns[str] = Turns(lambda: next(fractions))
    turns.set_weights({"a": 1, "b": 1, "c": 1})
    assert take(turns, 6) == "bcabca"


def test_shares_are_right_though_weights_are_set_again_and_again() -> None:
    """Also where that is more often than the lighter ones have a turn."""
    turns: Turns[str] = Turns(random.Random(1).random)
    counts: Counter[str] = Counter()
    for _ in range(1000):
        turns.set_weights({"a": 1, "b": 9})
        counts[turns.next()] += 1
    assert 98 <= counts["a"] <= 102


def test_an_item_goes_on_from_where_it_is_when_its_weight_changes() -> None:
    turns = turns_of({"a": 1, "b": 4})
    assert take(turns, 2) == "bb"
    # Half of its period is over: it has two of four to wait, whatever the unit.
    turns.set_weights({"a": 100, "b": 400})
    assert take(turns, 5) == "babbb"


def test_items_come_and_go() -> None:
    turns = turns_of({"a": 1, "b": 1})
    assert take(turns, 3) == "aba"
    turns.set_weights({"b": 1, "c": 1})
    assert take(turns, 4) == "bbcb"
    turns.set_weights({"c": 1})
    assert take(turns, 2) == "cc"


def test_time_does_not_run_out_of_digits() -> None:
    turns = turns_of({"a": 1e-12, "b": 1.0})
    take(turns, 3)
    turns.set_weights({"a": 1.0, "b": 1.0})
    counts = Counter(take(turns, 1000))
    assert abs(counts["a"] - counts["b"]) <= 2
