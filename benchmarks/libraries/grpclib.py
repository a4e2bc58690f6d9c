"""grpclib on both ends: one channel, generated stubs, streams by `open()`; no configuration changed.

`--loop uvloop` runs both ends on uvloop.
"""

from __future__ import annotations

import asyncio
from typing import Any

from grpclib.client import Channel
from grpclib.server import Server

from benchmarks.certificates import client_context, server_context
from benchmarks.libraries.base import AsyncioRuntime, Meter, ServeOptions, announce, main, play, report
from benchmarks.protos import bench_pb2
from benchmarks.protos.for_grpclib.bench_grpc import BenchBase, BenchStub


class Bench(BenchBase):
    """The service."""

    async def Unary(self, stream: Any) -> None:
        """Echoes."""
        await stream.send_message(await stream.recv_message())

    async def ServerStream(self, stream: Any) -> None:
        """Streams."""
        request = await stream.recv_message()
        message = bench_pb2.Message(payload=bytes(request.size))
        sent = 0
        while sent < request.count or not request.count:
            await stream.send_message(message)
            sent += 1

    async def ClientStream(self, stream: Any) -> None:
        """Takes everything."""
        async for _ in stream:
            pass
        await stream.send_message(bench_pb2.Message())

    async def Bidi(self, stream: Any) -> None:
        """Echoes each."""
        async for request in stream:
            await stream.send_message(request)


class Client:
    """The stub's callables, and streams by `open()`."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self.unary = stub.Unary

    async def ping_pong(self, request: bench_pb2.Message, meter: Meter) -> None:
        """One stream."""
        async with self._stub.Bidi.open() as stream:
            while True:
                await stream.send_message(request)
                await stream.recv_message()
                meter.count += 1

    async def consume(self, request: bench_pb2.StreamRequest, meter: Meter) -> None:
        """One stream."""
        async with self._stub.ServerStream.open() as stream:
            await stream.send_message(request, end=True)
            async for _ in stream:
                meter.count += 1


def _run(main_function: Any, loop: str) -> None:
    if loop == "uvloop":
        import uvloop

        uvloop.run(main_function())
    else:
        asyncio.run(main_function())


def serve(options: ServeOptions) -> None:
    """Serves for ever."""

    async def serve_async() -> None:
        server = Server([Bench()])
        tls = server_context(options.certificates) if options.certificates else None
        await server.start("127.0.0.1", options.port, ssl=tls)
        # grpclib has no public way to learn the port that it got; this is what its own tests do without.
        announce(server._server.sockets[0].getsockname()[1])  # type: ignore[union-attr]
        await server.wait_closed()

    _run(serve_async, options.loop)


def run(meter: Meter) -> None:
    """Plays one workload."""

    async def run_async() -> None:
        certificates = meter.options.certificates
        tls = client_context(certificates) if certificates else None
        async with Channel(meter.options.host, meter.options.port, ssl=tls) as channel:
            await play(Client(BenchStub(channel)), AsyncioRuntime(), meter)
            report(meter)

    _run(run_async, meter.options.loop)


if __name__ == "__main__":
    main(serve, run)
