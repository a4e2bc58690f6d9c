"""What a policy of one's own meets: when it is told what, what it may publish, what becomes of its mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.echo_service import Echo
from tests.support.backends import Backend
from trio_grpc import (
    CallEnd,
    ConnectivityState,
    Endpoint,
    Pick,
    PickInfo,
    PolicyContext,
    RpcError,
    ServicerContext,
    StatusCode,
    Subchannel,
)
from trio_grpc.testing import ManualResolver

Clock = trio.testing.MockClock

settle = trio.testing.wait_all_tasks_blocked


class Recorder(trio_grpc.LoadBalancingPolicy):
    """Notes what it is told; connects to everything, and publishes what the test says."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self.told: list[Any] = []
        self.subchannels: list[Subchannel] = []
        self.tasks: set[object] = set()

    def update_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        self.told.append([endpoint.address for endpoint in endpoints])
        self.tasks.add(trio.lowlevel.current_task())
        self.subchannels = [self.context.new_subchannel(endpoint) for endpoint in endpoints]
        for subchannel in self.subchannels:
            subchannel.connect()

    def subchannel_changed(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        self.told.append(state.name)
        self.tasks.add(trio.lowlevel.current_task())
        if state is ConnectivityState.READY:
            self.context.publish(ConnectivityState.READY, self.pick)

    def resolver_failed(self, error: Exception) -> None:
        self.told.append(str(error))
        self.tasks.add(trio.lowlevel.current_task())

    def pick(self, info: PickInfo) -> Subchannel | Pick | None:
        return self.subchannels[0]


class Bench:
    """A channel whose policy the test holds.

    Attributes:
        make: makes the policies.
        policies: all that were made.
    """

    def __init__(self, *endpoints: Endpoint) -> None:
        self.make: Callable[[PolicyContext], trio_grpc.LoadBalancingPolicy] = Recorder
        self.policies: list[Any] = []
        self.resolver = ManualResolver(*endpoints)
        self.channel = trio_grpc.open_channel(
            "test:///x", resolvers={"test": self.resolver}, load_balancing=self._make_policy, idle_timeout=60
        )
        self.echo = EchoStub(self.channel)

    def _make_policy(self, context: PolicyContext) -> trio_grpc.LoadBalancingPolicy:
        self.policies.append(self.make(context))
        policy: trio_grpc.LoadBalancingPolicy = self.policies[-1]
        return policy


@pytest.fixture
async def backend(nursery: trio.Nursery) -> Backend:
    backend = Backend(nursery, "backend")
    await backend.start()
    return backend


async def test_a_policy_is_told_everything_in_order_and_in_one_task(backend: Backend, autojump_clock: Clock) -> None:
    bench = Bench(backend.endpoint)
    async with bench.channel:
        await bench.echo.Unary(EchoRequest())
        bench.resolver.fail(OSError("no more names"))
        await backend.stop()
        await settle()
        (policy,) = bench.policies
        assert policy.told == [["backend"], "CONNECTING", "READY", "no more names", "IDLE"]
        assert len(policy.tasks) == 1
        assert trio.lowlevel.current_task() not in policy.tasks


async def test_each_stay_outside_idle_has_a_policy_of_its_own(backend: Backend, autojump_clock: Clock) -> None:
    bench = Bench(backend.endpoint)
    async with bench.channel:
        await bench.echo.Unary(EchoRequest())
        await trio.sleep(100)
        assert bench.channel.state is ConnectivityState.IDLE
        first = bench.policies[0]
        # What the old one says is not heard any more.
        first.context.publish(ConnectivityState.READY, first.pick)
        assert bench.channel.state is ConnectivityState.IDLE
        await bench.echo.Unary(EchoRequest())
        assert len(bench.policies) == 2


async def test_a_policy_that_cannot_be_made_raises_in_the_call(backend: Backend, autojump_clock: Clock) -> None:
    mistake = ZeroDivisionError("a mistake in the application")

    def make(context: PolicyContext) -> trio_grpc.LoadBalancingPolicy:
        raise mistake

    bench = Bench(backend.endpoint)
    bench.make = make
    async with bench.channel:
        with pytest.raises(ZeroDivisionError) as caught:
            await bench.echo.Unary(EchoRequest())
        assert caught.value is mistake
        assert bench.channel.state is ConnectivityState.IDLE
        bench.make = Recorder
        await bench.echo.Unary(EchoRequest())


async def test_a_pick_of_what_is_not_ready_waits(
    backend: Backend, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    bench = Bench(backend.endpoint)
    async with bench.channel:
        await bench.channel.wait_ready()
        (policy,) = bench.policies
        policy.pick = lambda _: None
        policy.context.publish(ConnectivityState.READY, lambda _: None)
        with pytest.raises(RpcError) as caught:
            await bench.echo.Unary(EchoRequest(), timeout=1)
        assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
        await backend.stop()
        await settle()
        policy.context.publish(ConnectivityState.READY, lambda _: policy.subchannels[0])
        with pytest.raises(RpcError) as caught:
            await bench.echo.Unary(EchoRequest(), timeout=1)
        assert caught.value.code is StatusCode.DEADLINE_EXCEEDED


async def test_a_picker_raises_in_the_call(backend: Backend, autojump_clock: Clock) -> None:
    def pick(info: PickInfo) -> Subchannel:
        raise ZeroDivisionError

    bench = Bench(backend.endpoint)
    async with bench.channel:
        await bench.channel.wait_ready()
        bench.policies[0].context.publish(ConnectivityState.READY, pick)
        with pytest.raises(ZeroDivisionError):
            await bench.echo.Unary(EchoRequest())


async def test_a_picker_is_told_of_the_call(backend: Backend, autojump_clock: Clock) -> None:
    infos = []

    def pick(info: PickInfo) -> Subchannel:
        infos.append((info.method, list(info.metadata)))
        return bench.policies[0].subchannels[0]

    bench = Bench(backend.endpoint)
    async with bench.channel:
        await bench.channel.wait_ready()
        bench.policies[0].context.publish(ConnectivityState.READY, pick)
        await bench.echo.Unary(EchoRequest(), metadata={"user": "7"})
        async with bench.echo.ServerStream(EchoRequest(), metadata={"user": "8"}, timeout=5):
            pass
    assert infos == [("/echo.Echo/Unary", [("user", "7")]), ("/echo.Echo/ServerStream", [("user", "8")])]


async def test_a_picker_that_returns_something_else_raises_in_the_call(backend: Backend, autojump_clock: Clock) -> None:
    bench = Bench(backend.endpoint)
    async with bench.channel:
        await bench.channel.wait_ready()
        bench.policies[0].context.publish(ConnectivityState.READY, lambda _: backend.endpoint)
        with pytest.raises(TypeError, match="picker must return a Subchannel, a Pick or None, not Endpoint"):
            await bench.echo.Unary(EchoRequest())


class EndsBench(Bench):
    """A bench whose policy wants to know how calls end.

    Attributes:
        ends: what it was told.
        picks: how often it chose.
    """

    def __init__(self, *endpoints: Endpoint) -> None:
        super().__init__(*endpoints)
        self.ends: list[CallEnd] = []
        self.picks = 0

    async def begin(self) -> None:
        await self.channel.wait_ready()
        self.publish()

    def publish(self) -> None:
        self.policies[0].context.publish(ConnectivityState.READY, self.pick)

    def pick(self, info: PickInfo) -> Pick:
        self.picks += 1
        return Pick(self.policies[0].subchannels[0], self.on_end)

    def on_end(self, end: CallEnd) -> None:
        assert trio.lowlevel.current_task() in self.policies[0].tasks
        self.ends.append(end)

    def told(self) -> list[tuple[StatusCode | None, bool]]:
        assert self.picks == len(self.ends)
        return [(end.code, end.local) for end in self.ends]


class Wordy(Echo):
    """Its unary method fails, or sleeps, when it is asked to."""

    async def Unary(self, request: EchoRequest, context: ServicerContext[EchoReply], /) -> EchoReply:
        if request.text == "fail":
            await context.abort(StatusCode.NOT_FOUND, "nothing")
        if request.text == "sleep":
            await trio.sleep(10)
        return await super().Unary(request, context)


async def test_a_policy_is_told_how_its_picks_end(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backend = Backend(nursery, "a")
    await backend.start(Wordy())
    bench = EndsBench(backend.endpoint)
    async with bench.channel:
        await bench.begin()
        await bench.echo.Unary(EchoRequest())
        with pytest.raises(RpcError):
            await bench.echo.Unary(EchoRequest(text="fail"))
        with trio.move_on_after(1):
            await bench.echo.Unary(EchoRequest(text="sleep"))
        async with bench.echo.Bidi() as call:
            await call.send(EchoRequest(text="a"))
            await call.receive()
        await settle()
        assert bench.told() == [
            (StatusCode.OK, False),
            (StatusCode.NOT_FOUND, False),
            (StatusCode.CANCELLED, True),
            (StatusCode.CANCELLED, True),
        ]


async def test_a_pick_that_leads_nowhere_has_an_end(
    backend: Backend, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    bench = EndsBench(backend.endpoint)
    async with bench.channel:
        await bench.begin()
        await backend.stop()
        await settle()
        # The policy insists on what is not READY any more.
        bench.publish()
        with pytest.raises(RpcError):
            await bench.echo.Unary(EchoRequest(), timeout=1)
        await settle()
        assert bench.told() == [(None, True)] * bench.picks


def wrong_publications(policy: Any) -> Iterator[tuple[str, Any]]:
    yield "shut its channel down", (ConnectivityState.SHUTDOWN,)
    yield "READY with a picker", (ConnectivityState.READY,)
    for state in (ConnectivityState.IDLE, ConnectivityState.CONNECTING, ConnectivityState.TRANSIENT_FAILURE):
        yield "with READY, and only then", (state, policy.subchannels[0])


async def test_what_makes_no_sense_cannot_be_published(backend: Backend, autojump_clock: Clock) -> None:
    bench = Bench(backend.endpoint)
    async with bench.channel:
        await bench.channel.wait_ready()
        (policy,) = bench.policies
        for why, arguments in wrong_publications(policy):
            with pytest.raises(ValueError, match=why):
                policy.context.publish(*arguments)


def wrong_arguments(context: Any, subchannel: Subchannel) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "state must be ConnectivityState, not str", lambda: context.publish("ready", subchannel)
    yield "picker must be callable or a Subchannel", lambda: context.publish(ConnectivityState.READY, 5)
    yield "error must be Exception", lambda: context.publish(ConnectivityState.TRANSIENT_FAILURE, error="down")
    yield "endpoint must be Endpoint", lambda: context.new_subchannel("127.0.0.1:50051")
    yield "seconds must be a number of seconds", lambda: context.call_later("1", print)
    yield "function must be callable", lambda: context.call_later(1, None)


async def test_arguments_of_wrong_types_are_refused_at_once(backend: Backend, autojump_clock: Clock) -> None:
    bench = Bench(backend.endpoint)
    async with bench.channel:
        await bench.channel.wait_ready()
        (policy,) = bench.policies
        for why, mistake in wrong_arguments(policy.context, policy.subchannels[0]):
            with pytest.raises(TypeError, match=why):
                mistake()
        await bench.echo.Unary(EchoRequest())


async def test_what_makes_no_policy_raises_in_the_call(backend: Backend, autojump_clock: Clock) -> None:
    bench = Bench(backend.endpoint)
    bench.make = lambda context: None  # type: ignore[assignment,return-value]
    async with bench.channel:
        with pytest.raises(TypeError, match="load_balancing must make a LoadBalancingPolicy, not NoneType"):
            await bench.echo.Unary(EchoRequest())
        bench.make = Recorder
        await bench.echo.Unary(EchoRequest())


async def test_calls_in_a_while(backend: Backend, autojump_clock: Clock) -> None:
    bench = Bench(backend.endpoint)
    fired: list[tuple[float, object]] = []
    async with bench.channel:
        bench.channel.connect()
        await settle()
        (policy,) = bench.policies

        def fire() -> None:
            fired.append((trio.current_time(), trio.lowlevel.current_task()))

        policy.context.call_later(2, fire)
        call_off = policy.context.call_later(1, fire)
        # The first to come calls the other one off, which has come too.
        both: list[Callable[[], None]] = []
        late: list[str] = []

        def call_off_the_other() -> None:
            late.append("one of two")
            for one in both:
                one()

        both += [policy.context.call_later(5, call_off_the_other) for _ in range(2)]
        call_off()
        await trio.sleep(10)
        ((at, task),) = fired
        assert at == 2
        assert policy.tasks == {task}
        assert late == ["one of two"]
        policy.context.call_later(1, fire)
    assert len(fired) == 1


async def test_a_connection_that_takes_no_calls_is_not_given_out_before_the_policy_hears_of_it(
    backend: Backend, autojump_clock: Clock
) -> None:
    class Single(Recorder):
        def subchannel_changed(self, subchannel: Subchannel, state: ConnectivityState) -> None:
            if state is ConnectivityState.READY:
                self.context.publish(state, subchannel)

    bench = Bench(backend.endpoint)
    bench.make = Single
    async with bench.channel:
        await bench.channel.wait_ready()
        connection = bench.channel._connection_nowait()
        assert connection is not None
        connection._stop_opening()
        assert bench.channel._connection_nowait() is None
        assert bench.channel._pick_nowait(PickInfo("/a.B/C")) is None
