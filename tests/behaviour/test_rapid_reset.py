"""Rapid reset (CVE-2023-44487): streams that are opened and reset at once never count as open, but they are work."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Awaitable, Callable
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
    UNARY,
    Background,
    Echo,
    Endpoint,
    start_server,
)
from trio_grpc import Limits
from trio_grpc.testing import (
    ErrorCode,
    GoawayFrame,
    HeadersFrame,
    ScriptedPeer,
    open_channel_pair,
)

pytestmark = pytest.mark.usefixtures("quiet_log")

REASON = "too many calls were reset before they were answered (option max_premature_resets)"


async def send_pairs(peer: ScriptedPeer, count: int, first: int = 1, path: str = UNARY, batch: int = 500) -> None:
    """HEADERS and RST_STREAM, as fast as they are taken."""
    for start in range(first, first + 2 * count, 2 * batch):
        async with peer.one_segment():
            for stream_id in range(start, min(start + 2 * batch, first + 2 * count), 2):
                await peer.send_request(stream_id, path)
                await peer.send_rst_stream(stream_id, ErrorCode.CANCEL)


async def expect_goaway(peer: ScriptedPeer) -> GoawayFrame:
    """Whatever else comes, a GOAWAY comes too, and then the end."""
    while True:
        frame = await peer.receive_frame()
        if isinstance(frame, GoawayFrame):
            await peer.expect_eof()
            return frame


@pytest.mark.parametrize("one_by_one", [False, True], ids=["in big segments", "pair by pair"])
@pytest.mark.parametrize("path", [UNARY, CLIENT_STREAM])
async def test_fifty_thousand_pairs(
    path: str, one_by_one: bool, nursery: trio.Nursery, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = await start_server(nursery, capacity=200_000)
    async with await endpoint.client() as other, await endpoint.client() as peer:
        most_tasks = 0

        async def flood() -> None:
            nonlocal most_tasks
            for first in range(1, 100_001, 1000):
                await send_pairs(peer, 500, first, path, batch=1 if one_by_one else 500)
                most_tasks = max(most_tasks, trio.lowlevel.current_statistics().tasks_living)

        idle = trio.lowlevel.current_statistics().tasks_living
        tracemalloc.start()
        attack = Background(nursery, flood)
        goaway = await expect_goaway(peer)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (goaway.error_code, goaway.debug_data.decode()) == (ErrorCode.ENHANCE_YOUR_CALM, REASON)
        # It came to a thousand calls, and a few thousand more bytes lay around.
        assert goaway.last_stream_id <= 4001
        assert most_tasks <= idle + 200
        assert peak < 4_000_000
        [record] = [record for record in caplog.records if REASON in record.getMessage()]
        assert record.levelno == logging.WARNING
        # Another connection is served meanwhile and afterwards.
        await endpoint.assert_serves(other, 1)
        attack.scope.cancel()
    await endpoint.assert_serves()
    await endpoint.assert_nothing_left()
    assert endpoint.servicer.started <= 1500


async def test_another_connection_stays_responsive(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Between two reads of the flood the others have their turn."""
    endpoint = await start_server(nursery, capacity=20_000, limits=Limits(max_premature_resets=None))
    async with await endpoint.client() as other, await endpoint.client() as peer:
        attack = Background(nursery, send_pairs, peer, 5000)
        reading = Background(nursery, expect_goaway, peer)
        answered = 0
        while attack.running:
            await endpoint.assert_serves(other, 2 * answered + 1)
            answered += 1
        assert answered > 10
        reading.scope.cancel()
    await endpoint.assert_nothing_left()


async def test_handlers_that_will_not_end_are_bounded_too(nursery: trio.Nursery, autojump_clock: Any) -> None:
    class Stubborn(Echo):
        async def ClientStream(self, requests: Any, context: Any) -> EchoReply:
            self.started += 1
            with trio.CancelScope(shield=True):
                await self.gate.wait()
            self.ended += 1
            return EchoReply()

    servicer = Stubborn()
    limits = Limits(adaptive_window=False, max_concurrent_streams=50)
    endpoint = await start_server(nursery, limits=limits, servicer=servicer)
    most_handlers = 0
    try:
        async with await endpoint.client() as peer:

            async def attack() -> None:
                nonlocal most_handlers
                for first in range(1, 30_001, 60):
                    async with peer.one_segment():
                        for stream_id in range(first, first + 60, 2):
                            await peer.send_request(stream_id, CLIENT_STREAM)
                    await trio.sleep(0.001)
                    async with peer.one_segment():
                        for stream_id in range(first, first + 60, 2):
                            await peer.send_rst_stream(stream_id, ErrorCode.CANCEL)
                    await trio.sleep(0.001)
                    most_handlers = max(most_handlers, endpoint.server.statistics().handlers)

            task = Background(nursery, attack)
            assert (await expect_goaway(peer)).error_code == ErrorCode.ENHANCE_YOUR_CALM
            task.scope.cancel()
            assert (servicer.started, most_handlers) == (50, 50)
    finally:
        servicer.gate.set()
    await endpoint.assert_nothing_left()
    assert servicer.started == 50


