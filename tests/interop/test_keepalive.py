"""Keepalive between us and grpcio: each side's PINGs, and what the other thinks of too many of them."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import grpc
import pytest
import trio
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

import trio_grpc
from tests.interop.waiting import until
from tests.interop.wire import GrpcioStub
from trio_grpc import Keepalive, KeepaliveEnforcement, RpcError, Server, ServerKeepalive, StatusCode

pytestmark = pytest.mark.watchdog(50)

#: No call waits longer, should nobody complain.
PATIENCE = 40
#: Channel options: PINGs as fast as C-core sends them, which is about one a second.
RESTLESS = {
    "grpc.keepalive_time_ms": 50,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.max_pings_without_data": 0,
    "grpc.use_local_subchannel_pool": 1,
}

_numbers = itertools.count()


class Echo(EchoServicer):
    """Waits if told to, until the gate is open."""

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.cancelled = trio.Event()

    async def Unary(self, request: EchoRequest, context: Any, /) -> EchoReply:
        if request.text == "wait":
            try:
                await self.gate.wait()
            except trio.Cancelled:
                self.cancelled.set()
                raise
        return EchoReply(text=request.text)


def call_restlessly(address: str) -> EchoReply:
    """One call of a grpcio client that asks all the time; runs in a thread."""
    with grpc.insecure_channel(address, list(RESTLESS.items())) as channel:
        reply: EchoReply = GrpcioStub(channel).Unary(EchoRequest(text="wait"), timeout=PATIENCE)
        return reply


async def test_a_restless_grpcio_client_is_told(nursery: trio.Nursery, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trio_grpc")
    echo = Echo()
    server: Server = await nursery.start(trio_grpc.serve, [echo], "127.0.0.1:0")
    with pytest.raises(grpc.RpcError) as caught:
        await trio.to_thread.run_sync(call_restlessly, server.addresses[0], abandon_on_cancel=True)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNAVAILABLE, error
    await echo.cancelled.wait()
    await until(lambda: not server.statistics().connections)
    assert any(
        record.getMessage().endswith(" ended with ENHANCE_YOUR_CALM: too_many_pings") for record in caplog.records
    )


async def test_a_restless_grpcio_client_may_be_permitted(nursery: trio.Nursery) -> None:
    echo = Echo()

    async def serve(*, task_status: trio.TaskStatus[Server]) -> None:
        await trio_grpc.serve(
            [echo],
            "127.0.0.1:0",
            keepalive_enforcement=KeepaliveEnforcement(min_time=0, permit_without_calls=True),
            task_status=task_status,
        )

    server = await nursery.start(serve)
    replies: list[EchoReply] = []

    async def call() -> None:
        address = server.addresses[0]
        replies.append(await trio.to_thread.run_sync(call_restlessly, address, abandon_on_cancel=True))

    async with trio.open_nursery() as calls:
        calls.start_soon(call)
        await until(lambda: server.statistics().handlers == 1)
        [connection] = server._connections
        reads: set[float] = set()
        # Nothing but PINGs can come while the call is open: more of them than would be forgiven.
        while len(reads) < 6:
            reads.add(connection.reader.last_read)
            await trio.sleep(0.005)
        echo.gate.set()
    assert replies == [EchoReply(text="wait")]


async def test_a_grpcio_server_slows_us_down(
    peer: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The floor of 10 seconds is for servers of strangers.
    monkeypatch.setattr("trio_grpc._options._MIN_KEEPALIVE_TIME", 0.01)
    keepalive = Keepalive(time=0.05)
    async with trio_grpc.open_channel(peer["aio"], keepalive=keepalive) as channel:
        name = f"keepalive {next(_numbers)}".encode()
        with pytest.raises(RpcError) as caught:
            await EchoStub(channel).Unary(EchoRequest(text="wait", payload=name), timeout=PATIENCE)
        assert caught.value.code is StatusCode.UNAVAILABLE, caught.value
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{channel.target} is going away: ENHANCE_YOUR_CALM (too_many_pings)" in warnings
    assert f"keepalive of new connections to {channel.target}: every 0.1 s" in warnings


async def test_our_server_asks_a_grpcio_client(nursery: trio.Nursery) -> None:
    echo = Echo()

    async def serve(*, task_status: trio.TaskStatus[Server]) -> None:
        keepalive = ServerKeepalive(time=1, timeout=PATIENCE)
        await trio_grpc.serve([echo], "127.0.0.1:0", keepalive=keepalive, task_status=task_status)

    server = await nursery.start(serve)

    def call() -> EchoReply:
        with grpc.insecure_channel(server.addresses[0], [("grpc.use_local_subchannel_pool", 1)]) as channel:
            reply: EchoReply = GrpcioStub(channel).Unary(EchoRequest(text="wait"), timeout=PATIENCE)
            return reply

    async def watch() -> None:
        await until(lambda: server.statistics().handlers == 1)
        [connection] = server._connections
        quiet_since = connection.reader.last_read
        # It has nothing to say by itself.
        await until(lambda: connection.reader.last_read > quiet_since + 0.9)
        echo.gate.set()

    async with trio.open_nursery() as calls:
        calls.start_soon(watch)
        assert await trio.to_thread.run_sync(call, abandon_on_cancel=True) == EchoReply(text="wait")
