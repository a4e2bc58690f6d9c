"""The negative HTTP/2 interoperability cases of gRPC (grpc's doc/negative-http2-interop-test-descriptions.md).

There a server misbehaves on purpose and a client has to cope. Here the scripted peer is that server, with the sizes of
the description: requests of 271,828 bytes, responses of 314,159. The second half turns the tables on our server.
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
    ScriptedServer,
    Sender,
    start_server,
)
from trio_grpc import RpcError, StatusCode
from trio_grpc._transport.messages import frame_message
from trio_grpc.testing import (
    DataFrame,
    ErrorCode,
    Frame,
    GoawayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    ScriptedPeer,
    SettingsFrame,
)

pytestmark = pytest.mark.usefixtures("quiet_log")

REQUEST = EchoRequest(payload=bytes(271_828))
REPLY = EchoReply(payload=bytes(314_159))
MAX_CONCURRENT_STREAMS = 3
#: RFC 9113's smallest limit of a frame.
FRAME = 16_384


def pieces(data: bytes, size: int = FRAME) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


class Counting(Sender):
    """A scripted peer that misses no credit: all that comes is read here."""

    @classmethod
    async def begin(cls, peer: ScriptedPeer) -> Counting:
        """Exchange prefaces. The other end's first WINDOW_UPDATE comes before its SETTINGS ACK."""
        await peer.send_preface()
        counting = cls(peer)
        while not any(isinstance(frame, SettingsFrame) and frame.ack for frame in counting.frames):
            await counting.read()
        return counting

    async def read_until(self, kind: type[Frame], stream_id: int) -> None:
        """Read up to the frame of this kind that ends the stream's half."""
        while not any(
            isinstance(frame, kind) and frame.stream_id == stream_id and frame.end_stream  # type: ignore[attr-defined]
            for frame in self.frames
        ):
            await self.read()

    def message(self, stream_id: int) -> bytes:
        """The only message on a stream."""
        data = b"".join(f.data for f in self.frames if isinstance(f, DataFrame) and f.stream_id == stream_id)
        assert data[:5] == bytes((0, *(len(data) - 5).to_bytes(4, "big")))
        return data[5:]

    def heads(self, stream_id: int) -> list[HeadersFrame]:
        return [frame for frame in self.frames if isinstance(frame, HeadersFrame) and frame.stream_id == stream_id]

    async def receive_call(self, stream_id: int, path: str = UNARY) -> None:
        """The request of the description."""
        await self.peer.send_window_update(0, 2**20)
        await self.peer.send_window_update(stream_id, 2**20)
        await self.read_until(DataFrame, stream_id)
        assert [head[":path"] for head in self.heads(stream_id)] == [path]
        assert EchoRequest.FromString(self.message(stream_id)) == REQUEST

    async def send_reply(self, stream_id: int, share: float = 1, size: int = FRAME, padding: int | None = None) -> None:
        """The response of the description, or the first part of it, without trailers."""
        data = frame_message(REPLY.SerializeToString())
        for piece in pieces(data[: int(len(data) * share)], size):
            await self.send(stream_id, piece, padding=padding)

    async def send_whole_reply(self, stream_id: int) -> None:
        await self.peer.send_response(stream_id)
        await self.send_reply(stream_id)
        await self.peer.send_trailers(stream_id)

    async def assert_credited(self) -> None:
        """What is not credited yet is less than the portions in which credit goes back: a quarter of the window."""
        await self.settle()
        assert self.connection >= 2**20 - 2**18


async def accept(scripted: ScriptedServer) -> Counting:
    return await Counting.begin(ScriptedPeer.server(await scripted.listener.accept()))


# ---------------------------------------------------------------------------------------------------------------------
# A client and its bad server


@pytest.mark.parametrize("answered", [False, True], ids=["before the answer", "after the answer"])
async def test_goaway(answered: bool, nursery: trio.Nursery, autojump_clock: Any) -> None:
    """The second call goes elsewhere without a word to the application."""
    async with ScriptedServer() as scripted:
        first = Background(nursery, scripted.stub.Unary, REQUEST)
        server = await accept(scripted)
        await server.receive_call(1)
        if answered:
            await server.send_whole_reply(1)
            assert await first.result() == REPLY
        await server.peer.send_goaway(1)
        await trio.testing.wait_all_tasks_blocked()
        second = Background(nursery, scripted.stub.Unary, REQUEST)
        other = await accept(scripted)
        await other.receive_call(1)
        if not answered:
            await server.send_whole_reply(1)
            assert await first.result() == REPLY
        await other.send_whole_reply(1)
        assert await second.result() == REPLY
        # The first connection has carried one call and no more.
        await server.peer.expect(GoawayFrame, error_code=ErrorCode.NO_ERROR)
        await server.peer.expect_eof()


