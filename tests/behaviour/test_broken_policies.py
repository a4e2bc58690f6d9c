"""Load balancing policies of users that raise: what becomes of the channel and its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.support.backends import Backend
from trio_grpc import (
    ConnectivityState,
    Endpoint,
    LoadBalancingPolicy,
    OutlierDetection,
    PolicyContext,
    RoundRobin,
    ServiceConfig,
    Subchannel,
)
from trio_grpc._balancing.policy import PolicyFactory
from trio_grpc.testing import ManualResolver

Clock = trio.testing.MockClock

settle = trio.testing.wait_all_tasks_blocked


class Unfinished(LoadBalancingPolicy):
    """Begins to connect, and fails."""

    dials = 0

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        context.new_subchannel(Endpoint("nowhere", connect=self.dial)).connect()
        raise RuntimeError("half made")

    @classmethod
    async def dial(cls) -> trio.abc.Stream:
        cls.dials += 1
        await trio.sleep(1)
        raise OSError("nobody is there")

    def update_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        raise NotImplementedError

    def subchannel_changed(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        raise NotImplementedError


def raises(_: PolicyContext) -> LoadBalancingPolicy:
    raise RuntimeError("cannot be made")


def is_none(_: PolicyContext) -> Any:
    return None


@pytest.mark.parametrize("broken", [raises, is_none, Unfinished])
@pytest.mark.parametrize("around", [lambda policy: policy, lambda policy: OutlierDetection(child=policy)])
async def test_a_policy_that_cannot_be_made_leaves_the_one_before_it(
    broken: PolicyFactory,
    around: Callable[[PolicyFactory], PolicyFactory],
    nursery: trio.Nursery,
    autojump_clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, two = Backend(nursery, "one"), Backend(nursery, "two")
    await one.start()
    await two.start()
    good = ServiceConfig(load_balancing=around(RoundRobin()))
    resolver = ManualResolver(one.endpoint, service_config=good)
    async with trio_grpc.open_channel("test:///echo", resolvers={"test": resolver}) as channel:
        stub = EchoStub(channel)
        await stub.Unary(EchoRequest())
        # The endpoints that come with it are used all the same, as with a config that is refused.
        bad = ServiceConfig(load_balancing=around(broken))
        resolver.update(one.endpoint, two.endpoint, service_config=bad)
        await settle()
        assert "a load balancing policy could not be made; the one before it stays" in caplog.text
        for _ in range(4):
            await stub.Unary(EchoRequest())
        assert (one.calls, two.calls) == (3, 2)
        resolver.update(one.endpoint, two.endpoint, service_config=good)
        await settle()
        for _ in range(4):
            await stub.Unary(EchoRequest())
        assert (one.calls, two.calls) == (5, 4)
        assert (one.dials, two.dials) == (1, 1)


@pytest.mark.parametrize("as_config", [False, True])
async def test_nothing_is_left_of_a_policy_that_cannot_be_made(as_config: bool, autojump_clock: Clock) -> None:
    options: dict[str, Any] = (
        {"service_config": ServiceConfig(load_balancing=Unfinished)} if as_config else {"load_balancing": Unfinished}
    )
    error = trio_grpc.RpcError if as_config else RuntimeError
    Unfinished.dials = 0
    resolver = ManualResolver(Endpoint("unused"))
    async with trio_grpc.open_channel("test:///echo", resolvers={"test": resolver}, **options) as channel:
        with pytest.raises(error, match="half made"):
            await EchoStub(channel).Unary(EchoRequest())
        await trio.sleep(100)
        # One attempt that was given up at once, and none after it.
        assert Unfinished.dials <= 1
        assert channel.statistics().connections == 0
