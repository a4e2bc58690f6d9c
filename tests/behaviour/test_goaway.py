"""GOAWAY both ways: calls under way finish, later ones go elsewhere, none is lost or run twice (RFC 9113, 6.8)."""

from __future__ import annotations

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
    QUIET,
    Background,
    Echo,
    ScriptedServer,
    expect_call,
    expect_reply,
    expect_status,
    send_call,
    send_reply,
    start_server,
)
from trio_grpc import RpcError, StatusCode
from trio_grpc.testing import ErrorCode, GoawayFrame, HeadersFrame, MemoryListener, PingFrame, RstStreamFrame

pytestmark = pytest.mark.usefixtures("quiet_log")

LAST = 2**31 - 1


# ---------------------------------------------------------------------------------------------------------------------
# The server goes


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
@pytest.mark.parametrize("together", [True, False], ids=["one segment", "frame by frame"])
async def test_streams_up_to_the_last_finish_and_later_ones_go_elsewhere(
    together: bool, sockets: bool, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    async with ScriptedServer(sockets=sockets) as scripted:
        spared = Background(nursery, scripted.stub.Unary, EchoRequest(text="1"))
        peer = await scripted.accept()
        assert (await expect_call(peer, 1)).text == "1"
        lost = Background(nursery, scripted.stub.Unary, EchoRequest(text="3"))
        assert (await expect_call(peer, 3)).text == "3"

        async def script() -> None:
            await peer.send_response(1)
            await peer.send_goaway(1, ErrorCode.NO_ERROR, b"max_age")
            await peer.send_message(1, EchoReply(text="one").SerializeToString())
            await peer.send_trailers(1)

        if together:
            async with peer.one_segment():
                await script()
        else:
            await script()
        assert (await spared.result()).text == "one"
        # Transparent retry (gRFC A6): the server has said that it did not look at stream 3.
        second = await scripted.accept()
        assert (await expect_call(second, 1)).text == "3"
        await send_reply(second, 1, EchoReply(text="three"))
        assert (await lost.result()).text == "three"
        # The first connection has nothing more to do.
        await peer.expect(GoawayFrame, error_code=ErrorCode.NO_ERROR)
        await peer.expect_eof()
        await peer.aclose()
        await trio.testing.wait_all_tasks_blocked()
        scripted.assert_nothing_left(connections=1)
        await second.aclose()


async def test_a_spared_stream_goes_on_in_both_directions(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as call:
            peer = await accepted.result()
            await peer.expect(HeadersFrame, stream_id=1)
            await peer.send_goaway(1)
            await trio.sleep(100)
            for number in range(3):
                await call.send(EchoRequest(count=number))
                assert EchoRequest.FromString(await peer.receive_message(1)).count == number
                if not number:
                    await peer.send_response(1)
                await peer.send_message(1, EchoReply(count=number).SerializeToString())
                assert (await call.receive()).count == number
            await call.done_sending()
            await peer.send_trailers(1)
            with pytest.raises(trio.EndOfChannel):
                await call.receive()
        await trio.sleep(5)
        scripted.assert_nothing_left(connections=0)


async def test_a_call_above_the_last_stream_is_unavailable_where_it_cannot_be_repeated(
    nursery: trio.Nursery, autojump_clock: Any
) -> None:
    """Messages of which more were sent than may be kept are not there to be sent again."""
    async with ScriptedServer(limits=trio_grpc.Limits(adaptive_window=False, retry_buffer_size=0)) as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as call:
            peer = await accepted.result()
            await call.send(EchoRequest(text="hello"))
            await peer.expect(HeadersFrame, stream_id=1)
            await peer.send_goaway(0, ErrorCode.NO_ERROR, b"graceful_stop")
            with pytest.raises(RpcError) as caught:
                await call.receive()
            assert caught.value.code is StatusCode.UNAVAILABLE
            assert caught.value.message == "MemoryListener.connect is going away: NO_ERROR (graceful_stop)"
            with pytest.raises(trio.BrokenResourceError):
                await call.send(EchoRequest())
        await trio.sleep(5)
        scripted.assert_nothing_left(connections=0)


async def test_two_goaways_spare_what_comes_before_the_second(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """The first says "open no more", the second which were taken."""
    async with ScriptedServer() as scripted:
        calls = []
        peer = None
        for number in range(3):
            calls.append(Background(nursery, scripted.stub.Unary, EchoRequest(count=number)))
            peer = peer or await scripted.accept()
            await expect_call(peer, 2 * number + 1)
        assert peer is not None
        await peer.send_goaway(LAST)
        # Read, before another call is begun.
        await trio.testing.wait_all_tasks_blocked()
        later = Background(nursery, scripted.stub.Unary, EchoRequest(count=3))
        second = await scripted.accept()
        assert (await expect_call(second, 1)).count == 3
        await peer.send_goaway(3)
        assert (await expect_call(second, 3)).count == 2
        for stream_id, count in ((1, 0), (3, 1)):
            await send_reply(peer, stream_id, EchoReply(count=count))
        for stream_id, count in ((1, 3), (3, 2)):
            await send_reply(second, stream_id, EchoReply(count=count))
        assert [(await call.result()).count for call in (*calls, later)] == [0, 1, 2, 3]
        await peer.expect(GoawayFrame)
        await peer.expect_eof()


async def test_calls_that_wait_for_a_slot_go_elsewhere(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        first = Background(nursery, scripted.stub.Unary, EchoRequest(text="first"))
        peer = await scripted.accept({3: 1})
        await expect_call(peer, 1)
        waiting = Background(nursery, scripted.stub.Unary, EchoRequest(text="waiting"))
        await trio.sleep(1)
        assert scripted.channel.statistics().waiting == 1
        await peer.send_goaway(1)
        second = await scripted.accept()
        assert (await expect_call(second, 1)).text == "waiting"
        await send_reply(second, 1, EchoReply())
        await waiting.result()
        assert first.running
        await send_reply(peer, 1, EchoReply())
        await first.result()


async def test_an_idle_connection_ends_at_once(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        for _ in range(3):
            call = Background(nursery, scripted.stub.Unary, EchoRequest())
            peer = await scripted.accept()
            await expect_call(peer, 1)
            await send_reply(peer, 1, EchoReply())
            await call.result()
            await trio.sleep(2)
            await peer.send_goaway(1)
            await peer.expect(GoawayFrame, last_stream_id=0, error_code=ErrorCode.NO_ERROR)
            await peer.expect_eof()
            await trio.testing.wait_all_tasks_blocked()
            scripted.assert_nothing_left(connections=0)


async def test_a_goaway_with_an_error_is_told(
    nursery: trio.Nursery, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        await peer.send_goaway(1, ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings")
        await peer.aclose()
        error = await call.error()
        assert error.code is StatusCode.UNAVAILABLE
        assert error.message == (
            "connection closed by MemoryListener.connect; before that, "
            "MemoryListener.connect is going away: ENHANCE_YOUR_CALM (too_many_pings)"
        )
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["MemoryListener.connect is going away: ENHANCE_YOUR_CALM (too_many_pings)"]


async def test_a_goaway_with_text_that_is_none(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        await peer.send_goaway(1, 0xABCD, b"\xff\xfe" * 5000)
        await send_reply(peer, 1, EchoReply(text="all the same"))
        assert (await call.result()).text == "all the same"


async def test_a_goaway_writes_no_lines_of_its_own_into_the_log(
    nursery: trio.Nursery, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        await peer.send_goaway(1, ErrorCode.INTERNAL_ERROR, b"a\r\nCRITICAL root: \x1b[2J\xe2\x80\xa8b \xc3\xbc")
        await peer.aclose()
        error = await call.error()
    told = "MemoryListener.connect is going away: INTERNAL_ERROR (a??CRITICAL root: ?[2J?b \u00fc)"
    assert error.message.endswith(told)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [told]


async def test_a_call_that_races_with_goaway_is_not_lost(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Its headers and GOAWAY cross: the server never sees the stream, or ignores it."""
    async with ScriptedServer() as scripted:
        first = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        calls = [Background(nursery, scripted.stub.Unary, EchoRequest(count=number)) for number in range(10)]
        await peer.send_goaway(1)
        await send_reply(peer, 1, EchoReply())
        await first.result()
        second = await scripted.accept()
        for number in range(10):
            request = await expect_call(second, 2 * number + 1)
            await send_reply(second, 2 * number + 1, EchoReply(count=request.count))
        assert sorted([(await call.result()).count for call in calls]) == list(range(10))


# ---------------------------------------------------------------------------------------------------------------------
# Our server drains


async def test_a_drain_has_two_steps(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        peer.auto_ack = False
        await peer.send_request(1, BIDI)
        await trio.sleep(1)
        drain = Background(nursery, endpoint.server.drain)
        await peer.expect(GoawayFrame, last_stream_id=LAST, error_code=ErrorCode.NO_ERROR)
        ping = await peer.expect(PingFrame, ack=False)
        # The listener is closed, but what was on its way is still served.
        with pytest.raises(OSError, match="closed"):
            await endpoint.connect()
        await send_call(peer, 3, EchoRequest(text="on its way"))
        await expect_reply(peer, 3, EchoReply(text="on its way"))
        await peer.send_ping(ping.payload, ack=True)
        await peer.expect(GoawayFrame, last_stream_id=3, error_code=ErrorCode.NO_ERROR)
        # Later streams are ignored; the client knows that it may open them elsewhere.
        await send_call(peer, 5, EchoRequest(text="too late"))
        await peer.expect_silence()
        assert drain.running
        await peer.send_message(1, EchoRequest(text="last").SerializeToString(), end_stream=True)
        await expect_reply(peer, 1, EchoReply(text="last"))
        await peer.expect(GoawayFrame, last_stream_id=3, error_code=ErrorCode.NO_ERROR)
        await peer.expect_eof()
        await drain.result()
    assert endpoint.servicer.started == 2
    await endpoint.assert_nothing_left()


async def test_a_drain_does_not_wait_for_a_ping_ack_for_ever(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        peer.auto_ack = False
        await peer.send_request(1, CLIENT_STREAM)
        await trio.sleep(1)
        began = trio.current_time()
        drain = Background(nursery, endpoint.server.drain)
        await peer.expect(GoawayFrame, last_stream_id=LAST)
        await peer.expect(GoawayFrame, last_stream_id=1)
        assert trio.current_time() - began == pytest.approx(5)
        await peer.send_data(1, end_stream=True)
        await expect_reply(peer, 1, EchoReply())
        await peer.expect(GoawayFrame, last_stream_id=1)
        await peer.expect_eof()
        await drain.result()
    await endpoint.assert_nothing_left()


async def test_an_idle_connection_is_drained_after_one_round_trip(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await endpoint.assert_serves(peer)
        drain = Background(nursery, endpoint.server.drain)
        for last in (LAST, 1, 1):
            await peer.expect(GoawayFrame, last_stream_id=last, error_code=ErrorCode.NO_ERROR)
        await peer.expect_eof()
        await peer.aclose()
        await drain.result()
        assert trio.current_time() < 1
    await endpoint.assert_nothing_left()


async def test_a_drain_whose_grace_is_over_cancels_the_handlers(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM)
        await trio.sleep(1)
        drain = Background(nursery, endpoint.server.drain, 3)
        await peer.expect(GoawayFrame, last_stream_id=LAST)
        await peer.expect(GoawayFrame, last_stream_id=1)
        assert await expect_status(peer, 1, StatusCode.UNAVAILABLE) == "server is shutting down"
        await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.NO_ERROR)
        await peer.expect(GoawayFrame, last_stream_id=1)
        await peer.expect_eof()
    await drain.result()
    assert trio.current_time() == pytest.approx(4, abs=0.1)
    assert endpoint.servicer.cancelled == 1
    await endpoint.assert_nothing_left()


@pytest.mark.parametrize("capacity", [1000, 100_000])
async def test_a_drain_ends_with_a_client_that_does_not_read(
    capacity: int, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    endpoint = await start_server(nursery, capacity=capacity)
    async with await endpoint.client() as peer:
        await peer.send_window_update(0, 2**30)
        for stream_id in range(1, 21, 2):
            await peer.send_window_update(0, 2**20)
            await send_call(peer, stream_id, EchoRequest(payload=bytes(50_000)))
        await trio.sleep(1)
        drain = Background(nursery, endpoint.server.drain, 3)
        await drain.result()
        assert trio.current_time() < 10
        await endpoint.assert_nothing_left()


async def test_a_drain_during_the_handshake(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.connect(), await endpoint.connect() as half:
        await half.send_raw(b"PRI * HTTP/2.0\r\n")
        await trio.sleep(1)
        await endpoint.server.drain()
        assert trio.current_time() < 15
    await endpoint.assert_nothing_left()


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_a_drain_while_connections_arrive(sockets: bool, nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Each of them is served, drained or turned away at once; none is kept, and the drain does not wait for them."""
    endpoint = await start_server(nursery, sockets=sockets)
    ends: list[str] = []

    async def arrive(delay: float) -> None:
        await trio.sleep(delay)
        try:
            peer = await endpoint.connect()
        except OSError:
            ends.append("refused")
            return
        async with peer:
            try:
                await peer.handshake()
                await send_call(peer, 1, EchoRequest(text="in time?"))
                while not isinstance(frame := await peer.receive_frame(), HeadersFrame):
                    pass
                assert frame.get("grpc-status") is None
                assert EchoReply.FromString(await peer.receive_message(1)).text == "in time?"
                await expect_status(peer, 1, StatusCode.OK)
                ends.append("served")
                while True:
                    await peer.receive_frame()
            except (trio.EndOfChannel, trio.BrokenResourceError):
                ends.append("closed")

    for number in range(200):
        nursery.start_soon(arrive, number / 100)
    await trio.sleep(1)
    # In the middle of it, and among those of the same instant.
    with trio.fail_after(7):
        await endpoint.server.drain()
    await trio.sleep(5)
    assert ends.count("refused") >= 95
    assert ends.count("served") >= 95
    # Whoever got a connection has seen its end.
    assert ends.count("closed") + ends.count("refused") == 200
    await endpoint.assert_nothing_left()


async def test_a_client_that_says_goodbye_still_gets_its_answers(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, BIDI)
        await peer.send_goaway(0, ErrorCode.NO_ERROR, b"bye")
        await peer.send_message(1, EchoRequest(text="last").SerializeToString(), end_stream=True)
        await expect_reply(peer, 1, EchoReply(text="last"))
    await endpoint.assert_nothing_left()


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_no_call_fails_while_servers_are_drained_and_replaced(
    sockets: bool, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    """A client in a tight loop, and a rolling restart behind it."""
    listeners = [MemoryListener(sockets=sockets)]
    servicers = [Echo()]
    servers = [await nursery.start(trio_grpc.serve, servicers[:1], listeners[0])]
    done = 0
    stop = trio.Event()

    async def connect() -> trio.abc.Stream:
        return await listeners[-1].connect()

    async def call(stub: EchoStub, number: int) -> None:
        nonlocal done
        while not stop.is_set():
            reply = await stub.Unary(EchoRequest(count=number, payload=bytes(100 * number)))
            assert (reply.count, len(reply.payload)) == (number, 100 * number)
            done += 1
            await trio.sleep(0.001 * (1 + number % 3))

    async with trio_grpc.open_channel(connect, limits=QUIET) as channel, trio.open_nursery() as calls:
        stub = EchoStub(channel)
        for number in range(10):
            calls.start_soon(call, stub, number)
        for _ in range(5):
            await trio.sleep(0.5)
            listeners.append(MemoryListener(sockets=sockets))
            servicers.append(Echo())
            servers.append(await nursery.start(trio_grpc.serve, servicers[-1:], listeners[-1]))
            await servers[-2].drain()
            stop.set()
    assert sum(servicer.started for servicer in servicers) == done
    assert all(servicer.started == servicer.ended for servicer in servicers)
