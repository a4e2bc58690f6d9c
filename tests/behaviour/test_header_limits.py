"""Header lists that the peer does not accept: only their call fails, at once, and says why (RFC 9113, 6.5.2)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

from tests.behaviour.scripted import (
    BIDI,
    CLIENT_STREAM,
    UNARY,
    Background,
    ScriptedServer,
    expect_call,
    expect_reply,
    send_reply,
    start_server,
)
from tests.support.echo import Context, Echo, Requests
from trio_grpc import Limits, RpcError, StatusCode
from trio_grpc.testing import (
    ErrorCode,
    HeadersFrame,
    RstStreamFrame,
    ScriptedPeer,
    open_channel_pair,
)

pytestmark = pytest.mark.usefixtures("quiet_log")

Clock = trio.testing.MockClock
MAX_HEADER_LIST_SIZE = 6
WIDE = Limits(adaptive_window=False, max_header_list_size=2**20)


def list_size(frame: HeadersFrame) -> int:
    return sum(len(name) + len(value) + 32 for name, value in frame.fields)


# ---------------------------------------------------------------------------------------------------------------------
# Requests: the client knows the server's limit


def metadata_of(size: int) -> list[tuple[str, str]]:
    return [("x-large", "v" * size)]


async def test_a_request_over_the_servers_limit_is_not_sent(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with ScriptedServer() as scripted:
        first = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept({MAX_HEADER_LIST_SIZE: 8192})
        await expect_call(peer, 1)
        await send_reply(peer, 1, EchoReply())
        await first.result()
        with pytest.raises(RpcError) as caught:
            await scripted.stub.Unary(EchoRequest(), metadata=metadata_of(9000))
        assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.message.startswith("request metadata of 9")
        assert "bytes is over the limit of 8192 bytes that the server accepts" in caught.value.message
        assert "max_header_list_size" in caught.value.message
        # No stream id was used, and no slot is lost.
        await trio.sleep(1)
        scripted.assert_nothing_left()
        second = Background(nursery, scripted.stub.Unary, EchoRequest(text="second"))
        assert (await expect_call(peer, 3)).text == "second"
        await send_reply(peer, 3, EchoReply())
        await second.result()


async def test_the_limit_is_exact(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with ScriptedServer() as scripted:
        first = Background(nursery, scripted.stub.Unary, EchoRequest(), metadata=metadata_of(1000))
        peer = await scripted.accept()
        size = list_size(await peer.expect(HeadersFrame, stream_id=1))
        await peer.receive_message(1)
        for stream_id, timeout in ((3, None), (5, 1000)):
            fits = size if timeout is None else size + 32 + len("grpc-timeout1000000m")
            await peer.send_settings({MAX_HEADER_LIST_SIZE: fits})
            await trio.sleep(1)
            with pytest.raises(RpcError, match=f"metadata of {fits + 1} bytes is over the limit of {fits} bytes"):
                await scripted.stub.Unary(EchoRequest(), metadata=metadata_of(1001), timeout=timeout)
            call = Background(nursery, scripted.stub.Unary, EchoRequest(), metadata=metadata_of(1000), timeout=timeout)
            assert list_size(await peer.expect(HeadersFrame, stream_id=stream_id)) == fits
            await peer.receive_message(stream_id)
            await send_reply(peer, stream_id, EchoReply())
            await call.result()
        await send_reply(peer, 1, EchoReply())
        await first.result()


@pytest.mark.parametrize("timeout", [None, 1000])
async def test_metadata_of_the_channel_counts_too(
    timeout: float | None, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with ScriptedServer(metadata=metadata_of(5000)) as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest(), timeout=timeout)
        peer = await scripted.accept({MAX_HEADER_LIST_SIZE: 5000})
        error = await call.error()
        assert error.code is StatusCode.RESOURCE_EXHAUSTED
        assert "is over the limit of 5000 bytes" in error.message
        await peer.send_settings({MAX_HEADER_LIST_SIZE: 6000})
        await trio.sleep(1)
        call = Background(nursery, scripted.stub.Unary, EchoRequest(), timeout=timeout)
        await expect_call(peer, 1)
        await send_reply(peer, 1, EchoReply())
        await call.result()


async def test_a_server_that_says_nothing_accepts_all(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest(), metadata=metadata_of(200_000))
        peer = await scripted.accept()
        headers = await peer.expect(HeadersFrame, stream_id=1)
        assert len(headers["x-large"]) == 200_000
        await peer.receive_message(1)
        await send_reply(peer, 1, EchoReply())
        await call.result()


async def test_every_kind_of_call_is_told_where_it_receives(autojump_clock: Clock) -> None:
    """Entering succeeds, as ever; sending says that the call is over; receiving says why."""
    async with open_channel_pair(Echo()) as (channel, server):
        stub = EchoStub(channel)
        metadata = metadata_of(20_000)
        async with stub.Unary.open(EchoRequest(), metadata=metadata) as unary:
            with pytest.raises(RpcError, match="over the limit of 16384 bytes that the server accepts"):
                await unary.wait_initial_metadata()
            with pytest.raises(RpcError, match="over the limit of 16384 bytes that the server accepts"):
                await unary.receive()
            assert unary.status is StatusCode.RESOURCE_EXHAUSTED
        async with stub.ServerStream(EchoRequest(count=3), metadata=metadata) as replies:
            with pytest.raises(RpcError, match="over the limit"):
                await replies.receive()
        async with stub.ClientStream.open(metadata=metadata) as upload:
            with pytest.raises(trio.BrokenResourceError):
                await upload.send(EchoRequest())
            with pytest.raises(RpcError, match="over the limit"):
                await upload.receive()
        with pytest.raises(RpcError, match="over the limit"):
            await stub.ClientStream([EchoRequest()], metadata=metadata)
        async with stub.Bidi(metadata=metadata, timeout=10) as chat:
            with pytest.raises(RpcError, match="over the limit"):
                await chat.receive()
        with trio.testing.assert_checkpoints(), pytest.raises(RpcError, match="over the limit"):
            await stub.Unary(EchoRequest(), metadata=metadata)
        await trio.testing.wait_all_tasks_blocked()
        assert (channel.statistics().streams, server.statistics().streams) == (0, 0)
        # Nothing was sent.
        assert server.statistics().connections == 1
        await stub.Unary(EchoRequest())


async def test_who_waits_for_a_slot_is_judged_too(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with ScriptedServer() as scripted:
        first = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept({3: 1, MAX_HEADER_LIST_SIZE: 1000})
        await expect_call(peer, 1)
        large = [Background(nursery, scripted.stub.Unary, EchoRequest(), metadata=metadata_of(900)) for _ in range(3)]
        await trio.sleep(1)
        last = Background(nursery, scripted.stub.Unary, EchoRequest(text="last"))
        await trio.sleep(1)
        assert scripted.channel.statistics().waiting == 4
        await send_reply(peer, 1, EchoReply())
        await first.result()
        for call in large:
            assert (await call.error()).code is StatusCode.RESOURCE_EXHAUSTED
        assert (await expect_call(peer, 3)).text == "last"
        await send_reply(peer, 3, EchoReply())
        await last.result()
        scripted.assert_nothing_left()


@pytest.mark.parametrize("size", [9_000, 20_000, 70_000])
async def test_a_client_that_sends_it_all_the_same(size: int, nursery: trio.Nursery, autojump_clock: Clock) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, BIDI)
        await peer.send_request(3, UNARY, metadata_of(size))
        if size < 16_000:
            await peer.send_message(3, b"", end_stream=True)
            await expect_reply(peer, 3, EchoReply())
        else:
            headers = await peer.expect(HeadersFrame, stream_id=3, end_stream=True)
            assert headers["grpc-status"] == str(StatusCode.RESOURCE_EXHAUSTED.value)
            assert "over the limit of 16384 bytes (option max_header_list_size)" in headers["grpc-message"]
            await peer.expect(RstStreamFrame, stream_id=3, error_code=ErrorCode.NO_ERROR)
        await peer.send_message(1, EchoRequest(text="neighbour").SerializeToString(), end_stream=True)
        await expect_reply(peer, 1, EchoReply(text="neighbour"))
        await endpoint.assert_nothing_left(connections=1)


# ---------------------------------------------------------------------------------------------------------------------
# Responses: the server knows the client's limit


class Verbose(Echo):
    """Answers with as much metadata or text as it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.caught: list[RpcError] = []

    async def Unary(self, request: EchoRequest, context: Context) -> EchoReply:
        value = "v" * request.count
        if request.text == "initial":
            await context.send_initial_metadata({"x-large": value})
        elif request.text == "initial, or without":
            try:
                await context.send_initial_metadata({"x-large": value})
            except RpcError as error:
                self.caught.append(error)
        elif request.text == "trailing":
            context.set_trailing_metadata({"x-large": value})
        elif request.text == "message":
            await context.abort(StatusCode.ABORTED, "m" * request.count, trailing_metadata={"x-small": "1"})
        elif request.text == "metadata of an error":
            await context.abort(StatusCode.ABORTED, "short", trailing_metadata={"x-large": value})
        elif request.text == "details":
            await context.abort(
                StatusCode.ABORTED,
                "short",
                details=[EchoReply(payload=bytes(request.count))],
                trailing_metadata={"x-small": "1"},
            )
        elif request.text == "not ASCII":
            await context.abort(StatusCode.ABORTED, "\u00e9\n%" * request.count)
        return EchoReply(text="reply")

    async def ServerStream(self, request: EchoRequest, context: Context) -> AsyncIterator[EchoReply]:
        yield EchoReply(text="first")
        await context.abort(StatusCode.ABORTED, "m" * request.count)

    async def ClientStream(self, requests: Requests, context: Context) -> EchoReply:
        count = 0
        async for _ in requests:
            count += 1
        return EchoReply(count=count)


