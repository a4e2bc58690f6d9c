"""A peer that is far away: one stream is as fast as its window allows (RFC 9113, 6.9; window / round-trip time)."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.support.echo import Context, Echo, Requests
from trio_grpc import Limits

Clock = trio.testing.MockClock

MIB = 2**20
ROUND_TRIP = 0.05
#: Bytes of one message, and how many of them.
MESSAGE = 65_536
COUNT = 512


class Wire:
    """One direction of a connection: bytes arrive half a round trip later, however many there are."""

    def __init__(self) -> None:
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._changed = trio.lowlevel.ParkingLot()
        self._closed = False

    def put(self, data: bytes) -> None:
        self._under_way.append((trio.current_time() + ROUND_TRIP / 2, data))
        self._changed.unpark_all()

    def close(self) -> None:
        self._closed = True
        self._changed.unpark_all()

    async def get(self, most: int) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._under_way:
            if self._closed:
                return b""
            await self._changed.park()
        arrival, data = self._under_way[0]
        await trio.sleep_until(arrival)
        self._under_way.popleft()
        if len(data) > most:
            self._under_way.appendleft((arrival, data[most:]))
        return data[:most]


class FarStream(trio.abc.Stream):
    """One end of a connection over two wires."""

    def __init__(self, incoming: Wire, outgoing: Wire) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self._outgoing.put(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._incoming.get(max_bytes or MIB)

    async def aclose(self) -> None:
        self._outgoing.close()
        self._incoming.close()
        await trio.lowlevel.checkpoint()


class FarListener(trio.abc.Listener[trio.abc.Stream]):
    """A listener that is half a round trip away."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[trio.abc.Stream](10)

    async def connect(self) -> trio.abc.Stream:
        there, back = Wire(), Wire()
        await self._send.send(FarStream(there, back))
        return FarStream(back, there)

    async def accept(self) -> trio.abc.Stream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def download(request: EchoRequest, context: Context) -> AsyncIterator[EchoReply]:
    for number in range(COUNT):
        yield EchoReply(payload=bytes(MESSAGE), count=number)


async def upload(requests: Requests, context: Context) -> EchoReply:
    return EchoReply(count=len([request async for request in requests]))


async def seconds_of(direction: str, nursery: trio.Nursery, limits: Limits) -> float:
    """Carry 32 MiB over one stream; return how long that took."""
    listener = FarListener()
    servicer = Echo(server_stream=download, client_stream=upload)

    async def serve(*, task_status: trio.TaskStatus[trio_grpc.Server]) -> None:
        await trio_grpc.serve([servicer], listener, limits=limits, task_status=task_status)

    await nursery.start(serve)
    async with trio_grpc.open_channel(listener.connect, limits=limits) as channel:
        stub = EchoStub(channel)
        await stub.Unary(EchoRequest())
        began = trio.current_time()
        if direction == "download":
            async with stub.ServerStream(EchoRequest()) as replies:
                assert [reply.count async for reply in replies] == list(range(COUNT))
        else:
            assert (await stub.ClientStream([EchoRequest(payload=bytes(MESSAGE))] * COUNT)).count == COUNT
        took = trio.current_time() - began
    nursery.cancel_scope.cancel()
    return took


@pytest.mark.parametrize("direction", ["download", "upload"])
@pytest.mark.parametrize("window", [MIB, 4 * MIB])
async def test_a_stream_is_as_fast_as_its_window(
    direction: str, window: int, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    """The window of the connection is raised with that of the stream, or 64 KiB of it would be all that counts."""
    limits = Limits(initial_window_size=window, initial_connection_window_size=window, adaptive_window=False)
    took = await seconds_of(direction, nursery, limits)
    best = COUNT * MESSAGE / window * ROUND_TRIP
    # Credit comes back in portions of up to a quarter window, and the request and the status have a way to go too.
    assert best * 0.9 <= took <= best * 1.4 + 2 * ROUND_TRIP


@pytest.mark.parametrize("direction", ["download", "upload"])
async def test_a_window_grows_with_the_distance(direction: str, nursery: trio.Nursery, autojump_clock: Clock) -> None:
    """Out of the box: 64 KiB per round trip would need 25 seconds."""
    assert await seconds_of(direction, nursery, Limits()) < 3
