"""Servers as users would write them; read by type checkers, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer
from typing_extensions import assert_type

import trio_grpc


class Generators(EchoServicer):
    """Streams replies by yielding them."""

    async def Unary(self, request: EchoRequest, context: trio_grpc.ServicerContext[EchoReply]) -> EchoReply:
        assert_type(context.metadata, trio_grpc.Metadata)
        assert_type(context.deadline, float)
        if not request.text:
            await context.abort(trio_grpc.StatusCode.INVALID_ARGUMENT, "no text", trailing_metadata={"key": "value"})
        return EchoReply(text=request.text)

    async def ServerStream(
        self, request: EchoRequest, context: trio_grpc.ServicerContext[EchoReply]
    ) -> AsyncIterator[EchoReply]:
        await context.send_initial_metadata({"key": "value"})
        for count in range(request.count):
            yield EchoReply(count=count)

    async def ClientStream(
        self, requests: trio_grpc.RequestStream[EchoRequest], context: trio_grpc.ServicerContext[EchoReply]
    ) -> EchoReply:
        texts = [request.text async for request in requests]
        return EchoReply(text=" ".join(texts))

    async def Bidi(
        self, requests: trio_grpc.RequestStream[EchoRequest], context: trio_grpc.ServicerContext[EchoReply]
    ) -> AsyncIterator[EchoReply]:
        async for request in requests:
            assert_type(request, EchoRequest)
            yield EchoReply(text=request.text)


class Senders(EchoServicer):
    """Streams replies by sending them, with parameters of other names; leaves two rpcs unimplemented."""

    async def ServerStream(self, question: EchoRequest, call: trio_grpc.ServicerContext[EchoReply]) -> None:
        async with trio.open_nursery() as nursery:
            for count in range(question.count):
                nursery.start_soon(call.send, EchoReply(count=count))

    async def Bidi(
        self, incoming: trio_grpc.RequestStream[EchoRequest], call: trio_grpc.ServicerContext[EchoReply]
    ) -> None:
        first = await incoming.receive()
        assert_type(first, EchoRequest)
        await call.send(EchoReply(text=first.text))


async def main() -> None:
    async with trio.open_nursery() as nursery:
        server: trio_grpc.Server = await nursery.start(trio_grpc.serve, [Generators()], "127.0.0.1:0")
        assert_type(server.addresses[0], str)
        await server.drain(grace=5)


if __name__ == "__main__":
    trio.run(main)
