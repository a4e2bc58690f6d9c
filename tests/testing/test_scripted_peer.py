"""The scripted peer against itself, and against a real client and a real server."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

import trio_grpc
from trio_grpc.testing import (
    DataFrame,
    ErrorCode,
    Frame,
    GoawayFrame,
    HeadersFrame,
    MemoryListener,
    PingFrame,
    RstStreamFrame,
    ScriptedPeer,
    SettingsFrame,
    UnknownFrame,
    WindowUpdateFrame,
)

Pair = tuple[ScriptedPeer, ScriptedPeer]


@pytest.fixture(params=["memory", "sockets"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    """A scripted client and a scripted server on one connection, after their handshake."""
    near: trio.abc.Stream
    far: trio.abc.Stream
    if request.param == "memory":
        near, far = trio.testing.memory_stream_pair()
    else:
        near, far = (trio.SocketStream(trio.socket.from_stdlib_socket(one)) for one in socket.socketpair())
    async with ScriptedPeer.client(near) as client, ScriptedPeer.server(far) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.handshake)
            nursery.start_soon(server.handshake)
        yield client, server


FIELDS = [(":status", "200"), ("x-text", "a"), (b"x-bytes", b"\xff")]
HEADERS = tuple(
    (name if isinstance(name, bytes) else name.encode(), value if isinstance(value, bytes) else value.encode())
    for name, value in FIELDS
)


async def test_every_frame_arrives_as_it_was_sent(pair: Pair) -> None:
    client, server = pair
    server.auto_ack = False
    await client.send_settings({1: 0, 4: 2**31 - 1, 0x9999: 7})
    await client.send_settings_ack()
    await client.send_ping(b"12345678")
    await client.send_ping(b"87654321", ack=True)
    await client.send_headers(1, FIELDS)
    await client.send_headers(3, FIELDS, end_stream=True, fragments=4)
    await client.send_data(1, b"abc")
    await client.send_data(1, b"def", padding=200, end_stream=True)
    await client.send_data(1, padding=0)
    await client.send_rst_stream(1, ErrorCode.CANCEL)
    await client.send_rst_stream(1, 0xDEADBEEF)
    await client.send_goaway(7, ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings")
    await client.send_window_update(0, 5)
    await client.send_frame(0xEE, 0xFF, 9, b"?")
    await client.send_raw(bytes((0, 0, 1, 0xAB, 0, 0, 0, 0, 0, 42)))
    expected: list[Frame] = [
        SettingsFrame({1: 0, 4: 2**31 - 1, 0x9999: 7}, ack=False),
        SettingsFrame({}, ack=True),
        PingFrame(b"12345678", ack=False),
        PingFrame(b"87654321", ack=True),
        HeadersFrame(1, HEADERS, end_stream=False),
        HeadersFrame(3, HEADERS, end_stream=True),
        DataFrame(1, b"abc", end_stream=False),
        DataFrame(1, b"def", end_stream=True),
        DataFrame(1, b"", end_stream=False),
        RstStreamFrame(1, ErrorCode.CANCEL),
        RstStreamFrame(1, 0xDEADBEEF),
        GoawayFrame(7, ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings"),
        WindowUpdateFrame(0, 5),
        UnknownFrame(0xEE, 0xFF, 9, b"?"),
        UnknownFrame(0xAB, 0, 0, b"\x2a"),
    ]
    assert [await server.receive_frame() for _ in expected] == expected


async def test_frames_are_frozen_and_compare_by_value() -> None:
    frame = DataFrame(1, b"", end_stream=False)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        frame.data = b"x"  # type: ignore[misc]
    assert frame == DataFrame(1, b"", end_stream=False)
    assert repr(RstStreamFrame(1, ErrorCode.CANCEL)) == "RstStreamFrame(stream_id=1, error_code=<ErrorCode.CANCEL: 8>)"


async def test_fields_are_read_by_name() -> None:
    headers = HeadersFrame(1, ((b"a", b"1"), (b"b", b"\xff"), (b"a", b"2")), end_stream=False)
    assert headers["a"] == "1"
    assert headers["b"] == "\xff"
    assert headers.get("b") == "\xff"
    assert headers.get("c") is None
    with pytest.raises(KeyError, match="c"):
        headers["c"]


async def test_a_segment_leaves_as_one_piece(pair: Pair) -> None:
    client, server = pair
    server.stream = Counting(server.stream)
    async with client.one_segment():
        for number in range(10):
            await client.send_data(1, b"x" * number)
        with pytest.raises(RuntimeError, match="cannot be nested"):
            async with client.one_segment():
                raise AssertionError("unreachable")
        await trio.testing.wait_all_tasks_blocked()
    for number in range(10):
        await server.expect(DataFrame, data=b"x" * number)
    assert server.stream.reads == 1


class Counting(trio.abc.Stream):
    """Counts reads."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.reads = 0

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self.stream.receive_some(max_bytes)
        self.reads += 1
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self.stream.aclose()


