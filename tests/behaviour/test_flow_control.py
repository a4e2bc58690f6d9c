"""Windows both ways (RFC 9113, 5.2 and 6.9): nobody sends without credit, nobody loses any, and memory is bounded."""

from __future__ import annotations

import functools
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

from tests.behaviour.scripted import (
    BIDI,
    CLIENT_STREAM,
    QUIET,
    SERVER_STREAM,
    Background,
    Echo,
    ScriptedServer,
    Sender,
    expect_call,
    expect_reply,
    expect_status,
    send_call,
    start_server,
)
from trio_grpc import KeepaliveEnforcement, Limits, RpcError, StatusCode
from trio_grpc.testing import (
    DataFrame,
    ErrorCode,
    GoawayFrame,
    HeadersFrame,
    RstStreamFrame,
    ScriptedPeer,
    open_channel_pair,
)

pytestmark = pytest.mark.usefixtures("quiet_log")

DEFAULT_WINDOW = 65_535
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 3, 4, 5

#: Neither budgets nor rules for PING.
UNBOUNDED = Limits(adaptive_window=False, max_overhead_frames=None, max_premature_resets=None)
ANY_PACE = KeepaliveEnforcement(min_time=0, permit_without_calls=True)


@functools.cache
def request_of(size: int) -> bytes:
    """A request message of this size, prefix included."""
    for payload in range(max(0, size - 12), size):
        message = EchoRequest(payload=bytes(payload)).SerializeToString()
        if len(message) == size - 5:
            return b"\0" + len(message).to_bytes(4, "big") + message
    raise AssertionError(size)


async def handshake_unread(peer: ScriptedPeer) -> None:
    """Begin without waiting, so that the `Sender` sees the first WINDOW_UPDATE too."""
    await peer.send_preface()


# ---------------------------------------------------------------------------------------------------------------------
# Credit that we give


async def test_padding_is_credited_in_full(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """RFC 9113, 6.1: padding counts, and so does its length octet."""
    endpoint = await start_server(nursery)
    async with await endpoint.connect() as peer:
        await handshake_unread(peer)
        sender = Sender(peer)
        await peer.send_request(1, CLIENT_STREAM)
        message = b"\0\0\0\0\0"
        for number in range(10_000):
            await sender.send(1, message[number % 5 : number % 5 + 1], padding=200)
        await sender.send(1, b"", padding=255, end_stream=True)
        await sender.settle()
        assert sender.connection >= 2**20 - 2**18
        assert [frame.stream_id for frame in sender.frames if isinstance(frame, HeadersFrame)] == [1, 1]
        await endpoint.assert_nothing_left(connections=1)


async def test_empty_frames_cost_nothing(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, limits=UNBOUNDED)
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM)
        for _ in range(50):
            async with peer.one_segment():
                for _ in range(1000):
                    await peer.send_data(1)
        await peer.send_data(1, end_stream=True)
        await expect_reply(peer, 1, EchoReply())
        await endpoint.assert_nothing_left(connections=1)


