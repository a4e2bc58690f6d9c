"""Floods of legal frames that carry nothing: a burst is free, the rest must be paid for (RFC 9113, 10.5).

What the throttle does about peers that do not read their replies is in test_flow_control.py, malformed and endless
blocks are in test_bad_input.py, streams that are reset at once in test_rapid_reset.py.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest

from tests.behaviour.scripted import (
    BIDI,
    CLIENT_STREAM,
    SERVER_STREAM,
    UNARY,
    Background,
    ScriptedServer,
    expect_call,
    expect_reply,
    expect_status,
    send_call,
    send_reply,
    start_server,
)
from trio_grpc import KeepaliveEnforcement, Limits, StatusCode
from trio_grpc.testing import (
    DataFrame,
    ErrorCode,
    GoawayFrame,
    HeadersFrame,
    ScriptedPeer,
)

pytestmark = pytest.mark.usefixtures("quiet_log")

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK, END_STREAM, END_HEADERS, PADDED = 1, 1, 4, 8
ANY_PACE = KeepaliveEnforcement(min_time=0, permit_without_calls=True)
REASON = "too many frames that carry nothing (option max_overhead_frames)"


def frame(frame_type: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((frame_type, flags)) + stream_id.to_bytes(4, "big") + payload


def uint32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def repeated(data: bytes) -> Callable[[int], bytes]:
    """A flood of one frame."""
    return lambda _: data


#: The frame with a number: on a connection whose stream 1 has ended and whose stream 3 is open.
FLOODS: dict[str, tuple[Callable[[int], bytes], int]] = {
    "empty DATA": (repeated(frame(DATA, 0, 3)), 1),
    "DATA that is all padding": (repeated(frame(DATA, PADDED, 3, b"\0")), 1),
    "empty DATA of a stream that has ended": (repeated(frame(DATA, 0, 1)), 1),
    "DATA of a stream that has ended": (repeated(frame(DATA, 0, 1, b"x")), 11),
    "PING": (repeated(frame(PING, 0, 0, bytes(8))), 10),
    "PING ACK": (repeated(frame(PING, ACK, 0, bytes(8))), 10),
    "SETTINGS": (repeated(frame(SETTINGS, 0, 0)), 10),
    "SETTINGS that change windows": (
        lambda number: frame(SETTINGS, 0, 0, b"\0\4" + uint32(1000 + number % 2)),
        10,
    ),
    "SETTINGS ACK": (repeated(frame(SETTINGS, ACK, 0)), 10),
    "WINDOW_UPDATE of the connection": (repeated(frame(WINDOW_UPDATE, 0, 0, uint32(1))), 1),
    "WINDOW_UPDATE": (repeated(frame(WINDOW_UPDATE, 0, 3, uint32(1))), 1),
    "WINDOW_UPDATE of a stream that has ended": (repeated(frame(WINDOW_UPDATE, 0, 1, uint32(1))), 1),
    "WINDOW_UPDATE of 0 of a stream that has ended": (repeated(frame(WINDOW_UPDATE, 0, 1, uint32(0))), 10),
    "RST_STREAM of a stream that has ended": (repeated(frame(RST_STREAM, 0, 1, uint32(8))), 1),
    "PRIORITY": (repeated(frame(PRIORITY, 0, 3, bytes(5))), 1),
    "PRIORITY of idle streams": (lambda number: frame(PRIORITY, 0, 1001 + 2 * number, bytes(5)), 1),
    "unknown": (repeated(frame(0xEE, 0xFF, 0, b"?")), 1),
    "ALTSVC": (repeated(frame(0xA, 0, 0, b"\0\1ah2=:1")), 1),
    "GOAWAY": (repeated(frame(GOAWAY, 0, 0, bytes(8))), 10),
}

#: Those that only a client may send.
CLIENT_FLOODS = {
    **FLOODS,
    "empty HEADERS": (lambda number: frame(HEADERS, END_HEADERS | END_STREAM, 5 + 2 * number), 10),
    "HEADERS with nonsense": (lambda number: frame(HEADERS, END_HEADERS, 5 + 2 * number, b"\x88"), 10),
}

#: Those that only a server may send.
SERVER_FLOODS = {
    **{name: flood for name, flood in FLOODS.items() if name != "PRIORITY of idle streams"},
    "1xx": (repeated(frame(HEADERS, END_HEADERS, 3, b"\x08\x03103")), 1),
    "HEADERS of a stream that has ended": (repeated(frame(HEADERS, END_HEADERS, 1, b"\x88")), 1),
}
# A server's DATA on a stream that has ended is not answered: what came late is no fault of its.
SERVER_FLOODS["DATA of a stream that has ended"] = (FLOODS["DATA of a stream that has ended"][0], 1)
# After GOAWAY a client closes as soon as its calls are over.
SERVER_FLOODS["GOAWAY"] = (repeated(frame(GOAWAY, 0, 0, uint32(3) + bytes(4))), 10)


class Flood:
    """Sends up to a million frames, as fast as they are taken, and reads what comes meanwhile."""

    def __init__(self, peer: ScriptedPeer, make: Callable[[int], bytes], batch: int = 500) -> None:
        self.sent = 0
        self._peer = peer
        self._make = make
        self._batch = batch
        self.goaway: GoawayFrame | None = None

    async def run(self) -> None:
        """Return at the end of the connection."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send)
            while True:
                try:
                    received = await self._peer.receive_frame()
                except (trio.EndOfChannel, trio.BrokenResourceError):
                    break
                if isinstance(received, GoawayFrame):
                    self.goaway = received
            nursery.cancel_scope.cancel()

    async def _send(self) -> None:
        try:
            for start in range(0, 1_000_000, self._batch):
                await self._peer.send_raw(b"".join(map(self._make, range(start, start + self._batch))))
                self.sent += self._batch
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


