"""What ends badly thousands of times leaves nothing behind: no credit, no stream, no object."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

from tests.support.echo import Context, Echo, Requests, SecretError
from trio_grpc import RpcError, StatusCode
from trio_grpc._transport import stream_table
from trio_grpc.testing import open_channel_pair

Clock = trio.testing.MockClock


@pytest.fixture
def no_tracebacks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A traceback for each of thousands of failures would be all that takes time and memory here."""
    logger = logging.getLogger("trio_grpc")
    logger.disabled = True
    yield
    logger.disabled = False


@pytest.mark.usefixtures("no_tracebacks")
@pytest.mark.parametrize("when", ["at once", "after the first request", "never reads"])
async def test_handlers_that_fail_do_not_use_up_the_connection(when: str, autojump_clock: Clock) -> None:
    """What their clients have sent, 100 KiB each, is many times the window of the connection."""

    async def handler(requests: Requests, context: Context) -> EchoReply:
        if when == "after the first request":
            await requests.receive()
        elif when == "never reads":
            # Until its client's stream is full.
            await trio.sleep(1)
        raise SecretError

    payload = EchoRequest(payload=bytes(10_240))
    async with open_channel_pair(Echo(client_stream=handler)) as (channel, server):
        stub = EchoStub(channel)
        for _ in range(300):
            with pytest.raises(RpcError) as caught:
                await stub.ClientStream([payload] * 10)
            assert caught.value.code is StatusCode.UNKNOWN
        # A normal one still gets megabytes through.
        large = EchoRequest(payload=bytes(3 * 2**20))
        assert (await stub.Unary(large)).payload == large.payload
        (near,), (far,) = channel._balancer.connections, server._connections
        assert near.outgoing.connection == far.incoming._remaining
        assert far.incoming._remaining >= 2**20 - 2**18
        assert (channel.statistics().streams, server.statistics().streams) == (0, 0)


async def test_streams_that_are_left_after_their_first_message_leave_nothing(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of them, none with an end of its own."""
    monkeypatch.setattr(stream_table, "_REMEMBERED", 8)
    cancelled = 0

    async def endless(request: EchoRequest, context: Context) -> AsyncIterator[EchoReply]:
        nonlocal cancelled
        try:
            while True:
                yield EchoReply()
                await trio.sleep(1)
        finally:
            cancelled += 1

    servicer = Echo(server_stream=endless)
    async with open_channel_pair(servicer) as (channel, server):
        stub = EchoStub(channel)

        async def leave(times: int) -> int:
            for _ in range(times):
                async with stub.ServerStream(EchoRequest()) as replies:
                    await replies.receive()
            await trio.testing.wait_all_tasks_blocked()
            servicer.contexts.clear()
            gc.collect()
            return sys.getallocatedblocks()

        before = await leave(500)
        after = await leave(1500)
        # Less than one object for every thirty calls.
        assert after - before < 50
        assert cancelled == 2000
        assert (server.statistics().streams, server.statistics().handlers) == (0, 0)
        assert channel.statistics().streams == 0
