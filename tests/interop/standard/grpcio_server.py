"""A server of the standard interoperability tests on grpcio, in both its flavours; one of our peers.

``python -m tests.interop.standard.grpcio_server --flavour=aio --port=8080``
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from tests.interop.standard import messages_pb2 as pb
from tests.interop.standard.empty_pb2 import Empty
from tests.interop.standard.options import boolean

SERVICE = "grpc.testing.TestService"
#: Method: request type, response type, name of the handler maker in grpc.
METHODS: dict[str, tuple[Any, Any, str]] = {
    "EmptyCall": (Empty, Empty, "unary_unary"),
    "UnaryCall": (pb.SimpleRequest, pb.SimpleResponse, "unary_unary"),
    "StreamingOutputCall": (pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse, "unary_stream"),
    "StreamingInputCall": (pb.StreamingInputCallRequest, pb.StreamingInputCallResponse, "stream_unary"),
    "FullDuplexCall": (pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse, "stream_stream"),
    "HalfDuplexCall": (pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse, "stream_stream"),
}


def code_of(number: int) -> grpc.StatusCode:
    return next(code for code in grpc.StatusCode if code.value[0] == number)


def echoes(context: Any) -> tuple[list[Any], list[Any]]:
    """The initial and the trailing metadata that the client wants back."""
    pairs = context.invocation_metadata() or ()
    return (
        [pair for pair in pairs if pair[0] == "x-grpc-test-echo-initial"],
        [pair for pair in pairs if pair[0] == "x-grpc-test-echo-trailing-bin"],
    )


def unary_response(request: pb.SimpleRequest) -> pb.SimpleResponse:
    return pb.SimpleResponse(
        payload=pb.Payload(body=bytes(request.response_size)),
        server_id="grpcio" if request.fill_server_id else "",
    )


def output_response(parameter: pb.ResponseParameters) -> pb.StreamingOutputCallResponse:
    return pb.StreamingOutputCallResponse(payload=pb.Payload(body=bytes(parameter.size)))


class Threads:
    """Handlers that block."""

    def EmptyCall(self, request: Empty, context: Any) -> Empty:
        return Empty()

    def UnaryCall(self, request: pb.SimpleRequest, context: Any) -> pb.SimpleResponse:
        if request.response_compressed.value:
            context.set_compression(grpc.Compression.Gzip)
        self._echo(context)
        if request.response_status.code:
            context.abort(code_of(request.response_status.code), request.response_status.message)
        return unary_response(request)

    def StreamingOutputCall(
        self, request: pb.StreamingOutputCallRequest, context: Any
    ) -> Iterator[pb.StreamingOutputCallResponse]:
        if any(parameter.compressed.value for parameter in request.response_parameters):
            context.set_compression(grpc.Compression.Gzip)
        self._echo(context)
        yield from self._answers(request, context)

    def StreamingInputCall(self, requests: Any, context: Any) -> pb.StreamingInputCallResponse:
        return pb.StreamingInputCallResponse(aggregated_payload_size=sum(len(one.payload.body) for one in requests))

    def FullDuplexCall(self, requests: Any, context: Any) -> Iterator[pb.StreamingOutputCallResponse]:
        self._echo(context)
        for request in requests:
            yield from self._answers(request, context)

    def HalfDuplexCall(self, requests: Any, context: Any) -> Iterator[pb.StreamingOutputCallResponse]:
        for request in list(requests):
            yield from self._answers(request, context)

    def _answers(self, request: Any, context: Any) -> Iterator[pb.StreamingOutputCallResponse]:
        for parameter in request.response_parameters:
            time.sleep(parameter.interval_us / 1e6)
            if not parameter.compressed.value:
                context.disable_next_message_compression()
            yield output_response(parameter)
        if request.response_status.code:
            context.abort(code_of(request.response_status.code), request.response_status.message)

    def _echo(self, context: Any) -> None:
        initial, trailing = echoes(context)
        if initial:
            context.send_initial_metadata(initial)
        context.set_trailing_metadata(trailing)


class Tasks:
    """Handlers on asyncio."""

    async def EmptyCall(self, request: Empty, context: Any) -> Empty:
        return Empty()

    async def UnaryCall(self, request: pb.SimpleRequest, context: Any) -> pb.SimpleResponse:
        if request.response_compressed.value:
            context.set_compression(grpc.Compression.Gzip)
        await self._echo(context)
        if request.response_status.code:
            await context.abort(code_of(request.response_status.code), request.response_status.message)
        return unary_response(request)

    async def StreamingOutputCall(
        self, request: pb.StreamingOutputCallRequest, context: Any
    ) -> AsyncIterator[pb.StreamingOutputCallResponse]:
        if any(parameter.compressed.value for parameter in request.response_parameters):
            context.set_compression(grpc.Compression.Gzip)
        await self._echo(context)
        async for answer in self._answers(request, context):
            yield answer

    async def StreamingInputCall(self, requests: Any, context: Any) -> pb.StreamingInputCallResponse:
        sizes = [len(one.payload.body) async for one in requests]
        return pb.StreamingInputCallResponse(aggregated_payload_size=sum(sizes))

    async def FullDuplexCall(self, requests: Any, context: Any) -> AsyncIterator[pb.StreamingOutputCallResponse]:
        await self._echo(context)
        async for request in requests:
            async for answer in self._answers(request, context):
                yield answer

    async def HalfDuplexCall(self, requests: Any, context: Any) -> AsyncIterator[pb.StreamingOutputCallResponse]:
        for request in [one async for one in requests]:
            async for answer in self._answers(request, context):
                yield answer

    async def _answers(self, request: Any, context: Any) -> AsyncIterator[pb.StreamingOutputCallResponse]:
        for parameter in request.response_parameters:
            await asyncio.sleep(parameter.interval_us / 1e6)
            if not parameter.compressed.value:
                context.disable_next_message_compression()
            yield output_response(parameter)
        if request.response_status.code:
            await context.abort(code_of(request.response_status.code), request.response_status.message)

    async def _echo(self, context: Any) -> None:
        initial, trailing = echoes(context)
        # Even where there is none: the metadata that grpcio sends by itself says nothing of the compression chosen.
        await context.send_initial_metadata(initial)
        context.set_trailing_metadata(trailing)


def method_handlers(servicer: Any) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            name: getattr(grpc, f"{kind}_rpc_method_handler")(
                getattr(servicer, name),
                request_deserializer=request_type.FromString,
                response_serializer=response_type.SerializeToString,
            )
            for name, (request_type, response_type, kind) in METHODS.items()
        },
    )


def listen(server: Any, options: argparse.Namespace) -> None:
    address = f"127.0.0.1:{options.port}"
    if options.use_tls:
        pair = (Path(options.tls_key_file).read_bytes(), Path(options.tls_cert_file).read_bytes())
        server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    else:
        server.add_insecure_port(address)


async def serve_tasks(options: argparse.Namespace) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((method_handlers(Tasks()),))
    listen(server, options)
    await server.start()
    await server.wait_for_termination()


def serve_threads(options: argparse.Namespace) -> None:
    server = grpc.server(ThreadPoolExecutor(16))
    server.add_generic_rpc_handlers((method_handlers(Threads()),))
    listen(server, options)
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--flavour", choices=("sync", "aio"), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--use_tls", type=boolean, nargs="?", const=True, default=False)
    parser.add_argument("--tls_cert_file")
    parser.add_argument("--tls_key_file")
    try:
        arguments = parser.parse_args()
        if arguments.flavour == "aio":
            asyncio.run(serve_tasks(arguments))
        else:
            serve_threads(arguments)
    except KeyboardInterrupt:
        sys.exit(130)
