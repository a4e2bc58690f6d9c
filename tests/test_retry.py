"""The rules of gRFC A6, one by one."""

from __future__ import annotations

import pytest

from tests.support.retries import hedging_policy, retry_policy
from trio_grpc import RetryThrottling, StatusCode
from trio_grpc._retry import Hedges, Retries, RetryThrottle, Transparency, pushback, with_previous

OK, UNAVAILABLE, INTERNAL = StatusCode.OK, StatusCode.UNAVAILABLE, StatusCode.INTERNAL
NEVER = float("inf")


def middle(low: float, high: float) -> float:
    return (low + high) / 2


def asked(*values: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"x-other", b"5"), *((b"grpc-retry-pushback-ms", value) for value in values))


def throttle(tokens: float = 10, ratio: float = 0.1) -> RetryThrottle:
    made = RetryThrottle.of(RetryThrottling(max_tokens=tokens, token_ratio=ratio))
    assert made is not None
    return made


# -- tokens


def test_no_throttling_is_no_throttle() -> None:
    assert RetryThrottle.of(None) is None
    assert RetryThrottle.of(None, throttle()) is None


def test_a_throttle_lives_on_under_an_equal_config() -> None:
    first = throttle()
    first.failed()
    same = RetryThrottle.of(RetryThrottling(max_tokens=10, token_ratio=0.1), first)
    assert same is first
    other = RetryThrottle.of(RetryThrottling(max_tokens=10, token_ratio=0.2), first)
    assert other is not None
    assert (other.tokens, first.tokens) == (10, 9)


def test_tokens_stay_between_nothing_and_all() -> None:
    bucket = throttle(2, 0.6)
    bucket.succeeded()
    assert bucket.tokens == 2
    seen = []
    for _ in range(3):
        bucket.failed()
        seen.append(bucket.tokens)
    assert seen == [1, 0, 0]
    for _ in range(4):
        bucket.succeeded()
        seen.append(bucket.tokens)
    assert seen[3:] == [0.6, 1.2, 1.8, 2]


def test_a_ratio_over_all_tokens_gives_all_of_them_back() -> None:
    throttle = RetryThrottle(RetryThrottling(max_tokens=3, token_ratio=1e308))
    throttle.failed()
    throttle.succeeded()
    assert throttle.tokens == 3


def test_nothing_is_permitted_with_half_of_the_tokens() -> None:
    bucket = throttle(10, 0.1)
    for _ in range(4):
        bucket.failed()
    assert (bucket.tokens, bucket.permits) == (6, True)
    bucket.failed()
    assert (bucket.tokens, bucket.permits) == (5, False)
    bucket.succeeded()
    assert bucket.permits


def test_ten_tenths_are_a_token() -> None:
    bucket = throttle(10, 0.1)
    for _ in range(5):
        bucket.failed()
    for _ in range(10):
        bucket.succeeded()
    assert bucket.tokens == 6
    assert repr(bucket) == "<RetryThrottle 6 of 10>"


# -- pushback


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ((), None),
        ((b"0",), 0),
        ((b"1500",), 1.5),
        ((b"2147483647",), 2147483.647),
        ((b"2147483648",), NEVER),
        ((b"-1",), NEVER),
        ((b"-0",), 0),
        ((b"05",), NEVER),
        ((b"+5",), NEVER),
        ((b"5.0",), NEVER),
        ((b" 5",), NEVER),
        ((b"",), NEVER),
        ((b"soon",), NEVER),
        ((b"5, 6",), NEVER),
        ((b"5", b"5"), NEVER),
        ((b"9" * 5000,), NEVER),
    ],
)
def test_pushback(values: tuple[bytes, ...], seconds: float | None) -> None:
    assert pushback(asked(*values)) == seconds


# -- the header


def test_the_number_of_previous_attempts_replaces_one_that_was_passed_on() -> None:
    passed_on = [(b"a", b"1"), (b"grpc-previous-rpc-attempts", b"7"), (b"b", b"2")]
    assert with_previous(passed_on, 2) == [(b"grpc-previous-rpc-attempts", b"2"), (b"a", b"1"), (b"b", b"2")]


# -- transparent retries


def test_a_call_that_stays_here_is_repeated_for_ever_and_a_refused_one_once() -> None:
    transparency = Transparency()
    assert [transparency.allows(sent) for sent in (False, False, True, False, True, False)] == [
        True,
        True,
        True,
        True,
        False,
        True,
    ]


# -- retries


def delays(retries: Retries, *fields: tuple[tuple[bytes, bytes], ...]) -> list[float | None]:
    return [retries.next_delay(UNAVAILABLE, each) for each in fields]


def test_backoff_grows_to_its_maximum_and_attempts_are_counted() -> None:
    retries = Retries(retry_policy(max_attempts=5, max_backoff=3), None, middle)
    assert retries.previous == 0
    assert delays(retries, (), (), (), (), ()) == [1, 2, 3, 3, None]
    assert retries.previous == 4


