"""Budgets: arithmetic."""

from __future__ import annotations

from math import inf

from trio_grpc._transport.budget import Budget


def spend(budget: Budget, cost: float, now: float = 0.0, progress: int = 0) -> bool:
    """As its users do."""
    budget.left -= cost
    return budget.left >= 0 or budget.refill(now, progress)


def count(budget: Budget, now: float = 0.0, progress: int = 0) -> int:
    """How much can be spent one by one at this moment."""
    spent = 0
    while spend(budget, 1, now, progress):
        spent += 1
    return spent


def test_a_burst_is_free_and_nothing_beyond_it() -> None:
    budget = Budget(20, per_second=5, per_progress=3)
    assert count(budget) == 20
    assert count(budget) == 0


def test_time_fills_it() -> None:
    budget = Budget(20, per_second=5, per_progress=3)
    budget.begin(100.0)
    assert count(budget, 100.0) == 20
    # What went over was spent too.
    assert count(budget, 102.0) == 10 - 1
    assert count(budget, 103.0) == 5 - 1


def test_progress_fills_it() -> None:
    budget = Budget(20, per_second=5, per_progress=3)
    assert count(budget, progress=0) == 20
    assert count(budget, progress=4) == 12 - 1
    assert count(budget, progress=4) == 0


def test_time_before_its_beginning_does_not_count() -> None:
    budget = Budget(20, per_second=5, per_progress=3)
    budget.begin(1e6)
    assert count(budget, 1e6 + 1) == 20 + 5


def test_it_never_holds_more_than_its_burst() -> None:
    budget = Budget(20, per_second=5, per_progress=3)
    assert count(budget, 1000.0, 1000) == 20 + 20
    assert count(budget, 2000.0, 2000) == 20 - 1


def test_a_steady_pace_within_its_means_goes_on_for_ever() -> None:
    budget = Budget(20, per_second=5, per_progress=3)
    assert all(spend(budget, 1, now=step / 5) for step in range(10_000))
    budget = Budget(20, per_second=5, per_progress=3)
    assert all(spend(budget, 3, progress=step) for step in range(10_000))


def test_a_pace_above_its_means_ends() -> None:
    budget = Budget(20, per_second=5, per_progress=3)
    paid = 0
    while spend(budget, 1, now=paid / 10):
        paid += 1
    # Half of each is paid for by the time that it took.
    assert 38 <= paid <= 42


def test_costs_may_differ() -> None:
    budget = Budget(20, per_second=5, per_progress=3)
    assert spend(budget, 15)
    assert not spend(budget, 6)
    assert spend(budget, 0, progress=1)


def test_no_burst_means_no_end() -> None:
    budget = Budget(None, per_second=5, per_progress=3)
    assert budget.left == inf
    assert all(spend(budget, 1000) for _ in range(10_000))


def test_a_burst_of_zero_lives_from_what_is_earned() -> None:
    budget = Budget(0, per_second=5, per_progress=3)
    assert count(budget) == 0
    assert not spend(budget, 1)
