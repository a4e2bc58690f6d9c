"""Methods with one request or one reply get one: none, or several, is an error of the peer that ends its call only.

grpc's list of status codes says UNIMPLEMENTED, of which its own maintainers are not sure (grpc/grpc-java#11247).
grpc-go, grpc-java and tonic say INTERNAL, and so do we: UNIMPLEMENTED is what clients fall back on when a server does
not have a method.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest

from tests.behaviour.scripted import (
    CLIENT_STREAM,
    SERVER_STREAM,
    UNARY,
    Background,
    Echo,
    ScriptedServer,
    expect_call,
    expect_reply,
    expect_status,
    start_server,
)
from trio_grpc import StatusCode
from trio_grpc.testing import ErrorCode, RstStreamFrame

pytestmark = pytest.mark.usefixtures("quiet_log")

MESSAGE = EchoRequest(text="wait").SerializeToString()
ONE_REQUEST = pytest.mark.parametrize("path", [UNARY, SERVER_STREAM])


class Waiting(Echo):
    """A server stream that waits too, so that more can come while its handler runs."""

    async def ServerStream(self, request: EchoRequest, context: Any) -> Any:
        yield await self.Unary(request, context)


@ONE_REQUEST
@pytest.mark.parametrize("together", [True, False], ids=["one segment", "frame by frame"])
async def test_a_request_without_a_message(
    path: str, together: bool, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        if together:
            await peer.send_request(1, path, end_stream=True)
        else:
            await peer.send_request(1, path)
            await trio.sleep(1)
            await peer.send_data(1, end_stream=True)
        text = await expect_status(peer, 1, StatusCode.INTERNAL)
        assert text == f"{path} was called without a request message"
        assert endpoint.servicer.started == 0
        await endpoint.assert_serves(peer, 3)
        await endpoint.assert_nothing_left(connections=1)


@ONE_REQUEST
async def test_two_requests_at_once_start_no_handler(path: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        async with peer.one_segment():
            await peer.send_request(1, path)
            await peer.send_message(1, MESSAGE)
            await peer.send_message(1, MESSAGE, end_stream=True)
        text = await expect_status(peer, 1, StatusCode.INTERNAL)
        assert text == f"{path} was called with more than one request message"
        assert endpoint.servicer.started == 0
        await endpoint.assert_serves(peer, 3)
        await endpoint.assert_nothing_left(connections=1)


@ONE_REQUEST
@pytest.mark.parametrize("size", [1, 5, None], ids=["a byte of it", "its prefix", "all of it"])
@pytest.mark.parametrize("begun", [True, False], ids=["with the first", "while the handler runs"])
async def test_a_second_request_ends_the_handler(
    begun: bool, size: int | None, path: str, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    """Whenever it comes: an answer to the first would tell the client that all went well."""
    endpoint = await start_server(nursery, servicer=Waiting())
    second = (b"\0" + len(MESSAGE).to_bytes(4, "big") + MESSAGE)[:size]
    async with await endpoint.client() as peer:
        if begun and size is not None:
            async with peer.one_segment():
                await peer.send_request(1, path)
                await peer.send_message(1, MESSAGE)
                await peer.send_data(1, second)
        else:
            await peer.send_request(1, path)
            await peer.send_message(1, MESSAGE)
            await trio.sleep(1)
            assert endpoint.servicer.started == 1
            await peer.send_data(1, second, end_stream=begun)
        text = await expect_status(peer, 1, StatusCode.INTERNAL)
        assert "more than one message" in text
        if size is not None or not begun:
            # It had not ended its request.
            await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.NO_ERROR)
        assert endpoint.servicer.cancelled == endpoint.servicer.started
        await endpoint.assert_serves(peer, 3)
        await endpoint.assert_nothing_left(connections=1)


@ONE_REQUEST
async def test_an_end_that_comes_late_is_none(path: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    """END_STREAM may come in a frame of its own, and empty frames before it."""
    endpoint = await start_server(nursery, servicer=Waiting())
    async with await endpoint.client() as peer:
        await peer.send_request(1, path)
        await peer.send_message(1, MESSAGE)
        for _ in range(3):
            await trio.sleep(1)
            await peer.send_data(1, padding=10)
        await peer.send_data(1, end_stream=True)
        endpoint.servicer.gate.set()
        await expect_reply(peer, 1, EchoReply(text="wait"))
        await endpoint.assert_nothing_left(connections=1)


@ONE_REQUEST
@pytest.mark.parametrize("announced", [len(MESSAGE) + 5, len(MESSAGE) + 6], ids=["reached", "short"])
async def test_a_content_length_counts_behind_the_message_too(
    announced: int, path: str, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    endpoint = await start_server(nursery, servicer=Waiting())
    async with await endpoint.client() as peer:
        await peer.send_request(1, path, [("content-length", str(announced))])
        await peer.send_message(1, MESSAGE)
        await trio.sleep(1)
        await peer.send_data(1, end_stream=True)
        await trio.sleep(1)
        endpoint.servicer.gate.set()
        if announced == len(MESSAGE) + 5:
            await expect_reply(peer, 1, EchoReply(text="wait"))
        else:
            await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.PROTOCOL_ERROR)
            assert endpoint.servicer.cancelled == 1
        await endpoint.assert_nothing_left(connections=1)


@pytest.mark.parametrize("path", [UNARY, CLIENT_STREAM])
@pytest.mark.parametrize("count", [0, 2, 3])
@pytest.mark.parametrize("together", [True, False], ids=["one segment", "frame by frame"])
async def test_a_reply_that_is_not_one(
    together: bool, count: int, path: str, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    async with ScriptedServer() as scripted:
        if path == UNARY:
            call = Background(nursery, scripted.stub.Unary, EchoRequest())
        else:
            call = Background(nursery, scripted.stub.ClientStream, [EchoRequest()])
        peer = await scripted.accept()
        await expect_call(peer, 1, path)

        async def script() -> None:
            await peer.send_response(1)
            for _ in range(count):
                await peer.send_message(1, b"")
            await peer.send_trailers(1)

        if together:
            async with peer.one_segment():
                await script()
        else:
            await script()
        error = await call.error()
        assert error.code is StatusCode.INTERNAL
        assert error.message == (
            "more than one message came for a method that has one"
            if count
            else f"{path} replied with 0 messages instead of one"
        )
        scripted.assert_nothing_left()


async def test_a_failing_status_needs_no_reply(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """And where there is a reply before it, the status wins."""
    async with ScriptedServer() as scripted:
        peer = None
        for number in range(2):
            call = Background(nursery, scripted.stub.Unary, EchoRequest())
            peer = peer or await scripted.accept()
            stream_id = 2 * number + 1
            await expect_call(peer, stream_id)
            await peer.send_response(stream_id)
            for _ in range(number):
                await peer.send_message(stream_id, b"")
            await peer.send_trailers(stream_id, StatusCode.ABORTED, "text")
            error = await call.error()
            assert (error.code, error.message) == (StatusCode.ABORTED, "text")
        scripted.assert_nothing_left()
