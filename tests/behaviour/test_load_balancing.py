"""Which of several servers get the calls, under each policy that connects to many, while these come and go."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.echo_service import Context, Echo
from tests.support.backends import Backend
from trio_grpc import Channel, ConnectivityState, LeastRequest, RoundRobin, RpcError, StatusCode
from trio_grpc.testing import ManualResolver

Clock = trio.testing.MockClock

settle = trio.testing.wait_all_tasks_blocked

#: Those that keep a connection to every server.
EVEN = [
    pytest.param(RoundRobin(), id="round_robin"),
    pytest.param(LeastRequest(), id="least_request"),
]


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """Let policies draw the same lots in each run."""
    state = random.getstate()
    random.seed(7)
    yield
    random.setstate(state)


class Slow(Echo):
    """Takes some time for each call."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        await trio.sleep(self.seconds)
        return await super().Unary(request, context)


async def start(nursery: trio.Nursery, *servicers: Echo) -> list[Backend]:
    backends = [Backend(nursery, f"backend {number}") for number in range(len(servicers))]
    for backend, servicer in zip(backends, servicers, strict=True):
        await backend.start(servicer)
    return backends


@contextlib.asynccontextmanager
async def open_over(
    backends: Sequence[Backend], load_balancing: trio_grpc.LoadBalancing
) -> AsyncIterator[tuple[Channel, ManualResolver]]:
    resolver = ManualResolver(*(backend.endpoint for backend in backends))
    async with trio_grpc.open_channel(
        "test:///echo", resolvers={"test": resolver}, load_balancing=load_balancing, idle_timeout=None
    ) as channel:
        yield channel, resolver


async def connect_to_all(channel: Channel, count: int) -> None:
    await channel.wait_ready()
    await settle()
    assert channel.statistics().connections == count


async def call_in_turn(channel: Channel, outcomes: Counter[StatusCode], times: int, pause: float = 0) -> None:
    for _ in range(times):
        try:
            await EchoStub(channel).Unary(EchoRequest())
        except RpcError as error:
            outcomes[error.code] += 1
        else:
            outcomes[StatusCode.OK] += 1
        await trio.sleep(pause)


@pytest.mark.parametrize("load_balancing", EVEN)
async def test_servers_that_are_alike_get_as_many_calls(
    nursery: trio.Nursery, autojump_clock: Clock, load_balancing: trio_grpc.LoadBalancing
) -> None:
    backends = await start(nursery, *(Slow(0.01) for _ in range(3)))
    outcomes: Counter[StatusCode] = Counter()
    async with open_over(backends, load_balancing) as (channel, _):
        await connect_to_all(channel, 3)
        async with trio.open_nursery() as clients:
            for _ in range(12):
                clients.start_soon(call_in_turn, channel, outcomes, 25)
    assert outcomes == {StatusCode.OK: 300}
    assert all(90 <= backend.calls <= 110 for backend in backends)


@pytest.mark.parametrize("load_balancing", EVEN)
async def test_one_of_three_lost_under_load_loses_the_calls_in_flight_there(
    nursery: trio.Nursery, autojump_clock: Clock, load_balancing: trio_grpc.LoadBalancing
) -> None:
    backends = await start(nursery, *(Slow(0.01) for _ in range(3)))
    lost, *others = backends
    outcomes: Counter[StatusCode] = Counter()
    async with open_over(backends, load_balancing) as (channel, _):
        await connect_to_all(channel, 3)
        async with trio.open_nursery() as clients:
            for _ in range(12):
                clients.start_soon(call_in_turn, channel, outcomes, 50)
            await trio.sleep(0.105)
            assert lost.server is not None
            in_flight = lost.server.statistics().handlers
            assert in_flight
            await lost.stop()
            taken = [backend.calls for backend in others]
        assert outcomes == {StatusCode.OK: 600 - in_flight, StatusCode.UNAVAILABLE: in_flight}
        assert channel.state is ConnectivityState.READY
        # The others have shared what was left.
        shares = [backend.calls - before for backend, before in zip(others, taken, strict=True)]
        assert max(shares) - min(shares) <= 0.2 * sum(shares)

        await lost.start(Slow(0.01))
        await trio.sleep(150)
        await call_in_turn(channel, outcomes, 30)
        assert lost.calls >= 5


async def test_a_slow_server_gets_fewer_calls(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    """Ten times slower: least_request leaves it about what it can do, round_robin makes everybody wait for it."""
    elapsed = []
    for load_balancing in (LeastRequest(choice_count=3), RoundRobin()):
        backends = await start(nursery, Slow(0.1), Slow(0.01), Slow(0.01))
        outcomes: Counter[StatusCode] = Counter()
        async with open_over(backends, load_balancing) as (channel, _):
            await connect_to_all(channel, 3)
            began = trio.current_time()
            async with trio.open_nursery() as clients:
                for _ in range(12):
                    clients.start_soon(call_in_turn, channel, outcomes, 50)
            elapsed.append(trio.current_time() - began)
        assert outcomes == {StatusCode.OK: 600}
        if isinstance(load_balancing, LeastRequest):
            assert backends[0].calls < 0.3 * backends[1].calls
        else:
            assert [backend.calls for backend in backends] == [200, 200, 200]
    assert elapsed[0] < 0.7 * elapsed[1]


async def test_streams_count_while_they_last_and_no_longer(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = await start(nursery, Echo(), Echo())
    # Of ten draws from two, each is nearly always among them.
    async with open_over(backends, LeastRequest(choice_count=10)) as (channel, _):
        await connect_to_all(channel, 2)
        for _ in range(3):
            before = [backend.calls for backend in backends]
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(6):
                    call = await stack.enter_async_context(EchoStub(channel).Bidi())
                    await call.send(EchoRequest())
                    await call.receive()
                assert [backend.calls - calls for backend, calls in zip(backends, before, strict=True)] == [3, 3]
            # Left in the middle, they are cancelled.
            await settle()
