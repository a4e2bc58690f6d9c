"""Keepalive: dead peers are found out, and those who ask too often are shown the door (gRFC A8, A9; L116)."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.behaviour.scripted import (
    BIDI,
    CLIENT_STREAM,
    UNARY,
    Background,
    Echo,
    ScriptedServer,
    expect_call,
    expect_reply,
    send_call,
    send_reply,
    start_server,
)
from tests.support.checkpoints import counting
from trio_grpc import Keepalive, KeepaliveEnforcement, ServerKeepalive, StatusCode
from trio_grpc.testing import ErrorCode, Frame, GoawayFrame, HeadersFrame, PingFrame, ScriptedPeer, open_channel_pair

pytestmark = pytest.mark.usefixtures("quiet_log")

DAY = 24 * 60 * 60.0
KEEPALIVE = b"trio_kal"


async def expect_ping(peer: ScriptedPeer) -> float:
    """The next frame that is no SETTINGS or WINDOW_UPDATE is a PING of keepalive; return when it came."""
    await peer.expect(PingFrame, payload=KEEPALIVE, ack=False)
    return trio.current_time()


async def expect_no_ping(peer: ScriptedPeer, seconds: float) -> None:
    """Nothing at all comes in this time."""
    with trio.move_on_after(seconds) as scope:
        raise AssertionError(await peer.receive_frame())
    assert scope.cancelled_caught


# ---------------------------------------------------------------------------------------------------------------------
# A client and its server


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
@pytest.mark.parametrize(("time", "timeout"), [(30, 20), (10, 35), (1000, 0.5)])
async def test_a_server_that_swallows_pings_is_given_up(
    time: float, timeout: float, sockets: bool, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    """grpc/grpc#16210: a half-open connection must not hang its calls."""
    keepalive = Keepalive(time=time, timeout=timeout)
    async with ScriptedServer(keepalive=keepalive, sockets=sockets) as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        peer.auto_ack = False
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        assert await expect_ping(peer) - began == pytest.approx(time, abs=0.1)
        error = await call.error()
        assert trio.current_time() - began == pytest.approx(time + timeout, abs=0.1)
        assert error.code is StatusCode.UNAVAILABLE
        name = "MemoryListener.connect"
        assert error.message == f"connection to {name} lost: keepalive: no answer to a PING in {timeout:g} s"
        assert isinstance(error.__cause__, Exception)
        assert isinstance(error.__cause__.__cause__, TimeoutError)
        await peer.expect_eof()
        # The channel makes a new connection for the next call.
        call = Background(nursery, scripted.stub.Unary, EchoRequest(text="again"))
        second = await scripted.accept()
        await expect_call(second, 1)
        await send_reply(second, 1, EchoReply())
        await call.result()
        await peer.aclose()
        await second.aclose()


