"""The floor under every trio library: the same bytes over a bare trio TCP stream, without HTTP/2, gRPC or protobuf."""

from __future__ import annotations

import time

import trio

from benchmarks.libraries.base import Meter, ServeOptions, TrioRuntime, announce, main, report
from benchmarks.workloads import Shape

# What one empty unary call costs on the wire with HPACK in its steady state: HEADERS, and DATA with an empty message;
# back come HEADERS, DATA and trailers.
REQUEST = bytes(9 + 12 + 9 + 5)
REPLY = bytes(9 + 4 + 9 + 5 + 9 + 2)
READ_SIZE = 256 * 1024


def serve(options: ServeOptions) -> None:
    """Serves for ever: echoes, or streams messages of the workload's size without end."""

    async def echo(stream: trio.SocketStream) -> None:
        stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
        while await stream.receive_some(READ_SIZE):
            await stream.send_all(REPLY)

    async def flood(stream: trio.SocketStream) -> None:
        message = bytes(options.workload.size)
        try:
            while True:
                await stream.send_all(message)
        except trio.BrokenResourceError:
            pass

    async def serve_async() -> None:
        (listener,) = await trio.open_tcp_listeners(options.port, host="127.0.0.1")
        announce(listener.socket.getsockname()[1])
        await trio.serve_listeners(flood if options.workload.shape is Shape.SERVER_STREAM else echo, [listener])

    trio.run(serve_async)


def run(meter: Meter) -> None:
    """Plays one workload."""
    options = meter.options

    async def measure_echo(stream: trio.SocketStream) -> None:
        clock = time.perf_counter_ns
        end_of_warmup = time.perf_counter() + options.warmup
        while time.perf_counter() < end_of_warmup:
            await stream.send_all(REQUEST)
            await stream.receive_some(READ_SIZE)
        meter.begin()
        while meter.wants_more():
            started = clock()
            await stream.send_all(REQUEST)
            await stream.receive_some(READ_SIZE)
            meter.latencies.append(clock() - started)
            meter.count += 1
        meter.end()

    async def measure_flood(stream: trio.SocketStream) -> None:
        received = 0

        async def take() -> None:
            nonlocal received
            while data := await stream.receive_some(READ_SIZE):
                received += len(data)
                meter.count = received // options.workload.size

        async def wait() -> None:
            await trio.sleep(options.warmup)
            meter.begin()
            await trio.sleep(options.duration)
            meter.end()

        await TrioRuntime().beside([take], wait)

    async def run_async() -> None:
        async with await trio.open_tcp_stream(options.host, options.port) as stream:
            if options.workload.shape is Shape.SERVER_STREAM:
                await measure_flood(stream)
            else:
                await measure_echo(stream)
            report(meter)

    trio.run(run_async)


if __name__ == "__main__":
    main(serve, run)
