"""One connection of either side against a scripted peer: its beginning, its ends, and that it always ends."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from math import inf
from typing import Any

import pytest
import trio
import trio.testing

from tests.behaviour.scripted import NarrowStream, Pipe
from trio_grpc._options import Keepalive, Limits
from trio_grpc._status import StatusCode
from trio_grpc._transport import frames
from trio_grpc._transport.byte_stream import wrap
from trio_grpc._transport.connection import FAREWELL_TIME, Connection, ConnectionLost
from trio_grpc._transport.frames import ConnectionFault, ErrorCode
from trio_grpc._transport.header_codec import HeaderTemplate
from trio_grpc._transport.side import Side
from trio_grpc._transport.stream import Stream
from trio_grpc.testing import (
    GoawayFrame,
    HeadersFrame,
    PingFrame,
    ScriptedPeer,
    SettingsFrame,
    WindowUpdateFrame,
)

HEAD = HeaderTemplate(((b":method", b"POST"), (b":path", b"/a.B/C")))
QUIET = Limits(adaptive_window=False)


class Joined:
    """A connection that runs, and its scripted peer."""

    def __init__(
        self,
        nursery: trio.Nursery,
        side: Side,
        *,
        limits: Limits = QUIET,
        capacity: int = 2**30,
        handshake_timeout: float = 10,
        auto_ack: bool = True,
    ) -> None:
        up, down = Pipe(capacity), Pipe(capacity)
        self.draining = 0
        self.streams: list[Stream] = []
        self.near = NarrowStream(up, down)
        self.connection = Connection(
            side,
            wrap(self.near),
            limits,
            peer="somebody",
            handshake_timeout=handshake_timeout,
            on_stream=self.streams.append,
            on_draining=self._on_draining,
        )
        make = ScriptedPeer.client if side is Side.SERVER else ScriptedPeer.server
        self.peer = make(NarrowStream(down, up), auto_ack=auto_ack)
        self.scope = trio.CancelScope()
        nursery.start_soon(self._run)

    def _on_draining(self) -> None:
        self.draining += 1

    async def _run(self) -> None:
        with self.scope:
            await self.connection.run()

    def open(self, payload: bytes = b"") -> Stream:
        """A call whose request is queued."""
        assert self.connection.table.acquire_nowait()
        stream = self.connection.open_stream(HEAD, ())
        stream.queue_message(payload)
        stream.announce()
        return stream

    async def assert_closed(self, seconds: float) -> None:
        """It ends in this time, and nothing of it is left."""
        began = trio.current_time()
        with trio.fail_after(1000):
            await self.connection.closed.wait()
        assert trio.current_time() - began == pytest.approx(seconds, abs=0.01)
        assert self.connection.table.slots_used == 0
        assert not self.connection.table.streams
        assert self.connection.control_buffer.closed


@pytest.fixture
def internal_errors() -> Iterator[list[logging.LogRecord]]:
    """What is logged as an internal error, kept from those who would fail the test for it."""
    records: list[logging.LogRecord] = []

    def keep(record: logging.LogRecord) -> bool:
        if record.exc_info is None:
            return True
        records.append(record)
        return False

    logger = logging.getLogger("trio_grpc")
    logger.addFilter(keep)
    yield records
    logger.removeFilter(keep)


# ---------------------------------------------------------------------------------------------------------------------
# The beginning


async def test_what_a_client_begins_with(nursery: trio.Nursery, autojump_clock: Any) -> None:
    joined = Joined(nursery, Side.CLIENT)
    settings = await joined.peer.receive_frame()
    assert isinstance(settings, SettingsFrame)
    assert settings.settings[frames.SETTINGS_ENABLE_PUSH] == 0
    assert settings.settings[frames.SETTINGS_INITIAL_WINDOW_SIZE] == 65_535
    assert settings.settings[frames.SETTINGS_MAX_FRAME_SIZE] == 262_144
    assert settings.settings[frames.SETTINGS_MAX_HEADER_LIST_SIZE] == 16_384
    assert frames.SETTINGS_MAX_CONCURRENT_STREAMS not in settings.settings
    # The connection window is only ever raised by WINDOW_UPDATE.
    assert await joined.peer.receive_frame() == WindowUpdateFrame(0, 2**20 - 65_535)
    assert not joined.connection.ready.is_set()
    await joined.peer.send_preface()
    await trio.testing.wait_all_tasks_blocked()
    assert joined.connection.ready.is_set()


async def test_what_a_server_begins_with(nursery: trio.Nursery, autojump_clock: Any) -> None:
    limits = Limits(
        adaptive_window=False,
        max_concurrent_streams=7,
        initial_window_size=1000,
        initial_connection_window_size=65_535,
        max_frame_size=20_000,
        max_header_list_size=8192,
    )
    joined = Joined(nursery, Side.SERVER, limits=limits)
    # It does not wait for the client (RFC 9113, 3.4).
    settings = await joined.peer.receive_frame()
    assert isinstance(settings, SettingsFrame)
    chosen = {
        frames.SETTINGS_MAX_CONCURRENT_STREAMS: 7,
        frames.SETTINGS_INITIAL_WINDOW_SIZE: 1000,
        frames.SETTINGS_MAX_FRAME_SIZE: 20_000,
        frames.SETTINGS_MAX_HEADER_LIST_SIZE: 8192,
    }
    assert chosen.items() <= settings.settings.items()
    await joined.peer.expect_silence()


@pytest.mark.parametrize("side", Side)
async def test_a_peer_that_says_nothing(side: Side, nursery: trio.Nursery, autojump_clock: Any) -> None:
    joined = Joined(nursery, side, auto_ack=False)
    await joined.assert_closed(10 + (FAREWELL_TIME if side is Side.SERVER else 0))
    await joined.peer.expect(GoawayFrame, error_code=ErrorCode.SETTINGS_TIMEOUT)
    await joined.peer.expect_eof()
    assert str(joined.connection.reason) == "connection to somebody failed: no SETTINGS frame from the peer in 10 s"


@pytest.mark.parametrize(
    "option", [None, Keepalive(time=inf), Keepalive(time=60, timeout=7)], ids=["none", "off", "on"]
)
async def test_keepalive_bounds_what_the_kernel_waits_for_too(
    option: Keepalive | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TCP_USER_TIMEOUT (gRFC A18), before anything is written."""
    timeouts: list[float] = []
    near, _ = trio.testing.memory_stream_pair()
    byte_stream = wrap(near)
    monkeypatch.setattr(type(byte_stream), "set_user_timeout", lambda _, seconds: timeouts.append(seconds))
    Connection(Side.CLIENT, byte_stream, QUIET, peer="somebody", handshake_timeout=10, keepalive=option)
    assert timeouts == ([7] if option is not None and option.time < inf else [])
    await near.aclose()


