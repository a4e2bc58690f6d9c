"""How often a channel dials a peer that does not keep its connections."""

from __future__ import annotations

import echo_pb2
import pytest
import trio
import trio.testing
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.behaviour.scripted import Background, ScriptedServer, expect_call, send_reply
from trio_grpc._transport import frames
from trio_grpc.testing import ErrorCode


class Farewells:
    """Accepts connections, says SETTINGS and GOAWAY in one breath, and counts them."""

    def __init__(self) -> None:
        self.dials = 0

    async def connect(self) -> trio.abc.Stream:
        self.dials += 1
        near, far = trio.testing.memory_stream_pair()
        await far.send_all(frames.frame(frames.SETTINGS, 0, 0) + frames.goaway(0, frames.ErrorCode.NO_ERROR, b"busy"))
        return near


async def test_peer_that_says_goodbye_at_once_is_not_dialled_in_a_tight_loop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    peer = Farewells()
    async with trio_grpc.open_channel(peer.connect) as channel:
        echo = EchoStub(channel)

        with pytest.raises(trio_grpc.RpcError) as caught:
            await echo.Unary(echo_pb2.EchoRequest())

        assert caught.value.code is trio_grpc.StatusCode.UNAVAILABLE
        assert "busy" in caught.value.message
        assert peer.dials < 6


async def test_waiting_call_is_paced_by_the_backoff(autojump_clock: trio.testing.MockClock) -> None:
    peer = Farewells()
    async with trio_grpc.open_channel(peer.connect) as channel:
        with trio.move_on_after(60):
            await EchoStub(channel).Unary(echo_pb2.EchoRequest(), wait_for_ready=True)

        assert 30 < peer.dials < 90


async def test_a_proxy_may_limit_the_requests_of_a_connection(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    async with ScriptedServer() as scripted:
        for number in range(20):
            call = Background(nursery, scripted.stub.Unary, echo_pb2.EchoRequest(count=number))
            peer = await scripted.accept()
            assert (await expect_call(peer, 1)).count == number
            await peer.send_goaway(1, ErrorCode.NO_ERROR)
            await send_reply(peer, 1, echo_pb2.EchoReply(count=number))
            assert (await call.result()).count == number
            await peer.aclose()
        assert trio.current_time() == 0


@pytest.mark.watchdog(10)
async def test_a_connection_made_as_the_channel_closes_does_not_keep_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    far: list[trio.abc.Stream] = []

    async def dial() -> trio.abc.Stream:
        near, peer = trio.testing.memory_stream_pair()
        far.append(peer)
        await peer.send_all(frames.frame(frames.SETTINGS, 0, 0))
        # The last step of a handshake: it is taken although the attempt has been cancelled.
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        return near

    async with trio_grpc.open_channel(dial) as channel:
        with pytest.raises(trio_grpc.RpcError) as caught:
            await EchoStub(channel).Unary(echo_pb2.EchoRequest(), timeout=0.5)
        assert caught.value.code is trio_grpc.StatusCode.DEADLINE_EXCEEDED
    assert trio.current_time() == pytest.approx(1)
