"""Waits between connection attempts (gRPC connection-backoff)."""

from __future__ import annotations

import random

import pytest

from trio_grpc._balancing.backoff import Backoff


def middle(low: float, high: float) -> float:
    return (low + high) / 2


def test_the_defaults_are_grpcs() -> None:
    backoff = Backoff()
    assert (backoff.base, backoff.multiplier, backoff.jitter, backoff.maximum) == (1.0, 1.6, 0.2, 120.0)


def test_each_failure_multiplies_the_wait() -> None:
    waits = [Backoff().delay(failures, middle) for failures in (1, 2, 3, 4)]
    assert waits == pytest.approx([1, 1.6, 2.56, 4.096])


@pytest.mark.parametrize("failures", [12, 100, 10_000, 10**9])
def test_the_wait_has_a_maximum_for_ever(failures: int) -> None:
    assert Backoff().delay(failures, middle) == 120


def test_the_jitter_goes_both_ways() -> None:
    bounds: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        bounds.append((low, high))
        return high

    assert Backoff().delay(1, uniform) == pytest.approx(1.2)
    assert Backoff().delay(100, uniform) == pytest.approx(144)
    assert bounds == [(0.8, 1.2)] * 2
    waits = {Backoff().delay(3, random.uniform) for _ in range(50)}
    assert len(waits) > 40
    assert 2.56 * 0.8 <= min(waits) <= max(waits) <= 2.56 * 1.2


def test_other_values() -> None:
    backoff = Backoff(base=0.1, multiplier=2, jitter=0, maximum=0.5)
    assert [backoff.delay(failures, middle) for failures in (1, 2, 3, 4)] == pytest.approx([0.1, 0.2, 0.4, 0.5])