def test_backoff_varies_by_a_fifth() -> None:
    bounds = []

    def note(low: float, high: float) -> float:
        bounds.append((low, high))
        return high

    retries = Retries(retry_policy(max_backoff=1.5), None, note)
    assert delays(retries, (), ()) == [1.2, pytest.approx(1.8)]
    assert bounds == [(0.8, 1.2)] * 2


def test_backoff_that_is_too_large_for_a_number_is_the_maximum() -> None:
    retries = Retries(retry_policy(backoff_multiplier=1e300, max_attempts=5), None, middle)
    assert delays(retries, (), (), ()) == [1, 100, 100]


def test_only_listed_codes_are_retried() -> None:
    retries = Retries(retry_policy(retryable_status_codes={UNAVAILABLE, INTERNAL}), None, middle)
    assert retries.next_delay(INTERNAL, ()) == 1
    assert retries.next_delay(StatusCode.ABORTED, ()) is None
    assert retries.next_delay(StatusCode.ABORTED, asked(b"0")) is None


def test_pushback_is_exact_and_begins_the_backoff_anew() -> None:
    retries = Retries(retry_policy(max_attempts=5), None, middle)
    assert delays(retries, (), asked(b"70"), (), asked(b"0")) == [1, 0.07, 1, 0]


def test_pushback_does_not_add_attempts() -> None:
    retries = Retries(retry_policy(max_attempts=2), None, middle)
    assert delays(retries, asked(b"5"), asked(b"5")) == [0.005, None]


def test_pushback_may_forbid() -> None:
    assert delays(Retries(retry_policy(), None, middle), asked(b"-1")) == [None]


def test_retries_stop_at_half_of_the_tokens() -> None:
    bucket = throttle(4, 1)
    retries = Retries(retry_policy(), bucket, middle)
    assert delays(retries, (), ()) == [1, None]
    assert bucket.tokens == 2
    # The last failure counts, too.
    assert delays(Retries(retry_policy(max_attempts=2), bucket, middle), ()) == [None]
    assert bucket.tokens == 1


def test_which_failures_take_tokens() -> None:
    bucket = throttle()
    retries = Retries(retry_policy(), bucket, middle)
    retries.next_delay(INTERNAL, ())
    assert bucket.tokens == 10
    retries.next_delay(INTERNAL, asked(b"-1"))
    assert bucket.tokens == 9
    retries.next_delay(UNAVAILABLE, asked(b"-1"))
    assert bucket.tokens == 8
    retries.next_delay(UNAVAILABLE, asked(b"5"))
    assert bucket.tokens == 7


def test_a_call_that_cannot_be_retried_counts_all_the_same() -> None:
    bucket = throttle(10, 0.5)
    retries = Retries(retry_policy(), bucket, middle)
    retries.ended(UNAVAILABLE, ())
    retries.ended(INTERNAL, ())
    assert bucket.tokens == 9
    retries.ended(OK, ())
    assert bucket.tokens == 9.5
    retries.succeeded()
    assert bucket.tokens == 10


def test_without_a_policy_only_successes_and_explicit_pushback_count() -> None:
    bucket = throttle(10, 0.5)
    retries = Retries(None, bucket, middle)
    assert retries.next_delay(UNAVAILABLE, ()) is None
    assert bucket.tokens == 10
    assert retries.next_delay(UNAVAILABLE, asked(b"-1")) is None
    assert bucket.tokens == 9
    retries.succeeded()
    assert bucket.tokens == 9.5


# -- hedges


def test_hedges_are_a_delay_apart_until_there_are_enough() -> None:
    hedges = Hedges(hedging_policy(), None)
    seen = [(hedges.delay, hedges.begin(), hedges.previous) for _ in range(3)]
    assert seen == [(1, True, 1), (1, True, 2), (None, False, 2)]


def test_a_failure_that_is_not_fatal_calls_for_the_next_hedge() -> None:
    hedges = Hedges(hedging_policy(), None)
    assert hedges.failed(UNAVAILABLE, ())
    assert not hedges.failed(INTERNAL, ())
    assert hedges.next_delay(()) == 0
    assert hedges.next_delay(asked(b"1500")) == 1.5
    assert (hedges.begin(), hedges.begin()) == (True, True)
    assert hedges.next_delay(()) is None


def test_pushback_may_end_the_hedging() -> None:
    hedges = Hedges(hedging_policy(), None)
    assert hedges.next_delay(asked(b"no")) is None
    assert (hedges.delay, hedges.begin()) == (None, False)


def test_there_are_no_hedges_at_half_of_the_tokens() -> None:
    bucket = throttle(2, 1)
    hedges = Hedges(hedging_policy(), bucket)
    hedges.failed(UNAVAILABLE, ())
    assert not hedges.begin()
    bucket.succeeded()
    # It was too late then, and is.
    assert hedges.delay is None
