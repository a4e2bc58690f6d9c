"""The states of a channel: what they are, who waits for them, and when a channel lets go of its connections."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.behaviour.test_backends import call, open_over, settle, start_backends
from tests.echo_service import Waiting
from tests.support.backends import Backend
from trio_grpc import ConnectivityState as State
from trio_grpc import RpcError
from trio_grpc.testing import ManualResolver, MemoryListener

Clock = trio.testing.MockClock


@pytest.fixture
def backend(nursery: trio.Nursery) -> Backend:
    return Backend(nursery, "backend")


async def watch(channel: trio_grpc.Channel, states: list[State]) -> None:
    """Note all states until the channel is closed."""
    states.append(channel.state)
    while states[-1] is not State.SHUTDOWN:
        states.append(await channel.wait_for_state_change(states[-1]))


async def test_the_life_of_a_channel(nursery: trio.Nursery, backend: Backend, autojump_clock: Clock) -> None:
    states: list[State] = []
    async with trio_grpc.open_channel(backend.dial) as channel:
        nursery.start_soon(watch, channel, states)
        await settle()
        channel.connect()
        await settle()
        assert channel.state is State.TRANSIENT_FAILURE
        await backend.start()
        await channel.wait_ready()
        await backend.stop()
        await settle()
        assert channel.state is State.IDLE
    await settle()
    assert states == [
        State.IDLE,
        State.CONNECTING,
        State.TRANSIENT_FAILURE,
        State.READY,
        State.IDLE,
        State.SHUTDOWN,
    ]


async def test_waiting_for_ready_connects_and_waits_through_failures(
    nursery: trio.Nursery, backend: Backend, autojump_clock: Clock
) -> None:
    async def start_late() -> None:
        await trio.sleep(60)
        await backend.start()

    nursery.start_soon(start_late)
    async with trio_grpc.open_channel(backend.dial) as channel:
        await channel.wait_ready()
        assert 60 <= trio.current_time() < 120
        assert channel.state is State.READY
        with trio.testing.assert_checkpoints():
            await channel.wait_ready()


async def test_a_closed_channel_is_never_ready(nursery: trio.Nursery, backend: Backend, autojump_clock: Clock) -> None:
    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await channel.wait_ready()

    async with trio_grpc.open_channel(backend.dial) as channel:
        nursery.start_soon(wait)
        await settle()
    await settle()
    assert not nursery.child_tasks
    await wait()
    with pytest.raises(trio.ClosedResourceError):
        channel.connect()
    assert channel.state is State.SHUTDOWN


async def test_who_watches_the_states_learns_that_the_channel_is_closed(
    nursery: trio.Nursery, backend: Backend, autojump_clock: Clock
) -> None:
    seen = [State.IDLE]

    async def watch() -> None:
        try:
            while True:
                seen.append(await channel.wait_for_state_change(seen[-1]))
        except trio.ClosedResourceError:
            return

    async with trio_grpc.open_channel(backend.dial) as channel:
        nursery.start_soon(watch)
        await settle()
    await settle()
    assert not nursery.child_tasks
    assert seen == [State.IDLE, State.SHUTDOWN]
    with trio.testing.assert_checkpoints(), pytest.raises(trio.ClosedResourceError):
        await channel.wait_for_state_change(State.SHUTDOWN)


async def test_only_a_state_can_be_waited_for_to_change(backend: Backend, autojump_clock: Clock) -> None:
    async with trio_grpc.open_channel(backend.dial) as channel:
        with pytest.raises(TypeError, match="last must be ConnectivityState, not str"):
            await channel.wait_for_state_change("idle")  # type: ignore[arg-type]


async def test_a_channel_that_was_not_entered_says_so() -> None:
    channel = trio_grpc.open_channel(trio.sleep_forever)
    with pytest.raises(RuntimeError, match="async with"):
        channel.connect()
    with pytest.raises(RuntimeError, match="async with"):
        await channel.wait_ready()
    assert channel.state is State.IDLE


async def test_connecting_twice_is_connecting_once(backend: Backend, autojump_clock: Clock) -> None:
    await backend.start()
    async with trio_grpc.open_channel(backend.dial) as channel:
        channel.connect()
        channel.connect()
        await settle()
        channel.connect()
        await call(channel)
        assert backend.dials == 1


@pytest.mark.parametrize("load_balancing", ["pick_first", "round_robin"])
async def test_a_channel_without_calls_goes_idle_and_comes_back(
    nursery: trio.Nursery, autojump_clock: Clock, load_balancing: Any
) -> None:
    backends = await start_backends(nursery, 2)
    resolver = ManualResolver(*(backend.endpoint for backend in backends))
    async with trio_grpc.open_channel(
        "test:///x", resolvers={"test": resolver}, load_balancing=load_balancing, idle_timeout=60
    ) as channel:
        for _ in range(10):
            await call(channel)
            await trio.sleep(59)
            assert channel.state is State.READY
        assert len(resolver.targets) == 1
        await trio.sleep(60 / 8 + 1)
        await settle()
        assert channel.state is State.IDLE
        assert channel.statistics().connections == 0
        assert [backend.server.statistics().connections for backend in backends if backend.server] == [0, 0]
        await call(channel, 4)
        assert len(resolver.targets) == 2
        assert channel.state is State.READY


async def test_a_call_in_flight_keeps_the_channel(
    nursery: trio.Nursery, backend: Backend, autojump_clock: Clock
) -> None:
    servicer = Waiting()
    await backend.start(servicer)
    async with trio_grpc.open_channel(backend.dial, idle_timeout=60) as channel:
        async with EchoStub(channel).ServerStream(EchoRequest(count=1)) as stream:
            assert (await stream.receive()).text == "first"
            await trio.sleep(10_000)
            assert channel.state is State.READY
            servicer.gate.set()
            assert [reply.count async for reply in stream] == [0]
        await trio.sleep(70)
        assert channel.state is State.IDLE


async def test_a_call_that_waits_for_a_backend_keeps_the_channel(
    nursery: trio.Nursery, backend: Backend, autojump_clock: Clock
) -> None:
    async with trio_grpc.open_channel(backend.dial, idle_timeout=1) as channel:
        with pytest.raises(RpcError, match="DEADLINE"):
            await EchoStub(channel).Unary(EchoRequest(), wait_for_ready=True, timeout=500)
        # It neither stops dialling nor begins its backoff anew.
        assert 5 < backend.dials < 20
        # Then nobody needs it, and it stops dialling.
        await trio.sleep(2)
        assert channel.state is State.IDLE
        dials = backend.dials
        await trio.sleep(1000)
        assert backend.dials == dials


async def test_the_idle_timeout_has_a_default_and_a_floor(backend: Backend, autojump_clock: Clock) -> None:
    await backend.start()
    for options, seconds in (({}, 1800.0), ({"idle_timeout": 0.001}, 1.0), ({"idle_timeout": None}, math.inf)):
        async with trio_grpc.open_channel(backend.dial, **options) as channel:  # type: ignore[arg-type]
            await call(channel)
            began = trio.current_time()
            with trio.move_on_after(10_000) as scope:
                assert await channel.wait_for_state_change(State.READY) is State.IDLE
            assert scope.cancelled_caught == (seconds == math.inf)
            if seconds < math.inf:
                assert seconds <= trio.current_time() - began <= seconds * 1.25


@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_an_idle_timeout_that_is_none_is_refused_at_once(value: float) -> None:
    with pytest.raises(ValueError, match="idle_timeout"):
        trio_grpc.open_channel("localhost:1", idle_timeout=value)


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("idle_timeout", "5", TypeError),
        ("idle_timeout", True, TypeError),
        ("load_balancing", "fastest", ValueError),
        ("load_balancing", 5, TypeError),
        ("resolvers", {"test": "10.0.0.1:5"}, TypeError),
    ],
)
def test_wrong_options_are_refused_at_once(option: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=option):
        trio_grpc.open_channel("localhost:1", **{option: value})


async def test_statistics_are_of_all_backends(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = [Backend(nursery, f"backend {number}") for number in range(3)]
    servicers = [Waiting() for _ in backends]
    for backend, servicer in zip(backends, servicers, strict=True):
        await backend.start(servicer)
    async with open_over(backends) as (channel, _):
        await channel.wait_ready()
        await settle()
        async with trio.open_nursery() as calls:
            for _ in range(6):
                calls.start_soon(call, channel)
            await settle()
            statistics = channel.statistics()
            assert (statistics.state, statistics.connections, statistics.streams) == ("ready", 3, 6)
            assert statistics.unconnected == 0
            # A backend that has just come may have had a turn of its own before the others.
            assert sum(servicer.entered for servicer in servicers) == 6
            assert all(servicer.entered for servicer in servicers)
            for servicer in servicers:
                servicer.gate.set()
        assert channel.statistics().streams == 0


async def test_calls_without_a_connection_are_counted(
    nursery: trio.Nursery, backend: Backend, autojump_clock: Clock
) -> None:
    async with trio_grpc.open_channel(backend.dial) as channel:
        for _ in range(3):
            nursery.start_soon(lambda: EchoStub(channel).Unary(EchoRequest(), wait_for_ready=True))
        await settle()
        assert channel.statistics().unconnected == 3
        await backend.start()
        await channel.wait_ready()
        await settle()
        assert channel.statistics().unconnected == 0


async def test_connections_that_nobody_accepted_end_with_the_listener(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    listener = MemoryListener()
    stream = await listener.connect()
    await listener.aclose()
    assert not await stream.receive_some()
    await stream.aclose()


async def test_happy_eyeballs_over_a_black_hole(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    """The first address takes connections and never speaks; the second answers a quarter of a second later."""
    hole = MemoryListener()
    (backend,) = await start_backends(nursery, 1)
    resolver = ManualResolver(trio_grpc.Endpoint("hole", connect=hole.connect), backend.endpoint)
    async with trio_grpc.open_channel("test:///x", resolvers={"test": resolver}) as channel:
        await call(channel)
        assert trio.current_time() == pytest.approx(0.25)
        await trio.sleep(2)
        assert channel.statistics().connections == 1
    await hole.aclose()