# ---------------------------------------------------------------------------------------------------------------------
# The ends


@pytest.mark.parametrize("side", Side)
async def test_the_peer_hangs_up(side: Side, nursery: trio.Nursery, autojump_clock: Any) -> None:
    joined = Joined(nursery, side)
    await joined.peer.handshake()
    await joined.peer.aclose()
    await joined.assert_closed(0)
    assert isinstance(joined.connection.reason, ConnectionLost)
    assert str(joined.connection.reason) == "connection closed by somebody"
    assert joined.connection.draining
    assert joined.draining == 1


@pytest.mark.parametrize("side", Side)
async def test_the_peer_breaks_the_rules(side: Side, nursery: trio.Nursery, autojump_clock: Any) -> None:
    joined = Joined(nursery, side)
    await joined.peer.handshake()
    await joined.peer.send_frame(frames.PING, 0, 1, bytes(8))
    await joined.assert_closed(0)
    await joined.peer.expect(GoawayFrame, error_code=ErrorCode.PROTOCOL_ERROR, debug_data=b"PING on a stream")
    await joined.peer.expect_eof()
    assert isinstance(joined.connection.reason, ConnectionLost)
    assert isinstance(joined.connection.reason.__cause__, ConnectionFault)
    assert joined.draining == 1


async def test_calls_of_a_lost_connection_are_told(nursery: trio.Nursery, autojump_clock: Any) -> None:
    joined = Joined(nursery, Side.CLIENT)
    await joined.peer.handshake()
    written = joined.open()
    await joined.peer.expect(HeadersFrame, stream_id=1)
    queued = joined.open()
    # In one step with the loss: this call has not been written yet.
    joined.connection._lose(OSError("cable cut"))
    await trio.testing.wait_all_tasks_blocked()
    for stream in (written, queued):
        assert stream.outcome is not None
        assert stream.outcome.code is StatusCode.UNAVAILABLE
        assert stream.outcome.cause is not None
    assert written.outcome is not None
    assert (written.outcome.message, written.outcome.unprocessed) == ("connection to somebody lost: cable cut", False)
    # Nothing of it can have been run.
    assert queued.outcome is not None
    assert queued.outcome.unprocessed
    await joined.peer.aclose()
    await joined.assert_closed(0)


async def test_streams_of_a_lost_connection_are_cancelled(nursery: trio.Nursery, autojump_clock: Any) -> None:
    joined = Joined(nursery, Side.SERVER)
    await joined.peer.handshake()
    await joined.peer.send_request(1, "/a.B/C")
    await trio.testing.wait_all_tasks_blocked()
    [stream] = joined.streams
    ended = []
    stream.on_ended = lambda: ended.append(True)
    await joined.peer.aclose()
    await joined.assert_closed(0)
    assert ended == [True]
    assert stream.cancelled == "connection closed by somebody"


