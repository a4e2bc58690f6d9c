"""Which of a channel's service configs holds."""

from __future__ import annotations

import logging

import pytest

from trio_grpc import (
    ConnectionScaling,
    HealthCheckConfig,
    MethodConfig,
    PickFirst,
    RoundRobin,
    ServiceConfig,
    ServiceConfigError,
)
from trio_grpc._balancing.config_in_force import ConfigInForce

ONE = ServiceConfig(methods=[MethodConfig(timeout=1)])
TWO = ServiceConfig(methods=[MethodConfig(timeout=2)])
WRONG = ServiceConfigError("methodConfig[0].timeout", "must be something else")


@pytest.mark.parametrize("default", [None, ONE])
def test_the_default_holds_until_the_resolver_publishes_another_and_whenever_it_publishes_none(
    default: ServiceConfig | None,
) -> None:
    held = ConfigInForce("target", default)
    assert (held.config, held.resolved) == (default, False)
    held.take(None)
    assert (held.config, held.resolved) == (default, True)
    held.take(TWO)
    assert held.config is TWO
    held.take(None)
    assert held.config is default


def test_one_that_is_equal_does_not_take_the_place_of_the_other() -> None:
    held = ConfigInForce("target", ONE)
    held.take(ServiceConfig(methods=[MethodConfig(timeout=1)]))
    assert held.config is ONE


@pytest.mark.parametrize("default", [None, ONE])
def test_a_wrong_one_that_comes_first_is_refused(default: ServiceConfig | None) -> None:
    held = ConfigInForce("target", default)
    with pytest.raises(ServiceConfigError) as caught:
        held.take(WRONG)
    assert caught.value is WRONG
    assert not held.resolved


@pytest.mark.parametrize("good", [None, TWO])
def test_a_wrong_one_that_comes_later_is_passed_over(
    good: ServiceConfig | None, caplog: pytest.LogCaptureFixture
) -> None:
    held = ConfigInForce("dns:///x", None)
    held.take(good)
    with caplog.at_level(logging.WARNING, "trio_grpc"):
        held.take(WRONG)
    assert held.config is good
    assert [record.getMessage() for record in caplog.records] == [
        f"dns:///x: the resolver's new service config is refused: {WRONG}"
    ]


def test_what_the_channel_asks_it() -> None:
    held = ConfigInForce("target", None)
    assert (held.policy, held.health_service, held.max_connections) == (PickFirst(), None, 1)
    held.take(ONE)
    assert (held.policy, held.health_service, held.max_connections) == (PickFirst(), None, 1)
    held.take(
        ServiceConfig(
            load_balancing=RoundRobin(),
            health_check=HealthCheckConfig(service_name=""),
            connection_scaling=ConnectionScaling(max_connections_per_subchannel=4),
        )
    )
    assert (held.policy, held.health_service, held.max_connections) == (RoundRobin(), "", 4)
