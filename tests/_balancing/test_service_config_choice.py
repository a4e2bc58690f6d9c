"""The service config that DNS has for a client (gRFC A2)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trio_grpc import ServiceConfigError
from trio_grpc._balancing.service_config_choice import choose_service_config

A: dict[str, Any] = {"methodConfig": []}
B: dict[str, Any] = {"loadBalancingPolicy": "round_robin"}


def choose(*choices: Any, percentage: float = 50) -> Any:
    text = f"grpc_config={json.dumps(choices)}"
    return choose_service_config([text], hostname="host-a", random_percentage=percentage)


def choice(config: Any, **conditions: Any) -> dict[str, Any]:
    return {"serviceConfig": config, **conditions}


def test_the_first_choice_whose_conditions_hold() -> None:
    assert choose(choice(A), choice(B)) == A
    assert choose(choice(A, clientLanguage=["go"]), choice(B)) == B
    assert choose(choice(A, clientLanguage=["go"])) is None
    assert choose() is None


@pytest.mark.parametrize(
    ("conditions", "holds"),
    [
        ({"clientLanguage": ["go", "python"]}, True),
        ({"clientLanguage": ["Python"]}, True),
        ({"clientLanguage": ["py", "go"]}, False),
        # An empty list sets no condition.
        ({"clientLanguage": []}, True),
        ({"clientLanguage": None}, True),
        ({"clientHostname": ["host-b", "host-a"]}, True),
        ({"clientHostname": ["host-b"]}, False),
        ({"clientHostname": ["HOST-A"]}, False),
        ({"clientHostname": []}, True),
        ({"clientLanguage": ["python"], "clientHostname": ["host-b"]}, False),
        ({"unknown": 1}, True),
    ],
)
def test_conditions(conditions: dict[str, Any], holds: bool) -> None:
    assert choose(choice(A, **conditions)) == (A if holds else None)


@pytest.mark.parametrize(
    ("percentage", "drawn", "holds"),
    [(0, 0, False), (20, 0, True), (20, 19.99, True), (20, 20, False), (100, 99.99, True), ("20", 10, True)],
)
def test_a_share_of_the_clients(percentage: Any, drawn: float, holds: bool) -> None:
    assert choose(choice(A, percentage=percentage), percentage=drawn) == (A if holds else None)


def test_only_one_attribute_counts() -> None:
    def of(*attributes: str) -> Any:
        return choose_service_config(attributes, hostname="", random_percentage=0)

    assert of() is None
    assert of("v=spf1 -all", "grpc_confi=[]", " grpc_config=x") is None
    assert of("other=1", 'grpc_config=[{"serviceConfig": {}}]', "grpc_config=wrong") == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "grpc_config: is not JSON: Expecting value"),
        ("[" * 100_000, "grpc_config: is not JSON: "),
        ("{}", "grpc_config: must be a list of choices"),
        ("[1]", "grpc_config[0]: must be an object, got 1"),
        ("[{}]", "grpc_config[0].serviceConfig: is missing"),
        ('[{"serviceConfig": []}]', "grpc_config[0].serviceConfig: must be an object, got []"),
        ('[{"serviceConfig": {}, "clientLanguage": "go"}]', 'grpc_config[0].clientLanguage: must be a list, got "go"'),
        ('[{"serviceConfig": {}, "clientHostname": [1]}]', "grpc_config[0].clientHostname[0]: must be a string"),
        ('[{"serviceConfig": {}, "percentage": 101}]', "grpc_config[0].percentage: must be from 0 to 100, got 101"),
        ('[{"serviceConfig": {}, "percentage": -1}]', "grpc_config[0].percentage: must be from 0 to 100, got -1"),
        ('[{"serviceConfig": {}, "percentage": true}]', "grpc_config[0].percentage: must be a number, got true"),
        # Wrong for all, though the first holds for this client.
        ('[{"serviceConfig": {}}, {}]', "grpc_config[1].serviceConfig: is missing"),
    ],
)
def test_what_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ServiceConfigError) as caught:
        choose_service_config([f"grpc_config={text}"], hostname="", random_percentage=0)
    assert str(caught.value).startswith(f"service config: {problem}")
