"""grpc.aio on both ends, as grpc's performance guide says.

One channel and stub are kept for the whole run, every kind of call is a coroutine, no options are changed.  uvloop is
not used: C core's own poller does the socket work.
"""

# ruff: noqa: ARG002 -- handlers have the signature that gRPC gives them

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio  # type: ignore[import-untyped,import-not-found,unused-ignore]

from benchmarks.libraries._grpcio import channel_credentials, server_credentials
from benchmarks.libraries.base import AsyncioRuntime, Meter, ServeOptions, announce, main, play, report
from benchmarks.protos import bench_pb2, bench_pb2_grpc


class Bench(bench_pb2_grpc.BenchServicer):
    """The service."""

    async def Unary(self, request: bench_pb2.Message, context: Any) -> bench_pb2.Message:
        """Echoes."""
        return request

    async def ServerStream(self, request: bench_pb2.StreamRequest, context: Any) -> AsyncIterator[bench_pb2.Message]:
        """Streams."""
        message = bench_pb2.Message(payload=bytes(request.size))
        sent = 0
        while sent < request.count or not request.count:
            yield message
            sent += 1

    async def ClientStream(self, request_iterator: Any, context: Any) -> bench_pb2.Message:
        """Takes everything."""
        async for _ in request_iterator:
            pass
        return bench_pb2.Message()

    async def Bidi(self, request_iterator: Any, context: Any) -> AsyncIterator[bench_pb2.Message]:
        """Echoes each."""
        async for request in request_iterator:
            yield request


class Client:
    """The stub's callables, and streams by read and write."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self.unary = stub.Unary

    async def ping_pong(self, request: bench_pb2.Message, meter: Meter) -> None:
        """One stream."""
        call = self._stub.Bidi()
        while True:
            await call.write(request)
            await call.read()
            meter.count += 1

    async def consume(self, request: bench_pb2.StreamRequest, meter: Meter) -> None:
        """One stream."""
        async for _ in self._stub.ServerStream(request):
            meter.count += 1


def serve(options: ServeOptions) -> None:
    """Serves for ever."""

    async def serve_async() -> None:
        server = grpc.aio.server()
        bench_pb2_grpc.add_BenchServicer_to_server(Bench(), server)  # type: ignore[no-untyped-call]
        address = f"127.0.0.1:{options.port}"
        if options.certificates:
            bound = server.add_secure_port(address, server_credentials(options.certificates))
        else:
            bound = server.add_insecure_port(address)
        await server.start()
        announce(bound)
        await server.wait_for_termination()

    asyncio.run(serve_async())


def run(meter: Meter) -> None:
    """Plays one workload."""

    async def run_async() -> None:
        target, certificates = meter.options.target, meter.options.certificates
        channel = (
            grpc.aio.secure_channel(target, channel_credentials(certificates))
            if certificates
            else grpc.aio.insecure_channel(target)
        )
        async with channel:
            stub = bench_pb2_grpc.BenchStub(channel)  # type: ignore[no-untyped-call]
            await play(Client(stub), AsyncioRuntime(), meter)
            report(meter)

    asyncio.run(run_async())


if __name__ == "__main__":
    main(serve, run)
