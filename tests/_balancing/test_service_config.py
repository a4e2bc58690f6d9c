"""What a service config may say, and which of it holds for a method."""

from __future__ import annotations

import decimal
import json
import math
from collections.abc import Callable
from typing import Any, get_args

import attrs
import pytest

from trio_grpc import (
    ConnectionScaling,
    HealthCheckConfig,
    HedgingPolicy,
    MethodConfig,
    PickFirst,
    RetryPolicy,
    RetryThrottling,
    RoundRobin,
    ServiceConfig,
    ServiceConfigError,
    StatusCode,
    WeightedRoundRobin,
)
from trio_grpc._balancing.policies import PolicyName

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
            {"load_balancing": RoundRobin},
            "ServiceConfig.load_balancing must be a load balancing policy or None, not the class RoundRobin; RoundR",
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


# ---------------------------------------------------------------------------------------------------------------------
# As JSON

RETRY_JSON: dict[str, Any] = {
    "maxAttempts": 3,
    "initialBackoff": "0.1s",
    "maxBackoff": "1s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


def test_everything_that_json_may_say() -> None:
    text = """{
        "loadBalancingConfig": [{"no_such_policy": {}}, {"pick_first": {"shuffleAddressList": true}}],
        "methodConfig": [
            {"name": [{}], "waitForReady": true},
            {
                "name": [{"service": "a.B"}, {"service": "a.C", "method": "D"}],
                "waitForReady": false,
                "timeout": "1.5s",
                "maxRequestMessageBytes": 1000,
                "maxResponseMessageBytes": "2000",
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 1.5,
                    "retryableStatusCodes": ["UNAVAILABLE", "aborted", 8]
                }
            },
            {
                "name": [{"service": "a.E"}],
                "hedgingPolicy": {"maxAttempts": 3, "hedgingDelay": "0.5s", "nonFatalStatusCodes": ["INTERNAL"]}
            }
        ],
        "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1239},
        "healthCheckConfig": {"serviceName": "a.B"},
        "connectionScaling": {"maxConnectionsPerSubchannel": 3}
    }"""
    expected = ServiceConfig(
        load_balancing=PickFirst(shuffle_address_list=True),
        methods=[
            MethodConfig(names=[""], wait_for_ready=True),
            MethodConfig(
                names=["a.B", "a.C/D"],
                wait_for_ready=False,
                timeout=1.5,
                max_request_message_bytes=1000,
                max_response_message_bytes=2000,
                retry_policy=RetryPolicy(
                    max_attempts=4,
                    initial_backoff=0.1,
                    max_backoff=1,
                    backoff_multiplier=1.5,
                    retryable_status_codes=[
                        StatusCode.UNAVAILABLE,
                        StatusCode.ABORTED,
                        StatusCode.RESOURCE_EXHAUSTED,
                    ],
                ),
            ),
            MethodConfig(
                names=["a.E"],
                hedging_policy=HedgingPolicy(
                    max_attempts=3, hedging_delay=0.5, non_fatal_status_codes=[StatusCode.INTERNAL]
                ),
            ),
        ],
        retry_throttling=RetryThrottling(max_tokens=10, token_ratio=0.123),
        health_check=HealthCheckConfig(service_name="a.B"),
        connection_scaling=ConnectionScaling(max_connections_per_subchannel=3),
    )
    assert ServiceConfig.from_json(text) == expected
    assert ServiceConfig.from_json(text.encode()) == expected
    assert ServiceConfig.from_json(json.loads(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"loadBalancingConfig": null, "loadBalancingPolicy": null, "methodConfig": null, "retryThrottling": null}',
        '{"methodConfig": [], "healthCheckConfig": {}, "connectionScaling": {}}',
        '{"connectionScaling": {"maxConnectionsPerSubchannel": 0}}',
        # A config without a name is nobody's.
        '{"methodConfig": [{"timeout": "1s"}, {"name": [], "waitForReady": true}]}',
        '{"methodConfigs": [1], "loadbalancingconfig": 1, "anything": {"else": []}}',
    ],
)
def test_what_says_nothing(text: str) -> None:
    assert ServiceConfig.from_json(text) == ServiceConfig()


def test_unknown_fields_inside_are_ignored() -> None:
    config = ServiceConfig.from_json(
        {
            "methodConfig": [{"name": [{"service": "a.B", "x": 1}], "retryPolicy": {**RETRY_JSON, "x": 1}, "x": 1}],
            "retryThrottling": {"maxTokens": 10, "tokenRatio": 1, "x": 1},
            "healthCheckConfig": {"serviceName": "", "x": 1},
        }
    )
    assert config.method_config("/a.B/C").retry_policy == RETRY
    assert config.health_check == HealthCheckConfig(service_name="")


