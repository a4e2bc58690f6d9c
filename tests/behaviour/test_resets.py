"""RST_STREAM both ways: it ends one call with a clear status, and leaves no trace of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest

from tests.behaviour.scripted import (
    BIDI,
    CLIENT_STREAM,
    SERVER_STREAM,
    Background,
    ScriptedServer,
    expect_call,
    expect_reply,
    expect_status,
    send_call,
    send_reply,
    start_server,
)
from trio_grpc import RpcError, StatusCode
from trio_grpc.testing import DataFrame, ErrorCode, HeadersFrame, RstStreamFrame

pytestmark = pytest.mark.usefixtures("quiet_log")

# ---------------------------------------------------------------------------------------------------------------------
# The client is reset

CODES = {
    ErrorCode.NO_ERROR: StatusCode.INTERNAL,
    ErrorCode.PROTOCOL_ERROR: StatusCode.INTERNAL,
    ErrorCode.INTERNAL_ERROR: StatusCode.INTERNAL,
    ErrorCode.FLOW_CONTROL_ERROR: StatusCode.INTERNAL,
    ErrorCode.SETTINGS_TIMEOUT: StatusCode.INTERNAL,
    ErrorCode.STREAM_CLOSED: StatusCode.INTERNAL,
    ErrorCode.FRAME_SIZE_ERROR: StatusCode.INTERNAL,
    ErrorCode.CANCEL: StatusCode.CANCELLED,
    ErrorCode.COMPRESSION_ERROR: StatusCode.INTERNAL,
    ErrorCode.CONNECT_ERROR: StatusCode.INTERNAL,
    ErrorCode.ENHANCE_YOUR_CALM: StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: StatusCode.PERMISSION_DENIED,
    0xDEADBEEF: StatusCode.UNKNOWN,
}


@pytest.mark.parametrize("answered", [False, True], ids=["before headers", "after headers"])
@pytest.mark.parametrize("error_code", CODES, ids=lambda code: getattr(code, "name", hex(code)))
async def test_the_error_code_becomes_a_status(
    error_code: int, answered: bool, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        other = Background(nursery, scripted.stub.Unary, EchoRequest())
        await expect_call(peer, 3)
        if answered:
            await peer.send_response(1, [("x-initial", "1")])
        await peer.send_rst_stream(1, error_code)
        error = await call.error()
        assert error.code is CODES[error_code]
        name = error_code.name if isinstance(error_code, ErrorCode) else "0xdeadbeef"
        assert error.message == f"stream reset by peer with {name}"
        assert error.initial_metadata.get("x-initial") == ("1" if answered else None)
        # Nothing is said about a stream that the peer has reset, and the other call goes on.
        await peer.expect_silence()
        await send_reply(peer, 3, EchoReply(text="fine"))
        assert (await other.result()).text == "fine"
        scripted.assert_nothing_left()


async def test_a_refused_call_is_tried_again_once(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """RFC 9113, 8.7 and gRFC A6: the server has not looked at it."""
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest(text="again"))
        peer = await scripted.accept()
        await expect_call(peer, 1)
        await peer.send_rst_stream(1, ErrorCode.REFUSED_STREAM)
        assert (await expect_call(peer, 3)).text == "again"
        await send_reply(peer, 3, EchoReply(text="yes"))
        assert (await call.result()).text == "yes"
        scripted.assert_nothing_left()


async def test_a_call_refused_twice_is_unavailable(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        for stream_id in (1, 3):
            await expect_call(peer, stream_id)
            await peer.send_rst_stream(stream_id, ErrorCode.REFUSED_STREAM)
        error = await call.error()
        assert error.code is StatusCode.UNAVAILABLE
        assert error.message == "stream reset by peer with REFUSED_STREAM"
        scripted.assert_nothing_left()


async def test_a_reset_ends_a_stream_of_replies(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """What came before it is still received."""
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.ServerStream(EchoRequest()) as call:
            peer = await accepted.result()
            await expect_call(peer, 1, SERVER_STREAM)
            async with peer.one_segment():
                await peer.send_response(1)
                await peer.send_message(1, EchoReply(count=1).SerializeToString())
                await peer.send_message(1, EchoReply(count=2).SerializeToString())
                await peer.send_rst_stream(1, ErrorCode.INTERNAL_ERROR)
            assert (await call.receive()).count == 1
            assert (await call.receive()).count == 2
            with pytest.raises(RpcError, match="INTERNAL: stream reset by peer with INTERNAL_ERROR"):
                await call.receive()
        scripted.assert_nothing_left()


async def test_a_reset_frees_a_sender_that_waits_for_credit(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as call:

            async def send() -> None:
                for _ in range(100):
                    await call.send(EchoRequest(payload=bytes(10_000)))

            sending = Background(nursery, send)
            peer = await accepted.result()
            await trio.sleep(1)
            assert sending.running
            await peer.send_rst_stream(1, ErrorCode.CANCEL)
            with pytest.raises(trio.BrokenResourceError):
                await sending.result()
            with pytest.raises(trio.BrokenResourceError):
                await call.send(EchoRequest())
            with pytest.raises(RpcError, match="CANCELLED: stream reset by peer with CANCEL"):
                await call.receive()
        scripted.assert_nothing_left()


async def test_a_deadline_beats_the_servers_reset(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """PROTOCOL-HTTP2, "Client Cancellation": the server's timer may be a little faster or slower than ours."""
    async with ScriptedServer() as scripted:
        early = Background(nursery, scripted.stub.Unary, EchoRequest(), timeout=10)
        peer = await scripted.accept()
        await expect_call(peer, 1)
        late = Background(nursery, scripted.stub.Unary, EchoRequest(), timeout=10)
        await expect_call(peer, 3)
        await trio.sleep_until(9.999)
        await peer.send_rst_stream(1, ErrorCode.CANCEL)
        assert (await early.error()).code is StatusCode.CANCELLED
        await trio.sleep_until(10.001)
        await peer.send_rst_stream(3, ErrorCode.CANCEL)
        assert (await late.error()).code is StatusCode.DEADLINE_EXCEEDED
        await peer.expect(RstStreamFrame, stream_id=3, error_code=ErrorCode.CANCEL)
        await peer.expect_silence()
        scripted.assert_nothing_left()


