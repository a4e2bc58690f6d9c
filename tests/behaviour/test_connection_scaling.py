"""Several connections to one backend, where its limit of streams keeps calls waiting (gRFC A105)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.behaviour.scripted import Background
from tests.echo_service import Context, Echo, Waiting
from tests.support.backends import Backend
from trio_grpc import (
    Channel,
    ConnectionLifetime,
    ConnectionScaling,
    ConnectivityState,
    Limits,
    RpcError,
    ServiceConfig,
    StatusCode,
)
from trio_grpc.testing import ManualResolver, MemoryListener

Clock = trio.testing.MockClock

settle = trio.testing.wait_all_tasks_blocked


class Slow(Echo):
    """Takes half a second for each call."""

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        await trio.sleep(0.5)
        return await super().Unary(request, context)


def streams(limit: int) -> Limits:
    return Limits(adaptive_window=False, max_concurrent_streams=limit)


def config(most: int) -> ServiceConfig:
    return ServiceConfig(connection_scaling=ConnectionScaling(max_connections_per_subchannel=most))


@contextlib.asynccontextmanager
async def open_scaling(most: int, *backends: Backend, load_balancing: str = "pick_first") -> AsyncIterator[Channel]:
    resolver = ManualResolver(*(backend.endpoint for backend in backends))
    async with trio_grpc.open_channel(
        "test:///echo", resolvers={"test": resolver}, load_balancing=load_balancing, service_config=config(most)
    ) as channel:
        await channel.wait_ready()
        await settle()
        yield channel


class Calls:
    """Calls in the background; the server lets them wait."""

    def __init__(self, channel: Channel, nursery: trio.Nursery) -> None:
        self._stub = EchoStub(channel)
        self._nursery = nursery
        self.replies: list[int] = []
        self.errors: list[RpcError] = []

    async def add(self, count: int = 1, timeout: float | None = None) -> None:
        for _ in range(count):
            self._nursery.start_soon(self._call, timeout)
            await settle()

    async def _call(self, timeout: float | None) -> None:
        try:
            reply = await self._stub.Unary(EchoRequest(count=7), timeout=timeout)
        except RpcError as error:
            self.errors.append(error)
        else:
            self.replies.append(reply.count)


@pytest.fixture
async def backend(nursery: trio.Nursery) -> Backend:
    """A backend that takes two streams on a connection, and answers when its gate is opened."""
    backend = Backend(nursery, "backend")
    await backend.start(Waiting(), streams(2))
    return backend


def waiting(backend: Backend) -> Waiting:
    assert isinstance(backend.servicer, Waiting)
    return backend.servicer


async def test_calls_over_the_limit_go_out_on_further_connections(
    backend: Backend, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with open_scaling(3, backend) as channel:
        calls = Calls(channel, nursery)
        await calls.add(2)
        assert channel.statistics().connections == 1
        await calls.add(6)
        assert waiting(backend).entered == 6
        statistics = channel.statistics()
        assert (statistics.connections, statistics.streams, statistics.waiting) == (3, 6, 2)
        waiting(backend).gate.set()
        await settle()
        assert calls.replies == [7] * 8
        assert channel.statistics().waiting == 0
        assert backend.dials == 3


async def test_there_is_one_connection_where_nothing_else_is_said(
    backend: Backend, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with open_scaling(1, backend) as channel:
        await Calls(channel, nursery).add(5)
        assert (waiting(backend).entered, channel.statistics().connections) == (2, 1)
        waiting(backend).gate.set()
        await settle()


async def test_calls_of_every_kind_wait_in_one_line(
    backend: Backend, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with open_scaling(2, backend) as channel:
        stub = EchoStub(channel)
        async with contextlib.AsyncExitStack() as stack:
            blocks = [await stack.enter_async_context(stub.Bidi()) for _ in range(4)]
            calls = Calls(channel, nursery)
            await calls.add()
            streaming = Background(nursery, partial(stub.ServerStream(EchoRequest()).__aenter__))
            await settle()
            assert channel.statistics().waiting == 2
            # The next free slot is on the second connection, and the first in line gets it.
            blocks[3].cancel()
            await settle()
            assert (channel.statistics().waiting, waiting(backend).entered) == (1, 5)
            blocks[0].cancel()
            await (await streaming.result()).aclose()
            waiting(backend).gate.set()
            await settle()
            assert calls.replies == [7]


async def test_who_waits_for_any_connection_is_bound_by_deadline_and_scope(
    backend: Backend, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with open_scaling(2, backend) as channel:
        calls = Calls(channel, nursery)
        await calls.add(4)
        await calls.add(timeout=3)
        with trio.move_on_after(2) as scope:
            await EchoStub(channel).Unary(EchoRequest())
        assert scope.cancelled_caught
        await trio.sleep(1.1)
        assert [error.code for error in calls.errors] == [StatusCode.DEADLINE_EXCEEDED]
        assert channel.statistics().waiting == 0
        waiting(backend).gate.set()
        await settle()
        assert len(calls.replies) == 4


async def test_a_further_connection_that_is_refused_hurts_no_call(
    backend: Backend, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with open_scaling(3, backend) as channel:
        listener, backend._listener = backend._listener, None
        calls = Calls(channel, nursery)
        await calls.add(5)
        await trio.sleep(60)
        assert channel.state is ConnectivityState.READY
        assert 5 < backend.refusals < 10
        assert waiting(backend).entered == 2
        backend._listener = listener
        await trio.sleep(60)
        assert waiting(backend).entered == 5
        waiting(backend).gate.set()
        await settle()
        assert calls.replies == [7] * 5


async def test_losing_one_of_several_costs_its_own_calls_alone(
    backend: Backend, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    opened: list[trio.abc.Stream] = []
    dial = backend.dial

    async def remember() -> trio.abc.Stream:
        opened.append(await dial())
        return opened[-1]

    backend.endpoint = trio_grpc.Endpoint("backend", connect=remember)
    async with open_scaling(2, backend) as channel:
        states: list[ConnectivityState] = []

        async def watch() -> None:
            while channel.state is not ConnectivityState.SHUTDOWN:
                states.append(await channel.wait_for_state_change(channel.state))

        nursery.start_soon(watch)
        calls = Calls(channel, nursery)
        await calls.add(6)
        await trio.sleep(5)
        await trio.aclose_forcefully(opened[0])
        await settle()
        assert [error.code for error in calls.errors] == [StatusCode.UNAVAILABLE] * 2
        # Another one was made for those who still wait.
        assert (len(opened), waiting(backend).entered) == (3, 6)
        waiting(backend).gate.set()
        await settle()
        assert calls.replies == [7] * 4
        assert states == []


async def test_a_server_ends_connections_that_have_become_superfluous(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    """Channels do not (gRFC A105): it is for the server to say what it can bear."""
    listener = MemoryListener()
    servicer = Waiting()
    nursery.start_soon(
        partial(
            trio_grpc.serve,
            [servicer],
            listener,
            limits=streams(1),
            connection_lifetime=ConnectionLifetime(max_idle=60),
        )
    )
    async with trio_grpc.open_channel(listener.connect, service_config=config(3)) as channel:
        await channel.wait_ready()
        calls = Calls(channel, nursery)
        await calls.add(3)
        servicer.gate.set()
        await settle()
        assert channel.statistics().connections == 3
        for number in range(4, 30):
            await trio.sleep(10)
            # The oldest that can take a call does.
            await calls.add()
            assert len(calls.replies) == number
        assert channel.statistics().connections == 1
        assert channel.state is ConnectivityState.READY


async def test_round_robin_scales_each_of_its_backends(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = [Backend(nursery, f"backend {number}") for number in range(2)]
    for backend in backends:
        await backend.start(Waiting(), streams(2))
    async with open_scaling(2, *backends, load_balancing="round_robin") as channel:
        calls = Calls(channel, nursery)
        await calls.add(12)
        assert [waiting(backend).entered for backend in backends] == [4, 4]
        statistics = channel.statistics()
        assert (statistics.connections, statistics.waiting) == (4, 4)
        for backend in backends:
            waiting(backend).gate.set()
        await settle()
        assert calls.replies == [7] * 12


async def test_those_who_wait_are_told_of_the_end_of_the_channel(
    backend: Backend, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with open_scaling(2, backend) as channel:
        calls = [Background(nursery, EchoStub(channel).Unary, EchoRequest()) for _ in range(6)]
        await settle()
        assert channel.statistics().waiting == 2
        await channel.aclose()
        for call in calls:
            with pytest.raises(trio.ClosedResourceError):
                await call.result()


async def test_a_rolling_restart_under_load_fails_no_call(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backend = Backend(nursery, "backend")
    await backend.start(limits=streams(3))
    done = 0

    async def keep_calling(channel: Channel) -> None:
        nonlocal done
        while trio.current_time() < 8:
            await EchoStub(channel).Unary(EchoRequest(), wait_for_ready=True)
            done += 1
            await trio.sleep(0.1)

    async with open_scaling(4, backend) as channel, trio.open_nursery() as callers:
        for _ in range(12):
            callers.start_soon(keep_calling, channel)
        for _ in range(3):
            await trio.sleep(2)
            await backend.drain()
            await backend.start(limits=streams(3))
    assert done > 800


async def test_another_service_config_counts_for_the_connections_to_come(
    backend: Backend, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    resolver = ManualResolver()
    resolver.update(backend.endpoint, service_config=config(1))
    async with trio_grpc.open_channel("test:///echo", resolvers={"test": resolver}) as channel:
        calls = Calls(channel, nursery)
        await calls.add(8)
        assert (waiting(backend).entered, backend.dials) == (2, 1)
        resolver.update(backend.endpoint, service_config=config(2))
        await settle()
        assert (waiting(backend).entered, backend.dials) == (4, 2)
        resolver.update(backend.endpoint, service_config=None)
        await settle()
        assert channel.statistics().connections == 2
        waiting(backend).gate.set()
        await settle()
        assert calls.replies == [7] * 8
        assert backend.dials == 2


async def test_the_end_of_all_connections_in_the_backoff_of_a_further_one(
    backend: Backend, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with open_scaling(2, backend) as channel:
        states: list[ConnectivityState] = []

        async def watch() -> None:
            while channel.state is not ConnectivityState.SHUTDOWN:
                states.append(await channel.wait_for_state_change(channel.state))

        nursery.start_soon(watch)
        await trio.sleep(5)
        backend._listener = None
        calls = Calls(channel, nursery)
        await calls.add(3)
        await backend.stop()
        await settle()
        assert channel.state is ConnectivityState.TRANSIENT_FAILURE
        assert [error.code for error in calls.errors] == [StatusCode.UNAVAILABLE] * 3
        await backend.start(limits=streams(2))
        await channel.wait_ready()
        await calls.add(3)
        assert calls.replies == [7] * 3
        assert states == [ConnectivityState.TRANSIENT_FAILURE, ConnectivityState.READY]


async def test_connections_that_get_old_are_replaced_one_by_one_under_load(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    listener = MemoryListener()
    nursery.start_soon(
        partial(
            trio_grpc.serve,
            [Slow()],
            listener,
            limits=streams(2),
            connection_lifetime=ConnectionLifetime(max_age=3, max_age_grace=5),
        )
    )
    done = 0

    async def keep_calling(channel: Channel) -> None:
        nonlocal done
        while trio.current_time() < 30:
            await EchoStub(channel).Unary(EchoRequest())
            done += 1

    dials = 0

    async def dial() -> trio.abc.Stream:
        nonlocal dials
        dials += 1
        return await listener.connect()

    keepalive = trio_grpc.Keepalive(time=10, timeout=5)
    async with trio_grpc.open_channel(dial, service_config=config(3), keepalive=keepalive) as channel:
        await channel.wait_ready()
        async with trio.open_nursery() as callers:
            for _ in range(8):
                callers.start_soon(keep_calling, channel)
            for _ in range(28):
                await trio.sleep(1)
                # Those that are old finish what they have.
                assert channel.state is ConnectivityState.READY
                assert 2 <= channel.statistics().connections <= 6
    # Six at a time, half a second each.
    assert done > 250
    assert dials >= 20
