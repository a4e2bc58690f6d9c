"""Changes and their noise, against textbook figures and worked examples."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks.statistics import Change, change, paired_change, t_quantile


@pytest.mark.parametrize(
    ("confidence", "freedom", "quantile"),
    [
        # Tables of Student's t, two-sided.
        (0.95, 1, 12.7062),
        (0.95, 2, 4.3027),
        (0.95, 3, 3.1824),
        (0.95, 4, 2.7764),
        (0.95, 10, 2.2281),
        (0.99, 1, 63.6567),
        (0.99, 2, 9.9248),
        (0.90, 5, 2.0150),
        (0.9999, 1, 6366.20),
        # Almost the normal distribution.
        (0.95, 10_000, 1.9602),
    ],
)
def test_quantiles_are_those_of_the_tables(confidence: float, freedom: float, quantile: float) -> None:
    assert t_quantile(confidence, freedom) == pytest.approx(quantile, rel=1e-4)


def test_quantiles_between_whole_degrees_of_freedom_lie_between_theirs() -> None:
    quantiles = [t_quantile(0.95, freedom) for freedom in (1, 1.3, 1.7, 2, 2.5, 3)]
    assert quantiles == sorted(quantiles, reverse=True)


@pytest.mark.parametrize(("confidence", "freedom"), [(0.0, 3), (1.0, 3), (0.95, 0.5), (0.95, math.nan)])
def test_quantiles_that_do_not_exist_are_refused(confidence: float, freedom: float) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        t_quantile(confidence, freedom)


def test_a_change_has_the_interval_of_welchs_test() -> None:
    # Means 100 and 106, variances 4 and 16, three rounds each: standard error sqrt(20 / 3), and
    # (20/3)^2 / ((4/3)^2/2 + (16/3)^2/2) = 2.941 degrees of freedom.
    seen = change([98.0, 100.0, 102.0], [102.0, 106.0, 110.0])
    margin = t_quantile(0.95, 400 / 136) * math.sqrt(20 / 3)
    assert seen.value == pytest.approx(0.06)
    assert seen.low == pytest.approx(0.06 - margin / 100)
    assert seen.high == pytest.approx(0.06 + margin / 100)
    assert seen.beyond_noise is False


def test_rounds_that_agree_make_a_change_real_and_asking_for_more_confidence_makes_it_noise_again() -> None:
    before, after = [100.0, 101.0, 99.0], [104.0, 105.0, 103.0]
    assert change(before, after).beyond_noise is True
    assert change(before, after, confidence=0.9999).beyond_noise is False


def test_a_change_downwards_can_be_real_too() -> None:
    seen = change([104.0, 105.0, 103.0], [100.0, 101.0, 99.0])
    assert seen.value < 0
    assert seen.beyond_noise is True


def test_of_single_rounds_no_noise_is_known() -> None:
    assert change([100.0], [150.0]) == Change(0.5)
    assert change([100.0], [150.0]).beyond_noise is None
    assert change([100.0], [150.0, 151.0]).beyond_noise is None
    assert change([100.0, 101.0], [150.5]).beyond_noise is None


def test_counted_figures_that_never_vary_differ_really_or_not_at_all() -> None:
    assert change([4.0, 4.0], [5.0, 5.0]) == Change(0.25, 0.25, 0.25)
    assert change([4.0, 4.0], [5.0, 5.0]).beyond_noise is True
    assert change([4.0, 4.0], [4.0, 4.0]) == Change(0.0, 0.0, 0.0)
    assert change([4.0, 4.0], [4.0, 4.0]).beyond_noise is False


def test_one_side_that_never_varies_leaves_the_noise_to_the_other() -> None:
    seen = change([4.0, 4.0, 4.0], [4.5, 5.0, 5.5])
    margin = t_quantile(0.95, 2) * math.sqrt(0.25 / 3)
    assert seen.high == pytest.approx((1 + margin) / 4)


def test_from_zero_is_infinitely_more_and_zero_stays_zero() -> None:
    assert change([0.0, 0.0], [1.0, 1.0]) == Change(math.inf, math.inf, math.inf)
    assert change([0.0, 0.0], [0.0, 0.0]) == Change(0.0, 0.0, 0.0)
    unsure = change([0.0, 0.0], [-1.0, 2.0])
    assert (unsure.low, unsure.high) == (-math.inf, math.inf)
    assert unsure.beyond_noise is False


def test_a_change_of_a_negative_figure_keeps_its_sign() -> None:
    assert change([-2.0], [-1.0]).value == 0.5


def test_a_change_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        change([], [1.0])


def test_swapping_places_takes_the_faster_place_out_of_the_mean() -> None:
    # The second is 5 % faster; whoever sits in the better place gains 20 %.
    ratios = [1.05 * 1.2, 1.05 / 1.2, 1.05 * 1.2, 1.05 / 1.2]
    seen = paired_change(ratios)
    assert seen.value == pytest.approx(0.05)
    # The places are no noise either.
    assert seen.low == pytest.approx(0.05)
    assert seen.high == pytest.approx(0.05)


def test_the_noise_of_pairs_is_what_varies_among_rounds_of_one_seating() -> None:
    ratios = [math.exp(value) for value in (0.10, 0.01, 0.14, 0.03)]
    # Seatings (0.10, 0.14) and (0.01, 0.03): squares 2 * 0.02^2 + 2 * 0.01^2 = 0.001, two degrees of freedom.
    margin = t_quantile(0.95, 2) * math.sqrt(0.001 / 2 / 4)
    seen = paired_change(ratios)
    assert seen.value == pytest.approx(math.expm1(0.07))
    assert seen.low == pytest.approx(math.expm1(0.07 - margin))
    assert seen.high == pytest.approx(math.expm1(0.07 + margin))
    assert seen.beyond_noise is True


def test_one_round_of_each_seating_says_nothing_of_noise() -> None:
    seen = paired_change([2.0, 0.5])
    assert seen.value == pytest.approx(0.0)
    assert seen.beyond_noise is None


@pytest.mark.parametrize("ratios", [[], [1.0], [1.0, 1.0, 1.0]])
def test_rounds_that_were_not_swapped_evenly_are_refused(ratios: list[float]) -> None:
    with pytest.raises(ValueError, match="swapped"):
        paired_change(ratios)


def test_noise_alone_is_called_a_change_as_often_as_the_confidence_admits() -> None:
    rounds = 3
    # The same numbers each time: the seed is fixed.  The second side is noisier.
    chance = random.Random(4)
    alarms = sum(
        change(
            [chance.gauss(100, 3) for _ in range(rounds)], [chance.gauss(100, 6) for _ in range(rounds)], 0.9
        ).beyond_noise
        is True
        for _ in range(300)
    )
    assert 0.05 < alarms / 300 < 0.15


def test_so_it_is_of_pairs_whose_places_differ() -> None:
    chance = random.Random(4)
    alarms = sum(
        paired_change([math.exp(chance.gauss(0.1 * (-1) ** number, 0.05)) for number in range(6)], 0.9).beyond_noise
        is True
        for _ in range(300)
    )
    assert 0.05 < alarms / 300 < 0.15
