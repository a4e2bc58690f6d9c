"""purerpc on both ends, in an environment of its own because it needs h2 < 4 (`python -m benchmarks setup`).

It runs on asyncio (its default), uvloop or trio: `--loop`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio.lowlevel  # type: ignore[import-untyped,import-not-found,unused-ignore]
import purerpc  # type: ignore[import-untyped,import-not-found,unused-ignore]
import purerpc.utils  # type: ignore[import-untyped,import-not-found,unused-ignore]

from benchmarks.certificates import client_context, server_context
from benchmarks.libraries.base import (
    AsyncioRuntime,
    Meter,
    Runtime,
    ServeOptions,
    TrioRuntime,
    announce,
    main,
    play,
    report,
)
from benchmarks.protos import bench_pb2
from benchmarks.protos.for_purerpc.bench_grpc import BenchServicer, BenchStub

# A generator of purerpc never lets the writer run until the 64 MiB window is full: without a checkpoint of the
# application's own, a stream of 100 B messages delivers nothing for half a minute.  64 costs nothing measurable.
MESSAGES_PER_CHECKPOINT = 64


class Bench(BenchServicer):
    """The service."""

    async def Unary(self, input_message: bench_pb2.Message) -> bench_pb2.Message:
        """Echoes."""
        return input_message

    async def ServerStream(  # type: ignore[override]  # the generated base says coroutine and means generator
        self, input_message: bench_pb2.StreamRequest
    ) -> AsyncIterator[bench_pb2.Message]:
        """Streams."""
        message = bench_pb2.Message(payload=bytes(input_message.size))
        sent = 0
        while sent < input_message.count or not input_message.count:
            yield message
            sent += 1
            if sent % MESSAGES_PER_CHECKPOINT == 0:
                await anyio.lowlevel.checkpoint()

    async def ClientStream(self, input_messages: AsyncIterator[bench_pb2.Message]) -> bench_pb2.Message:
        """Takes everything."""
        async for _ in input_messages:
            pass
        return bench_pb2.Message()

    async def Bidi(  # type: ignore[override]
        self, input_messages: AsyncIterator[bench_pb2.Message]
    ) -> AsyncIterator[bench_pb2.Message]:
        """Echoes each."""
        async for message in input_messages:
            yield message


class Client:
    """The stub's callables, and bidi streams by `send_message` and `receive_message`."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self.unary = stub.Unary

    async def ping_pong(self, request: bench_pb2.Message, meter: Meter) -> None:
        """One stream."""
        stream = await self._stub.Bidi()
        while True:
            await stream.send_message(request)
            await stream.receive_message()
            meter.count += 1

    async def consume(self, request: bench_pb2.StreamRequest, meter: Meter) -> None:
        """One stream."""
        async for _ in self._stub.ServerStream(request):
            meter.count += 1


def serve(options: ServeOptions) -> None:
    """Serves for ever."""

    class Announced:
        """purerpc tells its port the way trio and anyio do."""

        def started(self, bound: int) -> None:
            announce(bound)

    async def serve_async() -> None:
        tls = server_context(options.certificates) if options.certificates else None
        server = purerpc.Server(options.port, tls)
        server.add_service(Bench().service)
        await server.serve_async(task_status=Announced())

    purerpc.utils.run(serve_async, backend=options.loop)


def run(meter: Meter) -> None:
    """Plays one workload."""
    runtime: Runtime = TrioRuntime() if meter.options.loop == "trio" else AsyncioRuntime()

    async def run_async() -> None:
        host, port, certificates = meter.options.host, meter.options.port, meter.options.certificates
        channel = (
            purerpc.secure_channel(host, port, client_context(certificates))
            if certificates
            else purerpc.insecure_channel(host, port)
        )
        async with channel:
            stub = BenchStub(channel)  # type: ignore[no-untyped-call]
            await play(Client(stub), runtime, meter)
            report(meter)

    purerpc.utils.run(run_async, backend=meter.options.loop)


if __name__ == "__main__":
    main(serve, run)
