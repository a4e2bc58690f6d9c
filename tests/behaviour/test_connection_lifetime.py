"""How long a server keeps its connections: max_idle, max_age and its grace (gRFC A9), and no call is lost by it."""

from __future__ import annotations

import random
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
    SERVER_STREAM,
    Background,
    Echo,
    expect_reply,
    expect_status,
    send_call,
    start_server,
)
from trio_grpc import ConnectionLifetime, RpcError, StatusCode
from trio_grpc.testing import (
    ErrorCode,
    GoawayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    ScriptedPeer,
    open_channel_pair,
)

pytestmark = pytest.mark.usefixtures("quiet_log")

LAST = 2**31 - 1
UNIFORM = random.uniform


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)


async def expect_drain(peer: ScriptedPeer, debug_data: bytes, last: int) -> float:
    """Both GOAWAYs of a drain; return when the first came."""
    await peer.expect(GoawayFrame, last_stream_id=LAST, error_code=ErrorCode.NO_ERROR, debug_data=debug_data)
    came = trio.current_time()
    await peer.expect(GoawayFrame, last_stream_id=last, error_code=ErrorCode.NO_ERROR, debug_data=debug_data)
    return came


async def expect_end(peer: ScriptedPeer) -> float:
    """The last GOAWAY and the end; return when it came."""
    await peer.expect(GoawayFrame, error_code=ErrorCode.NO_ERROR)
    await peer.expect_eof()
    return trio.current_time()


# ---------------------------------------------------------------------------------------------------------------------
# max_idle


async def test_a_connection_that_was_never_used_is_idle(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, connection_lifetime=ConnectionLifetime(max_idle=60))
    await trio.sleep(5)
    async with await endpoint.client() as peer:
        assert await expect_drain(peer, b"max_idle", 0) == pytest.approx(65, abs=0.01)
        assert await expect_end(peer) == pytest.approx(65, abs=0.01)
    await endpoint.assert_nothing_left()


async def test_idle_since_the_last_call_has_ended(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, connection_lifetime=ConnectionLifetime(max_idle=60))
    async with await endpoint.client() as peer:
        for number in range(10):
            await trio.sleep(59)
            await endpoint.assert_serves(peer, 2 * number + 1)
        # A long call is no idleness, however quiet it is.
        await peer.send_request(21, CLIENT_STREAM)
        await trio.sleep(1000.5)
        await peer.send_data(21, end_stream=True)
        await expect_reply(peer, 21, EchoReply())
        began = trio.current_time()
        assert await expect_drain(peer, b"max_idle", 21) - began == pytest.approx(60, abs=0.01)
        await expect_end(peer)
    await endpoint.assert_nothing_left()