async def test_streams_that_we_are_made_to_reset_are_paid_for_alike(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """CVE-2025-8671: the client breaks a rule of the stream, and the server resets it."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:

        async def attack() -> None:
            for stream_id in range(1, 10_001, 2):
                async with peer.one_segment():
                    await peer.send_request(stream_id, CLIENT_STREAM)
                    await peer.send_window_update(stream_id, 0)

        task = Background(nursery, attack)
        goaway = await expect_goaway(peer)
        assert (goaway.error_code, goaway.debug_data.decode()) == (ErrorCode.ENHANCE_YOUR_CALM, REASON)
        assert 2001 <= goaway.last_stream_id <= 2101
        task.scope.cancel()
    await endpoint.assert_nothing_left()


# ---------------------------------------------------------------------------------------------------------------------
# Who must survive


async def assert_alive(endpoint: Endpoint, peer: ScriptedPeer, stream_id: int) -> None:
    """Skip the answers to what was cancelled."""
    await peer.send_request(stream_id, UNARY)
    await peer.send_message(stream_id, EchoRequest(text="alive").SerializeToString(), end_stream=True)
    while True:
        frame = await peer.receive_frame()
        assert not isinstance(frame, GoawayFrame), frame
        if isinstance(frame, HeadersFrame) and frame.stream_id == stream_id:
            assert EchoReply.FromString(await peer.receive_message(stream_id)).text == "alive"
            return


@pytest.mark.parametrize(("count", "pause"), [(30, 0.0), (500, 0.0), (1000, 0.0), (5000, 0.1)])
async def test_a_client_that_cancels_many_calls(
    count: int, pause: float, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        for first in range(1, 2 * count, 2):
            await send_pairs(peer, 1, first)
            if pause:
                # 1000 at once and 33 a second
                await trio.sleep(pause if first < 4000 else 1 / 33)
        await assert_alive(endpoint, peer, 2 * count + 1)
        await endpoint.assert_nothing_left(connections=1)


async def test_calls_that_are_answered_pay_for_others(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """A client that asks several servers and keeps the first answer; here nine in ten are cancelled."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        stream_id = 1
        for _ in range(300):
            await send_pairs(peer, 9, stream_id)
            await assert_alive(endpoint, peer, stream_id + 18)
            stream_id += 20
        await endpoint.assert_nothing_left(connections=1)


async def test_calls_that_had_their_time_do_not_count(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Deadlines that are missed: the stream limit alone bounds how many there can be."""
    endpoint = await start_server(nursery, limits=Limits(adaptive_window=False, max_premature_resets=10))
    async with await endpoint.client() as peer:
        for first in range(1, 2001, 200):
            for stream_id in range(first, first + 200, 2):
                await peer.send_request(stream_id, BIDI)
            await trio.sleep(0.2)
            for stream_id in range(first, first + 200, 2):
                await peer.send_rst_stream(stream_id, ErrorCode.CANCEL)
        await assert_alive(endpoint, peer, 2001)
        await endpoint.assert_nothing_left(connections=1)


async def test_the_limit_is_an_option(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, limits=Limits(adaptive_window=False, max_premature_resets=5))
    async with await endpoint.client() as peer:
        await send_pairs(peer, 5)
        await peer.send_ping()
        await trio.sleep(0.01)
        assert endpoint.server.statistics().connections == 1
        await send_pairs(peer, 1, 11)
        assert (await expect_goaway(peer)).error_code == ErrorCode.ENHANCE_YOUR_CALM
    endpoint = await start_server(nursery, limits=Limits(adaptive_window=False, max_premature_resets=None))
    async with await endpoint.client() as peer:
        await send_pairs(peer, 5000)
        await assert_alive(endpoint, peer, 10_001)
    await endpoint.assert_nothing_left()


Cancel = Callable[[EchoStub], Awaitable[None]]


async def leave_after_the_first_reply(stub: EchoStub) -> None:
    async with stub.ServerStream(EchoRequest(count=10**9, payload=bytes(70_000))) as call:
        await call.receive()


async def leave_after_the_first_exchange(stub: EchoStub) -> None:
    async with stub.Bidi() as call:
        await call.send(EchoRequest())
        await call.receive()


async def cancel_every_third_unary_call(stub: EchoStub) -> None:
    for number in range(3):
        with trio.CancelScope() as scope:
            if not number:
                trio.lowlevel.current_trio_token().run_sync_soon(scope.cancel)
            await stub.Unary(EchoRequest())


@pytest.mark.watchdog(240)
@pytest.mark.parametrize(
    ("cancel", "count"), [(leave_after_the_first_reply, 2000), (leave_after_the_first_exchange, 10_000)]
)
async def test_thousands_of_calls_left_early_on_one_connection(cancel: Cancel, count: int, autojump_clock: Any) -> None:
    """A soak test of somebody: each call is left after its first response."""
    async with open_channel_pair(Echo(), limits=QUIET) as (channel, server):
        stub = EchoStub(channel)
        for _ in range(count):
            await cancel(stub)
        assert server.statistics().connections == 1
        assert (await stub.Unary(EchoRequest(text="alive"))).text == "alive"
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics().streams == 0


async def test_unary_calls_some_of_which_are_cancelled(autojump_clock: Any) -> None:
    async with open_channel_pair(Echo(), limits=QUIET) as (channel, server):
        stub = EchoStub(channel)
        for _ in range(2000):
            await cancel_every_third_unary_call(stub)
        assert server.statistics().connections == 1
        assert (await stub.Unary(EchoRequest(text="alive"))).text == "alive"


async def test_a_client_is_told_why_and_connects_anew(
    nursery: trio.Nursery, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Our own client, cancelling without end what was never answered."""
    endpoint = await start_server(nursery, limits=Limits(adaptive_window=False, max_premature_resets=20))
    async with trio_grpc.open_channel(endpoint.listener.connect, limits=QUIET) as channel:
        stub = EchoStub(channel)
        for _ in range(21):
            async with stub.ClientStream.open() as call:
                await call.send(EchoRequest())
                await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(10)
        assert f"is going away: ENHANCE_YOUR_CALM ({REASON})" in caplog.text
        assert channel.statistics().connections == 0
        assert (await stub.Unary(EchoRequest(text="alive"))).text == "alive"
    await endpoint.assert_nothing_left()
