"""Memory is bounded by what arrived and by the windows, and does not grow with the number of calls."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.behaviour.scripted import SERVER_STREAM, UNARY, start_server
from tests.support.echo import Context, Echo, Requests
from trio_grpc import Limits, RpcError, StatusCode
from trio_grpc._transport import stream_table
from trio_grpc._transport.allocator import settle_allocator
from trio_grpc.testing import open_channel_pair

Clock = trio.testing.MockClock

# A task's turns end by real time, so what is under way at once, and with it the peak of memory, depends on the machine.
# What is too much each time is too much.
pytestmark = pytest.mark.flaky(reruns=2)

KIB = 1024
MIB = 1024 * KIB
WINDOW = 65_535
QUOTA = 65_536


async def assert_flat(
    operation: Callable[[int], Awaitable[object]],
    *,
    times: int = 300,
    settle: Callable[[], None] = lambda: None,
    tolerance: float = 1 / 3,
) -> None:
    """Repeating an operation leaves no object behind, once everything that is kept on purpose has been made."""

    async def blocks_after(start: int) -> int:
        for number in range(start, start + times):
            await operation(number)
        await trio.testing.wait_all_tasks_blocked()
        settle()
        for _ in range(3):
            gc.collect()
        return sys.getallocatedblocks()

    # Less than one object for every three calls: nothing of a call is kept. What is kept of each call is kept in every
    # round; tables of the interpreter grow in one and not in the next.
    counts: list[int] = []
    for start in range(0, 8 * times, times):
        counts.append(await blocks_after(start))
        if len(counts) >= 4 and counts[-1] - counts[-2] < times * tolerance:
            return
    pytest.fail(f"each round leaves objects behind: {counts}")


@pytest.fixture(autouse=True)
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of streams that were cut short is bounded; let it be full before the counting begins."""
    monkeypatch.setattr("trio_grpc._transport.stream_table._REMEMBERED", 10)


@pytest.fixture
async def pair(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Echo, EchoStub]]:
    # What is kept on purpose is soon complete.
    monkeypatch.setattr(stream_table, "_REMEMBERED", 8)
    servicer = Echo()
    async with open_channel_pair(servicer) as (channel, _):
        yield servicer, EchoStub(channel)


Pair = tuple[Echo, EchoStub]


async def test_unary_calls_leave_nothing(pair: Pair) -> None:
    servicer, stub = pair
    await assert_flat(
        lambda number: stub.Unary(EchoRequest(count=number), metadata={"x-number": str(number)}),
        settle=servicer.contexts.clear,
    )


async def test_streams_leave_nothing(pair: Pair) -> None:
    servicer, stub = pair

    async def call(number: int) -> None:
        async with stub.ServerStream(EchoRequest(count=3), timeout=1000) as replies:
            assert len([reply async for reply in replies]) == 3
        await stub.ClientStream([EchoRequest()] * 3)
        async with stub.Bidi() as chat:
            await chat.send(EchoRequest())
            await chat.receive()
            await chat.done_sending()

    await assert_flat(call, times=100, settle=servicer.contexts.clear)


async def test_cancelled_calls_leave_nothing(pair: Pair) -> None:
    servicer, stub = pair

    async def call(number: int) -> None:
        async with stub.ServerStream(EchoRequest(count=10**9)) as replies:
            await replies.receive()
        with trio.CancelScope() as scope:
            async with stub.Bidi(timeout=1000) as chat:
                await chat.send(EchoRequest())
                scope.cancel()
                await chat.receive()
        with trio.CancelScope() as scope:
            scope.cancel()
            await stub.Unary(EchoRequest())

    await assert_flat(call, times=100, settle=servicer.contexts.clear)


async def test_failed_calls_leave_nothing(autojump_clock: Clock) -> None:
    """Every status has a text of its own, so that no cache of header blocks can hide in the count."""

    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        await context.abort(
            StatusCode.ABORTED, f"text {request.count}", trailing_metadata={"x-number": str(request.count)}
        )

    servicer = Echo(unary=handler)
    async with open_channel_pair(servicer) as (channel, _):
        stub = EchoStub(channel)

        async def call(number: int) -> None:
            with pytest.raises(RpcError):
                await stub.Unary(EchoRequest(count=number))
            with pytest.raises(RpcError):
                await stub.Unary(EchoRequest(count=number), timeout=0)

        await assert_flat(call, settle=servicer.contexts.clear)


async def test_stubs_leave_nothing(pair: Pair) -> None:
    servicer, stub = pair
    channel = stub.Unary._factory.channel

    async def call(number: int) -> None:
        await EchoStub(channel).Unary(EchoRequest())

    await assert_flat(call, settle=servicer.contexts.clear)