async def test_requests_that_nobody_reads_cost_no_credit(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Handlers that end early, unknown methods, refused streams: the connection's credit always comes back."""
    endpoint = await start_server(nursery)
    async with await endpoint.connect() as peer:
        await handshake_unread(peer)
        sender = Sender(peer)
        enough = EchoRequest(text="enough").SerializeToString()
        payload = bytes(16_384)
        for number in range(300):
            stream_id = 2 * number + 1
            if number % 3 == 0:
                await peer.send_request(stream_id, "/echo.Echo/Nope")
            elif number % 3 == 1:
                await peer.send_request(stream_id, CLIENT_STREAM)
                await sender.send(stream_id, b"\0\0\0\0" + bytes((len(enough),)) + enough)
            else:
                await peer.send_request(stream_id, CLIENT_STREAM, [("X-Malformed", "1")])
            for _ in range(3):
                await sender.send(stream_id, payload)
            await peer.send_rst_stream(stream_id, ErrorCode.CANCEL)
        await sender.settle()
        assert sender.connection >= 2**20 - 2**18
        await endpoint.assert_serves(peer, 1001)
        await endpoint.assert_nothing_left(connections=1)


async def test_a_stream_that_nobody_reads_stalls_alone(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.connect() as peer:
        await handshake_unread(peer)
        sender = Sender(peer)
        wait = EchoRequest(text="wait").SerializeToString()
        await peer.send_request(1, CLIENT_STREAM)
        await sender.send(1, b"\0\0\0\0" + bytes((len(wait),)) + wait)
        await sender.settle()
        # Its window is not topped up while its handler does something else ...
        sent = 0
        with trio.move_on_after(10):
            while True:
                await sender.send(1, request_of(1024))
                sent += 1024
        assert 60_000 < sent <= DEFAULT_WINDOW
        # ... while another stream gets megabytes through.
        await peer.send_request(3, CLIENT_STREAM)
        for _ in range(500):
            await sender.send(3, request_of(10_000))
        await sender.send(3, b"", end_stream=True)
        endpoint.servicer.gate.set()
        await sender.send(1, b"", end_stream=True)
        await peer.send_settings({INITIAL_WINDOW_SIZE: 2**30})
        await peer.send_window_update(0, 2**30)
        await sender.settle()
        heads = [
            (frame.stream_id, frame.get("grpc-status")) for frame in sender.frames if isinstance(frame, HeadersFrame)
        ]
        assert sorted(heads, key=str) == [(1, "0"), (1, None), (3, "0"), (3, None)]
        await endpoint.assert_nothing_left(connections=1)


@pytest.mark.parametrize("frame_size", [1, 7, 1000, 16_384, 65_536])
async def test_a_message_larger_than_the_window(frame_size: int, nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Credit for an incomplete message comes while its receiver waits for it."""
    size = 20_000 if frame_size < 10 else 300_000
    endpoint = await start_server(nursery, limits=Limits(adaptive_window=False, initial_window_size=10_000))
    async with await endpoint.connect() as peer:
        await handshake_unread(peer)
        sender = Sender(peer)
        await sender.settle()
        message = EchoRequest(payload=bytes(size)).SerializeToString()
        data = b"\0" + len(message).to_bytes(4, "big") + message
        await peer.send_request(1, CLIENT_STREAM)
        start = 0
        while start < len(data):
            # As a sender would cut it: by frame size and by what the window has left.
            room = min(sender.window(1), sender.connection, frame_size)
            if room <= 0:
                with trio.fail_after(10):
                    await sender.read()
                continue
            await sender.send(1, data[start : start + room])
            start += room
        await peer.send_data(1, end_stream=True)
        await peer.send_settings({INITIAL_WINDOW_SIZE: 2**30})
        await peer.send_window_update(0, 2**30)
        await sender.settle()
        received = b"".join(frame.data for frame in sender.frames if isinstance(frame, DataFrame))
        assert EchoReply.FromString(received[5:]) == EchoReply(payload=bytes(size))
        await endpoint.assert_nothing_left(connections=1)


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
@pytest.mark.parametrize("size", [0, 1, 65_529, 65_530, 65_531, 271_828, 3 * 2**20])
async def test_messages_of_all_sizes_both_ways(size: int, sockets: bool, autojump_clock: Any) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with open_channel_pair(Echo(), limits=QUIET, sockets=sockets) as (channel, _):
        stub = EchoStub(channel)
        assert (await stub.Unary(EchoRequest(payload=payload))).payload == payload
        async with stub.Bidi() as call:
            for _ in range(3):
                await call.send(EchoRequest(payload=payload))
                assert (await call.receive()).payload == payload
            await call.done_sending()
        assert (await stub.ClientStream([EchoRequest(payload=payload[: size // 3])] * 3)).payload == payload[
            : size // 3
        ] * 3


async def test_data_over_the_window_of_a_stream(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """RFC 9113, 6.9.1: a stream error where it is the stream's window."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, BIDI)
        await peer.send_request(3, CLIENT_STREAM)
        await peer.send_message(3, EchoRequest(text="wait").SerializeToString())
        await trio.sleep(1)
        async with peer.one_segment():
            for _ in range(5):
                await peer.send_data(3, request_of(16_384))
        await peer.expect(RstStreamFrame, stream_id=3, error_code=ErrorCode.FLOW_CONTROL_ERROR)
        await peer.send_message(1, EchoRequest(text="fine").SerializeToString(), end_stream=True)
        await expect_reply(peer, 1, EchoReply(text="fine"))
        await endpoint.assert_nothing_left(connections=1)
    assert endpoint.servicer.cancelled == 1


async def test_data_over_the_window_of_the_connection(nursery: trio.Nursery, autojump_clock: Any) -> None:
    limits = Limits(adaptive_window=False, initial_window_size=2**20, initial_connection_window_size=DEFAULT_WINDOW)
    endpoint = await start_server(nursery, limits=limits)
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM)
        # In frames its sender could have got credit for each; so all in one.
        await peer.send_data(1, request_of(DEFAULT_WINDOW + 1))
        await peer.expect(GoawayFrame, last_stream_id=1, error_code=ErrorCode.FLOW_CONTROL_ERROR)
        await peer.expect_eof()
    await endpoint.assert_nothing_left()


async def test_a_small_window_binds_from_its_acknowledgement_on(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Before it has seen our SETTINGS a client may count on RFC 9113's 65,535 bytes."""
    endpoint = await start_server(nursery, limits=Limits(adaptive_window=False, initial_window_size=1000))
    wait = EchoRequest(text="wait").SerializeToString()
    async with await endpoint.connect(auto_ack=False) as peer:
        async with peer.one_segment():
            await peer.send_preface()
            await peer.send_request(1, CLIENT_STREAM)
            await peer.send_message(1, wait)
            for _ in range(3):
                await peer.send_data(1, request_of(16_384))
        await peer.expect_silence()
        await peer.send_settings_ack()
        await peer.send_request(3, CLIENT_STREAM)
        await peer.send_message(3, wait)
        await peer.send_data(3, bytes(1100))
        await peer.expect(RstStreamFrame, stream_id=3, error_code=ErrorCode.FLOW_CONTROL_ERROR)
        await peer.send_rst_stream(1, ErrorCode.CANCEL)
        await endpoint.assert_nothing_left(connections=1)


async def test_a_client_limits_what_a_server_may_send(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.ServerStream(EchoRequest()) as call:
            peer = await accepted.result()
            await expect_call(peer, 1, SERVER_STREAM)
            await peer.send_response(1)
            for _ in range(5):
                await peer.send_data(1, request_of(16_384))
            await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.FLOW_CONTROL_ERROR)
            for _ in range(3):
                await call.receive()
            with pytest.raises(RpcError) as caught:
                await call.receive()
            assert caught.value.code is StatusCode.INTERNAL
        scripted.assert_nothing_left()


# ---------------------------------------------------------------------------------------------------------------------
# Credit that we are given


class Receiver:
    """A scripted peer that counts what it is sent."""

    def __init__(self, peer: ScriptedPeer) -> None:
        self.peer = peer
        self.received: dict[int, int] = {}
        self.largest = 0
        self.ended: list[int] = []

    async def drain(self, seconds: float = 1) -> None:
        with trio.move_on_after(seconds):
            while True:
                frame = await self.peer.receive_frame()
                if isinstance(frame, DataFrame):
                    self.received[frame.stream_id] = self.received.get(frame.stream_id, 0) + len(frame.data)
                    self.largest = max(self.largest, len(frame.data))
                if isinstance(frame, (DataFrame, HeadersFrame)) and frame.end_stream:
                    self.ended.append(frame.stream_id)

    @property
    def total(self) -> int:
        return sum(self.received.values())


async def test_a_sender_keeps_to_its_windows(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest(payload=bytes(200_000)))
        peer = await scripted.accept({INITIAL_WINDOW_SIZE: 1000})
        receiver = Receiver(peer)
        await receiver.drain()
        assert receiver.received == {1: 1000}
        # The stream's window alone, then both.
        await peer.send_window_update(1, 100_000)
        await receiver.drain()
        assert receiver.received == {1: DEFAULT_WINDOW}
        assert receiver.largest <= 16_384
        await peer.send_window_update(0, 10_000)
        await receiver.drain()
        assert receiver.received == {1: DEFAULT_WINDOW + 10_000}
        await peer.send_window_update(0, 1_000_000)
        await receiver.drain()
        assert receiver.received == {1: 101_000}
        await peer.send_window_update(1, 1)
        await receiver.drain()
        assert receiver.received == {1: 101_001}
        await peer.send_settings({INITIAL_WINDOW_SIZE: 500_000})
        await receiver.drain()
        assert receiver.ended == [1]
        await peer.send_trailers_only(1, StatusCode.CANCELLED, "thanks")
        assert (await call.error()).message == "thanks"
        scripted.assert_nothing_left()


async def test_a_window_may_become_negative(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """RFC 9113, 6.9.2: a cut counts against what has been sent already."""
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest(payload=bytes(100_000)))
        peer = await scripted.accept({INITIAL_WINDOW_SIZE: 30_000})
        await peer.send_window_update(0, 10**6)
        receiver = Receiver(peer)
        await receiver.drain()
        assert receiver.total == 30_000
        await peer.send_settings({INITIAL_WINDOW_SIZE: 1000})
        await peer.send_window_update(1, 29_000)
        await receiver.drain()
        assert receiver.total == 30_000
        await peer.send_window_update(1, 5)
        await receiver.drain()
        assert receiver.total == 30_005
        await peer.send_settings({INITIAL_WINDOW_SIZE: 0})
        await peer.send_settings({INITIAL_WINDOW_SIZE: 2000})
        await receiver.drain()
        assert receiver.total == 31_005
        await peer.send_window_update(1, 10**6)
        await receiver.drain()
        assert receiver.ended == [1]
        call.scope.cancel()


async def test_headers_and_trailers_need_no_credit(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.connect() as peer:
        await peer.send_preface({INITIAL_WINDOW_SIZE: 0})
        await send_call(peer, 1, EchoRequest(text="one"))
        await send_call(peer, 3, EchoRequest(), CLIENT_STREAM)
        await peer.send_request(5, "/echo.Echo/Nope", end_stream=True)
        await peer.send_request(7, SERVER_STREAM)
        await peer.send_message(7, EchoRequest(count=0).SerializeToString(), end_stream=True)
        receiver = Receiver(peer)
        await receiver.drain()
        # Stream 5 has no data; stream 7 has none either.
        assert sorted(receiver.ended) == [5, 7]
        assert receiver.total == 0
        await peer.send_window_update(3, 4)
        await receiver.drain()
        assert receiver.received == {3: 4}
        await peer.send_settings({INITIAL_WINDOW_SIZE: 100})
        await receiver.drain()
        assert sorted(receiver.ended) == [1, 3, 5, 7]
        await endpoint.assert_nothing_left(connections=1)


async def test_a_deadline_ends_a_response_that_has_no_credit(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.connect() as peer:
        await peer.send_preface({INITIAL_WINDOW_SIZE: 0})
        await peer.send_request(1, SERVER_STREAM, [("grpc-timeout", "3S")])
        request = EchoRequest(count=100, payload=bytes(10_000))
        await peer.send_message(1, request.SerializeToString(), end_stream=True)
        await peer.expect(HeadersFrame, stream_id=1, end_stream=False)
        assert await expect_status(peer, 1, StatusCode.DEADLINE_EXCEEDED) == "deadline exceeded"
        assert trio.current_time() == pytest.approx(3)
        await endpoint.assert_nothing_left(connections=1)


@pytest.mark.parametrize("size", [None, 20_000, 2**24 - 1])
async def test_the_peers_frame_size_is_kept(size: int | None, nursery: trio.Nursery, autojump_clock: Any) -> None:
    settings = {INITIAL_WINDOW_SIZE: 2**30}
    if size is not None:
        settings[MAX_FRAME_SIZE] = size
    async with ScriptedServer() as scripted:
        metadata = [("x-long", "v" * 50_000)]
        call = Background(nursery, scripted.stub.Unary, EchoRequest(payload=bytes(300_000)), metadata=metadata)
        peer = await scripted.accept(settings)
        await peer.send_window_update(0, 2**30)
        # The header block too is cut to the frame size: into CONTINUATION frames.
        headers = await peer.expect(HeadersFrame, stream_id=1)
        assert headers["x-long"] == "v" * 50_000
        receiver = Receiver(peer)
        await receiver.drain()
        assert receiver.ended == [1]
        assert receiver.largest <= (size or 16_384)
        if size == 20_000:
            assert receiver.largest > 16_384
        call.scope.cancel()


async def test_an_exhausted_connection_holds_back_data_only(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_settings({INITIAL_WINDOW_SIZE: 2**30})
        request = EchoRequest(count=3, payload=bytes(50_000))
        await peer.send_request(1, SERVER_STREAM)
        await peer.send_message(1, request.SerializeToString(), end_stream=True)
        receiver = Receiver(peer)
        await receiver.drain()
        assert receiver.total == DEFAULT_WINDOW
        await peer.send_ping(b"are you?")
        await peer.send_request(3, "/echo.Echo/Nope", end_stream=True)
        await peer.send_request(5, BIDI)
        await peer.send_data(5, end_stream=True)
        await receiver.drain()
        assert sorted(receiver.ended) == [3, 5]
        await peer.send_window_update(0, 10**6)
        await receiver.drain()
        assert receiver.ended[-1] == 1
        await endpoint.assert_nothing_left(connections=1)


# ---------------------------------------------------------------------------------------------------------------------
# Back-pressure


class Counting(Echo):
    """Counts what its generator has been asked for."""

    yielded = 0

    async def ServerStream(self, request: EchoRequest, context: Any) -> AsyncIterator[EchoReply]:
        for count in range(request.count):
            self.yielded += 1
            yield EchoReply(count=count, payload=request.payload)


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_a_client_that_stops_reading_stops_the_server(sockets: bool, autojump_clock: Any) -> None:
    servicer = Counting()
    size, count = 1000, 20_000
    async with open_channel_pair(servicer, limits=QUIET, sockets=sockets) as (channel, _):
        async with EchoStub(channel).ServerStream(EchoRequest(count=count, payload=bytes(size))) as call:
            assert (await call.receive()).count == 0
            await trio.sleep(10)
            stopped_at = servicer.yielded
            # The stream's window, the write quota, and a message or two. A receiver that begins to wait inside a frame
            # gives the credit for that back at once: at most half a window more.
            assert stopped_at * size < 65_535 * 3 // 2 + 65_536 + 5 * size
            await trio.sleep(1000)
            assert servicer.yielded == stopped_at
            received = [reply.count async for reply in call]
        assert received == list(range(1, count))


async def test_a_server_that_stops_reading_stops_the_client(autojump_clock: Any) -> None:
    servicer = Echo()
    sent = 0
    async with open_channel_pair(servicer, limits=QUIET) as (channel, _):

        async def requests() -> AsyncIterator[EchoRequest]:
            nonlocal sent
            yield EchoRequest(text="wait")
            for _ in range(1000):
                sent += 1
                yield EchoRequest(payload=bytes(1000))

        async with trio.open_nursery() as calls:
            call = Background(calls, EchoStub(channel).ClientStream, requests())
            await trio.sleep(10)
            assert sent * 1000 < 65_535 + 65_536 + 5000
            servicer.gate.set()
            assert len((await call.result()).payload) == 1_000_000


async def test_both_directions_at_once_do_not_deadlock(autojump_clock: Any) -> None:
    """An echo whose client sends much before it reads: the window limits it, and reading sets it free."""
    count = 500
    async with open_channel_pair(Echo(), limits=QUIET) as (channel, _), EchoStub(channel).Bidi() as call:

        async def send() -> None:
            for number in range(count):
                await call.send(EchoRequest(count=number, payload=bytes(5000)))
            await call.done_sending()

        async with trio.open_nursery() as tasks:
            sending = Background(tasks, send)
            await trio.sleep(10)
            assert sending.running
            assert [reply.count async for reply in call] == list(range(count))
            await sending.result()


async def test_a_unary_call_cannot_be_flooded(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        await peer.send_response(1)
        sender = Sender(peer)
        with trio.move_on_after(20):
            for _ in range(1000):
                await sender.send(1, request_of(15_000))
                await trio.sleep(0.001)
        error = await call.error()
        assert (error.code, error.message) == (
            StatusCode.INTERNAL,
            "more than one message came for a method that has one",
        )


# ---------------------------------------------------------------------------------------------------------------------
# Floods of a peer that never reads: what the throttle does about them, without the budgets of test_floods.py


class Flood:
    """Sends a lot beside the test, as fast as it is taken."""

    def __init__(self, nursery: trio.Nursery, peer: ScriptedPeer, data: bytes, size: int = 600_000) -> None:
        self._task = Background(nursery, self._send, peer, data * (size // len(data)))

    async def _send(self, peer: ScriptedPeer, data: bytes) -> None:
        await peer.send_raw(data)

    async def assert_stuck(self) -> None:
        """The other end has stopped taking it."""
        await trio.sleep(5)
        assert self._task.running

    async def read_all(self, peer: ScriptedPeer) -> None:
        """Take the replies, until the flood is over and for a second more."""
        with trio.CancelScope() as scope:
            while True:
                frame = await peer.receive_frame()
                assert not isinstance(frame, GoawayFrame), frame
                if not self._task.running:
                    scope.deadline = trio.current_time() + 1
        assert not self._task.running

    def stop(self) -> None:
        self._task.scope.cancel()


def frames_of(frame_type: int, flags: int, stream_id: int, payload: bytes, count: int) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes((frame_type, flags)) + stream_id.to_bytes(4, "big")
    return (head + payload) * count


FLOODS = {
    "PING": frames_of(6, 0, 0, b"12345678", 1000),
    "SETTINGS": frames_of(4, 0, 0, b"", 1000),
    "SETTINGS that change windows": frames_of(4, 0, 0, b"\0\4\0\0\0\1", 500) + frames_of(4, 0, 0, b"\0\4\0\1\0\0", 500),
    "DATA of a stream that has ended": frames_of(0, 0, 1, b"x", 1000),
    "WINDOW_UPDATE of 0": frames_of(8, 0, 1, bytes(4), 1000),
}


@pytest.mark.parametrize(
    ("name", "capacity"),
    [*((name, 10_000) for name in FLOODS), ("PING", None), ("WINDOW_UPDATE of 0", None)],
    ids=lambda value: "sockets" if value is None else str(value),
)
async def test_replies_to_a_peer_that_never_reads_are_bounded(
    name: str, capacity: int | None, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    limits = attrs.evolve(UNBOUNDED, max_frame_size=16_384)
    endpoint = await start_server(
        nursery, sockets=capacity is None, capacity=capacity, limits=limits, keepalive_enforcement=ANY_PACE
    )
    async with await endpoint.client() as peer:
        peer.auto_ack = False
        await endpoint.assert_serves(peer, 1)
        flood = Flood(nursery, peer, FLOODS[name], 700_000 if capacity is None else 100_000)
        await flood.assert_stuck()
        # One read of at most 256 KiB may be in hand when the reader stops.
        assert endpoint.server.statistics().control_frames < (35_000 if capacity is None else 2_000)
        # The others notice nothing.
        await endpoint.assert_serves()
        # And once it reads, it is served again.
        await flood.read_all(peer)
        await endpoint.assert_serves(peer, 3)
    await endpoint.assert_nothing_left()


async def test_the_memory_of_a_flood_is_bounded(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, capacity=150_000, limits=UNBOUNDED, keepalive_enforcement=ANY_PACE)
    async with await endpoint.client() as peer:
        tracemalloc.start()
        flood = Flood(nursery, peer, FLOODS["PING"], 600_000)
        await flood.assert_stuck()
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 6_000_000
        assert peak < 8_000_000
        flood.stop()
    await endpoint.assert_nothing_left()


@pytest.mark.parametrize("name", ["PING", "SETTINGS"])
async def test_a_client_is_as_safe_from_floods(name: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer(capacity=1000, limits=UNBOUNDED) as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest(), timeout=20)
        async with await scripted.accept() as peer:
            await expect_call(peer, 1)
            flood = Flood(nursery, peer, FLOODS[name])
            await flood.assert_stuck()
            assert scripted.channel.statistics().control_frames < 300
            assert (await call.error()).code is StatusCode.DEADLINE_EXCEEDED
            flood.stop()


async def test_a_flooder_that_breaks_the_rules_is_closed_all_the_same(
    nursery: trio.Nursery, autojump_clock: Any
) -> None:
    """The writer stands still in a write that nobody takes; the fault must not wait for it."""
    endpoint = await start_server(nursery, capacity=1000)
    async with await endpoint.client() as peer:
        await peer.send_settings({INITIAL_WINDOW_SIZE: 2**30})
        await peer.send_window_update(0, 2**30)
        await peer.send_request(1, SERVER_STREAM)
        request = EchoRequest(count=1000, payload=bytes(1000))
        await peer.send_message(1, request.SerializeToString(), end_stream=True)
        await trio.sleep(1)
        assert endpoint.server.statistics().handlers == 1
        await peer.send_frame(6, 0, 0, bytes(7))
        await endpoint.assert_nothing_left()


@pytest.mark.parametrize("capacity", [None, 1000], ids=["sockets", "narrow"])
async def test_a_stuck_peer_that_hangs_up_frees_everything(
    capacity: int | None, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    endpoint = await start_server(
        nursery, sockets=capacity is None, capacity=capacity, limits=UNBOUNDED, keepalive_enforcement=ANY_PACE
    )
    async with await endpoint.client() as peer:
        flood = Flood(nursery, peer, FLOODS["PING"])
        await flood.assert_stuck()
        flood.stop()
    await endpoint.assert_nothing_left()


async def test_a_stuck_peer_that_half_closes_frees_everything(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, capacity=1000)
    async with await endpoint.client() as peer:
        await peer.send_settings({INITIAL_WINDOW_SIZE: 2**30})
        await send_call(peer, 1, EchoRequest(payload=bytes(50_000)))
        await trio.sleep(1)
        await peer.stream.send_eof()  # type: ignore[attr-defined]
        await endpoint.assert_nothing_left()
