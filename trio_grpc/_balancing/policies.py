"""The load balancing policies that have names: for ``load_balancing=`` and for service configs (gRFC A24)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from trio_grpc._balancing.json_fields import ServiceConfigError, as_mapping, within
from trio_grpc._balancing.least_request import LeastRequest
from trio_grpc._balancing.outlier_detection import OutlierDetection
from trio_grpc._balancing.pick_first import PickFirst
from trio_grpc._balancing.policy import PolicyFactory
from trio_grpc._balancing.ring_hash import RingHash
from trio_grpc._balancing.round_robin import RoundRobin
from trio_grpc._balancing.weighted_round_robin import WeightedRoundRobin

#: The names, for type checkers.
PolicyName = Literal[
    "pick_first",
    "round_robin",
    "weighted_round_robin",
    "least_request",
    "least_request_experimental",
    "ring_hash",
    "ring_hash_experimental",
    "outlier_detection",
    "outlier_detection_experimental",
]


#: Policies around a policy: as deep as protobuf reads messages by default. Each one tells the next what it is told.
_DEEPEST = 100


def _read_outlier_detection(config: Mapping[str, object]) -> PolicyFactory:
    made = OutlierDetection.from_json(config, parse_child=parse_load_balancing)
    child, depth = made.child, 1
    while isinstance(child, OutlierDetection):
        child, depth = child.child, depth + 1
    if depth > _DEEPEST:
        raise ServiceConfigError("childPolicy", f"is nested too deeply: there are more than {_DEEPEST} policies around")
    return made


#: What makes each policy from its part of a service config.
_READERS: Mapping[str, Callable[[Mapping[str, object]], PolicyFactory]] = {
    "pick_first": PickFirst.from_json,
    "round_robin": RoundRobin.from_json,
    "weighted_round_robin": WeightedRoundRobin.from_json,
    # gRPC's names, and those that they will have one day.
    "least_request": LeastRequest.from_json,
    "least_request_experimental": LeastRequest.from_json,
    "ring_hash": RingHash.from_json,
    "ring_hash_experimental": RingHash.from_json,
    "outlier_detection": _read_outlier_detection,
    "outlier_detection_experimental": _read_outlier_detection,
}


def policy_by_name(name: str) -> PolicyFactory:
    """Return the policy of this name with its defaults.

    Raises:
        ValueError: there is none, or it must be told something; the message names those that there are.
    """
    reader = _READERS.get(name)
    if reader is None:
        raise ValueError(f"{name!r} is not one of {', '.join(_READERS)}")
    try:
        return reader({})
    except ServiceConfigError as error:
        raise ValueError(f"{name!r} has no default for {error.path}") from error


def parse_load_balancing(configs: object, where: str) -> PolicyFactory:
    """Return the policy that a ``loadBalancingConfig`` asks for: the first of the list that is known (gRFC A24).

    Args:
        configs: the list, of objects with one field each: the name of a policy, and its config.
        where: the path of the list, for errors.

    Raises:
        ServiceConfigError: the list is malformed, knows no policy that we know, or has a wrong config for it.
    """
    if not isinstance(configs, (list, tuple)):
        raise ServiceConfigError(where, "must be a list of policies")
    unknown: list[str] = []
    for index, item in enumerate(configs):
        path = f"{where}[{index}]"
        policies = as_mapping(path, item)
        if len(policies) != 1:
            raise ServiceConfigError(path, f"must have the name of one policy, got {len(policies)}")
        ((name, config),) = policies.items()
        reader = _READERS.get(name)
        if reader is None:
            unknown.append(name)
            continue
        path = f"{path}.{name}"
        with within(path):
            return reader({} if config is None else as_mapping("", config))
    raise ServiceConfigError(where, f"has no known policy ({', '.join(map(str, unknown)) or 'none at all'})")


__all__ = ["parse_load_balancing", "policy_by_name"]
