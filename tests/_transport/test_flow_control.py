"""The books of HTTP/2 credit, incoming."""

from __future__ import annotations

import pytest

from trio_grpc._transport.flow_control import (
    MAX_ADAPTIVE_WINDOW,
    BandwidthEstimator,
    IncomingWindows,
    OutgoingWindows,
)

MB = 2**20


def test_a_connection_starts_as_rfc_9113_says() -> None:
    outgoing = OutgoingWindows()
    assert (outgoing.connection, outgoing.initial, outgoing.max_frame_size) == (65_535, 65_535, 16_384)
    assert not outgoing.starved


def test_the_connection_window_is_raised_in_the_first_flight() -> None:
    incoming = IncomingWindows(65_535, MB, adaptive=False)
    assert incoming.initial_credit() == MB - 65_535
    assert incoming.initial_credit() == 0
    assert incoming.receive(MB)
    assert not incoming.receive(1)


def test_without_more_than_the_default_there_is_nothing_to_raise() -> None:
    incoming = IncomingWindows(1000, 65_535, adaptive=False)
    assert incoming.initial_credit() == 0
    assert incoming.receive(65_535)
    assert not incoming.receive(1)


def test_connection_credit_goes_back_when_data_arrives_in_portions_worth_a_frame() -> None:
    incoming = IncomingWindows(65_535, 400_000, adaptive=False)
    incoming.initial_credit()
    assert incoming.receive(99_999)
    assert incoming.credit() == 0
    assert incoming.receive(1)
    assert incoming.credit() == 100_000
    assert incoming.credit() == 0
    # Nothing is lost and nothing is given twice: the peer may send exactly the window again.
    assert incoming.receive(400_000)
    assert not incoming.receive(1)


def test_credit_balances_for_ever() -> None:
    incoming = IncomingWindows(65_535, 200_000, adaptive=False)
    at_peer = 65_535 + incoming.initial_credit()
    for step in range(10_000):
        size = min(step * 7919 % 16_384, at_peer)
        assert incoming.receive(size)
        at_peer -= size
        at_peer += incoming.credit()
        assert 0 < at_peer <= 200_000
    # What the peer may not believe in is less than a portion.
    assert at_peer > 150_000


def test_growth_is_owed_at_once_and_never_shrinks() -> None:
    incoming = IncomingWindows(65_535, MB, adaptive=True)
    incoming.initial_credit()
    incoming.grow(100_000)
    assert (incoming.stream_target, incoming.stream_window) == (100_000, 65_535)
    assert incoming.credit() == 0
    incoming.grow(4 * MB)
    assert incoming.stream_target == 4 * MB
    assert incoming.credit() == 3 * MB
    incoming.grow(MB)
    assert incoming.stream_target == 4 * MB
    assert incoming.credit() == 0
    assert incoming.receive(4 * MB)
    assert not incoming.receive(1)


def test_a_peer_may_believe_in_the_default_window_until_it_has_seen_ours() -> None:
    assert IncomingWindows(1000, 65_535, adaptive=False).tolerance == 64_535
    assert IncomingWindows(65_535, 65_535, adaptive=False).tolerance == 0
    assert IncomingWindows(MB, MB, adaptive=False).tolerance == 0


def test_estimation_is_optional() -> None:
    assert IncomingWindows(1000, MB, adaptive=False).estimator is None
    estimator = IncomingWindows(1000, MB, adaptive=True).estimator
    assert estimator is not None
    assert estimator.window == 65_535


def sample(estimator: BandwidthEstimator, length: int, now: float, round_trip: float = 0.01) -> int | None:
    """Let ``length`` bytes arrive within one round trip."""
    assert estimator.receive(16_384, now)
    assert not estimator.receive(length - 16_384, now)
    return estimator.acknowledge(now + round_trip)