# ---------------------------------------------------------------------------------------------------------------------
# A response before the end of the request (RFC 9113, 8.1; PROTOCOL-HTTP2, "Early Server Closure")


def endless_requests(sent: list[int]) -> Iterator[EchoRequest]:
    for count in range(1000):
        sent.append(count)
        yield EchoRequest(payload=bytes(10_000), count=count)


@pytest.mark.parametrize("reset", [ErrorCode.NO_ERROR, ErrorCode.CANCEL, None], ids=["NO_ERROR", "CANCEL", "no reset"])
@pytest.mark.parametrize("segments", [1, 2])
async def test_a_response_wins_over_the_reset_behind_it(
    segments: int, reset: ErrorCode | None, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    sent: list[int] = []
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.ClientStream, endless_requests(sent))
        peer = await scripted.accept()
        await peer.expect(HeadersFrame, stream_id=1)
        await trio.sleep(1)
        async with peer.one_segment():
            await peer.send_response(1)
            await peer.send_message(1, EchoReply(text="enough").SerializeToString())
            await peer.send_trailers(1)
            if reset is not None and segments == 1:
                await peer.send_rst_stream(1, reset)
        if reset is not None and segments == 2:
            await peer.send_rst_stream(1, reset)
        assert (await call.result()).text == "enough"
        # The window of 64 KiB and the write quota of 64 KiB hold 13 such messages.
        assert len(sent) < 20
        received: list[Any] = []
        with trio.move_on_after(1):
            while True:
                received.append(await peer.receive_frame())
        resets = [frame for frame in received if isinstance(frame, RstStreamFrame)]
        assert resets == ([] if reset is not None and segments == 1 else [RstStreamFrame(1, ErrorCode.NO_ERROR)])
        assert sum(len(frame.data) for frame in received if isinstance(frame, DataFrame)) <= 65_535
        scripted.assert_nothing_left()