@pytest.mark.parametrize("side", Side)
async def test_closing(side: Side, nursery: trio.Nursery, autojump_clock: Any) -> None:
    joined = Joined(nursery, side)
    await joined.peer.handshake()

    async def hang_up() -> None:
        await joined.peer.expect(GoawayFrame, error_code=ErrorCode.NO_ERROR)
        await joined.peer.expect_eof()
        await joined.peer.aclose()

    nursery.start_soon(hang_up)
    await joined.connection.aclose()
    await joined.assert_closed(0)
    # Again, and after the end.
    await joined.connection.aclose()
    await joined.connection.drain()
    assert joined.draining == 1


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("how", ["close", "fault", "hang up"])
async def test_a_peer_that_does_not_read_keeps_nothing(
    how: str, side: Side, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    """The writer stands in a write that nobody takes."""
    joined = Joined(nursery, side, capacity=100)
    await joined.peer.handshake({frames.SETTINGS_INITIAL_WINDOW_SIZE: 2**30})
    await joined.peer.send_window_update(0, 2**30)
    if side is Side.CLIENT:
        joined.open(bytes(100_000))
    else:
        await joined.peer.send_request(1, "/a.B/C")
        await trio.testing.wait_all_tasks_blocked()
        joined.streams[0].queue_message(bytes(100_000))
        joined.streams[0].announce()
    await trio.sleep(1)
    assert joined.connection.table.slots_used == 1
    if how == "close":
        nursery.start_soon(joined.connection.aclose)
    elif how == "fault":
        await joined.peer.send_frame(frames.PING, 0, 1, bytes(8))
    else:
        await joined.peer.stream.send_eof()  # type: ignore[attr-defined]
    await joined.assert_closed(2 * FAREWELL_TIME)


async def test_a_server_lets_its_client_hang_up_first(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Closing a socket with unread input resets it, and the last response would be lost."""
    joined = Joined(nursery, Side.SERVER)
    await joined.peer.handshake()
    nursery.start_soon(joined.connection.aclose)
    await joined.peer.expect(GoawayFrame)
    await joined.peer.expect_eof()
    await trio.sleep(FAREWELL_TIME / 2)
    assert not joined.connection.closed.is_set()
    # What crosses the goodbye is read and dropped.
    await joined.peer.send_request(1, "/a.B/C", end_stream=True)
    await joined.peer.aclose()
    await joined.assert_closed(0)


@pytest.mark.parametrize("side", Side)
async def test_being_cancelled(side: Side, nursery: trio.Nursery, autojump_clock: Any) -> None:
    joined = Joined(nursery, side)
    await joined.peer.handshake()
    stream = None
    if side is Side.CLIENT:
        stream = joined.open()
        await joined.peer.expect(HeadersFrame)
        await joined.peer.receive_message(1)
    joined.scope.cancel()
    await joined.assert_closed(0)
    await joined.peer.expect_eof()
    if stream is not None:
        assert stream.outcome is not None
        assert stream.outcome.message == "connection to somebody was closed"


async def test_a_write_that_fails(nursery: trio.Nursery, autojump_clock: Any) -> None:
    joined = Joined(nursery, Side.CLIENT)
    await joined.peer.handshake()
    error = OSError("cable cut")

    async def send_all(data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        raise error

    joined.near.send_all = send_all  # type: ignore[method-assign]
    stream = joined.open()
    await joined.assert_closed(0)
    assert stream.outcome is not None
    assert stream.outcome.message == "connection to somebody lost: cable cut"
    assert joined.connection.reason is not None
    assert joined.connection.reason.__cause__ is error
    await joined.peer.aclose()


@pytest.mark.parametrize("where", ["reader", "writer"])
async def test_a_fault_of_ours_ends_the_connection_and_is_logged(
    where: str,
    nursery: trio.Nursery,
    autojump_clock: Any,
    monkeypatch: pytest.MonkeyPatch,
    internal_errors: list[logging.LogRecord],
) -> None:
    joined = Joined(nursery, Side.CLIENT)
    await joined.peer.handshake()
    stream = joined.open()
    await joined.peer.expect(HeadersFrame)
    await joined.peer.receive_message(1)
    mistake = AssertionError("who wrote this?")

    def fail(*_: object) -> None:
        raise mistake

    if where == "reader":
        monkeypatch.setattr(type(joined.connection.reader), "on_ping", fail)
        await joined.peer.send_ping()
    else:
        monkeypatch.setattr(joined.connection.writer, "_drain", fail)
        await joined.peer.send_ping()
    await joined.assert_closed(0)
    if where == "reader":
        await joined.peer.expect(GoawayFrame, error_code=ErrorCode.INTERNAL_ERROR, debug_data=b"internal error")
    assert [record.exc_info[1] for record in internal_errors if record.exc_info] == [mistake]
    assert stream.outcome is not None
    assert stream.outcome.code is StatusCode.UNAVAILABLE
    await joined.peer.aclose()


async def test_when_the_stream_ids_run_out(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """RFC 9113, 5.1.1: ids cannot be reused; the next calls need a new connection."""
    joined = Joined(nursery, Side.CLIENT)
    await joined.peer.handshake()
    joined.connection.writer._next_stream_id = 2**31 - 3
    streams = [joined.open() for _ in range(4)]
    assert (await joined.peer.expect(HeadersFrame)).stream_id == 2**31 - 3
    await joined.peer.receive_message(2**31 - 3)
    assert (await joined.peer.expect(HeadersFrame)).stream_id == 2**31 - 1
    await joined.peer.receive_message(2**31 - 1)
    await joined.peer.expect_silence()
    assert joined.connection.draining
    assert joined.draining == 1
    assert not joined.connection.table.acquire_nowait()
    assert [stream.outcome is None for stream in streams] == [True, True, False, False]
    assert streams[2].outcome is not None
    assert streams[2].outcome.unprocessed
    # The last ones are served to their end.
    await joined.peer.send_trailers_only(2**31 - 1, StatusCode.NOT_FOUND)
    await trio.testing.wait_all_tasks_blocked()
    assert streams[1].outcome is not None
    assert streams[1].outcome.code is StatusCode.NOT_FOUND
    await joined.peer.aclose()
    await joined.assert_closed(0)


# ---------------------------------------------------------------------------------------------------------------------
# Draining


async def test_draining_twice_says_it_once(nursery: trio.Nursery, autojump_clock: Any) -> None:
    joined = Joined(nursery, Side.SERVER)
    await joined.peer.handshake()
    nursery.start_soon(joined.connection.drain)
    nursery.start_soon(joined.connection.drain)
    assert (await joined.peer.expect(GoawayFrame)).last_stream_id == 2**31 - 1
    await joined.peer.expect(PingFrame, ack=False)
    assert (await joined.peer.expect(GoawayFrame)).last_stream_id == 0
    # The farewell of a connection that has become idle.
    assert (await joined.peer.expect(GoawayFrame)).last_stream_id == 0
    await joined.peer.expect_eof()
    await joined.peer.aclose()
    await joined.assert_closed(0)


async def test_another_pings_ack_is_not_taken_for_that_of_the_drain(nursery: trio.Nursery, autojump_clock: Any) -> None:
    joined = Joined(nursery, Side.SERVER, auto_ack=False)
    await joined.peer.handshake()
    nursery.start_soon(joined.connection.drain)
    await joined.peer.expect(GoawayFrame)
    await joined.peer.send_ping(b"whatever", ack=True)
    began = trio.current_time()
    await joined.peer.expect(GoawayFrame)
    assert trio.current_time() - began == 5
    await joined.peer.aclose()
    await joined.assert_closed(0)


async def test_a_peer_that_vanishes_during_a_drain(nursery: trio.Nursery, autojump_clock: Any) -> None:
    joined = Joined(nursery, Side.SERVER, auto_ack=False)
    await joined.peer.handshake()
    await joined.peer.send_request(1, "/a.B/C")
    async with trio.open_nursery() as draining:
        draining.start_soon(joined.connection.drain)
        await joined.peer.expect(GoawayFrame)
        await joined.peer.aclose()
    await joined.assert_closed(0)


async def test_stop_accepting_and_finish(nursery: trio.Nursery, autojump_clock: Any) -> None:
    joined = Joined(nursery, Side.SERVER)
    await joined.peer.handshake()
    await joined.peer.send_request(1, "/a.B/C", end_stream=True)
    await trio.testing.wait_all_tasks_blocked()
    joined.connection.stop_accepting()
    joined.connection.stop_accepting()
    await joined.peer.expect(GoawayFrame, last_stream_id=1, debug_data=b"server is shutting down")
    await joined.peer.send_request(3, "/a.B/C", end_stream=True)
    await joined.peer.expect_silence()
    assert [stream.stream_id for stream in joined.streams] == [1]
    joined.streams[0].refuse(StatusCode.UNAVAILABLE, "bye")
    nursery.start_soon(joined.connection.finish)
    headers = await joined.peer.expect(HeadersFrame, stream_id=1, end_stream=True)
    assert headers["grpc-message"] == "bye"
    await joined.peer.expect(GoawayFrame, last_stream_id=1)
    await joined.peer.expect_eof()
    await joined.peer.aclose()
    await joined.assert_closed(0)