async def test_pings_go_on_for_days_while_a_call_is_open(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """grpc/grpc#25722, gRFC L116: they stopped after two."""
    async with ScriptedServer(keepalive=Keepalive(time=3600)) as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as call:
            peer = await accepted.result()
            await peer.expect(HeadersFrame, stream_id=1)
            times = [trio.current_time()]
            while times[-1] < 3 * DAY:
                times.append(await expect_ping(peer))
            intervals = [later - earlier for earlier, later in itertools.pairwise(times[1:])]
            assert len(intervals) == 3 * 24 - 1
            assert intervals == pytest.approx([3600.0] * len(intervals))
            # It is alive all the same.
            await peer.send_response(1)
            await peer.send_message(1, EchoReply(text="still there").SerializeToString())
            assert (await call.receive()).text == "still there"
        await peer.aclose()


async def test_no_pings_without_calls(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer(keepalive=Keepalive(time=10)) as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        await send_reply(peer, 1, EchoReply())
        await call.result()
        await expect_no_ping(peer, 3 * DAY)
        await peer.aclose()


async def test_no_pings_unless_asked_for(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        await expect_no_ping(peer, 3 * DAY)
        await send_reply(peer, 1, EchoReply())
        await call.result()
        await peer.aclose()


async def test_pings_without_calls_where_they_are_permitted(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer(keepalive=Keepalive(time=10, permit_without_calls=True)) as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        await send_reply(peer, 1, EchoReply())
        await call.result()
        for _ in range(100):
            await expect_ping(peer)
        assert trio.current_time() == pytest.approx(1000, abs=1)
        peer.auto_ack = False
        await expect_ping(peer)
        await peer.expect_eof()
        assert trio.current_time() == pytest.approx(1030, abs=1)
        await trio.testing.wait_all_tasks_blocked()
        scripted.assert_nothing_left(connections=0)
        await peer.aclose()


async def test_a_call_on_a_long_quiet_connection_is_preceded_by_a_ping(
    nursery: trio.Nursery, autojump_clock: Any
) -> None:
    """gRFC A8: a broken connection is then found out in the timeout, and not in time and timeout."""
    async with ScriptedServer(keepalive=Keepalive(time=60)) as scripted:
        for number in range(3):
            call = Background(nursery, scripted.stub.Unary, EchoRequest())
            if not number:
                peer = await scripted.accept()
            else:
                assert isinstance(await peer.receive_frame(), PingFrame)
            await expect_call(peer, 2 * number + 1)
            await send_reply(peer, 2 * number + 1, EchoReply())
            await call.result()
            await expect_no_ping(peer, DAY)
        peer.auto_ack = False
        began = trio.current_time()
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        assert isinstance(await peer.receive_frame(), PingFrame)
        error = await call.error()
        assert error.code is StatusCode.UNAVAILABLE
        assert trio.current_time() - began == pytest.approx(20, abs=0.1)
        await peer.aclose()


async def test_any_byte_counts_as_a_sign_of_life(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Measured from the last byte that came, not from the last PING."""
    async with ScriptedServer(keepalive=Keepalive(time=10, timeout=5)) as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as call:
            peer = await accepted.result()
            peer.auto_ack = False
            await peer.expect(HeadersFrame, stream_id=1)
            await peer.send_response(1)
            for _ in range(100):
                await peer.send_message(1, EchoReply().SerializeToString())
                await expect_no_ping(peer, 9)
            # One second after the tenth a ping comes, and is answered with something else.
            await expect_ping(peer)
            await trio.sleep(4)
            await peer.send_message(1, EchoReply(text="here").SerializeToString())
            await expect_no_ping(peer, 9)
            await expect_ping(peer)
            for _ in range(101):
                reply = await call.receive()
            assert reply.text == "here"
            with pytest.raises(trio_grpc.RpcError, match="keepalive: no answer to a PING in 5 s"):
                await call.receive()
        await peer.aclose()


@pytest.mark.parametrize("capacity", [200, 2000])
async def test_a_standstill_is_ended(capacity: int, nursery: trio.Nursery, autojump_clock: Any) -> None:
    """The writer stands in a write that nobody takes, and the reader waits for its replies to leave."""
    async with ScriptedServer(keepalive=Keepalive(time=10), capacity=capacity) as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest(payload=bytes(100_000)))
        peer = await scripted.accept()
        began = trio.current_time()

        async def flood() -> None:
            while True:
                await peer.send_ping()

        flooding = Background(nursery, flood)
        error = await call.error()
        assert error.code is StatusCode.UNAVAILABLE
        assert "keepalive: no answer to a PING in 20 s" in error.message
        assert trio.current_time() - began == pytest.approx(30, abs=1)
        with pytest.raises(trio.BrokenResourceError):
            await flooding.result()
        # The end does not wait for that write either.
        assert trio.current_time() - began == pytest.approx(30, abs=1)
        await peer.aclose()


@pytest.mark.parametrize("debug_data", [b"too_many_pings", b"go away"])
async def test_a_server_that_complains_is_asked_half_as_often(
    debug_data: bytes, nursery: trio.Nursery, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedServer(keepalive=Keepalive(time=10)) as scripted:
        for expected in (10, 20, 40) if debug_data == b"too_many_pings" else (10, 10, 10):
            call = Background(nursery, scripted.stub.Unary, EchoRequest())
            peer = await scripted.accept()
            await expect_call(peer, 1)
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            assert await expect_ping(peer) - began == pytest.approx(expected, abs=0.1)
            await peer.send_goaway(1, ErrorCode.ENHANCE_YOUR_CALM, debug_data)
            await peer.aclose()
            await call.error()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings[0] == f"MemoryListener.connect is going away: ENHANCE_YOUR_CALM ({debug_data.decode()})"
    slower = [text for text in warnings if "keepalive" in text]
    assert slower == [
        f"keepalive of new connections to MemoryListener.connect: every {time} s"
        for time in (20, 40, 80)
        if debug_data == b"too_many_pings"
    ]


async def test_two_connections_with_the_same_fault_are_one(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer(keepalive=Keepalive(time=10)) as scripted:
        peers = []
        for _ in range(2):
            Background(nursery, scripted.stub.Unary, EchoRequest())
            peers.append(await scripted.accept())
            await expect_call(peers[-1], 1)
            # No new calls here, but the old one goes on.
            await peers[-1].send_goaway(1)
            await trio.testing.wait_all_tasks_blocked()
        for peer in peers:
            await peer.send_goaway(1, ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings")
            await trio.testing.wait_all_tasks_blocked()
            await peer.aclose()
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        last = await scripted.accept()
        await expect_call(last, 1)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        assert await expect_ping(last) - began == pytest.approx(20, abs=0.1)
        await send_reply(last, 1, EchoReply())
        await call.result()
        await last.aclose()


async def test_a_server_that_dies_after_its_goodbye(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """A connection that is draining still has calls to lose."""
    async with ScriptedServer(keepalive=Keepalive(time=10)) as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        peer.auto_ack = False
        await peer.send_goaway(1)
        began = trio.current_time()
        error = await call.error()
        assert error.message == (
            "connection to MemoryListener.connect lost: keepalive: no answer to a PING in 20 s; "
            "before that, MemoryListener.connect is going away: NO_ERROR"
        )
        assert trio.current_time() - began == pytest.approx(30, abs=0.1)
        await peer.aclose()


@pytest.mark.parametrize("after", [0, 5, 10, 15, 29, 1000])
@pytest.mark.parametrize("calls", [False, True], ids=["idle", "busy"])
async def test_a_channel_can_be_left_at_any_time(
    calls: bool, after: float, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    """Before its time, while it waits for an answer, and asleep for want of calls."""
    async with ScriptedServer(keepalive=Keepalive(time=10)) as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        if not calls:
            await send_reply(peer, 1, EchoReply())
            await call.result()
        peer.auto_ack = False
        await trio.sleep(after)
        began = trio.current_time()
    assert trio.current_time() - began < 3
    scripted.assert_nothing_left(connections=0)
    await peer.aclose()


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_a_caller_cancelled_at_any_checkpoint_behind_a_ping(
    sockets: bool, monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    """Each call finds a connection that has been quiet for long; the PING that it causes outlives it."""
    async with open_channel_pair(Echo(), keepalive=Keepalive(time=10), sockets=sockets) as (channel, server):
        stub = EchoStub(channel)
        await stub.Unary(EchoRequest())
        number = 0
        with counting(monkeypatch) as checkpoints:
            while await checkpoints.cancel_at(number + 1, lambda: stub.Unary(EchoRequest())):
                number += 1
                await trio.sleep(100)
                statistics = channel.statistics()
                assert (statistics.connections, statistics.streams, statistics.control_frames) == (1, 0, 0)
        assert number >= 1
        await trio.sleep(100)
        await stub.Unary(EchoRequest())
        assert server.statistics().connections == 1


# ---------------------------------------------------------------------------------------------------------------------
# A server and its clients


async def test_a_client_that_has_vanished_is_found_out(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, keepalive=ServerKeepalive(time=60, timeout=10))
    async with await endpoint.client() as peer:
        peer.auto_ack = False
        await peer.send_request(1, BIDI)
        await trio.testing.wait_all_tasks_blocked()
        assert endpoint.servicer.started == 1
        assert await expect_ping(peer) == pytest.approx(60, abs=0.1)
        await peer.expect_eof()
        assert trio.current_time() == pytest.approx(70, abs=0.1)
        await endpoint.assert_nothing_left()
        assert endpoint.servicer.cancelled == 1


async def test_a_drain_does_not_wait_for_a_client_that_has_vanished(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, keepalive=ServerKeepalive(time=60, timeout=10))
    async with await endpoint.client() as peer:
        await peer.send_request(1, BIDI)
        await trio.sleep(30)
        await endpoint.server.drain()
        assert trio.current_time() == pytest.approx(70, abs=0.1)
        await endpoint.assert_nothing_left()


async def test_a_server_asks_every_two_hours_by_default_also_without_calls(
    nursery: trio.Nursery, autojump_clock: Any
) -> None:
    endpoint = await start_server(nursery, keepalive=None)
    async with await endpoint.client() as peer:
        times = [await expect_ping(peer) for _ in range(24)]
        assert times == pytest.approx([2 * 3600.0 * number for number in range(1, 25)])
        await endpoint.assert_serves(peer)
    await endpoint.assert_nothing_left()


async def test_server_keepalive_can_be_turned_off(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, keepalive=ServerKeepalive(time=float("inf")))
    async with await endpoint.client() as peer:
        await expect_no_ping(peer, 30 * DAY)
    await endpoint.assert_nothing_left()


# ---------------------------------------------------------------------------------------------------------------------
# Clients that ask too often


async def ping(peer: ScriptedPeer) -> bool:
    """One PING; False when it is answered with a GOAWAY too, True when nothing more is said of it."""
    await peer.send_ping(b"rawpings")
    await peer.expect(PingFrame, payload=b"rawpings", ack=True)
    frame: Frame | None = None
    with trio.move_on_after(0.001):
        frame = await peer.receive_frame()
    if frame is None:
        return True
    assert isinstance(frame, GoawayFrame)
    assert (frame.error_code, frame.debug_data) == (ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings")
    return False


async def assert_third_strike_is_the_last(peer: ScriptedPeer, spacing: float) -> None:
    """The first PING is good, two more are forgiven, the fourth ends the connection."""
    for _ in range(3):
        assert await ping(peer)
        await trio.sleep(spacing)
    assert not await ping(peer)
    await peer.expect_eof()


@pytest.mark.parametrize("calls", [False, True], ids=["idle", "busy"])
async def test_the_third_bad_ping_ends_the_connection(calls: bool, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        if calls:
            await peer.send_request(1, BIDI)
        await assert_third_strike_is_the_last(peer, 0.01)
    assert endpoint.servicer.cancelled == calls
    await endpoint.assert_nothing_left()


@pytest.mark.parametrize("permit", [False, True])
@pytest.mark.parametrize("calls", [False, True], ids=["idle", "busy"])
async def test_what_is_permitted(calls: bool, permit: bool, nursery: trio.Nursery, autojump_clock: Any) -> None:
    enforcement = KeepaliveEnforcement(min_time=60, permit_without_calls=permit)
    least = 60.0 if calls or permit else 7200.0
    endpoint = await start_server(nursery, keepalive_enforcement=enforcement)
    async with await endpoint.client() as peer:
        if calls:
            await peer.send_request(1, BIDI)
        for _ in range(100):
            assert await ping(peer)
            await trio.sleep(least)
        # Every other one comes late enough after the last good one, and does not wipe out the strike before it.
        for _ in range(5):
            assert await ping(peer)
            await trio.sleep(least / 2)
        assert not await ping(peer)
        await peer.expect_eof()
    await endpoint.assert_nothing_left()


class Eager(Echo):
    """Sends the response headers at once, and then nothing."""

    async def ClientStream(self, requests: Any, context: Any) -> EchoReply:
        await context.send_initial_metadata([])
        return await super().ClientStream(requests, context)


async def speak(peer: ScriptedPeer, what: str, stream_id: int) -> None:
    """Have the server send something of a call."""
    if what == "data":
        await peer.send_message(1, EchoRequest().SerializeToString())
        if stream_id == 3:
            await peer.expect(HeadersFrame, stream_id=1)
        await peer.receive_message(1)
    elif what == "headers":
        await peer.send_request(stream_id, CLIENT_STREAM)
        await peer.expect(HeadersFrame, stream_id=stream_id, end_stream=False)
    elif what == "refusal":
        await peer.send_request(stream_id, "/no/such", end_stream=True)
        await peer.expect(HeadersFrame, stream_id=stream_id, end_stream=True)
    else:
        await send_call(peer, stream_id, EchoRequest())
        await expect_reply(peer, stream_id, EchoReply())


@pytest.mark.parametrize("what", ["headers", "data", "trailers", "refusal"])
async def test_what_the_server_sends_of_calls_wipes_out_strikes(
    what: str, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    endpoint = await start_server(nursery, servicer=Eager())
    async with await endpoint.client() as peer:
        await peer.send_request(1, BIDI)
        for number in range(20):
            for _ in range(3):
                assert await ping(peer)
            await speak(peer, what, 2 * number + 3)
        await assert_third_strike_is_the_last(peer, 0.01)
    await endpoint.assert_nothing_left()


async def test_what_the_client_sends_wipes_out_nothing(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM)
        assert await ping(peer)
        await peer.send_window_update(0, 1000)
        await peer.send_message(1, EchoRequest(payload=bytes(10_000)).SerializeToString())
        assert await ping(peer)
        await peer.send_settings({3: 100})
        await peer.send_request(3, UNARY)
        await peer.send_rst_stream(3, ErrorCode.CANCEL)
        assert await ping(peer)
        await peer.send_window_update(1, 1000)
        await peer.send_message(1, b"")
        assert not await ping(peer)
        await peer.expect_eof()
    await endpoint.assert_nothing_left()


async def test_a_flood_in_one_segment(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        async with peer.one_segment():
            for _ in range(1000):
                await peer.send_ping()
        goaway = await peer.expect(GoawayFrame, error_code=ErrorCode.ENHANCE_YOUR_CALM, debug_data=b"too_many_pings")
        assert goaway.last_stream_id == 0
        await peer.expect_eof()
    await endpoint.assert_nothing_left()


# ---------------------------------------------------------------------------------------------------------------------
# Both ends ours


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_bandwidth_probes_are_no_strikes(sockets: bool, autojump_clock: Any) -> None:
    adaptive = trio_grpc.Limits(adaptive_window=True)
    async with open_channel_pair(Echo(), limits=adaptive, keepalive=Keepalive(time=10), sockets=sockets) as (
        channel,
        server,
    ):
        stub = EchoStub(channel)
        for _ in range(3):
            async with stub.ServerStream(EchoRequest(count=2000, payload=bytes(5000))) as replies:
                received = [reply.count async for reply in replies]
            assert received == list(range(2000))
            await stub.Unary(EchoRequest())
        assert (channel.statistics().connections, server.statistics().connections) == (1, 1)
        [connection] = channel._balancer.connections
        assert connection.incoming.stream_target > 65_535, "no probe was sent"


async def test_days_without_a_word(autojump_clock: Any) -> None:
    """Both ends ask, in their own time, and neither minds."""
    servicer = Echo()
    async with open_channel_pair(
        servicer,
        keepalive=Keepalive(time=3600),
        server_keepalive=ServerKeepalive(time=1000),
    ) as (channel, server):
        stub = EchoStub(channel)
        async with stub.Bidi() as call:
            await trio.sleep(3 * DAY)
            await call.send(EchoRequest(text="good morning"))
            assert (await call.receive()).text == "good morning"
        await trio.sleep(3 * DAY)
        await stub.Unary(EchoRequest())
        assert (channel.statistics().connections, server.statistics().connections) == (1, 1)


async def test_pairs_are_quiet_unless_asked(autojump_clock: Any) -> None:
    """A test that hangs must not spin."""
    async with open_channel_pair(Echo()) as (channel, server):
        await EchoStub(channel).Unary(EchoRequest())
        for connection in (*channel._balancer.connections, *server._connections):
            assert connection._keepalive is None


async def test_wrong_options_are_refused_at_once() -> None:
    for wrong in (10, "10", ServerKeepalive()):
        with pytest.raises(TypeError, match=f"keepalive must be Keepalive or None, not {type(wrong).__name__}"):
            trio_grpc.open_channel("localhost:1", keepalive=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="keepalive must be ServerKeepalive or None, not Keepalive"):
        await trio_grpc.serve([Echo()], "127.0.0.1:0", keepalive=Keepalive(time=60))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="keepalive_enforcement must be KeepaliveEnforcement or None, not int"):
        await trio_grpc.serve([Echo()], "127.0.0.1:0", keepalive_enforcement=5)  # type: ignore[arg-type]