async def test_trailers_only_in_the_middle_of_an_upload(nursery: trio.Nursery, autojump_clock: Any) -> None:
    sent: list[int] = []
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.ClientStream, endless_requests(sent))
        peer = await scripted.accept()
        await peer.expect(HeadersFrame, stream_id=1)
        await trio.sleep(1)
        async with peer.one_segment():
            await peer.send_trailers_only(1, StatusCode.PERMISSION_DENIED, "not you")
            await peer.send_rst_stream(1, ErrorCode.NO_ERROR)
        error = await call.error()
        assert (error.code, error.message) == (StatusCode.PERMISSION_DENIED, "not you")
        await trio.sleep(1)
        scripted.assert_nothing_left()


async def test_no_error_without_a_response_is_an_error(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.ClientStream, endless_requests([]))
        peer = await scripted.accept()
        await peer.expect(HeadersFrame, stream_id=1)
        async with peer.one_segment():
            await peer.send_response(1)
            await peer.send_message(1, EchoReply(text="but no trailers").SerializeToString())
            await peer.send_rst_stream(1, ErrorCode.NO_ERROR)
        error = await call.error()
        assert (error.code, error.message) == (StatusCode.INTERNAL, "stream reset by peer with NO_ERROR")
        await trio.sleep(1)
        scripted.assert_nothing_left()


async def test_a_server_that_has_heard_enough(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Trailers, then RST_STREAM(NO_ERROR); what the client had under way is credited and dropped."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM)
        await peer.send_message(1, EchoRequest(text="enough").SerializeToString())
        await expect_reply(peer, 1, EchoReply(text="enough"))
        await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.NO_ERROR)
        for _ in range(3):
            await peer.send_message(1, EchoRequest(payload=bytes(10_000)).SerializeToString())
        await peer.send_data(1, end_stream=True)
        await peer.send_rst_stream(1, ErrorCode.CANCEL)
        await endpoint.assert_serves(peer, 3)
        await endpoint.assert_nothing_left(connections=1)


