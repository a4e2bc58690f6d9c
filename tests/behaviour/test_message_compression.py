"""Compression is chosen per message, and each side sees which of the messages it gets were compressed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

from trio_grpc import Compression, RequestStream, ServicerContext
from trio_grpc.testing import open_channel_pair

Context = ServicerContext[EchoReply]


class Flags(EchoServicer):
    """Tells which requests came compressed; a request's ``count`` says whether its reply shall be."""

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        if request.count:
            context.set_compression(Compression.GZIP)
        return EchoReply(text=str(context.request_compressed))

    async def ServerStream(self, request: EchoRequest, context: Context, /) -> None:
        context.set_compression(Compression.GZIP)
        for number in range(4):
            await context.send(EchoReply(count=number), compress=number % 2 == 1)

    async def ClientStream(self, requests: RequestStream[EchoRequest], context: Context, /) -> EchoReply:
        return EchoReply(text=" ".join([str(context.request_compressed) async for _ in requests]))

    async def Bidi(self, requests: RequestStream[EchoRequest], context: Context, /) -> AsyncIterator[EchoReply]:
        async for _ in requests:
            yield EchoReply(text=str(context.request_compressed))


@pytest.fixture
async def echo() -> AsyncIterator[EchoStub]:
    async with open_channel_pair(Flags()) as (channel, _):
        yield EchoStub(channel)


@pytest.mark.parametrize("compression", [None, Compression.GZIP])
@pytest.mark.parametrize("wanted", [False, True])
async def test_unary_messages(echo: EchoStub, compression: Compression | None, wanted: bool) -> None:
    async with echo.Unary.open(EchoRequest(count=int(wanted)), compression=compression) as call:
        assert not call.response_compressed
        reply = await call.receive()
        assert reply.text == str(compression is not None)
        assert call.response_compressed == wanted


async def test_requests_of_one_stream(echo: EchoStub) -> None:
    async with echo.ClientStream.open(compression=Compression.GZIP) as call:
        for compress in (True, False, True):
            await call.send(EchoRequest(text="x" * 100), compress=compress)
        await call.done_sending()
        assert (await call.receive()).text == "True False True"


async def test_responses_of_one_stream(echo: EchoStub) -> None:
    async with echo.ServerStream(EchoRequest()) as call:
        assert [(reply.count, call.response_compressed) async for reply in call] == [
            (0, False),
            (1, True),
            (2, False),
            (3, True),
        ]


async def test_a_conversation(echo: EchoStub) -> None:
    async with echo.Bidi(compression=Compression.GZIP) as call:
        for compress in (False, True):
            await call.send(EchoRequest(), compress=compress)
            assert (await call.receive()).text == str(compress)
            assert not call.response_compressed


async def test_a_stream_without_compression_has_nothing_to_leave_out(echo: EchoStub) -> None:
    async with echo.ClientStream.open() as call:
        await call.send(EchoRequest(), compress=True)
        await call.done_sending()
        assert (await call.receive()).text == "False"
