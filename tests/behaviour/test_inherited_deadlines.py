"""Which calls of a handler are bound by its RPC's deadline: those that its scope bounds, and no others."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

import trio_grpc
from trio_grpc.testing import open_channel_pair

Context = trio_grpc.ServicerContext[EchoReply]


class Downstream(EchoServicer):
    """Notes what it is told of deadlines."""

    def __init__(self) -> None:
        self.remaining: list[float] = []

    async def Unary(self, request: EchoRequest, context: Context) -> EchoReply:
        self.remaining.append(round(context.time_remaining(), 3))
        return EchoReply()

    async def ServerStream(self, request: EchoRequest, context: Context) -> AsyncIterator[EchoReply]:
        self.remaining.append(round(context.time_remaining(), 3))
        yield EchoReply()


class Upstream(EchoServicer):
    """Calls downstream, in the way that the request asks for, 0.25 s after it was called."""

    def __init__(self, downstream: EchoStub, nursery: trio.Nursery) -> None:
        self.downstream = downstream
        self.nursery = nursery

    async def call_both(self, delay: float = 0.25) -> None:
        await trio.sleep(delay)
        await self.downstream.Unary(EchoRequest())
        async with self.downstream.ServerStream(EchoRequest()) as replies:
            assert [reply async for reply in replies] == [EchoReply()]

    async def Unary(self, request: EchoRequest, context: Context) -> EchoReply:
        if request.text == "itself":
            await self.call_both()
        elif request.text == "child":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.call_both)
        elif request.text == "background":
            self.nursery.start_soon(self.call_both)
        elif request.text == "late background":
            self.nursery.start_soon(self.call_both, 5)
        elif request.text == "cleanup":
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await self.call_both()
        return EchoReply()


@pytest.mark.parametrize(
    ("way", "remaining"),
    [
        ("itself", 0.75),
        ("child", 0.75),
        ("background", math.inf),
        ("late background", math.inf),
        ("cleanup", math.inf),
    ],
)
async def test_the_deadline_reaches_what_the_handlers_scope_bounds(
    way: str, remaining: float, autojump_clock: trio.testing.MockClock
) -> None:
    downstream = Downstream()
    async with (
        open_channel_pair(downstream) as (inner, _),
        trio.open_nursery() as nursery,
        open_channel_pair(Upstream(EchoStub(inner), nursery)) as (outer, _),
        EchoStub(outer).Unary.open(EchoRequest(text=way), timeout=1) as call,
    ):
        await trio.sleep(10)
        assert call.status is (trio_grpc.StatusCode.DEADLINE_EXCEEDED if way == "cleanup" else trio_grpc.StatusCode.OK)
    assert downstream.remaining == [remaining, remaining]