def test_a_full_window_per_round_trip_doubles_the_estimate() -> None:
    estimator = BandwidthEstimator(65_535)
    assert sample(estimator, 60_000, 0) == 120_000
    assert estimator.window == 120_000
    assert sample(estimator, 110_000, 1) == 220_000


def test_a_window_that_is_not_filled_does_not_grow() -> None:
    estimator = BandwidthEstimator(65_535)
    assert sample(estimator, 43_000, 0) is None
    assert estimator.window == 65_535


def test_a_slower_sample_does_not_grow_the_estimate() -> None:
    """More bytes in a longer time are a queue, not bandwidth."""
    estimator = BandwidthEstimator(65_535)
    assert sample(estimator, 60_000, 0, round_trip=0.01) == 120_000
    assert sample(estimator, 120_000, 1, round_trip=0.03) is None
    assert sample(estimator, 120_000, 2, round_trip=0.01) == 240_000


def test_small_reads_start_no_sample() -> None:
    estimator = BandwidthEstimator(65_535)
    for now in range(1000):
        assert not estimator.receive(16_383, now)
    assert estimator.acknowledge(1000.0) is None


def test_one_sample_at_a_time() -> None:
    estimator = BandwidthEstimator(65_535)
    assert estimator.receive(20_000, 0)
    assert not estimator.receive(20_000, 1)
    assert not estimator.receive(20_000, 2)
    assert estimator.acknowledge(3) == 120_000
    assert estimator.acknowledge(3) is None


def test_the_estimate_stops_at_the_cap_and_so_do_the_pings() -> None:
    estimator = BandwidthEstimator(65_535)
    now = 0.0
    while estimator.window < MAX_ADAPTIVE_WINDOW:
        window = estimator.window
        assert sample(estimator, window, now) is not None
        assert window < estimator.window <= 2 * window
        now += 1
    assert estimator.window == MAX_ADAPTIVE_WINDOW == 16 * MB
    assert not estimator.receive(MB, now)


def test_after_a_sample_that_changes_nothing_it_rests_each_time_longer() -> None:
    estimator = BandwidthEstimator(65_535)
    now = 0.0
    for rest in (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5):
        assert sample(estimator, 20_000, now) is None
        now += 0.01
        assert not estimator.receive(MB, now + rest * 0.999)
        now += rest * 1.001


def test_growth_ends_the_rests() -> None:
    estimator = BandwidthEstimator(65_535)
    for now in range(10):
        assert sample(estimator, 20_000, now) is None
    assert sample(estimator, 60_000, 20) == 120_000
    assert sample(estimator, 120_000, 20.01) == 240_000
    # A sample without growth now is the first again: it rests for one round trip.
    assert sample(estimator, 20_000, 20.02) is None
    assert not estimator.receive(MB, 20.0399)
    assert estimator.receive(MB, 20.0401)


@pytest.mark.parametrize("round_trip", [0.0, 1e-9])
def test_a_round_trip_has_a_floor(round_trip: float) -> None:
    """Where no time passes (loopback, virtual clock) bandwidth must not be infinite, or the first sample the best."""
    estimator = BandwidthEstimator(65_535)
    assert sample(estimator, 60_000, 0, round_trip) == 120_000
    assert sample(estimator, 110_000, 1, round_trip) == 220_000


def test_what_was_spent() -> None:
    windows = OutgoingWindows()
    assert windows.spent == 0
    windows.connection -= 1000
    assert windows.spent == 1000
    # Credit that comes back in full does not hide what was sent.
    windows.connection += 1000
    windows.granted += 1000
    assert windows.spent == 1000


def test_what_came() -> None:
    windows = IncomingWindows(65_535, MB, adaptive=True)
    assert windows.received == 0
    assert windows.initial_credit()
    assert windows.received == 0
    for length in (1000, MB - 2000, 1000):
        assert windows.receive(length)
    assert windows.received == MB
    # Nor does credit hide it, what came before and what the windows grow by.
    windows.grow(4 * MB)
    assert windows.credit() == 4 * MB
    assert windows.received == MB
