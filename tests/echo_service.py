"""The echo service as the tests of channel and server need it: plain, and with handlers that wait to be told."""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer

from trio_grpc import RequestStream, ServicerContext

Context = ServicerContext[EchoReply]


class Echo(EchoServicer):
    """Sends back what it is given.

    Attributes:
        calls: handlers started, ever.
    """

    def __init__(self) -> None:
        self.calls = 0

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        self.calls += 1
        return EchoReply(payload=request.payload, count=request.count, text=request.text)

    async def ServerStream(self, request: EchoRequest, context: Context, /) -> AsyncIterator[EchoReply]:
        self.calls += 1
        for number in range(request.count):
            yield EchoReply(payload=request.payload, count=number)

    async def ClientStream(self, requests: RequestStream[EchoRequest], context: Context, /) -> EchoReply:
        self.calls += 1
        payloads = [request.payload async for request in requests]
        return EchoReply(payload=b"".join(payloads), count=len(payloads))

    async def Bidi(self, requests: RequestStream[EchoRequest], context: Context, /) -> AsyncIterator[EchoReply]:
        self.calls += 1
        async for request in requests:
            yield EchoReply(payload=request.payload, count=request.count, text=request.text)


class Waiting(Echo):
    """Each handler waits at a gate before it echoes; streams send one reply before it.

    Attributes:
        entered: handlers that came to the gate, ever.
        started: set when a handler waits.
        gate: opened by the test.
        ended: handlers whose ``finally`` has run to its end.
        farewell: seconds for which each ``finally`` works on, shielded.
    """

    def __init__(self, farewell: float = 0) -> None:
        super().__init__()
        self.entered = 0
        self.started = trio.Event()
        self.gate = trio.Event()
        self.ended = 0
        self.farewell = farewell

    async def _wait(self) -> None:
        self.entered += 1
        try:
            self.started.set()
            await self.gate.wait()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.farewell)
            self.ended += 1

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        await self._wait()
        return await super().Unary(request, context)

    async def ServerStream(self, request: EchoRequest, context: Context, /) -> AsyncIterator[EchoReply]:
        yield EchoReply(text="first")
        await self._wait()
        async for reply in super().ServerStream(request, context):
            yield reply

    async def ClientStream(self, requests: RequestStream[EchoRequest], context: Context, /) -> EchoReply:
        await self._wait()
        return await super().ClientStream(requests, context)

    async def Bidi(self, requests: RequestStream[EchoRequest], context: Context, /) -> AsyncIterator[EchoReply]:
        yield EchoReply(text="first")
        await self._wait()
        async for reply in super().Bidi(requests, context):
            yield reply
