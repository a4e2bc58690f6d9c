"""What a service config may say, and which of it holds for a method."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest

from trio_grpc import (
    ConnectionScaling,
    HealthCheckConfig,
    HedgingPolicy,
    MethodConfig,
    RetryPolicy,
    RetryThrottling,
    RoundRobin,
    ServiceConfig,
    StatusCode,
)

RETRY = RetryPolicy(
    max_attempts=3,
    initial_backoff=0.1,
    max_backoff=1,
    backoff_multiplier=2,
    retryable_status_codes={StatusCode.UNAVAILABLE},
)
HEDGING = HedgingPolicy(max_attempts=3)


# ---------------------------------------------------------------------------------------------------------------------
# As objects


def test_a_config_may_say_nothing() -> None:
    config = ServiceConfig()
    assert config.load_balancing is None
    assert config.methods == ()
    assert config.retry_throttling is None
    assert config.health_check is None
    assert config.connection_scaling is None
    assert config.method_config("/a.B/C") == MethodConfig()


def test_configs_with_equal_values_are_equal() -> None:
    def make() -> ServiceConfig:
        return ServiceConfig(
            load_balancing=RoundRobin(),
            methods=[MethodConfig(names=["a.B"], timeout=1, retry_policy=RETRY)],
            retry_throttling=RetryThrottling(max_tokens=10, token_ratio=0.1),
            health_check=HealthCheckConfig(service_name=""),
            connection_scaling=ConnectionScaling(max_connections_per_subchannel=2),
        )

    one, other = make(), make()
    one.method_config("/a.B/C")
    assert one == other
    assert hash(one) == hash(other)
    assert one != attrs.evolve(one, load_balancing=None)


def test_the_most_exact_name_counts() -> None:
    config = ServiceConfig(
        methods=[
            MethodConfig(timeout=1),
            MethodConfig(names=["a.B", "a.D"], timeout=2),
            MethodConfig(names=["a.B/C"], wait_for_ready=True),
        ]
    )
    assert config.method_config("/a.B/C") == MethodConfig(names=["a.B/C"], wait_for_ready=True)
    assert config.method_config("/a.B/E").timeout == 2
    assert config.method_config("/a.D/C").timeout == 2
    assert config.method_config("/a.BB/C").timeout == 1
    assert config.method_config("/B/C").timeout == 1


def test_a_method_without_config_has_one_that_says_nothing() -> None:
    config = ServiceConfig(methods=[MethodConfig(names=["a.B"], timeout=2)])
    nothing = config.method_config("/c.D/E")
    assert nothing == MethodConfig()
    assert config.method_config("/f.G/H") is nothing
    assert config.method_config("/a.B/E") is config.method_config("/a.B/E")


@pytest.mark.parametrize(
    "make", [lambda n: HedgingPolicy(max_attempts=n), lambda n: attrs.evolve(RETRY, max_attempts=n)]
)
def test_more_than_five_attempts_are_five(make: Any) -> None:
    assert [make(count).max_attempts for count in (2, 5, 6, 10**9)] == [2, 5, 5, 5]


def test_more_than_ten_connections_are_ten() -> None:
    counts = [1, 10, 11]
    scalings = [ConnectionScaling(max_connections_per_subchannel=count) for count in counts]
    assert [scaling.max_connections_per_subchannel for scaling in scalings] == [1, 10, 10]


@pytest.mark.parametrize(("given", "kept"), [(0.57, 0.57), (0.5679, 0.567), (1, 1), (2.0019, 2.001), (0.001, 0.001)])
def test_three_decimals_of_a_token_ratio_count(given: float, kept: float) -> None:
    assert RetryThrottling(max_tokens=10, token_ratio=given).token_ratio == kept


def test_a_policy_has_its_codes_from_any_collection() -> None:
    codes = [StatusCode.ABORTED, StatusCode.ABORTED, StatusCode.UNAVAILABLE]
    policy = HedgingPolicy(max_attempts=2, non_fatal_status_codes=codes)
    assert policy.non_fatal_status_codes == frozenset(codes)


def refused(make: Any, **values: Any) -> str:
    """The text with which a value is refused."""
    with pytest.raises((TypeError, ValueError)) as caught:
        make(**values)
    return str(caught.value)


def evolve_retry(**values: Any) -> RetryPolicy:
    return attrs.evolve(RETRY, **values)


@pytest.mark.parametrize("value", [0, -1, -math.inf, math.inf, math.nan])
@pytest.mark.parametrize("name", ["initial_backoff", "max_backoff", "backoff_multiplier"])
def test_backoff_is_positive_and_finite(name: str, value: float) -> None:
    assert refused(evolve_retry, **{name: value}) == f"RetryPolicy.{name} must be more than 0, got {value:g}"


@pytest.mark.parametrize(
    ("make", "values", "text"),
    [
        (evolve_retry, {"max_attempts": 1}, "RetryPolicy.max_attempts must be 2 or more, got 1"),
        (evolve_retry, {"max_attempts": 2.0}, "RetryPolicy.max_attempts must be int, not float"),
        (evolve_retry, {"max_attempts": True}, "RetryPolicy.max_attempts must be int, not bool"),
        (evolve_retry, {"max_backoff": "1s"}, "RetryPolicy.max_backoff must be a number of seconds, not str"),
        (evolve_retry, {"backoff_multiplier": None}, "RetryPolicy.backoff_multiplier must be a number, not NoneType"),
        (
            evolve_retry,
            {"retryable_status_codes": ()},
            "RetryPolicy.retryable_status_codes must name at least one status code",
        ),
        (
            evolve_retry,
            {"retryable_status_codes": [14]},
            "RetryPolicy.retryable_status_codes must be a collection of StatusCode, not int",
        ),
        (
            evolve_retry,
            {"retryable_status_codes": "UNAVAILABLE"},
            "RetryPolicy.retryable_status_codes must be a collection of status codes, not str",
        ),
        (HedgingPolicy, {"max_attempts": 1}, "HedgingPolicy.max_attempts must be 2 or more, got 1"),
        (
            HedgingPolicy,
            {"max_attempts": 2, "hedging_delay": -0.1},
            "HedgingPolicy.hedging_delay must be 0 or more, got -0.1",
        ),
        (
            RetryThrottling,
            {"max_tokens": 0, "token_ratio": 1},
            "RetryThrottling.max_tokens must be more than 0 and at most 1000, got 0",
        ),
        (
            RetryThrottling,
            {"max_tokens": 1000.5, "token_ratio": 1},
            "RetryThrottling.max_tokens must be more than 0 and at most 1000, got 1000.5",
        ),
        (
            RetryThrottling,
            {"max_tokens": 10, "token_ratio": 0.0009},
            "RetryThrottling.token_ratio must be more than 0, got 0",
        ),
        (
            RetryThrottling,
            {"max_tokens": 10, "token_ratio": "1"},
            "RetryThrottling.token_ratio must be a number, not str",
        ),
        (HealthCheckConfig, {"service_name": None}, "HealthCheckConfig.service_name must be str, not NoneType"),
        (
            ConnectionScaling,
            {"max_connections_per_subchannel": 0},
            "ConnectionScaling.max_connections_per_subchannel must be 1 or more, got 0",
        ),
        (MethodConfig, {"names": "a.B"}, "MethodConfig.names must be a sequence of names, not str"),
        (MethodConfig, {"names": [1]}, "MethodConfig.names must be a sequence of str, not int"),
        (MethodConfig, {"names": []}, "MethodConfig.names must not be empty: '' is the name of all methods"),
        (MethodConfig, {"wait_for_ready": 1}, "MethodConfig.wait_for_ready must be bool or None, not int"),
        (MethodConfig, {"timeout": -1}, "MethodConfig.timeout must be 0 or more, got -1"),
        (
            MethodConfig,
            {"max_request_message_bytes": 2**32},
            "MethodConfig.max_request_message_bytes must be between 0 and 4294967295, got 4294967296",
        ),
        (
            MethodConfig,
            {"max_response_message_bytes": -1},
            "MethodConfig.max_response_message_bytes must be between 0 and 4294967295, got -1",
        ),
        (
            MethodConfig,
            {"retry_policy": HEDGING},
            "MethodConfig.retry_policy must be RetryPolicy or None, not HedgingPo",
        ),
        (
            MethodConfig,
            {"retry_policy": RETRY, "hedging_policy": HEDGING},
            "MethodConfig.hedging_policy cannot stand together with a retry policy",
        ),
        (
            ServiceConfig,
            {"load_balancing": "round_robin"},
            "ServiceConfig.load_balancing must be a load balancing policy",
        ),
        (ServiceConfig, {"methods": [RETRY]}, "ServiceConfig.methods must be a sequence of MethodConfig, not RetryPol"),
        (ServiceConfig, {"methods": 1}, "ServiceConfig.methods must be a sequence of MethodConfig, not int"),
        (
            ServiceConfig,
            {"methods": [MethodConfig(names=["a.B"]), MethodConfig(names=["a.C", "a.B"])]},
            "ServiceConfig.methods must not name 'a.B' more than once",
        ),
        (
            ServiceConfig,
            {"retry_throttling": 1},
            "ServiceConfig.retry_throttling must be RetryThrottling or None, not int",
        ),
        (ServiceConfig, {"health_check": ""}, "ServiceConfig.health_check must be HealthCheckConfig or None, not str"),
        (
            ServiceConfig,
            {"connection_scaling": 2},
            "ServiceConfig.connection_scaling must be ConnectionScaling or None, not int",
        ),
    ],
)
def test_wrong_values_are_refused_by_name(make: Any, values: dict[str, Any], text: str) -> None:
    assert refused(make, **values).startswith(text)


@pytest.mark.parametrize("name", ["/", "a.B/", "/C", "/a.B/C", "a.B/C/", "a.B//C"])
def test_names_of_methods_have_a_service_and_a_method(name: str) -> None:
    text = f"MethodConfig.names must be like 'package.Service/Method' or '', got {name!r}"
    assert refused(MethodConfig, names=[name]) == text
