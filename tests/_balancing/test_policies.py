"""Load balancing policies by name."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from trio_grpc import LeastRequest, PickFirst, RingHash, RoundRobin, ServiceConfigError, WeightedRoundRobin
from trio_grpc._balancing import policies
from trio_grpc._balancing.policies import PolicyName, parse_load_balancing, policy_by_name
from trio_grpc._balancing.policy import PolicyFactory


def test_policies_by_name() -> None:
    assert policy_by_name("pick_first") == PickFirst()
    assert policy_by_name("round_robin") == RoundRobin()
    with pytest.raises(ValueError, match="'fastest' is not one of pick_first, round_robin"):
        policy_by_name("fastest")


def test_type_checkers_know_all_names() -> None:
    assert set(typing.get_args(PolicyName)) == set(policies._READERS)


@pytest.mark.parametrize(
    ("configs", "policy"),
    [
        ([{"pick_first": {}}], PickFirst()),
        ([{"pick_first": None}], PickFirst()),
        ([{"pick_first": {"shuffleAddressList": True, "unknown": 1}}], PickFirst(shuffle_address_list=True)),
        ([{"round_robin": {"unknown": 1}}], RoundRobin()),
        ([{"least_request_experimental": {}}], LeastRequest()),
        ([{"least_request": {"choiceCount": 3}}], LeastRequest(choice_count=3)),
        ([{"least_request": {"choiceCount": 50}}], LeastRequest(choice_count=10)),
        ([{"ring_hash_experimental": {}}], RingHash()),
        (
            [{"ring_hash": {"minRingSize": "10", "maxRingSize": 20, "requestHashHeader": "user"}}],
            RingHash(min_ring_size=10, max_ring_size=20, request_hash_header="user"),
        ),
        ([{"weighted_round_robin": {}}], WeightedRoundRobin()),
        (
            [
                {
                    "weighted_round_robin": {
                        "enableOobLoadReport": True,
                        "oobReportingPeriod": "5s",
                        "blackoutPeriod": "0s",
                        "weightExpirationPeriod": "60.5s",
                        "weightUpdatePeriod": "0.2s",
                        "errorUtilizationPenalty": 2,
                    }
                }
            ],
            WeightedRoundRobin(
                enable_oob_load_report=True,
                oob_reporting_period=5,
                blackout_period=0,
                weight_expiration_period=60.5,
                weight_update_period=0.2,
                error_utilization_penalty=2,
            ),
        ),
        ([{"fastest": {}}, {"round_robin": {}}, {"pick_first": {}}], RoundRobin()),
        # What comes after the first that is known is not looked at.
        ([{"round_robin": {}}, {"pick_first": 1}, 1], RoundRobin()),
    ],
)
def test_the_first_policy_that_is_known(configs: Any, policy: PolicyFactory) -> None:
    assert parse_load_balancing(configs, "here") == policy


@pytest.mark.parametrize(
    ("configs", "problem"),
    [
        ([], "here: has no known policy (none at all)"),
        ([{"fastest": {}}, {"nearest": {}}], "here: has no known policy (fastest, nearest)"),
        ([{1: {}}], "here: has no known policy (1)"),
        ({"round_robin": {}}, "here: must be a list of policies"),
        ("round_robin", "here: must be a list of policies"),
        ([{"fastest": {}}, "round_robin"], 'here[1]: must be an object, got "round_robin"'),
        ([{}], "here[0]: must have the name of one policy, got 0"),
        ([{"round_robin": {}, "pick_first": {}}], "here[0]: must have the name of one policy, got 2"),
        ([{"fastest": {}}, {"round_robin": []}], "here[1].round_robin: must be an object, got []"),
        (
            [{"pick_first": {"shuffleAddressList": 1}}],
            "here[0].pick_first.shuffleAddressList: must be true or false, got 1",
        ),
        (
            [{"least_request": {"choiceCount": 1}}],
            "here[0].least_request: LeastRequest.choice_count must be between 2 and 10, got 1",
        ),
        (
            [{"ring_hash": {"minRingSize": 5000}}],
            "here[0].ring_hash: RingHash.min_ring_size must not be over max_ring_size, 4096, got 5000",
        ),
        (
            [{"ring_hash": {"requestHashHeader": 1}}],
            "here[0].ring_hash.requestHashHeader: must be a string, got 1",
        ),
        (
            [{"weighted_round_robin": {"blackoutPeriod": 10}}],
            'here[0].weighted_round_robin.blackoutPeriod: must be a duration like "1.5s", got 10',
        ),
        (
            [{"weighted_round_robin": {"blackoutPeriod": "-1s"}}],
            "here[0].weighted_round_robin: WeightedRoundRobin.blackout_period must be 0 or more seconds, got -1.0",
        ),
    ],
)
def test_what_is_refused(configs: Any, problem: str) -> None:
    with pytest.raises(ServiceConfigError) as caught:
        parse_load_balancing(configs, "here")
    assert str(caught.value) == f"service config: {problem}"


def test_policies_around_policies_have_an_end() -> None:
    def nested(count: int) -> list[Any]:
        configs: list[Any] = [{"round_robin": {}}]
        for _ in range(count):
            configs = [{"outlier_detection": {"childPolicy": configs}}]
        return configs

    parse_load_balancing(nested(100), "loadBalancingConfig")
    # A channel could not run it.
    with pytest.raises(ServiceConfigError) as caught:
        parse_load_balancing(nested(101), "loadBalancingConfig")
    assert caught.value.path == "loadBalancingConfig[0].outlier_detection.childPolicy"
    assert caught.value.problem == "is nested too deeply: there are more than 100 policies around"