# ---------------------------------------------------------------------------------------------------------------------
# Floods of clients


@pytest.mark.parametrize("name", CLIENT_FLOODS)
async def test_a_flooding_client_loses_its_connection(
    name: str, nursery: trio.Nursery, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    make, cost = CLIENT_FLOODS[name]
    endpoint = await start_server(nursery, capacity=20_000, keepalive_enforcement=ANY_PACE)
    async with await endpoint.client() as other, await endpoint.client() as peer:
        await endpoint.assert_serves(peer, 1)
        await peer.send_request(3, CLIENT_STREAM)
        flood = Flood(peer, make)
        tracemalloc.start()
        attack = Background(nursery, flood.run)
        # The others are served meanwhile.
        await endpoint.assert_serves(other, 1)
        await attack.result()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert flood.goaway is not None
        assert flood.goaway.error_code == ErrorCode.ENHANCE_YOUR_CALM
        assert flood.goaway.debug_data.decode() == REASON
        assert REASON in caplog.text
        # The burst, what two calls had earned, and what was under way.
        assert 10_000 // cost <= flood.sent + 500
        assert flood.sent <= 10_000 // cost + 5000
        assert peak < 3_000_000
        await endpoint.assert_serves(other, 3)
        await endpoint.assert_nothing_left(connections=1)
    await endpoint.assert_serves()


@pytest.mark.parametrize("reads", [True, False], ids=["reads", "does not read"])
async def test_streams_over_the_limit(reads: bool, nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Each is refused; a client that ignores refusals, or does not even read them, is stopped."""
    limits = Limits(adaptive_window=False, max_concurrent_streams=1)
    endpoint = await start_server(nursery, limits=limits, capacity=20_000 if reads else 2000)
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM)
        sent = 0

        async def attack() -> None:
            nonlocal sent
            for stream_id in range(3, 20_001, 2):
                await peer.send_request(stream_id, UNARY)
                sent += 1

        task = Background(nursery, attack)
        if reads:
            received = await peer.receive_frame()
            while not isinstance(received, GoawayFrame):
                received = await peer.receive_frame()
            assert (received.error_code, received.debug_data.decode()) == (ErrorCode.ENHANCE_YOUR_CALM, REASON)
            await peer.expect_eof()
            assert 900 <= sent <= 1500
        else:
            # It is not read from either.
            await trio.sleep(10)
            assert task.running
            assert sent < 900
            assert endpoint.server.statistics().control_frames < 300
        task.scope.cancel()
    await endpoint.assert_nothing_left()


async def test_headers_after_our_goaway(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """While a drain waits for an open call, new streams are ignored; that is no licence."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM)
        await trio.sleep(1)
        drain = Background(nursery, endpoint.server.drain)
        await peer.expect(GoawayFrame, last_stream_id=2**31 - 1)
        await peer.expect(GoawayFrame, last_stream_id=1)
        flood = Flood(peer, lambda number: frame(HEADERS, END_HEADERS | END_STREAM, 3 + 2 * number, b"\x88"))
        await flood.run()
        assert flood.goaway is not None
        assert flood.goaway.error_code == ErrorCode.ENHANCE_YOUR_CALM
        await drain.result()


async def test_the_limit_is_an_option(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, limits=Limits(adaptive_window=False, max_overhead_frames=50))
    async with await endpoint.client() as peer:
        flood = Flood(peer, repeated(frame(0xEE, 0, 0)), batch=10)
        await flood.run()
        assert flood.goaway is not None
        assert flood.goaway.error_code == ErrorCode.ENHANCE_YOUR_CALM
        assert 40 <= flood.sent <= 100
    endpoint = await start_server(nursery, limits=Limits(adaptive_window=False, max_overhead_frames=None))
    async with await endpoint.client() as peer:
        await peer.send_raw(frame(0xEE, 0, 0) * 100_000)
        await endpoint.assert_serves(peer)
        await endpoint.assert_nothing_left(connections=1)


# ---------------------------------------------------------------------------------------------------------------------
# Who must survive; with a small burst, so that it counts what is earned

TIGHT = Limits(adaptive_window=False, max_overhead_frames=100)


async def test_credit_given_back_with_every_message(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Some libraries send two WINDOW_UPDATEs for each DATA frame, however small."""
    endpoint = await start_server(nursery, limits=TIGHT)
    async with await endpoint.client() as peer:
        await peer.send_request(1, BIDI)
        for number in range(1000):
            await peer.send_message(1, EchoRequest(count=number).SerializeToString())
            if not number:
                await peer.expect(HeadersFrame, stream_id=1)
            received = await peer.expect(DataFrame, stream_id=1)
            async with peer.one_segment():
                await peer.send_window_update(0, len(received.data))
                await peer.send_window_update(1, len(received.data))
        await peer.send_data(1, end_stream=True)
        await expect_status(peer, 1, StatusCode.OK)
        await endpoint.assert_nothing_left(connections=1)


async def test_credit_and_pings_during_a_download(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Who measures the bandwidth sends a PING per round trip."""
    endpoint = await start_server(nursery, limits=TIGHT, keepalive_enforcement=ANY_PACE)
    async with await endpoint.client() as peer:
        await send_call(peer, 1, EchoRequest(count=500, payload=bytes(10_000)), SERVER_STREAM)
        await peer.expect(HeadersFrame, stream_id=1)
        while True:
            received = await peer.receive_frame()
            assert not isinstance(received, GoawayFrame)
            if isinstance(received, DataFrame):
                async with peer.one_segment():
                    await peer.send_window_update(0, len(received.data))
                    await peer.send_window_update(1, len(received.data))
                    await peer.send_ping()
            elif isinstance(received, HeadersFrame):
                break
        await endpoint.assert_nothing_left(connections=1)


async def test_empty_frames_and_padding_in_an_upload(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, limits=TIGHT)
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM)
        request = EchoRequest(payload=bytes(1000)).SerializeToString()
        for _ in range(1000):
            async with peer.one_segment():
                await peer.send_data(1)
                await peer.send_message(1, request)
                await peer.send_data(1, padding=100)
            await trio.testing.wait_all_tasks_blocked()
        await peer.send_message(1, EchoRequest(text="enough").SerializeToString(), end_stream=True)
        await expect_reply(peer, 1, EchoReply(text="enough"))
        await endpoint.assert_nothing_left(connections=1)


async def test_the_small_change_of_many_calls(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """PRIORITY in front, WINDOW_UPDATE and RST_STREAM behind: none of it is of use, all of it is usual."""
    endpoint = await start_server(nursery, limits=TIGHT)
    async with await endpoint.client() as peer:
        for stream_id in range(1, 2001, 2):
            await peer.send_frame(PRIORITY, 0, stream_id, bytes(5))
            await endpoint.assert_serves(peer, stream_id)
            async with peer.one_segment():
                await peer.send_window_update(0, 20)
                await peer.send_window_update(stream_id, 20)
                await peer.send_rst_stream(stream_id, ErrorCode.CANCEL)
        # Also where the answer is a status and nothing else.
        for stream_id in range(2001, 4001, 2):
            await peer.send_frame(PRIORITY, 0, stream_id, bytes(5))
            await peer.send_request(stream_id, "/echo.Echo/Nope", end_stream=True)
            await expect_status(peer, stream_id, StatusCode.UNIMPLEMENTED)
            await peer.send_rst_stream(stream_id, ErrorCode.CANCEL)
        await endpoint.assert_nothing_left(connections=1)


async def test_time_pays_too(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """A quiet connection that is asked every second whether it is there, for hours."""
    endpoint = await start_server(nursery, limits=TIGHT, keepalive_enforcement=ANY_PACE)
    async with await endpoint.client() as peer:
        for _ in range(5000):
            await peer.send_ping()
            await trio.sleep(1)
        await endpoint.assert_serves(peer, 1)


async def test_tiny_data_frames_are_data(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """One octet at a time is slow, and its sender's own affair."""
    endpoint = await start_server(nursery, limits=TIGHT)
    request = EchoRequest(payload=bytes(20_000)).SerializeToString()
    message = b"\0" + uint32(len(request)) + request
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM)
        await peer.send_raw(b"".join(frame(DATA, 0, 1, message[at : at + 1]) for at in range(len(message))))
        await peer.send_data(1, end_stream=True)
        await expect_reply(peer, 1, EchoReply(payload=bytes(20_000)))
        await endpoint.assert_nothing_left(connections=1)


# ---------------------------------------------------------------------------------------------------------------------
# Floods of servers


@pytest.mark.parametrize("name", SERVER_FLOODS)
async def test_a_flooding_server_loses_its_connection(name: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    make, cost = SERVER_FLOODS[name]
    async with ScriptedServer(capacity=20_000) as scripted:
        first = Background(nursery, scripted.stub.Unary, EchoRequest())
        async with await scripted.accept() as peer:
            await expect_call(peer, 1)
            await send_reply(peer, 1, EchoReply())
            await first.result()
            call = Background(nursery, scripted.stub.Unary, EchoRequest())
            await expect_call(peer, 3)
            if name != "1xx":
                await peer.send_response(3)
            flood = Flood(peer, make)
            tracemalloc.start()
            await flood.run()
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert flood.goaway is not None
        assert flood.goaway.error_code == ErrorCode.ENHANCE_YOUR_CALM
        assert flood.sent <= 10_000 // cost + 5000
        assert peak < 3_000_000
        error = await call.error()
        assert error.code is StatusCode.UNAVAILABLE
        assert REASON in error.message
        # The next call goes to the next connection.
        last = Background(nursery, scripted.stub.Unary, EchoRequest(), wait_for_ready=True)
        async with await scripted.accept() as peer:
            await expect_call(peer, 1)
            await send_reply(peer, 1, EchoReply(text="alive"))
            assert (await last.result()).text == "alive"


async def test_a_server_that_is_silent_inside_a_header_block(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Its calls may have no deadlines; the connection is of no use to any of them."""
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        async with await scripted.accept() as peer:
            await expect_call(peer, 1)
            began = trio.current_time()
            await peer.send_frame(HEADERS, 0, 1, b"\x88")
            error = await call.error()
            assert error.code is StatusCode.UNAVAILABLE
            assert "header block was not finished within 20 s" in error.message
            assert trio.current_time() - began == pytest.approx(20)


async def test_a_server_whose_header_block_never_ends(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        async with await scripted.accept() as peer:
            await expect_call(peer, 1)
            await peer.send_frame(HEADERS, 0, 1, b"\x88")
            await peer.send_raw(frame(CONTINUATION, 0, 1) * 100)
            error = await call.error()
            assert (error.code, "header block in over 64 frames" in error.message) == (StatusCode.UNAVAILABLE, True)
            await peer.expect(GoawayFrame, error_code=ErrorCode.ENHANCE_YOUR_CALM)


async def test_a_header_bomb_of_a_server(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """A kilobyte of HPACK that stands for megabytes: counted and not made."""
    async with ScriptedServer() as scripted:
        neighbour = Background(nursery, scripted.stub.Unary, EchoRequest())
        async with await scripted.accept() as peer:
            await expect_call(peer, 1)
            call = Background(nursery, scripted.stub.Unary, EchoRequest())
            await expect_call(peer, 3)
            entry = b"\x40\x01x\x7f\xa1\x1e" + b"v" * 4000
            tracemalloc.start()
            await peer.send_frame(HEADERS, END_HEADERS, 3, b"\x88" + entry + b"\xbe" * 2600)
            error = await call.error()
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert error.code is StatusCode.RESOURCE_EXHAUSTED
            assert "is over the limit of 16384 bytes" in error.message
            assert peak < 500_000
            await send_reply(peer, 1, EchoReply(text="neighbour"))
            assert (await neighbour.result()).text == "neighbour"