async def answer_to(
    text: str, size: int, limit: int | None, nursery: trio.Nursery
) -> tuple[Verbose, list[HeadersFrame]]:
    """The header blocks of the answer, for a client with this limit; a neighbour on its connection finishes."""
    servicer = Verbose()
    endpoint = await start_server(nursery, servicer=servicer)  # type: ignore[arg-type]
    blocks: list[HeadersFrame] = []
    async with await endpoint.connect() as peer:
        await peer.handshake(None if limit is None else {MAX_HEADER_LIST_SIZE: limit})
        await peer.send_request(1, CLIENT_STREAM)
        await peer.send_request(3, UNARY)
        await peer.send_message(3, EchoRequest(text=text, count=size).SerializeToString(), end_stream=True)
        blocks.append(await peer.expect(HeadersFrame, stream_id=3))
        if not blocks[0].end_stream:
            await peer.receive_message(3)
            blocks.append(await peer.expect(HeadersFrame, stream_id=3, end_stream=True))
        await peer.send_message(1, b"", end_stream=True)
        await expect_reply(peer, 1, EchoReply(count=1))
    for block in blocks:
        assert limit is None or list_size(block) <= limit
    return servicer, blocks


LIMIT = 8192


@pytest.mark.parametrize("size", [9_000, 20_000, 70_000])
async def test_initial_metadata_over_the_clients_limit(size: int, nursery: trio.Nursery, autojump_clock: Clock) -> None:
    """The handler is told, and if it does not mind that is the status."""
    _, [headers] = await answer_to("initial", size, LIMIT, nursery)
    assert headers["grpc-status"] == str(StatusCode.RESOURCE_EXHAUSTED.value)
    assert headers["grpc-message"].startswith("initial metadata of ")
    assert f"bytes is over the limit of {LIMIT} bytes that the client accepts" in headers["grpc-message"]
    assert headers.get("x-large") is None