async def test_settings_and_pings_are_answered_as_they_are_received(pair: Pair) -> None:
    client, server = pair
    await client.send_settings({3: 1})
    await client.send_ping(b"12345678")
    await client.send_data(1)
    await server.expect(DataFrame)
    assert await client.receive_frame() == SettingsFrame({}, ack=True)
    assert await client.receive_frame() == PingFrame(b"12345678", ack=True)


async def test_answers_wait_for_the_preface() -> None:
    near, far = trio.testing.memory_stream_pair()
    client, server = ScriptedPeer.client(near), ScriptedPeer.server(far)
    await client.send_preface({3: 1})
    await client.send_ping(b"12345678")
    await client.send_data(1)
    await server.expect(DataFrame)
    await server.send_preface()
    assert await client.receive_frame() == SettingsFrame({}, ack=False)
    assert await client.receive_frame() == SettingsFrame({}, ack=True)
    assert await client.receive_frame() == PingFrame(b"12345678", ack=True)


async def test_expect_says_what_came_instead(pair: Pair) -> None:
    client, server = pair
    await client.send_window_update(0, 1)
    await client.send_rst_stream(3, ErrorCode.CANCEL)
    with pytest.raises(AssertionError) as caught:
        await server.expect(RstStreamFrame, stream_id=1)
    assert str(caught.value) == (
        "expected RstStreamFrame, stream_id=1; received RstStreamFrame(stream_id=3, error_code=<ErrorCode.CANCEL: 8>)"
    )
    await client.aclose()
    with pytest.raises(AssertionError, match="expected DataFrame; the connection was closed"):
        await server.expect(DataFrame)


async def test_expect_passes_over_what_a_connection_needs(pair: Pair) -> None:
    client, server = pair
    await client.send_window_update(0, 1)
    await client.send_window_update(1, 2)
    await client.send_ping()
    await client.send_data(1, b"x")
    await client.send_window_update(0, 3)
    assert await server.expect(WindowUpdateFrame, stream_id=1) == WindowUpdateFrame(1, 2)
    assert (await server.expect(DataFrame)).data == b"x"
    await server.expect(WindowUpdateFrame, increment=3)


async def test_messages_are_put_together(pair: Pair) -> None:
    client, server = pair
    await client.send_message(1, b"first")
    await client.send_data(1, b"\0\0")
    await client.send_data(1, b"\0\0\6sec")
    await client.send_data(1, b"ond\0\0\0\0\5third\0", end_stream=True)
    assert await server.receive_message(1) == b"first"
    assert await server.receive_message(1) == b"second"
    assert await server.receive_message(1) == b"third"
    await client.send_data(3, b"\0\0\0\0\5x", end_stream=True)
    with pytest.raises(AssertionError, match="expected a message on stream 3; the stream ended"):
        await server.receive_message(3)
    await client.send_message(5, b"")
    with pytest.raises(AssertionError, match="expected DataFrame, stream_id=7; received DataFrame"):
        await server.receive_message(7)


async def test_the_end_of_the_connection(pair: Pair) -> None:
    client, server = pair
    await client.send_ping()
    await client.aclose()
    await server.expect_eof()
    with pytest.raises((trio.EndOfChannel, trio.BrokenResourceError)):
        await server.receive_frame()


async def test_a_frame_before_the_end_of_the_connection(pair: Pair) -> None:
    client, server = pair
    await client.send_data(1)
    with pytest.raises(AssertionError, match="expected the end of the connection; received DataFrame"):
        await server.expect_eof()


