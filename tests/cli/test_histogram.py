"""The histogram of latencies: its promise of one per cent, and its picture."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_grpc.cli._histogram import Histogram

DURATIONS = st.lists(st.floats(min_value=1e-6, max_value=3600), min_size=1, max_size=200)


def histogram(values: list[float]) -> Histogram:
    made = Histogram()
    for value in values:
        made.add(value)
    return made


@given(DURATIONS, st.sampled_from([1, 25, 50, 90, 99, 99.9, 100]))
def test_percentiles_are_within_one_per_cent(values: list[float], percent: float) -> None:
    exact = sorted(values)[math.ceil(len(values) * percent / 100) - 1]
    assert histogram(values).percentile(percent) == pytest.approx(exact, rel=0.0101)


@given(DURATIONS)
def test_what_is_exact(values: list[float]) -> None:
    made = histogram(values)
    assert made.count == len(values)
    assert (made.smallest, made.largest) == (min(values), max(values))
    assert made.mean == pytest.approx(sum(values) / len(values))


@given(DURATIONS, st.integers(1, 20))
def test_the_picture_has_all_of_them_and_no_gap(values: list[float], most: int) -> None:
    rows = list(histogram(values).rows(most))
    assert 1 <= len(rows) <= most
    assert sum(count for _, count in rows) == len(values)
    limits = [limit for limit, _ in rows]
    assert limits == sorted(limits)
    assert max(values) <= limits[-1] * 1.0001
    below = sum(value <= limits[0] * 0.9999 for value in values)
    assert below <= rows[0][1]


def test_nothing_at_all() -> None:
    empty = Histogram()
    assert (empty.mean, empty.percentile(50), list(empty.rows(5))) == (0, 0, [])


def test_a_duration_of_nothing_has_a_bucket() -> None:
    made = histogram([0.0, 0.0])
    assert (made.count, made.percentile(50), made.smallest) == (2, 0, 0)