@pytest.mark.parametrize("share", [None, 0.5, 1], ids=["after_header", "during_data", "after_data"])
async def test_rst(share: float | None, nursery: trio.Nursery, autojump_clock: Any) -> None:
    """RST_STREAM with error code 0 after the headers, after half of the data, after all of it: no success."""
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, REQUEST)
        server = await accept(scripted)
        await server.receive_call(1)
        await server.peer.send_response(1)
        if share is not None:
            await server.send_reply(1, share)
        await server.peer.send_rst_stream(1, ErrorCode.NO_ERROR)
        error = await call.error()
        assert error.code is StatusCode.INTERNAL
        assert error.message == "stream reset by peer with NO_ERROR"
        # It was a fault of that stream: the connection goes on, and nothing of the dead reply holds its window.
        again = Background(nursery, scripted.stub.Unary, REQUEST)
        await server.receive_call(3)
        await server.send_whole_reply(3)
        assert await again.result() == REPLY
        await server.assert_credited()
        scripted.assert_nothing_left()


async def test_rst_after_data_of_a_stream(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Where replies are received one by one, what came before the reset is received before the error."""
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, accept, scripted)
        async with scripted.stub.ServerStream(REQUEST) as replies:
            server = await accepted.result()
            await server.receive_call(1, SERVER_STREAM)
            await server.peer.send_response(1)
            receiver = Background(nursery, replies.receive)
            await server.send_reply(1)
            await server.peer.send_rst_stream(1, ErrorCode.NO_ERROR)
            assert await receiver.result() == REPLY
            with pytest.raises(RpcError) as caught:
                await replies.receive()
            assert caught.value.code is StatusCode.INTERNAL
        scripted.assert_nothing_left()


class Pinger:
    """Sends PINGs and keeps count of those that are outstanding."""

    def __init__(self, counting: Counting) -> None:
        self.counting = counting
        self.sent: list[bytes] = []

    async def ping(self) -> None:
        self.sent.append(b"%08d" % len(self.sent))
        await self.counting.peer.send_ping(self.sent[-1])

    async def assert_all_answered(self) -> None:
        """Each with its own payload, in order."""
        await self.counting.settle()
        acks = [frame.payload for frame in self.counting.frames if isinstance(frame, PingFrame) and frame.ack]
        assert acks == self.sent


async def test_ping(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Before and after the headers, before and after the data."""
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, REQUEST)
        server = await accept(scripted)
        await server.receive_call(1)
        pinger = Pinger(server)
        await pinger.ping()
        await server.peer.send_response(1)
        await pinger.ping()
        for piece in pieces(frame_message(REPLY.SerializeToString())):
            await pinger.ping()
            await server.send(1, piece)
            await pinger.ping()
        await server.peer.send_trailers(1)
        await pinger.ping()
        assert await call.result() == REPLY
        await pinger.assert_all_answered()
        scripted.assert_nothing_left()


async def test_max_streams(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """A limit of one comes after the connection was made; ten calls at once are made one after the other."""
    async with ScriptedServer() as scripted:
        initial = Background(nursery, scripted.stub.Unary, REQUEST)
        server = await accept(scripted)
        await server.peer.send_settings({MAX_CONCURRENT_STREAMS: 1})
        await server.receive_call(1)
        await server.send_whole_reply(1)
        assert await initial.result() == REPLY
        calls = [Background(nursery, scripted.stub.Unary, REQUEST) for _ in range(10)]
        for number in range(10):
            stream_id = 2 * number + 3
            await server.receive_call(stream_id)
            # No other stream is opened while this one is open.
            await server.settle()
            assert server.heads(stream_id)
            assert not server.heads(stream_id + 2)
            assert scripted.channel.statistics().waiting == 9 - number
            await server.send_whole_reply(stream_id)
        assert [await call.result() for call in calls] == [REPLY] * 10
        scripted.assert_nothing_left()


@pytest.mark.parametrize("padding", [None, 0, 255], ids=["sanity", "length only", "most"])
async def test_data_frame_padding(padding: int | None, nursery: trio.Nursery, autojump_clock: Any) -> None:
    """A reply in small frames whose padding alone is more than the window: it is credited, and it is no data."""
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, REQUEST)
        server = await accept(scripted)
        await server.receive_call(1)
        await server.peer.send_response(1)
        await server.send_reply(1, 1, 100, padding)
        await server.peer.send_trailers(1)
        assert await call.result() == REPLY
        await server.assert_credited()
        scripted.assert_nothing_left()