async def test_a_connection_that_ends_inside_a_frame(pair: Pair) -> None:
    client, server = pair
    await client.send_raw(b"\0\0\5\0")
    await client.aclose()
    with pytest.raises(trio.BrokenResourceError, match="connection closed inside a frame"):
        await server.receive_frame()


async def test_silence(autojump_clock: trio.testing.MockClock) -> None:
    near, far = trio.testing.memory_stream_pair()
    client, server = ScriptedPeer.client(near), ScriptedPeer.server(far)
    await client.send_preface()
    await client.send_window_update(0, 1)
    began = trio.current_time()
    await server.expect_silence(7)
    assert trio.current_time() - began == 7
    await client.send_raw(b"\0\0\1\0\0\0\0\0")
    await server.expect_silence()
    # What has come of a frame is not lost.
    await client.send_raw(b"\1x")
    with pytest.raises(AssertionError, match="expected silence; received DataFrame"):
        await server.expect_silence()
    await client.aclose()
    with pytest.raises(AssertionError, match="expected silence; the connection was closed"):
        await server.expect_silence()


async def test_a_client_without_a_preface() -> None:
    near, far = trio.testing.memory_stream_pair()
    await near.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with pytest.raises(AssertionError, match="expected the HTTP/2 client preface, received b'GET"):
        await ScriptedPeer.server(far).receive_frame()


async def test_a_handshake_that_goes_wrong() -> None:
    near, far = trio.testing.memory_stream_pair()
    client, server = ScriptedPeer.client(near), ScriptedPeer.server(far)
    await client.send_preface()
    await client.send_goaway(0)
    with pytest.raises(AssertionError, match="expected a handshake, received GoawayFrame"):
        await server.handshake()


async def test_the_table_size_of_the_other_end_is_obeyed(pair: Pair) -> None:
    client, server = pair
    await client.send_settings({1: 0})
    await client.send_data(1)
    await server.expect(DataFrame)
    await server.send_response(1)
    assert (await client.expect(HeadersFrame))[":status"] == "200"


class Echo(EchoServicer):
    async def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
        return EchoReply(text=request.text)


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_a_scripted_client_calls_a_real_server(sockets: bool, nursery: trio.Nursery) -> None:
    listener = MemoryListener(sockets=sockets)
    await nursery.start(trio_grpc.serve, [Echo()], listener)
    async with ScriptedPeer.client(await listener.connect()) as peer:
        theirs = await peer.handshake({3: 0})
        assert theirs.settings[3] == 1000
        await peer.send_request(1, "/echo.Echo/Unary", [("x-a", "1")])
        await peer.send_message(1, EchoRequest(text="hello").SerializeToString(), end_stream=True)
        headers = await peer.expect(HeadersFrame, stream_id=1, end_stream=False)
        assert headers["content-type"] == "application/grpc"
        assert EchoReply.FromString(await peer.receive_message(1)).text == "hello"
        trailers = await peer.expect(HeadersFrame, stream_id=1, end_stream=True)
        assert trailers.fields == ((b"grpc-status", b"0"),)


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_a_scripted_server_answers_a_real_client(sockets: bool, nursery: trio.Nursery) -> None:
    listener = MemoryListener(sockets=sockets)
    results: list[str] = []
    async with trio_grpc.open_channel(listener.connect) as channel:

        async def call() -> None:
            for text in ("hello", "bye"):
                try:
                    results.append((await EchoStub(channel).Unary(EchoRequest(text=text))).text)
                except trio_grpc.RpcError as error:
                    results.append(str(error))

        nursery.start_soon(call)
        async with ScriptedPeer.server(await listener.accept()) as peer:
            await peer.handshake()
            headers = await peer.expect(HeadersFrame, stream_id=1)
            assert headers[":path"] == "/echo.Echo/Unary"
            assert EchoRequest.FromString(await peer.receive_message(1)).text == "hello"
            await peer.send_response(1)
            await peer.send_message(1, EchoReply(text="good day").SerializeToString())
            await peer.send_trailers(1)
            await peer.expect(HeadersFrame, stream_id=3)
            assert EchoRequest.FromString(await peer.receive_message(3)).text == "bye"
            await peer.send_trailers_only(3, trio_grpc.StatusCode.NOT_FOUND, "gone")
            await trio.testing.wait_all_tasks_blocked()
            assert results == ["good day", "NOT_FOUND: gone"]