@pytest.mark.parametrize("name", ["round_robin", "ROUND_ROBIN"])
def test_the_older_field_for_load_balancing(name: str) -> None:
    assert ServiceConfig.from_json({"loadBalancingPolicy": name}).load_balancing == RoundRobin()
    both = {"loadBalancingPolicy": name, "loadBalancingConfig": [{"pick_first": {}}]}
    assert ServiceConfig.from_json(both).load_balancing == PickFirst()


def method(**fields: Any) -> dict[str, Any]:
    """A service config with one method config, the third."""
    names = [{"name": [{"service": service}]} for service in ("a.A", "a.B")]
    return {"methodConfig": [*names, {"name": [{"service": "a.C"}], **fields}]}


def retry(**fields: Any) -> dict[str, Any]:
    return method(retryPolicy=RETRY_JSON | fields)


def hedging(**fields: Any) -> dict[str, Any]:
    return method(hedgingPolicy={"maxAttempts": 2, **fields})


CODE = "must be the name or the number of a StatusCode"
SIZE = "must be a whole number from 0 to 4294967295"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"loadBalancingConfig": {}}, "loadBalancingConfig: must be a list of policies"),
        ({"loadBalancingConfig": [{"x": {}}]}, "loadBalancingConfig: has no known policy (x)"),
        ({"loadBalancingPolicy": 1}, "loadBalancingPolicy: must be a string, got 1"),
        ({"loadBalancingPolicy": "x"}, f"loadBalancingPolicy: 'x' is not one of {', '.join(get_args(PolicyName))}"),
        ({"methodConfig": {}}, "methodConfig: must be a list, got {}"),
        ({"methodConfig": [1]}, "methodConfig[0]: must be an object, got 1"),
        (method(name={}), "methodConfig[2].name: must be a list, got {}"),
        (method(name=["a.B"]), 'methodConfig[2].name[0]: must be an object, got "a.B"'),
        (method(name=[{"service": 1}]), "methodConfig[2].name[0].service: must be a string, got 1"),
        (method(name=[{"method": "M"}]), "methodConfig[2].name[0].service: is missing, though there is a method"),
        (
            method(name=[{}, {"service": "a.B/M"}]),
            "methodConfig[2].name[1]: must be the names of a service and a method, got 'a.B/M'",
        ),
        (
            method(name=[{"service": "a.C", "method": "M/N"}]),
            "methodConfig[2].name[0]: must be the names of a service and a method, got 'a.C/M/N'",
        ),
        (
            method(name=[{"service": "a.C"}, {"service": "a.B"}]),
            "methodConfig[2].name[1]: names 'a.B', which is there already",
        ),
        (method(name=[{}, {}]), "methodConfig[2].name[1]: names '', which is there already"),
        (method(waitForReady="yes"), 'methodConfig[2].waitForReady: must be true or false, got "yes"'),
        (method(timeout=1), 'methodConfig[2].timeout: must be a duration like "1.5s", got 1'),
        (method(timeout="-1s"), "methodConfig[2].timeout: must be 0 or more, got -1"),
        (method(maxRequestMessageBytes=-1), f"methodConfig[2].maxRequestMessageBytes: {SIZE}, got -1"),
        (method(maxResponseMessageBytes=1.5), f"methodConfig[2].maxResponseMessageBytes: {SIZE}, got 1.5"),
        (method(retryPolicy=[]), "methodConfig[2].retryPolicy: must be an object, got []"),
        (retry(maxAttempts=None), "methodConfig[2].retryPolicy.maxAttempts: is missing"),
        (retry(maxAttempts=1), "methodConfig[2].retryPolicy.maxAttempts: must be 2 or more, got 1"),
        (retry(maxAttempts="many"), f'methodConfig[2].retryPolicy.maxAttempts: {SIZE}, got "many"'),
        (retry(initialBackoff=None), "methodConfig[2].retryPolicy.initialBackoff: is missing"),
        (retry(initialBackoff="0s"), "methodConfig[2].retryPolicy.initialBackoff: must be more than 0, got 0"),
        (retry(maxBackoff=None), "methodConfig[2].retryPolicy.maxBackoff: is missing"),
        (retry(maxBackoff="-1s"), "methodConfig[2].retryPolicy.maxBackoff: must be more than 0, got -1"),
        (retry(backoffMultiplier=None), "methodConfig[2].retryPolicy.backoffMultiplier: is missing"),
        (retry(backoffMultiplier=0), "methodConfig[2].retryPolicy.backoffMultiplier: must be more than 0, got 0"),
        (retry(retryableStatusCodes=None), "methodConfig[2].retryPolicy.retryableStatusCodes: is missing"),
        (
            retry(retryableStatusCodes=[]),
            "methodConfig[2].retryPolicy.retryableStatusCodes: must name at least one status code",
        ),
        (
            retry(retryableStatusCodes=["UNAVAILABLE", "GONE"]),
            f'methodConfig[2].retryPolicy.retryableStatusCodes[1]: {CODE}, got "GONE"',
        ),
        (
            retry(retryableStatusCodes=[17]),
            f"methodConfig[2].retryPolicy.retryableStatusCodes[0]: {CODE}, got 17",
        ),
        (hedging(maxAttempts=None), "methodConfig[2].hedgingPolicy.maxAttempts: is missing"),
        (hedging(maxAttempts=1), "methodConfig[2].hedgingPolicy.maxAttempts: must be 2 or more, got 1"),
        (hedging(hedgingDelay="-1s"), "methodConfig[2].hedgingPolicy.hedgingDelay: must be 0 or more, got -1"),
        (
            hedging(nonFatalStatusCodes="INTERNAL"),
            'methodConfig[2].hedgingPolicy.nonFatalStatusCodes: must be a list, got "INTERNAL"',
        ),
        (
            method(retryPolicy=RETRY_JSON, hedgingPolicy={"maxAttempts": 2}),
            "methodConfig[2].hedgingPolicy: cannot stand together with a retry policy (gRFC A6)",
        ),
        # Also where there is no name.
        (method(name=[], timeout="1"), 'methodConfig[2].timeout: must be a duration like "1.5s", got "1"'),
        ({"retryThrottling": {"tokenRatio": 1}}, "retryThrottling.maxTokens: is missing"),
        ({"retryThrottling": {"maxTokens": 1}}, "retryThrottling.tokenRatio: is missing"),
        (
            {"retryThrottling": {"maxTokens": 1001, "tokenRatio": 1}},
            "retryThrottling.maxTokens: must be more than 0 and at most 1000, got 1001",
        ),
        (
            {"retryThrottling": {"maxTokens": 10, "tokenRatio": 0}},
            "retryThrottling.tokenRatio: must be more than 0, got 0",
        ),
        ({"healthCheckConfig": "a.B"}, 'healthCheckConfig: must be an object, got "a.B"'),
        ({"healthCheckConfig": {"serviceName": 1}}, "healthCheckConfig.serviceName: must be a string, got 1"),
        (
            {"healthCheckConfig": {"serviceName": "\ud800"}},
            'healthCheckConfig.serviceName: must be a string without halves of surrogate pairs, got "\\ud800"',
        ),
        (
            {"connectionScaling": {"maxConnectionsPerSubchannel": -1}},
            f"connectionScaling.maxConnectionsPerSubchannel: {SIZE}, got -1",
        ),
    ],
)
def test_wrong_json_is_refused_by_path(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ServiceConfigError) as caught:
        ServiceConfig.from_json(config)
    assert str(caught.value) == f"service config: {problem}"
    path, _, text = problem.partition(": ")
    assert (caught.value.path, caught.value.problem) == (path, text)


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(ServiceConfigError, match="service config: is not JSON: Expecting"):
        ServiceConfig.from_json("{'methodConfig': []}")
    with pytest.raises(TypeError, match="JSON text or a mapping, not list"):
        ServiceConfig.from_json([])  # type: ignore[arg-type]