async def test_a_call_that_meets_the_goaway_is_served(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """That is what the two steps are for."""
    endpoint = await start_server(nursery, connection_lifetime=ConnectionLifetime(max_idle=60))
    async with await endpoint.client() as peer:
        peer.auto_ack = False
        await peer.expect(GoawayFrame, last_stream_id=LAST, debug_data=b"max_idle")
        ping = await peer.expect(PingFrame, ack=False)
        await send_call(peer, 1, EchoRequest(text="on its way"))
        await peer.send_ping(ping.payload, ack=True)
        await expect_reply(peer, 1, EchoReply(text="on its way"))
        await peer.expect(GoawayFrame, last_stream_id=1, debug_data=b"max_idle")
        await expect_end(peer)
    await endpoint.assert_nothing_left()


async def test_a_client_that_does_not_acknowledge_is_not_waited_for(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, connection_lifetime=ConnectionLifetime(max_idle=60))
    async with await endpoint.client() as peer:
        peer.auto_ack = False
        began = await expect_drain(peer, b"max_idle", 0)
        assert await expect_end(peer) - began == pytest.approx(5, abs=0.01)
    await endpoint.assert_nothing_left()


# ---------------------------------------------------------------------------------------------------------------------
# max_age


async def test_calls_finish_on_a_connection_that_has_its_age(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, connection_lifetime=ConnectionLifetime(max_age=100))
    async with await endpoint.client() as peer:
        await peer.send_request(1, BIDI)
        assert await expect_drain(peer, b"max_age", 1) == pytest.approx(100, abs=0.01)
        # Without end: the grace is infinite unless said otherwise.
        await trio.sleep(50_000)
        await peer.send_message(1, EchoRequest(text="last").SerializeToString(), end_stream=True)
        await expect_reply(peer, 1, EchoReply(text="last"))
        await expect_end(peer)
    await endpoint.assert_nothing_left()


@pytest.mark.parametrize("answered", [False, True], ids=["before its headers", "in the middle"])
async def test_calls_that_outlive_the_grace_are_ended(
    answered: bool, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    endpoint = await start_server(nursery, connection_lifetime=ConnectionLifetime(max_age=100, max_age_grace=10))
    async with await endpoint.client() as peer:
        await peer.send_request(1, BIDI)
        if answered:
            await peer.send_message(1, EchoRequest().SerializeToString())
            await peer.expect(HeadersFrame, stream_id=1)
            await peer.receive_message(1)
        await expect_drain(peer, b"max_age", 1)
        message = await expect_status(peer, 1, StatusCode.UNAVAILABLE)
        assert message == "the connection has reached its max_age and max_age_grace"
        assert trio.current_time() == pytest.approx(110, abs=0.01)
        await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.NO_ERROR)
        assert await expect_end(peer) == pytest.approx(110, abs=0.01)
    assert endpoint.servicer.cancelled == 1
    await endpoint.assert_nothing_left()


async def test_a_grace_of_nothing(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, connection_lifetime=ConnectionLifetime(max_age=100, max_age_grace=0))
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM)
        await expect_drain(peer, b"max_age", 1)
        await expect_status(peer, 1, StatusCode.UNAVAILABLE)
        await peer.expect(RstStreamFrame, stream_id=1)
        assert await expect_end(peer) == pytest.approx(100, abs=0.01)
    await endpoint.assert_nothing_left()


@pytest.mark.parametrize("capacity", [1000, 100_000])
async def test_a_client_that_does_not_read_is_ended_too(
    capacity: int, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    lifetime = ConnectionLifetime(max_age=100, max_age_grace=10)
    endpoint = await start_server(nursery, connection_lifetime=lifetime, capacity=capacity)
    async with await endpoint.client() as peer:
        for stream_id in range(1, 21, 2):
            await send_call(peer, stream_id, EchoRequest(payload=bytes(1000), count=1000), SERVER_STREAM)
        # The PING's ACK takes 5 seconds at most, the farewell 2 + 1.
        await trio.sleep(99)
        assert endpoint.server.statistics().connections == 1
        await trio.sleep(20)
        assert endpoint.server.statistics().connections == 0
        await endpoint.assert_nothing_left()


async def test_ages_differ_by_a_tenth_at_most(
    nursery: trio.Nursery, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", UNIFORM)
    ages: list[float] = []
    endpoint = await start_server(nursery, connection_lifetime=ConnectionLifetime(max_age=1000))

    async def live() -> None:
        async with await endpoint.client() as peer:
            ages.append(await expect_drain(peer, b"max_age", 0))
            await expect_end(peer)

    async with trio.open_nursery() as clients:
        for _ in range(100):
            clients.start_soon(live)
    assert 900 <= min(ages) < 950
    assert 1050 < max(ages) <= 1100
    assert len(set(ages)) == 100
    await endpoint.assert_nothing_left()


async def test_the_earlier_of_both_counts(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, connection_lifetime=ConnectionLifetime(max_age=100, max_idle=70))
    async with await endpoint.client() as idle, await endpoint.client() as busy:
        await trio.sleep(50)
        await endpoint.assert_serves(busy)
        assert await expect_drain(idle, b"max_idle", 0) == pytest.approx(70, abs=0.01)
        assert await expect_drain(busy, b"max_age", 1) == pytest.approx(100, abs=0.01)
    await endpoint.assert_nothing_left()


async def test_a_drain_of_the_server_during_the_grace(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, connection_lifetime=ConnectionLifetime(max_age=100, max_age_grace=50))
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM)
        await expect_drain(peer, b"max_age", 1)
        drain = Background(nursery, endpoint.server.drain, 10)
        assert await expect_status(peer, 1, StatusCode.UNAVAILABLE) == "server is shutting down"
        await peer.expect(RstStreamFrame, stream_id=1)
        assert await expect_end(peer) == pytest.approx(110, abs=0.01)
        await drain.result()
    await endpoint.assert_nothing_left()


async def test_the_age_comes_during_a_drain_of_the_server(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, connection_lifetime=ConnectionLifetime(max_age=100, max_age_grace=50))
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM)
        await trio.sleep(90)
        drain = Background(nursery, endpoint.server.drain)
        await expect_drain(peer, b"graceful_stop", 1)
        message = await expect_status(peer, 1, StatusCode.UNAVAILABLE)
        assert message == "the connection has reached its max_age and max_age_grace"
        await peer.expect(RstStreamFrame, stream_id=1)
        assert await expect_end(peer) == pytest.approx(150, abs=0.01)
        await drain.result()
    await endpoint.assert_nothing_left()


