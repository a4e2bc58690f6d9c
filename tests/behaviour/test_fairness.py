"""Streams of one connection share it: nobody big makes somebody small wait (writes are round-robin)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

from tests.behaviour.scripted import (
    QUIET,
    SERVER_STREAM,
    Background,
    Echo,
    ScriptedServer,
    send_call,
    start_server,
)
from trio_grpc import StatusCode
from trio_grpc.testing import (
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    ScriptedPeer,
    open_channel_pair,
)

pytestmark = pytest.mark.usefixtures("quiet_log")

INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 4, 5
TURN = 16_384
#: The most that is written at once.
WRITE = 262_144


async def open_wide(peer: ScriptedPeer) -> None:
    """Let the other end send as much as it likes."""
    await peer.send_settings({INITIAL_WINDOW_SIZE: 2**30})
    await peer.send_window_update(0, 2**30)
    await trio.sleep(0.1)


async def read_until(peer: ScriptedPeer, kind: type[Frame], **attributes: Any) -> list[Frame]:
    """The frames up to one of this kind, it included."""
    received: list[Frame] = []
    with trio.fail_after(100):
        while True:
            received.append(await peer.receive_frame())
            last = received[-1]
            if isinstance(last, kind) and all(getattr(last, name) == value for name, value in attributes.items()):
                return received


def data_of(frames: list[Frame], stream_id: int) -> int:
    return sum(len(frame.data) for frame in frames if isinstance(frame, DataFrame) and frame.stream_id == stream_id)


@pytest.mark.parametrize("frame_size", [TURN, 2**20])
async def test_a_small_call_overtakes_a_big_upload(frame_size: int, nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer(capacity=100_000) as scripted:
        big = Background(nursery, scripted.stub.Unary, EchoRequest(payload=bytes(8_000_000)))
        peer = await scripted.accept({INITIAL_WINDOW_SIZE: 2**30, MAX_FRAME_SIZE: frame_size})
        await peer.send_window_update(0, 2**30)
        before = await read_until(peer, DataFrame, stream_id=1)
        small = Background(nursery, scripted.stub.Unary, EchoRequest(text="small"))
        await trio.testing.wait_all_tasks_blocked()
        between = await read_until(peer, DataFrame, stream_id=3)
        # What was in the pipe, the write in hand, and at most one more.
        assert data_of(before + between, 1) < 100_000 + 2 * (WRITE + frame_size)
        assert big.running
        big.scope.cancel()
        small.scope.cancel()
        await peer.aclose()


async def test_uploads_take_turns(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer(capacity=100_000) as scripted:
        calls = []
        peer: ScriptedPeer | None = None
        for number in range(3):
            calls.append(Background(nursery, scripted.stub.Unary, EchoRequest(payload=bytes(2_000_000))))
            peer = peer or await scripted.accept()
            await peer.expect(HeadersFrame, stream_id=2 * number + 1)
            # The windows are small still: nobody gets ahead.
            with trio.move_on_after(0.1):
                while True:
                    await peer.receive_frame()
        assert peer is not None
        await open_wide(peer)
        received: list[Frame] = []
        while sum(data_of(received, stream_id) for stream_id in (1, 3, 5)) < 3_000_000:
            received.append(await peer.receive_frame())
        shares = [data_of(received, stream_id) for stream_id in (1, 3, 5)]
        assert max(shares) - min(shares) <= 2 * TURN + 65_535
        # In company nobody writes more than a turn at a time.
        turns = [frame for frame in received if isinstance(frame, DataFrame)][:100]
        assert max(len(frame.data) for frame in turns) <= TURN
        for call in calls:
            call.scope.cancel()
        await peer.aclose()


async def test_a_ping_is_answered_behind_one_write_at_most(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, capacity=100_000)
    async with await endpoint.client() as peer:
        await open_wide(peer)
        for stream_id in range(1, 41, 2):
            await peer.send_request(stream_id, SERVER_STREAM)
            request = EchoRequest(count=100_000, payload=bytes(30_000))
            await peer.send_message(stream_id, request.SerializeToString(), end_stream=True)
        await read_until(peer, DataFrame, stream_id=39)
        await trio.testing.wait_all_tasks_blocked()
        await peer.send_ping(b"how long")
        await trio.testing.wait_all_tasks_blocked()
        received = await read_until(peer, PingFrame, payload=b"how long", ack=True)
        queued = sum(len(frame.data) for frame in received if isinstance(frame, DataFrame))
        # The pipe, the write in hand, and the one that carries the answer.
        assert queued < 100_000 + 2 * (WRITE + TURN)


async def test_trailers_wait_for_the_data_of_their_stream_only(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        # Stream 1 has no credit for its reply; the others do not wait for it.
        await send_call(peer, 1, EchoRequest(payload=bytes(65_000)))
        await read_until(peer, HeadersFrame, stream_id=1, end_stream=True)
        await peer.send_window_update(0, 10**6)
        await send_call(peer, 3, EchoRequest(payload=bytes(65_000)))
        await read_until(peer, HeadersFrame, stream_id=3, end_stream=True)
        await peer.send_settings({INITIAL_WINDOW_SIZE: 1000})
        await send_call(peer, 5, EchoRequest(payload=bytes(2000)))
        await send_call(peer, 7, EchoRequest(payload=bytes(500)))
        received = await read_until(peer, HeadersFrame, stream_id=7, end_stream=True)
        with trio.move_on_after(1):
            while True:
                received.append(await peer.receive_frame())
        assert data_of(received, 5) == 1000
        assert 5 not in [frame.stream_id for frame in received if isinstance(frame, HeadersFrame) and frame.end_stream]
        await peer.send_window_update(5, 5000)
        received = await read_until(peer, HeadersFrame, stream_id=5, end_stream=True)
        assert data_of(received, 5) > 1000
        await endpoint.assert_nothing_left(connections=1)


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_a_firehose_starves_nobody(sockets: bool, autojump_clock: Any) -> None:
    """Neither its generator, nor its reader, nor its consumer may keep the scheduler to itself."""

    class Firehose(Echo):
        sent = 0

        async def ServerStream(self, request: EchoRequest, context: Any) -> AsyncIterator[EchoReply]:
            while True:
                self.sent += 1
                yield EchoReply(payload=request.payload)

    servicer = Firehose()
    taken = 0
    async with open_channel_pair(servicer, limits=QUIET, sockets=sockets) as (channel, _):
        stub = EchoStub(channel)

        async def consume() -> None:
            nonlocal taken
            async with stub.ServerStream(EchoRequest(payload=bytes(100))) as call:
                async for _ in call:
                    taken += 1

        async with trio.open_nursery() as tasks:
            tasks.start_soon(consume)
            waits = []
            for number in range(20):
                before = taken
                assert (await stub.Unary(EchoRequest(count=number))).count == number
                waits.append(taken - before)
            tasks.cancel_scope.cancel()
    # A call may wait for a few windows full of messages (64 KiB each), not for the end of the stream.
    assert max(waits) < 5000


async def test_many_small_calls_beside_a_big_download(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, capacity=50_000)
    async with await endpoint.client() as peer:
        await open_wide(peer)
        await peer.send_request(1, SERVER_STREAM)
        request = EchoRequest(count=1000, payload=bytes(50_000))
        await peer.send_message(1, request.SerializeToString(), end_stream=True)
        await read_until(peer, DataFrame, stream_id=1)
        for stream_id in range(3, 203, 2):
            await send_call(peer, stream_id, EchoRequest(count=stream_id))
        ended: set[int] = set()
        total = 0
        while len(ended) < 100:
            frame = await peer.receive_frame()
            if isinstance(frame, HeadersFrame) and frame.end_stream:
                ended.add(frame.stream_id)
            elif isinstance(frame, DataFrame):
                total += len(frame.data)
        assert ended == set(range(3, 203, 2))
        assert total < 2_000_000


async def test_a_handlers_messages_share_frames(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """A thousand small replies are not a thousand DATA frames."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, SERVER_STREAM)
        await peer.send_message(1, EchoRequest(count=1000).SerializeToString(), end_stream=True)
        received = await read_until(peer, HeadersFrame, stream_id=1, end_stream=True)
        frames = [frame for frame in received if isinstance(frame, DataFrame)]
        assert len(frames) < 200
        data = b"".join(frame.data for frame in frames)
        counts = []
        while data:
            length = int.from_bytes(data[1:5], "big")
            counts.append(EchoReply.FromString(data[5 : 5 + length]).count)
            data = data[5 + length :]
        assert counts == list(range(1000))


async def test_frames_of_one_stream_keep_their_order(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as call:
            peer = await accepted.result()
            sizes = [0, 100_000, 1, 16_384, 8191, 8192, 50_000, 3]

            async def send() -> None:
                for number, size in enumerate(sizes):
                    await call.send(EchoRequest(count=number, payload=bytes(size)))
                await call.done_sending()

            Background(nursery, send)
            await peer.expect(HeadersFrame, stream_id=1)
            await peer.send_window_update(0, 10**6)
            await peer.send_window_update(1, 10**6)
            for number, size in enumerate(sizes):
                message = EchoRequest.FromString(await peer.receive_message(1))
                assert (message.count, len(message.payload)) == (number, size)
            await peer.send_trailers_only(1, StatusCode.OK)
            with pytest.raises(trio.EndOfChannel):
                await call.receive()
        scripted.assert_nothing_left()
