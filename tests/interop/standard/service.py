"""The servicer of gRPC's standard interoperability tests, on trio_grpc."""

from __future__ import annotations

import platform
import uuid
from collections.abc import AsyncIterator
from math import inf
from time import time_ns
from typing import Any

import trio

from tests.interop.standard.empty_pb2 import Empty
from tests.interop.standard.messages_pb2 import (
    BoolValue,
    EchoStatus,
    Payload,
    SimpleRequest,
    SimpleResponse,
    StreamingInputCallRequest,
    StreamingInputCallResponse,
    StreamingOutputCallRequest,
    StreamingOutputCallResponse,
)
from tests.interop.standard.testing_trio_grpc import TestServiceServicer
from trio_grpc import Compression, RequestStream, RpcError, ServicerContext, StatusCode

ECHO_INITIAL = "x-grpc-test-echo-initial"
ECHO_TRAILING = "x-grpc-test-echo-trailing-bin"
_MAX_AGE = 60


class InteropServicer(TestServiceServicer):
    """What clients of every implementation expect of ``grpc.testing.TestService``; UnimplementedCall is left out."""

    def __init__(self) -> None:
        self._server_id = uuid.uuid4().hex
        self._cache: dict[bytes, tuple[float, SimpleResponse]] = {}

    async def EmptyCall(self, request: Empty, context: ServicerContext[Empty], /) -> Empty:
        await _echo_metadata(context)
        return Empty()

    async def UnaryCall(self, request: SimpleRequest, context: ServicerContext[SimpleResponse], /) -> SimpleResponse:
        if request.response_compressed.value:
            context.set_compression(Compression.GZIP)
        await _echo_metadata(context)
        if request.HasField("expect_compressed"):
            await _check_compressed(request.expect_compressed, context)
        if request.HasField("response_status"):
            await _check_status(request.response_status, context)
        return SimpleResponse(
            payload=_payload(request.response_size) if request.response_size else None,
            server_id=self._server_id if request.fill_server_id else "",
            hostname=platform.node(),
        )

    async def CacheableUnaryCall(
        self, request: SimpleRequest, context: ServicerContext[SimpleResponse], /
    ) -> SimpleResponse:
        """Answer with the time, and, as the cache that clients hope for would, the same request with the same time."""
        await context.send_initial_metadata({"cache-control": f"max-age={_MAX_AGE}, public"})
        key = request.SerializeToString(deterministic=True)
        now = trio.current_time()
        born, response = self._cache.get(key, (-inf, SimpleResponse()))
        if now - born > _MAX_AGE:
            response = SimpleResponse(payload=Payload(body=str(time_ns()).encode()))
            self._cache = {old: kept for old, kept in self._cache.items() if now - kept[0] <= _MAX_AGE}
            self._cache[key] = (now, response)
        return response

    async def StreamingOutputCall(
        self, request: StreamingOutputCallRequest, context: ServicerContext[StreamingOutputCallResponse], /
    ) -> None:
        _negotiate(request, context)
        await _echo_metadata(context)
        await _answer(request, context)

    async def StreamingInputCall(
        self,
        requests: RequestStream[StreamingInputCallRequest],
        context: ServicerContext[StreamingInputCallResponse],
        /,
    ) -> StreamingInputCallResponse:
        await _echo_metadata(context)
        size = 0
        async for request in requests:
            if request.HasField("expect_compressed"):
                await _check_compressed(request.expect_compressed, context)
            size += len(request.payload.body)
        return StreamingInputCallResponse(aggregated_payload_size=size)

    async def FullDuplexCall(
        self,
        requests: RequestStream[StreamingOutputCallRequest],
        context: ServicerContext[StreamingOutputCallResponse],
        /,
    ) -> None:
        # Before the first request: a client may wait for the echo before it sends anything.
        await _echo_metadata(context)
        async for request in requests:
            await _answer(request, context)

    async def HalfDuplexCall(
        self,
        requests: RequestStream[StreamingOutputCallRequest],
        context: ServicerContext[StreamingOutputCallResponse],
        /,
    ) -> AsyncIterator[StreamingOutputCallResponse]:
        await _echo_metadata(context)
        parameters = [parameter async for request in requests for parameter in request.response_parameters]
        for parameter in parameters:
            await trio.sleep(parameter.interval_us / 1e6)
            yield StreamingOutputCallResponse(payload=_payload(parameter.size))


def _payload(size: int) -> Payload:
    if size < 0:
        raise RpcError(StatusCode.INVALID_ARGUMENT, f"a payload cannot have {size} bytes")
    return Payload(body=bytes(size))


async def _echo_metadata(context: ServicerContext[Any]) -> None:
    trailing = context.metadata.get(ECHO_TRAILING)
    if trailing is not None:
        context.set_trailing_metadata([(ECHO_TRAILING, trailing)])
    initial = context.metadata.get(ECHO_INITIAL)
    if initial is not None:
        await context.send_initial_metadata([(ECHO_INITIAL, initial)])


async def _check_compressed(expected: BoolValue, context: ServicerContext[Any]) -> None:
    if expected.value != context.request_compressed:
        await context.abort(
            StatusCode.INVALID_ARGUMENT,
            f"the request should {'' if expected.value else 'not '}come compressed, and "
            f"{'does' if context.request_compressed else 'does not'}",
        )


async def _check_status(status: EchoStatus, context: ServicerContext[Any]) -> None:
    if status.code:
        await context.abort(StatusCode(status.code), status.message)


def _negotiate(request: StreamingOutputCallRequest, context: ServicerContext[Any]) -> None:
    """An encoding is announced for the whole response, so it is chosen before anything of it leaves."""
    if any(parameter.compressed.value for parameter in request.response_parameters):
        context.set_compression(Compression.GZIP)


async def _answer(request: StreamingOutputCallRequest, context: ServicerContext[StreamingOutputCallResponse]) -> None:
    for parameter in request.response_parameters:
        await trio.sleep(parameter.interval_us / 1e6)
        await context.send(
            StreamingOutputCallResponse(payload=_payload(parameter.size)), compress=parameter.compressed.value
        )
    if request.HasField("response_status"):
        await _check_status(request.response_status, context)