def test_huge_numbers_are_taken_or_refused_as_others_are() -> None:
    # Not limited by gRFC A6; its three decimals are more digits than decimals have by default.
    read = ServiceConfig.from_json({"retryThrottling": {"maxTokens": 10, "tokenRatio": 1e30}})
    assert read.retry_throttling == RetryThrottling(max_tokens=10, token_ratio=1e30)
    with decimal.localcontext() as context:
        context.prec = 1
        assert RetryThrottling(max_tokens=10, token_ratio=0.1239).token_ratio == 0.123
    for field in ("max_tokens", "token_ratio"):
        values: dict[str, Any] = {"max_tokens": 1, "token_ratio": 1, field: 10**400}
        with pytest.raises(ValueError, match=f"RetryThrottling.{field} must be more than 0"):
            RetryThrottling(**values)


def test_a_health_service_has_a_name_that_can_be_sent() -> None:
    with pytest.raises(ValueError, match=r"HealthCheckConfig.service_name must be .* got '.udc80'"):
        HealthCheckConfig(service_name="\udc80")
    with pytest.raises(TypeError, match="service_name must be str, not bytes"):
        HealthCheckConfig(service_name=b"")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: PickFirst(shuffle_address_list=1), "PickFirst.shuffle_address_list must be bool, not int"),  # type: ignore[arg-type]
        (
            lambda: WeightedRoundRobin(enable_oob_load_report="no"),  # type: ignore[arg-type]
            "WeightedRoundRobin.enable_oob_load_report must be bool, not str",
        ),
    ],
)
def test_options_that_are_true_or_false(make: Callable[[], object], why: str) -> None:
    with pytest.raises(TypeError, match=why):
        make()
