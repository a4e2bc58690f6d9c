"""Small simulated worlds: all that `make simulation` asks of a large one, and that one seed is one run."""

from __future__ import annotations

import pytest

from tests.simulation.hour import Result, report, simulate
from tests.simulation.world import Scale


@pytest.mark.slow
def test_ten_minutes_in_which_no_call_is_lost_that_could_be_saved() -> None:
    result = simulate(1, Scale(backends=10, clients=5, seconds=600, calls_per_second=0.6, harmed=0.7))
    assert not result.faults, report(result)
    # What it is to show was there to be seen.
    totals = result.whole.totals
    assert totals.calls > 1000
    assert totals.attempts > totals.calls + 50
    assert totals.failures["exhausted"]
    assert totals.failures["throttled"]


def test_the_same_seed_gives_the_same_run() -> None:
    def play(seed: int) -> Result:
        return simulate(seed, Scale(backends=6, clients=3, seconds=120))

    first, again, other = play(1), play(1), play(2)
    assert first.lines > 300
    assert (again.lines, again.digest) == (first.lines, first.digest)
    assert other.digest != first.digest
