"""trio_grpc of one git revision on both ends, for `python -m benchmarks paired`.

It plays as `benchmarks.libraries.trio_grpc` does, and differs in four things.  Its first line says which package it
really imported, for the parent process to check.  A client then waits for a line on its standard input, so that two
clients begin at the same moment.  Every call and round trip is timed, not only those made one at a time.  And it ends
with its parent process, which Ctrl-C reaches alone.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

import trio_grpc
from benchmarks.certificates import client_context
from benchmarks.libraries.base import Meter, ServeOptions, TrioRuntime, main, play, report
from benchmarks.libraries.trio_grpc import Client, serve
from benchmarks.protos import bench_pb2
from benchmarks.protos.bench_trio_grpc import BenchStub

GO = "go\n"


class TimedClient:
    """Notes how long each call and each round trip takes."""

    def __init__(self, stub: BenchStub, meter: Meter) -> None:
        self._stub = stub
        self._latencies = meter.latencies
        self.consume = Client(stub).consume
        # Calls made one at a time are timed by the loop that makes them.
        one_at_a_time = meter.options.workload.concurrency == 1
        self.unary: Callable[..., Awaitable[bench_pb2.Message]] = stub.Unary if one_at_a_time else self._timed_unary

    async def _timed_unary(self, request: bench_pb2.Message, **options: Any) -> bench_pb2.Message:
        started = time.perf_counter_ns()
        reply = await self._stub.Unary(request, **options)
        self._latencies.append(time.perf_counter_ns() - started)
        return reply

    async def ping_pong(self, request: bench_pb2.Message, meter: Meter) -> None:
        """One stream."""
        clock = time.perf_counter_ns
        latencies = self._latencies
        async with self._stub.Bidi() as call:
            while True:
                started = clock()
                await call.send(request)
                await call.receive()
                latencies.append(clock() - started)
                meter.count += 1


def run(meter: Meter) -> None:
    """Plays one workload when told to."""

    async def run_async() -> None:
        certificates = meter.options.certificates
        tls = client_context(certificates) if certificates else None
        async with trio_grpc.open_channel(meter.options.target, ssl_context=tls) as channel:
            await play(TimedClient(BenchStub(channel), meter), TrioRuntime(), meter)
            report(meter)

    if sys.stdin.readline() != GO:
        raise SystemExit("the parent process ended before it said go")
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    trio.run(run_async)


def end_with_the_parent() -> None:
    """Ends this process when nobody holds the other end of its standard input any more."""
    sys.stdin.read()
    os._exit(1)


def serve_until_left_alone(options: ServeOptions) -> None:
    """Serves."""
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    serve(options)


if __name__ == "__main__":
    print(Path(trio_grpc.__file__).resolve(), flush=True)
    main(serve_until_left_alone, run)
