"""Synchronous grpcio on both ends: the server on a thread pool, one channel in the client, no options changed.

How the client keeps many calls in flight was chosen by measuring.  Concurrent unary calls are futures whose callback
starts the next call: 15 to 20 % more calls than 100 blocking threads on one core, and as many as one thread that feeds
futures from a queue.  Bidi streams have a thread each, because reading one blocks and grpc starts a second thread for
its requests anyway.
"""

# ruff: noqa: ARG002 -- handlers have the signature that gRPC gives them

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc  # type: ignore[import-untyped,import-not-found,unused-ignore]

from benchmarks.libraries._grpcio import channel_credentials, server_credentials
from benchmarks.libraries.base import Meter, ServeOptions, announce, main, report, rich_calls
from benchmarks.protos import bench_pb2, bench_pb2_grpc
from benchmarks.workloads import Shape

# As in grpc's own examples.  4 and 100 threads gave the same rate within the noise: the GIL is what is scarce.
THREADS = 10


class Bench(bench_pb2_grpc.BenchServicer):
    """The service."""

    def Unary(self, request: bench_pb2.Message, context: Any) -> bench_pb2.Message:
        """Echoes."""
        return request

    def ServerStream(self, request: bench_pb2.StreamRequest, context: Any) -> Iterator[bench_pb2.Message]:
        """Streams."""
        message = bench_pb2.Message(payload=bytes(request.size))
        sent = 0
        while sent < request.count or not request.count:
            yield message
            sent += 1

    def ClientStream(self, request_iterator: Any, context: Any) -> bench_pb2.Message:
        """Takes everything."""
        for _ in request_iterator:
            pass
        return bench_pb2.Message()

    def Bidi(self, request_iterator: Any, context: Any) -> Iterator[bench_pb2.Message]:
        """Echoes each."""
        yield from request_iterator


def serve(options: ServeOptions) -> None:
    """Serves for ever."""
    # A stream holds its thread for its whole life.
    threads = options.workload.concurrency + THREADS if options.workload.shape is Shape.PING_PONG else THREADS
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=threads))
    bench_pb2_grpc.add_BenchServicer_to_server(Bench(), server)  # type: ignore[no-untyped-call]
    address = f"127.0.0.1:{options.port}"
    if options.certificates:
        bound = server.add_secure_port(address, server_credentials(options.certificates))
    else:
        bound = server.add_insecure_port(address)
    server.start()
    announce(bound)
    server.wait_for_termination()


def _call_by_future(stub: Any, request: Any, meter: Meter) -> None:
    begin_call = rich_calls(stub.Unary.future) if meter.options.workload.rich else stub.Unary.future

    # grpc runs all callbacks of a channel in one thread, so the count needs no lock.
    def start() -> None:
        begin_call(request).add_done_callback(finish)

    def finish(call: Any) -> None:
        call.result()
        meter.count += 1
        start()

    for _ in range(meter.options.workload.concurrency):
        start()
    time.sleep(meter.options.warmup)
    meter.begin()
    time.sleep(meter.options.duration)
    meter.end()


def _measure_calls(stub: Any, request: Any, meter: Meter, counts: bool) -> None:
    clock = time.perf_counter_ns
    unary = rich_calls(stub.Unary) if meter.options.workload.rich else stub.Unary
    end_of_warmup = time.perf_counter() + meter.options.warmup
    while time.perf_counter() < end_of_warmup:
        unary(request)
    meter.begin()
    while meter.wants_more():
        started = clock()
        unary(request)
        meter.latencies.append(clock() - started)
        if counts:
            meter.count += 1
    meter.end()


def _consume(stub: Any, meter: Meter) -> None:
    for _ in stub.ServerStream(bench_pb2.StreamRequest(size=meter.options.workload.size)):
        meter.count += 1


def _ping_pong(stub: Any, request: Any, meter: Meter) -> None:
    counts = [0] * meter.options.workload.concurrency

    def play_stream(index: int) -> None:
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        requests.put(request)
        for _ in stub.Bidi(iter(requests.get, None)):
            counts[index] += 1
            requests.put(request)

    for index in range(meter.options.workload.concurrency):
        threading.Thread(target=play_stream, args=(index,), daemon=True).start()
    time.sleep(meter.options.warmup)
    meter.count = sum(counts)
    meter.begin()
    time.sleep(meter.options.duration)
    meter.count = sum(counts)
    meter.end()


def run(meter: Meter) -> None:
    """Plays one workload."""
    workload = meter.options.workload
    target, certificates = meter.options.target, meter.options.certificates
    channel = (
        grpc.secure_channel(target, channel_credentials(certificates))
        if certificates
        else grpc.insecure_channel(target)
    )
    stub = bench_pb2_grpc.BenchStub(channel)  # type: ignore[no-untyped-call]
    message = bench_pb2.Message(payload=bytes(workload.size))
    if workload.shape is Shape.UNARY and workload.concurrency == 1:
        _measure_calls(stub, message, meter, counts=True)
    elif workload.shape is Shape.UNARY:
        _call_by_future(stub, message, meter)
    elif workload.shape is Shape.PING_PONG:
        _ping_pong(stub, message, meter)
    elif workload.shape is Shape.SERVER_STREAM:
        threading.Thread(target=_consume, args=(stub, meter), daemon=True).start()
        time.sleep(meter.options.warmup)
        meter.begin()
        time.sleep(meter.options.duration)
        meter.end()
    elif workload.shape is Shape.MIXED:
        threading.Thread(target=_consume, args=(stub, meter), daemon=True).start()
        _measure_calls(stub, bench_pb2.Message(), meter, counts=False)
    else:
        raise SystemExit(f"workload {workload.name} has no loop for this library")
    report(meter)
    # Threads that block in calls for ever would keep the interpreter from ending.
    os._exit(0)


if __name__ == "__main__":
    main(serve, run)
