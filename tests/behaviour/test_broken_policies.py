"""Load balancing policies of users that raise: what becomes of the channel and its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import trio
import trio.testing
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.support.backends import Backend
from trio_grpc import (
    CallEnd,
    ConnectivityState,
    Endpoint,
    LoadBalancingPolicy,
    OutlierDetection,
    Pick,
    PickInfo,
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


class Telling(LoadBalancingPolicy):
    """Has one subchannel, and wants to know how each call ends."""

    made: ClassVar[list[Telling]] = []

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self.subchannels: list[Subchannel] = []
        self.ends = 0
        self.made.append(self)

    def update_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        if not self.subchannels:
            self.subchannels.append(self.context.new_subchannel(endpoints[0]))
            self.subchannels[0].connect()

    def subchannel_changed(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        if state is ConnectivityState.READY:
            self.context.publish(state, self.pick)

    def pick(self, _: PickInfo) -> Pick:
        return Pick(self.subchannels[0], self.on_end)

    def on_end(self, _: CallEnd) -> None:
        self.ends += 1
        raise RuntimeError("cannot count")


async def test_a_callback_that_raises_fails_no_calls(
    nursery: trio.Nursery, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Backend(nursery, "one")
    await backend.start()
    Telling.made = []
    async with trio_grpc.open_channel(backend.dial, load_balancing=Telling) as channel:
        for _ in range(3):
            await EchoStub(channel).Unary(EchoRequest())
            await settle()
        assert channel.state is ConnectivityState.READY
        assert Telling.made[0].ends == 3
    assert caplog.text.count("RuntimeError: cannot count") == 3
    assert "a Pick's on_end of the channel to Backend.dial failed" in caplog.text


def test_a_callback_that_cannot_be_called_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="on_end"):
        Pick(object.__new__(Subchannel), "later")  # type: ignore[arg-type]


@pytest.mark.parametrize("around", [lambda policy: policy, lambda policy: OutlierDetection(child=policy)])
async def test_a_policy_may_let_go_of_a_subchannel_twice(
    around: Callable[[PolicyFactory], PolicyFactory], nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    class Careful(Telling):
        def on_end(self, _: CallEnd) -> None:
            # Also when another policy has taken over meanwhile.
            self.ends += 1
            self.context.shut_down(self.subchannels[0])
            self.context.shut_down(self.subchannels[0])

    backend = Backend(nursery, "one")
    await backend.start()
    Careful.made = []
    resolver = ManualResolver(backend.endpoint, service_config=ServiceConfig(load_balancing=around(Careful)))
    async with trio_grpc.open_channel("test:///echo", resolvers={"test": resolver}) as channel:
        stub = EchoStub(channel)
        await channel.wait_ready()
        async with stub.Bidi() as call:
            await call.send(EchoRequest())
            resolver.update(backend.endpoint, service_config=ServiceConfig(load_balancing=around(Next)))
            await settle()
        await settle()
        assert Careful.made[0].ends == 1
        await stub.Unary(EchoRequest())
        assert backend.dials == 2


class Next(Telling):
    """Another policy."""

    def on_end(self, _: CallEnd) -> None:
        pass


async def test_calls_are_told_that_the_policy_has_failed(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Telling):
        def update_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
            raise KeyError("weights")

    resolver = ManualResolver(Endpoint("unused"))
    async with trio_grpc.open_channel("test:///echo", resolvers={"test": resolver}, load_balancing=Broken) as channel:
        with pytest.raises(trio_grpc.RpcError) as caught:
            await EchoStub(channel).Unary(EchoRequest())
    assert caught.value.code is trio_grpc.StatusCode.UNAVAILABLE
    assert caught.value.message == "the load balancing policy failed: KeyError: 'weights' (target test:///echo)"
    assert isinstance(caught.value.__cause__, KeyError)
    assert "the load balancing policy of the channel to test:///echo failed" in caplog.text


async def nowhere() -> trio.abc.Stream:
    raise NotImplementedError


class Hasty(LoadBalancingPolicy):
    """Knows at once that nothing will come of it."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        context.publish(ConnectivityState.TRANSIENT_FAILURE, error=OSError("no licence"))

    def update_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        pass

    def subchannel_changed(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        raise NotImplementedError


class HastyAndUnfinished(Hasty):
    """Is not even made."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        raise RuntimeError("half made")


async def test_what_a_policy_publishes_when_it_is_made_counts(autojump_clock: Clock) -> None:
    async with trio_grpc.open_channel(nowhere, load_balancing=Hasty) as channel:
        with pytest.raises(trio_grpc.RpcError, match="no licence") as caught:
            await EchoStub(channel).Unary(EchoRequest())
        assert caught.value.code is trio_grpc.StatusCode.UNAVAILABLE
        assert channel.state is ConnectivityState.TRANSIENT_FAILURE


async def test_what_a_policy_publishes_that_cannot_be_made_does_not_count(autojump_clock: Clock) -> None:
    async with trio_grpc.open_channel(nowhere, load_balancing=HastyAndUnfinished) as channel:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="half made"):
                await EchoStub(channel).Unary(EchoRequest())
            assert channel.state is ConnectivityState.IDLE
