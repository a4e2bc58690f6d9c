"""Channels with several backends: which of them get the calls while they come and go (cases 9 and 10)."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.echo_service import Context, Echo, Waiting
from tests.support.backends import Backend
from trio_grpc import Channel, ConnectivityState, RpcError, StatusCode
from trio_grpc.testing import ManualResolver

Clock = trio.testing.MockClock

settle = trio.testing.wait_all_tasks_blocked


class Slow(Echo):
    """Takes 10 ms for each call."""

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        await trio.sleep(0.01)
        return await super().Unary(request, context)


async def start_backends(nursery: trio.Nursery, count: int) -> list[Backend]:
    backends = [Backend(nursery, f"backend {number}") for number in range(count)]
    for backend in backends:
        await backend.start()
    return backends


@contextlib.asynccontextmanager
async def open_over(
    backends: Sequence[Backend], load_balancing: trio_grpc.LoadBalancing = "round_robin"
) -> AsyncIterator[tuple[Channel, ManualResolver]]:
    resolver = ManualResolver(*(backend.endpoint for backend in backends))
    async with trio_grpc.open_channel(
        "test:///echo", resolvers={"test": resolver}, load_balancing=load_balancing, idle_timeout=None
    ) as channel:
        yield channel, resolver


async def call(channel: Channel, times: int = 1) -> None:
    for number in range(times):
        assert (await EchoStub(channel).Unary(EchoRequest(count=number))).count == number


async def wait_for_all(channel: Channel, count: int) -> None:
    """Wait until all backends of a round-robin channel are connected to."""
    await channel.wait_ready()
    await settle()
    assert channel.statistics().connections == count


async def test_pick_first_sends_all_calls_to_the_first(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = await start_backends(nursery, 3)
    async with open_over(backends, "pick_first") as (channel, _):
        await call(channel, 20)
        assert [backend.calls for backend in backends] == [20, 0, 0]
        assert channel.statistics().connections == 1


async def test_round_robin_sends_calls_to_each_in_turn(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = await start_backends(nursery, 3)
    async with open_over(backends) as (channel, _):
        await wait_for_all(channel, 3)
        # A backend that is new may have one turn before the cycle.
        await call(channel)
        before = [backend.calls for backend in backends]
        await call(channel, 30)
        assert [backend.calls - count for backend, count in zip(backends, before, strict=True)] == [10, 10, 10]


async def test_of_a_thousand_calls_only_those_in_flight_fail_when_a_backend_stops(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backends = [Backend(nursery, "one"), Backend(nursery, "two")]
    for backend in backends:
        await backend.start(Slow())
    outcomes: Counter[StatusCode] = Counter()

    async with open_over(backends) as (channel, _):
        await wait_for_all(channel, 2)
        echo = EchoStub(channel)

        async def client(number: int) -> None:
            for _ in range(100):
                try:
                    await echo.Unary(EchoRequest())
                except RpcError as error:
                    outcomes[error.code] += 1
                else:
                    outcomes[StatusCode.OK] += 1

        async with trio.open_nursery() as clients:
            for number in range(10):
                clients.start_soon(client, number)
            await trio.sleep(0.305)
            assert backends[0].server is not None
            in_flight = backends[0].server.statistics().handlers
            assert in_flight
            await backends[0].stop()
        assert outcomes.total() == 1000
        assert outcomes[StatusCode.UNAVAILABLE] == in_flight
        assert outcomes[StatusCode.OK] == 1000 - in_flight

        # It is tried again in the background, and then gets its share.
        await backends[0].start(Slow())
        await trio.sleep(150)
        await call(channel, 20)
        assert backends[0].calls == 10


async def test_a_drained_backend_loses_no_call(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = [Backend(nursery, "one"), Backend(nursery, "two")]
    for backend in backends:
        await backend.start(Slow())
    async with open_over(backends) as (channel, _):
        await wait_for_all(channel, 2)
        async with trio.open_nursery() as clients:
            for _ in range(10):
                clients.start_soon(call, channel, 100)
            await trio.sleep(0.305)
            await backends[0].drain()
        assert backends[0].calls + backends[1].calls == 1000
        assert channel.state is ConnectivityState.READY


@pytest.mark.parametrize("load_balancing", ["pick_first", "round_robin"])
async def test_traffic_moves_with_the_address(
    nursery: trio.Nursery, autojump_clock: Clock, load_balancing: trio_grpc.LoadBalancing
) -> None:
    old, new = await start_backends(nursery, 2)
    async with open_over([old], load_balancing) as (channel, resolver):
        await call(channel, 10)
        resolver.update(new.endpoint)
        await old.drain()
        await call(channel, 10)
        assert (old.calls, new.calls) == (10, 10)
        await settle()
        assert channel.statistics().connections == 1


@pytest.mark.parametrize("load_balancing", ["pick_first", "round_robin"])
async def test_a_backend_that_is_taken_off_the_list_finishes_its_calls(
    nursery: trio.Nursery, autojump_clock: Clock, load_balancing: trio_grpc.LoadBalancing
) -> None:
    old, new = Backend(nursery, "old"), Backend(nursery, "new")
    servicer = Waiting()
    await old.start(servicer)
    await new.start()
    async with open_over([old], load_balancing) as (channel, resolver):
        async with EchoStub(channel).ServerStream(EchoRequest(count=2)) as stream:
            assert (await stream.receive()).text == "first"
            resolver.update(new.endpoint)
            await settle()
            await call(channel, 3)
            assert new.calls == 3
            assert channel.statistics().connections == 2
            servicer.gate.set()
            assert [reply.count async for reply in stream] == [0, 1]
        await settle()
        assert channel.statistics().connections == 1


@pytest.mark.parametrize("load_balancing", ["pick_first", "round_robin"])
async def test_a_lost_connection_asks_for_new_addresses(
    nursery: trio.Nursery, autojump_clock: Clock, load_balancing: trio_grpc.LoadBalancing
) -> None:
    (backend,) = await start_backends(nursery, 1)
    async with open_over([backend], load_balancing) as (channel, resolver):
        await call(channel)
        assert resolver.requests == 0
        await backend.stop()
        await settle()
        assert resolver.requests >= 1
