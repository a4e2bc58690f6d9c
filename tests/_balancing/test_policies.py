"""Load balancing policies by name."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from trio_grpc import PickFirst, RoundRobin, ServiceConfigError
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
    ],
)
def test_what_is_refused(configs: Any, problem: str) -> None:
    with pytest.raises(ServiceConfigError) as caught:
        parse_load_balancing(configs, "here")
    assert str(caught.value) == f"service config: {problem}"