async def test_a_server_whose_client_has_ended_resets_nothing(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await send_call(peer, 1, EchoRequest(text="enough"), CLIENT_STREAM)
        await expect_reply(peer, 1, EchoReply(text="enough"))
        await peer.expect_silence()


# ---------------------------------------------------------------------------------------------------------------------
# The client resets


async def test_leaving_a_call_cancels_it(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.ServerStream(EchoRequest()) as call:
            peer = await accepted.result()
            await expect_call(peer, 1, SERVER_STREAM)
            await peer.send_response(1)
            await peer.send_message(1, EchoReply(count=1).SerializeToString())
            assert (await call.receive()).count == 1
        await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.CANCEL)
        # What crossed the reset on its way is nobody's business any more.
        async with peer.one_segment():
            await peer.send_message(1, EchoReply(count=2).SerializeToString())
            await peer.send_window_update(1, 1000)
            await peer.send_trailers(1)
            await peer.send_rst_stream(1, ErrorCode.CANCEL)
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        await expect_call(peer, 3)
        await send_reply(peer, 3, EchoReply(text="fine"))
        assert (await call.result()).text == "fine"
        scripted.assert_nothing_left()


async def test_a_cancelled_caller_resets(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        call.scope.cancel()
        await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.CANCEL)
        scripted.assert_nothing_left()


async def test_a_call_cancelled_before_it_was_written_leaves_no_trace(
    nursery: trio.Nursery, autojump_clock: Any
) -> None:
    """A reset of an idle stream would make the peer close the connection."""
    async with ScriptedServer() as scripted:
        first = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        await send_reply(peer, 1, EchoReply())
        await first.result()
        for _ in range(3):
            async with scripted.stub.Bidi():
                pass
        with trio.CancelScope() as scope:
            scope.cancel()
            await scripted.stub.Unary(EchoRequest())
        await peer.expect_silence()
        Background(nursery, scripted.stub.Unary, EchoRequest(text="next"))
        assert (await expect_call(peer, 3)).text == "next"
        assert scripted.channel.statistics().streams == 1


# ---------------------------------------------------------------------------------------------------------------------
# The server is reset


@pytest.mark.parametrize("path", [CLIENT_STREAM, BIDI, SERVER_STREAM], ids=["reading", "bidi", "sending"])
async def test_a_reset_cancels_the_handler(path: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    servicer = endpoint.servicer
    async with await endpoint.client() as peer:
        await peer.send_request(1, path)
        if path == SERVER_STREAM:
            # More than the window and the write quota: the handler waits in its yield.
            request = EchoRequest(count=100, payload=bytes(10_000))
            await peer.send_message(1, request.SerializeToString(), end_stream=True)
        await trio.sleep(1)
        assert (servicer.started, servicer.ended) == (1, 0)
        await peer.send_rst_stream(1, ErrorCode.CANCEL)
        await trio.sleep(0.05)
        assert (servicer.cancelled, servicer.ended) == (1, 1)
        await endpoint.assert_nothing_left(connections=1)
        received = []
        with trio.move_on_after(1):
            while True:
                received.append(await peer.receive_frame())
        # What was on its way before; nothing says that the stream has ended.
        assert not [frame for frame in received if isinstance(frame, RstStreamFrame)]
        assert not [frame for frame in received if isinstance(frame, HeadersFrame) and frame.end_stream]


async def test_a_reset_in_the_segment_of_its_request(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        for stream_id in range(1, 400, 2):
            async with peer.one_segment():
                await peer.send_request(stream_id, CLIENT_STREAM)
                await peer.send_message(stream_id, b"")
                await peer.send_rst_stream(stream_id, ErrorCode.CANCEL)
        await peer.expect_silence()
        await endpoint.assert_serves(peer, 401)
        await endpoint.assert_nothing_left(connections=1)


async def test_a_stream_can_be_reset_twice(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM)
        for _ in range(3):
            await peer.send_rst_stream(1, ErrorCode.CANCEL)
        await endpoint.assert_serves(peer, 3)
        await endpoint.assert_nothing_left(connections=1)


# ---------------------------------------------------------------------------------------------------------------------
# Resets that cross


async def test_resets_that_cross_do_not_wear_the_throttle_out(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """A reset of ours that the peer's overtakes is never written; it must not count as unwritten for ever."""
    async with ScriptedServer() as scripted:
        first = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        await send_reply(peer, 1, EchoReply())
        await first.result()
        for stream_id in range(3, 503, 2):
            call = Background(nursery, scripted.stub.Unary, EchoRequest())
            await expect_call(peer, stream_id)
            async with peer.one_segment():
                await peer.send_response(stream_id)
                await peer.send_data(stream_id, b"\x07\0\0\0\0")
                await peer.send_rst_stream(stream_id, ErrorCode.INTERNAL_ERROR)
            assert "compressed flag 7" in (await call.error()).message
        await peer.expect_silence()
        scripted.assert_nothing_left()


async def test_an_early_status_and_a_reset_that_cross(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        for stream_id in range(1, 301, 2):
            await peer.send_request(stream_id, CLIENT_STREAM)
            async with peer.one_segment():
                await peer.send_data(stream_id, b"\x07\0\0\0\0")
                await peer.send_rst_stream(stream_id, ErrorCode.CANCEL)
        await peer.send_request(301, CLIENT_STREAM)
        await peer.send_data(301, b"\x07\0\0\0\0")
        await expect_status(peer, 301, StatusCode.INTERNAL)
        await endpoint.assert_nothing_left(connections=1)
