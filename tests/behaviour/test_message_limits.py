"""Messages over the limits of either side: their call ends with RESOURCE_EXHAUSTED, the text names the option."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

from tests.behaviour.scripted import (
    BIDI,
    UNARY,
    Background,
    ScriptedServer,
    expect_call,
    expect_reply,
    expect_status,
    send_reply,
    start_server,
)
from tests.support.echo import Context, Echo, Requests
from trio_grpc import Compression, Limits, RpcError, StatusCode
from trio_grpc.testing import ErrorCode, RstStreamFrame, ScriptedPeer, open_channel_pair

pytestmark = pytest.mark.usefixtures("quiet_log")

Clock = trio.testing.MockClock
LIMIT = 1000
MIB = 2**20


def message_of(size: int) -> EchoRequest:
    """A message that serializes to this many bytes and does not compress to nothing."""
    message = EchoRequest(payload=bytes(size - 3))
    assert len(message.SerializeToString()) == size
    return message


@pytest.mark.parametrize("compression", [None, Compression.GZIP, Compression.DEFLATE])
@pytest.mark.parametrize("where", ["server", "client"])
async def test_exactly_the_limit_passes_and_one_byte_more_does_not(
    where: str, compression: Compression | None, autojump_clock: Clock
) -> None:
    """The limit is on the message as the application sees it."""

    async def handler(request: EchoRequest, context: Context) -> EchoReply:
        if where == "server":
            return EchoReply()
        if compression is not None:
            context.set_compression(compression)
        return EchoReply(payload=bytes(request.count - 3))

    limits = Limits(adaptive_window=False, max_receive_message_length=LIMIT)
    async with open_channel_pair(Echo(unary=handler), limits=limits) as (channel, server):
        stub = EchoStub(channel)
        async with stub.Bidi() as neighbour:
            for size in (LIMIT, LIMIT + 1):
                request = message_of(size) if where == "server" else EchoRequest(count=size)
                if size == LIMIT:
                    await stub.Unary(request, compression=compression)
                    continue
                with pytest.raises(RpcError) as caught:
                    await stub.Unary(request, compression=compression)
                assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
                assert f"over the limit of {LIMIT} bytes" in caught.value.message
                assert "option max_receive_message_length" in caught.value.message
            await neighbour.send(EchoRequest(text="neighbour"))
            assert (await neighbour.receive()).text == "neighbour"
        await trio.testing.wait_all_tasks_blocked()
        assert (channel.statistics().streams, server.statistics().streams) == (0, 0)


async def test_what_is_sent_has_a_limit_too(autojump_clock: Clock) -> None:
    caught_by_the_handler: list[RpcError] = []

    async def handler(request: EchoRequest, context: Context) -> AsyncIterator[EchoReply]:
        try:
            yield EchoReply(payload=bytes(LIMIT - 3))
            yield EchoReply(payload=bytes(LIMIT - 2))
        except RpcError as error:
            caught_by_the_handler.append(error)
            raise

    async def count(requests: Requests, context: Context) -> EchoReply:
        return EchoReply(count=len([request async for request in requests]))

    limits = Limits(adaptive_window=False, max_send_message_length=LIMIT)
    servicer = Echo(server_stream=handler, client_stream=count)
    async with open_channel_pair(servicer, limits=limits) as (channel, _):
        stub = EchoStub(channel)
        text = f"message of {LIMIT + 1} bytes is over the limit of {LIMIT} bytes (option max_send_message_length)"
        await stub.Unary(EchoRequest(payload=bytes(LIMIT - 3)))
        with pytest.raises(RpcError) as caught:
            await stub.Unary(message_of(LIMIT + 1))
        assert (caught.value.code, caught.value.message) == (StatusCode.RESOURCE_EXHAUSTED, text)
        async with stub.ClientStream.open() as call:
            await call.send(message_of(LIMIT))
            # Told to the sender; the call goes on.
            with pytest.raises(RpcError, match="max_send_message_length"):
                await call.send(message_of(LIMIT + 1))
            await call.done_sending()
            assert (await call.receive()).count == 1
        async with stub.ServerStream(EchoRequest()) as replies:
            assert len((await replies.receive()).payload) == LIMIT - 3
            with pytest.raises(RpcError) as caught:
                await replies.receive()
            assert (caught.value.code, caught.value.message) == (StatusCode.RESOURCE_EXHAUSTED, text)
        assert [error.code for error in caught_by_the_handler] == [StatusCode.RESOURCE_EXHAUSTED]


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """A gibibyte of zeros as gzip: about a mebibyte, made of the same block a thousand times."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    # The checksum would be the last thing that is looked at.
    return gzip.compress(b"")[:10] + block * 1024 + packer.flush() + bytes(8)