async def test_connections_leave_nothing(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    servicer = Echo()
    listener = trio_grpc.testing.MemoryListener()
    await nursery.start(trio_grpc.serve, [servicer], listener)

    async def connect(number: int) -> None:
        async with trio_grpc.open_channel(listener.connect) as channel:
            await EchoStub(channel).Unary(EchoRequest())

    # A connection makes many hundred objects. Tables of the interpreter's own fill slowly here, and stop to.
    await assert_flat(connect, times=50, settle=servicer.contexts.clear, tolerance=3)
    nursery.cancel_scope.cancel()


# -- peaks


class Peak:
    """The most memory that was in use during a block, beyond what was there at its beginning."""

    def __enter__(self) -> Peak:  # noqa: PYI034 # typing.Self is 3.11's
        gc.collect()
        tracemalloc.start()
        self._before = tracemalloc.get_traced_memory()[0]
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = tracemalloc.get_traced_memory()[1] - self._before
        tracemalloc.stop()


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_a_consumer_that_stops_reading_costs_its_window(sockets: bool, autojump_clock: Clock) -> None:
    """A gibibyte on offer, one message read."""

    async def handler(request: EchoRequest, context: Context) -> AsyncIterator[EchoReply]:
        payload = bytes(1000)
        for _ in range(2**20):
            yield EchoReply(payload=payload)

    async with open_channel_pair(Echo(server_stream=handler), sockets=sockets) as (channel, _):
        stub = EchoStub(channel)
        async with stub.ServerStream(EchoRequest()) as call:
            with Peak() as peak:
                await call.receive()
                await trio.sleep(100)
    # At the client a window of bytes as messages, at the server a quota.
    assert peak.bytes < 4 * (WINDOW + QUOTA)


async def test_a_handler_that_does_not_read_costs_its_window(autojump_clock: Clock) -> None:
    async def handler(requests: Requests, context: Context) -> EchoReply:
        await trio.sleep_forever()
        raise AssertionError

    async with open_channel_pair(Echo(client_stream=handler)) as (channel, _):
        stub = EchoStub(channel)
        async with stub.ClientStream.open() as call:
            with Peak() as peak, trio.move_on_after(100):
                while True:
                    await call.send(EchoRequest(payload=bytes(1000)))
    assert peak.bytes < 4 * (WINDOW + QUOTA)


async def test_many_unread_streams_cost_a_window_each(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _), trio.open_nursery() as nursery:
        stub = EchoStub(channel)

        async def hold() -> None:
            async with stub.ServerStream(EchoRequest(count=10**9, payload=bytes(1000))):
                await trio.sleep_forever()

        await stub.Unary(EchoRequest())
        with Peak() as peak:
            for _ in range(20):
                nursery.start_soon(hold)
            await trio.sleep(10)
        assert peak.bytes < 20 * 4 * (WINDOW + QUOTA)
        nursery.cancel_scope.cancel()


async def test_a_prefix_alone_costs_nothing(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    endpoint = await start_server(nursery, limits=Limits(max_receive_message_length=None, adaptive_window=False))
    settle_allocator()  # the block that is freed once, and never touched, would count
    async with await endpoint.client() as peer:
        with Peak() as peak:
            for stream_id in range(1, 201, 2):
                await peer.send_request(stream_id, UNARY)
                await peer.send_data(stream_id, b"\0\xff\xff\xff\xff")
            await trio.testing.wait_all_tasks_blocked()
        assert endpoint.server.statistics().handlers == 100
    assert peak.bytes < 100 * 20 * KIB
    nursery.cancel_scope.cancel()


async def test_an_incomplete_message_costs_what_arrived_of_it(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    endpoint = await start_server(nursery, limits=Limits(max_receive_message_length=None, adaptive_window=False))
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY)
        await peer.send_data(1, b"\0\x7f\xff\xff\xff")
        await trio.testing.wait_all_tasks_blocked()
        piece = bytes(16_384)
        with Peak() as peak:
            for _ in range(256):
                await peer.send_data(1, piece)
                await trio.testing.wait_all_tasks_blocked()
        assert endpoint.server.statistics().handlers == 1
    # 4 MiB came; at each moment the buffer is at most twice that, and while it grows there may be two of them.
    assert peak.bytes < 12.5 * MIB
    nursery.cancel_scope.cancel()


async def test_a_message_over_the_limit_is_not_collected(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    endpoint = await start_server(nursery, limits=Limits(max_receive_message_length=MIB, adaptive_window=False))
    async with await endpoint.client() as peer:
        piece = bytes(16_384)
        with Peak() as peak:
            for stream_id in range(1, 81, 2):
                await peer.send_request(stream_id, SERVER_STREAM)
                await peer.send_data(stream_id, b"\0\x00\x20\x00\x00")
                for _ in range(3):
                    await peer.send_data(stream_id, piece)
                await trio.testing.wait_all_tasks_blocked()
        assert endpoint.server.statistics().streams == 0
    assert peak.bytes < 600 * KIB
    nursery.cancel_scope.cancel()


async def test_large_messages_are_freed_when_their_call_is_over(pair: Pair) -> None:
    servicer, stub = pair
    await stub.Unary(EchoRequest(payload=bytes(2 * MIB)))
    servicer.contexts.clear()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(5):
            assert len((await stub.Unary(EchoRequest(payload=bytes(2 * MIB)))).payload) == 2 * MIB
            with trio.move_on_after(0):
                await stub.Unary(EchoRequest(payload=bytes(2 * MIB)))
            async with stub.Bidi() as call:
                await call.send(EchoRequest(payload=bytes(2 * MIB)))
        servicer.contexts.clear()
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 300 * KIB
    finally:
        tracemalloc.stop()


async def test_requests_that_nobody_reads_are_freed_with_their_call(autojump_clock: Clock) -> None:
    async def refuse(requests: Requests, context: Context) -> EchoReply:
        raise RpcError(StatusCode.ABORTED)

    servicer = Echo(client_stream=refuse)
    async with open_channel_pair(servicer) as (channel, _):
        stub = EchoStub(channel)

        async def call() -> None:
            with pytest.raises(RpcError):
                await stub.ClientStream(EchoRequest(payload=bytes(30_000)) for _ in range(5))

        await call()
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(30):
                await call()
            servicer.contexts.clear()
            await trio.testing.wait_all_tasks_blocked()
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < 300 * KIB
        finally:
            tracemalloc.stop()
