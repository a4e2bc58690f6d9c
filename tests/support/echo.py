"""An echo service whose handlers a test may replace one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import trio
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer

import trio_grpc

Requests = trio_grpc.RequestStream[EchoRequest]
Context = trio_grpc.ServicerContext[EchoReply]


def reply_to(request: EchoRequest) -> EchoReply:
    return EchoReply(payload=request.payload, count=request.count, text=request.text)


class Echo(EchoServicer):
    """Echoes; keyword arguments replace handlers: ``Echo(unary=...)`` and so on, each called like the method.

    Attributes:
        contexts: the contexts of all RPCs in the order in which their handlers started.
        running: handlers that run now, counted here and not by the server.
    """

    def __init__(
        self,
        *,
        unary: Callable[[EchoRequest, Context], Any] | None = None,
        server_stream: Callable[[EchoRequest, Context], Any] | None = None,
        client_stream: Callable[[Requests, Context], Any] | None = None,
        bidi: Callable[[Requests, Context], Any] | None = None,
    ) -> None:
        self._unary = unary
        self._server_stream = server_stream
        self._client_stream = client_stream
        self._bidi = bidi
        self.contexts: list[Context] = []

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        self.contexts.append(context)
        if self._unary is not None:
            reply: EchoReply = await self._unary(request, context)
            return reply
        return reply_to(request)

    def ServerStream(self, request: EchoRequest, context: Context, /) -> Any:
        self.contexts.append(context)
        return (self._server_stream or repeat)(request, context)

    async def ClientStream(self, requests: Requests, context: Context, /) -> EchoReply:
        self.contexts.append(context)
        if self._client_stream is not None:
            reply: EchoReply = await self._client_stream(requests, context)
            return reply
        total = EchoReply()
        async for request in requests:
            total.payload += request.payload
            total.count += 1
            total.text += request.text
        return total

    def Bidi(self, requests: Requests, context: Context, /) -> Any:
        self.contexts.append(context)
        return (self._bidi or echo_each)(requests, context)


async def repeat(request: EchoRequest, _context: Context) -> AsyncIterator[EchoReply]:
    """``count`` replies, numbered."""
    for number in range(request.count):
        yield EchoReply(payload=request.payload, count=number, text=request.text)


async def echo_each(requests: Requests, _context: Context) -> AsyncIterator[EchoReply]:
    async for request in requests:
        yield reply_to(request)


async def sleep_forever(*_: object) -> Any:
    await trio.sleep_forever()


class SecretError(Exception):
    """What a handler raises by accident."""