# ---------------------------------------------------------------------------------------------------------------------
# A server and its bad client


@pytest.mark.parametrize("path", [UNARY, CLIENT_STREAM])
@pytest.mark.parametrize("share", [None, 0.5, 1], ids=["after_header", "during_data", "after_data"])
async def test_a_client_that_resets(share: float | None, path: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    """With error code 0 too: its handler ends, and nothing of the request holds the connection's window."""
    endpoint = await start_server(nursery)
    async with await endpoint.connect() as peer:
        client = await Counting.begin(peer)
        await peer.send_window_update(0, 2**30)
        data = frame_message(REQUEST.SerializeToString())
        for stream_id in range(1, 21, 2):
            await peer.send_request(stream_id, path)
            if share is not None:
                for piece in pieces(data[: int(len(data) * share)]):
                    await client.send(stream_id, piece)
            await peer.send_rst_stream(stream_id, ErrorCode.NO_ERROR)
        await client.assert_credited()
        # No reset is answered with one; a call that was answered before its reset was seen is no error either.
        assert not [frame for frame in client.frames if isinstance(frame, RstStreamFrame) and frame.error_code]
        assert endpoint.server.statistics().streams == 0
        await endpoint.assert_serves(peer, 101)
        await endpoint.assert_nothing_left(connections=1)


async def test_a_client_that_pings(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Not too often: a server counts the others as abuse (gRFC A8)."""
    endpoint = await start_server(nursery)
    async with await endpoint.connect() as peer:
        client = await Counting.begin(peer)
        pinger = Pinger(client)
        await peer.send_request(1, CLIENT_STREAM)
        await pinger.ping()
        for piece in pieces(frame_message(REQUEST.SerializeToString())):
            await trio.sleep(300)
            await pinger.ping()
            await client.send(1, piece)
            await trio.sleep(300)
            await pinger.ping()
        await client.send(1, b"", end_stream=True)
        await peer.send_window_update(1, 2**20)
        await peer.send_window_update(0, 2**20)
        await client.read_until(HeadersFrame, 1)
        assert EchoReply.FromString(client.message(1)) == EchoReply(payload=REQUEST.payload)
        assert [head.get("grpc-status") for head in client.heads(1)] == [None, "0"]
        await pinger.assert_all_answered()
        await endpoint.assert_nothing_left(connections=1)


async def test_a_client_that_goes_away_in_the_middle_of_a_call(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Its GOAWAY speaks of streams that the server opens, of which there are none: what it has begun is served."""
    endpoint = await start_server(nursery)
    async with await endpoint.connect() as peer:
        client = await Counting.begin(peer)
        await peer.send_request(1, CLIENT_STREAM)
        first, *others = pieces(frame_message(REQUEST.SerializeToString()))
        await client.send(1, first)
        await peer.send_goaway(0)
        for piece in others:
            await client.send(1, piece)
        await client.send(1, b"", end_stream=True)
        await peer.send_window_update(1, 2**20)
        await peer.send_window_update(0, 2**20)
        await client.read_until(HeadersFrame, 1)
        assert EchoReply.FromString(client.message(1)) == EchoReply(payload=REQUEST.payload)


@pytest.mark.parametrize("padding", [0, 255])
async def test_a_client_that_pads(padding: int, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.connect() as peer:
        client = await Counting.begin(peer)
        await peer.send_request(1, CLIENT_STREAM)
        for piece in pieces(frame_message(REQUEST.SerializeToString()), 100):
            await client.send(1, piece, padding=padding)
        await client.send(1, b"", padding=padding, end_stream=True)
        await peer.send_window_update(1, 2**20)
        await peer.send_window_update(0, 2**20)
        await client.read_until(HeadersFrame, 1)
        assert EchoReply.FromString(client.message(1)) == EchoReply(payload=REQUEST.payload)
        await client.assert_credited()
        await endpoint.assert_nothing_left(connections=1)