@pytest.mark.parametrize("times", [10, 1024], ids=["10 KiB", "1 MiB"])
async def test_a_server_does_not_inflate_a_bomb(
    times: int, bomb: bytes, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    data = bomb[: len(bomb) * times // 1024]
    endpoint = await start_server(nursery, limits=Limits(adaptive_window=False, initial_window_size=2 * MIB))
    async with await endpoint.client() as peer:
        await peer.send_request(1, BIDI)
        await peer.send_request(3, UNARY, [("grpc-encoding", "gzip")])
        tracemalloc.start()
        await send_in_frames(peer, 3, data)
        message = await expect_status(peer, 3, StatusCode.RESOURCE_EXHAUSTED)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert "over the limit of 4194304 bytes after decompression (option max_receive_message_length)" in message
        # The bytes that came, and at most the limit.
        assert peak < 5 * len(data) + 3 * 4 * MIB
        await peer.send_message(1, EchoRequest(text="neighbour").SerializeToString(), end_stream=True)
        await expect_reply(peer, 1, EchoReply(text="neighbour"))
        await endpoint.assert_nothing_left(connections=1)


async def test_a_client_does_not_inflate_a_bomb(bomb: bytes, nursery: trio.Nursery, autojump_clock: Clock) -> None:
    limits = Limits(adaptive_window=False, initial_window_size=2 * MIB)
    async with ScriptedServer(limits=limits) as scripted:
        neighbour = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        await expect_call(peer, 3)
        tracemalloc.start()
        await peer.send_response(3, [("grpc-encoding", "gzip")])
        await send_in_frames(peer, 3, bomb, end_stream=False)
        await peer.send_trailers(3)
        error = await call.error()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert error.code is StatusCode.RESOURCE_EXHAUSTED
        assert "after decompression (option max_receive_message_length)" in error.message
        assert peak < 5 * len(bomb) + 3 * 4 * MIB
        await send_reply(peer, 1, EchoReply(text="neighbour"))
        assert (await neighbour.result()).text == "neighbour"
        scripted.assert_nothing_left()


async def send_in_frames(peer: ScriptedPeer, stream_id: int, data: bytes, *, end_stream: bool = True) -> None:
    message = b"\1" + len(data).to_bytes(4, "big") + data
    for start in range(0, len(message), 16_384):
        last = start + 16_384 >= len(message)
        await peer.send_data(stream_id, message[start : start + 16_384], end_stream=end_stream and last)
        # Its window is large enough; let the connection's come back.
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("flag", [0, 1])
async def test_a_prefix_that_promises_4_gib_ends_its_call_at_once(
    flag: int, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    """Then silence: nothing of the message ever comes."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY, [("grpc-encoding", "gzip")])
        began = trio.current_time()
        tracemalloc.start()
        await peer.send_data(1, bytes((flag,)) + b"\xff\xff\xff\xff")
        message = await expect_status(peer, 1, StatusCode.RESOURCE_EXHAUSTED)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert trio.current_time() == began
        assert peak < 100_000
        assert message.startswith("received message of 4294967295 bytes is over the limit of 4194304 bytes")
        assert "option max_receive_message_length" in message
        await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.NO_ERROR)
        await endpoint.assert_serves(peer, 3)
        await endpoint.assert_nothing_left(connections=1)
