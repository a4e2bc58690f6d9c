"""What policies share that connect to every address; their own tests show how they pick."""

from __future__ import annotations

import pytest

from tests.support.policies import FakeContext, State
from trio_grpc import Endpoint, LoadBalancingPolicy, PickInfo, Subchannel
from trio_grpc._balancing.connect_to_all import ConnectToAllPolicy
from trio_grpc._balancing.least_request import LeastRequestPolicy
from trio_grpc._balancing.policy import Picker
from trio_grpc._balancing.round_robin import RoundRobinPolicy

ONE, TWO, THREE = (Endpoint(f"{n}.{n}.{n}.{n}:1") for n in (1, 2, 3))


class Recorder(ConnectToAllPolicy):
    """Notes what it is told of its subchannels, and picks the first."""

    def __init__(self, context: FakeContext) -> None:
        super().__init__(context)
        self.told: list[str] = []

    def make_picker(self, ready: tuple[Subchannel, ...]) -> Picker:
        self.told.append("picks among " + "".join(str(one.endpoint)[0] for one in ready))
        return lambda _: ready[0]

    def became_ready(self, subchannel: Subchannel) -> None:
        self.told.append(f"{str(subchannel.endpoint)[0]} ready")

    def forget(self, subchannel: Subchannel) -> None:
        self.told.append(f"{str(subchannel.endpoint)[0]} forgotten")


def become(context: FakeContext, policy: LoadBalancingPolicy, state: State, *endpoints: Endpoint) -> None:
    for endpoint in endpoints:
        context.by_name(endpoint.address).become(state)
        context.tell(policy)


def test_a_policy_is_told_of_what_it_keeps_things_for() -> None:
    context = FakeContext()
    policy = Recorder(context)
    policy.update_endpoints([ONE, TWO])
    context.tell(policy)
    become(context, policy, State.READY, ONE, TWO)
    become(context, policy, State.IDLE, ONE)
    become(context, policy, State.TRANSIENT_FAILURE, ONE)
    become(context, policy, State.IDLE, ONE)
    become(context, policy, State.READY, ONE)
    policy.update_endpoints([TWO, THREE])
    assert policy.told == [
        "1 ready",
        "picks among 1",
        "2 ready",
        "picks among 12",
        "picks among 2",
        "1 ready",
        "picks among 12",
        "1 forgotten",
        "picks among 2",
    ]


@pytest.mark.parametrize("make", [RoundRobinPolicy, lambda context: LeastRequestPolicy(context, 2)])
def test_only_those_that_are_ready_are_picked(make: type[RoundRobinPolicy]) -> None:
    context = FakeContext()
    policy = make(context)
    policy.update_endpoints([ONE, TWO, THREE])
    context.tell(policy)
    become(context, policy, State.TRANSIENT_FAILURE, ONE)
    become(context, policy, State.READY, TWO, THREE)
    become(context, policy, State.IDLE, THREE)
    state, picker = context.published[-1]
    assert state is State.READY
    for _ in range(20):
        picked = picker(PickInfo("/echo.Echo/Unary"))
        assert getattr(picked, "subchannel", picked).endpoint is TWO