async def test_a_handler_may_do_without_its_initial_metadata(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    servicer, [head, trailers] = await answer_to("initial, or without", 9000, LIMIT, nursery)
    assert head.get("x-large") is None
    assert trailers["grpc-status"] == "0"
    [error] = servicer.caught
    assert error.code is StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("size", [9_000, 20_000, 70_000])
async def test_trailing_metadata_over_the_clients_limit(
    size: int, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    _, blocks = await answer_to("trailing", size, LIMIT, nursery)
    trailers = blocks[-1]
    assert trailers["grpc-status"] == str(StatusCode.RESOURCE_EXHAUSTED.value)
    assert trailers["grpc-message"].startswith("trailing metadata of ")
    assert f"over the limit of {LIMIT} bytes that the client accepts" in trailers["grpc-message"]
    assert trailers.get("x-large") is None


async def test_a_status_message_of_100_000_characters(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    _, [headers] = await answer_to("message", 100_000, LIMIT, nursery)
    assert headers["grpc-status"] == str(StatusCode.ABORTED.value)
    # As much as there is room for, and the metadata, which is small.
    assert set(headers["grpc-message"]) == {"m"}
    assert list_size(headers) == LIMIT
    assert headers["x-small"] == "1"


async def test_a_status_message_that_fits_is_whole(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    _, [headers] = await answer_to("message", 7000, LIMIT, nursery)
    assert headers["grpc-message"] == "m" * 7000
    assert headers["x-small"] == "1"


async def test_a_status_message_is_not_cut_inside_a_character(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    _, [headers] = await answer_to("not ASCII", 20_000, LIMIT, nursery)
    whole = "%C3%A9%0A%25"
    message = headers["grpc-message"]
    times, rest = divmod(len(message), len(whole))
    assert message == whole * times + whole[:rest]
    assert rest in (0, len("%C3%A9"), len("%C3%A9%0A"))


async def test_metadata_of_an_error_goes_rather_than_its_message(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    _, [headers] = await answer_to("metadata of an error", 9000, LIMIT, nursery)
    assert (headers["grpc-status"], headers["grpc-message"]) == (str(StatusCode.ABORTED.value), "short")
    assert headers.get("x-large") is None


async def test_details_go_first(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    _, [headers] = await answer_to("details", 9000, LIMIT, nursery)
    assert (headers["grpc-status"], headers["grpc-message"]) == (str(StatusCode.ABORTED.value), "short")
    assert headers["x-small"] == "1"
    assert headers.get("grpc-status-details-bin") is None
    _, [headers] = await answer_to("details", 5000, LIMIT, nursery)
    assert headers.get("grpc-status-details-bin") is not None


@pytest.mark.parametrize("text", ["initial", "trailing", "message", "details"])
async def test_a_client_that_says_nothing_gets_all(text: str, nursery: trio.Nursery, autojump_clock: Clock) -> None:
    _, blocks = await answer_to(text, 100_000, None, nursery)
    assert max(list_size(block) for block in blocks) > 100_000


async def test_a_limit_smaller_than_any_status(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    """What cannot be kept is not kept; the status goes out."""
    servicer = Verbose()
    endpoint = await start_server(nursery, servicer=servicer)  # type: ignore[arg-type]
    async with await endpoint.connect() as peer:
        await peer.handshake({MAX_HEADER_LIST_SIZE: 10})
        await peer.send_request(1, UNARY)
        await peer.send_message(1, EchoRequest(text="message", count=100).SerializeToString(), end_stream=True)
        headers = await peer.expect(HeadersFrame, stream_id=1, end_stream=True)
        assert headers["grpc-status"] == str(StatusCode.ABORTED.value)
        assert not headers.get("grpc-message")


async def test_a_long_message_behind_replies(autojump_clock: Clock) -> None:
    request = EchoRequest(count=100_000)
    async with open_channel_pair(Verbose()) as (channel, _), EchoStub(channel).ServerStream(request) as call:
        assert (await call.receive()).text == "first"
        with pytest.raises(RpcError) as caught:
            await call.receive()
        assert caught.value.code is StatusCode.ABORTED
        assert 16_000 < len(caught.value.message) < 16_384


@pytest.mark.parametrize("size", [9_000, 20_000, 70_000])
@pytest.mark.parametrize("where", ["initial", "trailing"])
async def test_a_server_that_sends_it_all_the_same(
    where: str, size: int, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with ScriptedServer() as scripted:
        neighbour = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        await expect_call(peer, 3)
        await send_large(peer, 3, where, size)
        if size < 16_000:
            assert (await call.result()).text == "reply"
        else:
            error = await call.error()
            assert error.code is StatusCode.RESOURCE_EXHAUSTED
            assert "over the limit of 16384 bytes (option max_header_list_size)" in error.message
        if where == "initial" and size > 16_000:
            await peer.expect(RstStreamFrame, stream_id=3, error_code=ErrorCode.CANCEL)
        await send_reply(peer, 1, EchoReply(text="neighbour"))
        assert (await neighbour.result()).text == "neighbour"
        await trio.sleep(1)
        scripted.assert_nothing_left()


async def send_large(peer: ScriptedPeer, stream_id: int, where: str, size: int) -> None:
    metadata = metadata_of(size)
    await peer.send_response(stream_id, metadata if where == "initial" else ())
    await peer.send_message(stream_id, EchoReply(text="reply").SerializeToString())
    await peer.send_headers(
        stream_id, [("grpc-status", "0"), *(metadata if where == "trailing" else ())], end_stream=True
    )


async def test_lists_of_a_mebibyte_where_both_sides_want_them(autojump_clock: Clock) -> None:
    """The bound on header blocks follows the option; more than 64 frames of 16 KiB come of it."""
    metadata = metadata_of(2**20 - 1000)

    async def mirror(request: EchoRequest, context: Context) -> EchoReply:
        assert ("x-large", "v" * (2**20 - 1000)) in list(context.metadata)
        await context.send_initial_metadata(metadata)
        context.set_trailing_metadata(metadata)
        return EchoReply()

    async with (
        open_channel_pair(Echo(unary=mirror), limits=WIDE) as (channel, _),
        EchoStub(channel).Unary.open(EchoRequest(), metadata=metadata) as call,
    ):
        assert list(await call.wait_initial_metadata()) == metadata
        await call.receive()
        assert list(call.trailing_metadata) == metadata
