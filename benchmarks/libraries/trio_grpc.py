"""trio_grpc on both ends: one channel, generated stubs, streams as context managers; no limits changed."""

# ruff: noqa: ARG002 -- handlers have the signature that gRPC gives them

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from functools import partial

import trio

import trio_grpc
from benchmarks.certificates import client_context, server_context
from benchmarks.libraries.base import Meter, ServeOptions, TrioRuntime, announce, main, play, report, rss_mib
from benchmarks.protos import bench_pb2
from benchmarks.protos.bench_trio_grpc import BenchServicer, BenchStub
from benchmarks.variants import apply
from benchmarks.workloads import MEBIBYTE, Shape

SLOW_READER_BYTES = 1024 * MEBIBYTE


class Bench(BenchServicer):
    """The service."""

    async def Unary(
        self, request: bench_pb2.Message, context: trio_grpc.ServicerContext[bench_pb2.Message]
    ) -> bench_pb2.Message:
        """Echoes."""
        return request

    async def ServerStream(
        self, request: bench_pb2.StreamRequest, context: trio_grpc.ServicerContext[bench_pb2.Message]
    ) -> AsyncIterator[bench_pb2.Message]:
        """Streams."""
        message = bench_pb2.Message(payload=bytes(request.size))
        sent = 0
        while sent < request.count or not request.count:
            yield message
            sent += 1

    async def ClientStream(
        self,
        requests: trio_grpc.RequestStream[bench_pb2.Message],
        context: trio_grpc.ServicerContext[bench_pb2.Message],
    ) -> bench_pb2.Message:
        """Takes everything."""
        async for _ in requests:
            pass
        return bench_pb2.Message()

    async def Bidi(
        self,
        requests: trio_grpc.RequestStream[bench_pb2.Message],
        context: trio_grpc.ServicerContext[bench_pb2.Message],
    ) -> AsyncIterator[bench_pb2.Message]:
        """Echoes each."""
        async for request in requests:
            yield request


class Client:
    """The stub's callables, and streams as context managers."""

    def __init__(self, stub: BenchStub) -> None:
        self._stub = stub
        self.unary = stub.Unary

    async def ping_pong(self, request: bench_pb2.Message, meter: Meter) -> None:
        """One stream."""
        async with self._stub.Bidi() as call:
            while True:
                await call.send(request)
                await call.receive()
                meter.count += 1

    async def consume(self, request: bench_pb2.StreamRequest, meter: Meter) -> None:
        """One stream."""
        async with self._stub.ServerStream(request) as call:
            async for _ in call:
                meter.count += 1

    async def read_slowly(self, meter: Meter) -> None:
        """Takes one message, pauses with memory watched on both ends, then takes the rest."""
        options = meter.options
        count = SLOW_READER_BYTES // options.workload.size
        # One whole small stream first, so that first-use allocations of both ends are not read as growth.
        async with self._stub.ServerStream(bench_pb2.StreamRequest(count=4, size=options.workload.size)) as call:
            async for _ in call:
                pass
        pids = {"client": os.getpid()}
        if options.server_pid:
            pids["server"] = options.server_pid
        before = {side: rss_mib(pid) for side, pid in pids.items()}
        samples: dict[str, list[float]] = {side: [] for side in pids}
        meter.begin()
        async with self._stub.ServerStream(bench_pb2.StreamRequest(count=count, size=options.workload.size)) as call:
            await call.receive()
            meter.count += 1
            resume_at = time.perf_counter() + options.pause
            while time.perf_counter() < resume_at:
                await trio.sleep(options.pause / 30)
                for side, pid in pids.items():
                    samples[side].append(rss_mib(pid))
            resumed_at = time.perf_counter()
            async for _ in call:
                meter.count += 1
                if meter.count % 64 == 0:
                    for side, pid in pids.items():
                        samples[side].append(rss_mib(pid))
        resumed = time.perf_counter() - resumed_at
        meter.end()
        if meter.count != count:
            raise SystemExit(f"slow_reader: {meter.count} messages came of {count}")
        # The first third of the pause may still fill windows; what comes after must not grow.
        paused = {side: values[:30] for side, values in samples.items()}
        meter.extra.update(
            rss_before_mib=before,
            rss_peak_mib={side: max(values) for side, values in samples.items()},
            rss_growth_mib=max(max(values) - before[side] for side, values in samples.items()),
            rss_growth_paused_mib=max(values[-1] - values[len(values) // 3] for values in paused.values()),
            resumed_megabytes_per_second=(count - 1) * options.workload.size / resumed / 1e6,
        )


def serve(options: ServeOptions) -> None:
    """Serves for ever."""

    async def serve_async() -> None:
        tls = server_context(options.certificates) if options.certificates else None
        start = partial(trio_grpc.serve, ssl_context=tls)
        async with trio.open_nursery() as nursery:
            server = await nursery.start(start, [Bench()], f"127.0.0.1:{options.port}")
            announce(int(server.addresses[0].rpartition(":")[2]))

    apply(options.variant)
    trio.run(serve_async)


def run(meter: Meter) -> None:
    """Plays one workload."""

    async def run_async() -> None:
        certificates = meter.options.certificates
        tls = client_context(certificates) if certificates else None
        async with trio_grpc.open_channel(meter.options.target, ssl_context=tls) as channel:
            client = Client(BenchStub(channel))
            if meter.options.workload.shape is Shape.SLOW_READER:
                await client.read_slowly(meter)
            else:
                await play(client, TrioRuntime(), meter)
            report(meter)

    apply(meter.options.variant)
    trio.run(run_async)


if __name__ == "__main__":
    main(serve, run)