@pytest.mark.parametrize("at", [50, 100, 102, 108, 110])
async def test_a_server_can_be_cancelled_at_any_point_of_a_lifetime(
    at: float, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    async with trio.open_nursery() as servers:
        endpoint = await start_server(
            servers, connection_lifetime=ConnectionLifetime(max_age=100, max_age_grace=5, max_idle=500)
        )
        async with await endpoint.client() as peer:
            peer.auto_ack = False
            await peer.send_request(1, CLIENT_STREAM)
            await trio.sleep(at)
            servers.cancel_scope.cancel()
    assert trio.current_time() - at < 5
    assert endpoint.servicer.started == endpoint.servicer.ended == endpoint.servicer.cancelled == 1


# ---------------------------------------------------------------------------------------------------------------------
# Both ends ours


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_no_call_is_lost_by_connections_that_end(sockets: bool, autojump_clock: Any) -> None:
    """A client in a tight loop over connections that live for a tenth of a second, or are idle for long."""
    servicer = Echo()
    lifetime = ConnectionLifetime(max_age=0.1, max_idle=1)
    async with open_channel_pair(servicer, connection_lifetime=lifetime, sockets=sockets) as (channel, server):
        stub = EchoStub(channel)
        done = 0
        made: set[object] = set()

        async def call(number: int) -> None:
            nonlocal done
            for _ in range(200):
                assert (await stub.Unary(EchoRequest(count=number))).count == number
                done += 1
                made.update(server._connections)
                await trio.sleep(0.001 * (1 + number))

        async with trio.open_nursery() as calls:
            for number in range(5):
                calls.start_soon(call, number)
        assert (done, servicer.started) == (1000, 1000)
        assert len(made) >= 5
        for _ in range(5):
            await stub.Unary(EchoRequest())
            await trio.sleep(3)
            assert (channel.statistics().connections, server.statistics().connections) == (0, 0)


async def test_a_call_that_outlives_the_grace_is_unavailable(autojump_clock: Any) -> None:
    lifetime = ConnectionLifetime(max_age=100, max_age_grace=10)
    async with open_channel_pair(Echo(), connection_lifetime=lifetime) as (channel, _):
        with pytest.raises(RpcError) as caught:
            await EchoStub(channel).Unary(EchoRequest(text="wait"))
        assert caught.value.code is StatusCode.UNAVAILABLE
        assert caught.value.message == "the connection has reached its max_age and max_age_grace"
        assert trio.current_time() == pytest.approx(110, abs=0.01)
        await EchoStub(channel).Unary(EchoRequest())


async def test_pairs_live_for_ever_unless_asked(autojump_clock: Any) -> None:
    async with open_channel_pair(Echo()) as (channel, server):
        await EchoStub(channel).Unary(EchoRequest())
        await trio.sleep(10**9)
        assert (channel.statistics().connections, server.statistics().connections) == (1, 1)


async def test_wrong_options_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match="connection_lifetime must be ConnectionLifetime or None, not int"):
        await trio_grpc.serve([Echo()], "127.0.0.1:0", connection_lifetime=5)  # type: ignore[arg-type]
