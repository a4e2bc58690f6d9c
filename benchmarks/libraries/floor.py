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
# What the sockets' buffers hold for certain, so that one task can write all of it before it reads any answer.
HELD_BY_SOCKETS = 64 * 1024


def serve(options: ServeOptions) -> None:
    """Serves for ever: echoes, or streams messages of the workload's size without end."""
    request_length = len(REQUEST) + options.workload.size
    reply = REPLY + bytes(options.workload.size)

    async def echo(stream: trio.SocketStream) -> None:
        stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
        received = 0
        while data := await stream.receive_some(READ_SIZE):
            complete, received = divmod(received + len(data), request_length)
            if complete:
                await stream.send_all(reply * complete if complete > 1 else reply)

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
    workload = options.workload
    request = REQUEST + bytes(workload.size)
    reply_length = len(REPLY) + workload.size

    async def wait() -> None:
        await trio.sleep(options.warmup)
        meter.begin()
        await trio.sleep(options.duration)
        meter.end()

    async def receive(stream: trio.SocketStream) -> int:
        if not (data := await stream.receive_some(READ_SIZE)):
            raise SystemExit("the floor's server went away")
        return len(data)

    async def measure_echo(stream: trio.SocketStream) -> None:
        clock = time.perf_counter_ns

        async def call() -> None:
            await stream.send_all(request)
            missing = reply_length
            while missing:
                missing -= await receive(stream)

        end_of_warmup = time.perf_counter() + options.warmup
        while time.perf_counter() < end_of_warmup:
            await call()
        meter.begin()
        while meter.wants_more():
            started = clock()
            await call()
            meter.latencies.append(clock() - started)
            meter.count += 1
        meter.end()

    async def measure_batches(stream: trio.SocketStream) -> None:
        """Keeps `concurrency` requests on their way: as many replies as one read brings, so many requests go out."""
        due = workload.concurrency
        wake = trio.Event()
        received = 0

        async def take() -> None:
            nonlocal due, received
            complete, received = divmod(received + await receive(stream), reply_length)
            meter.count += complete
            due += complete

        async def give() -> None:
            nonlocal due
            batch, due = request * due, 0
            await stream.send_all(batch)

        async def give_and_take() -> None:
            while True:
                if due:
                    await give()
                await take()

        async def take_for_ever() -> None:
            while True:
                await take()
                if due:
                    wake.set()

        async def give_for_ever() -> None:
            nonlocal wake
            while True:
                await give()
                if not due:
                    wake = trio.Event()
                    await wake.wait()

        one_task = len(request) * workload.concurrency <= HELD_BY_SOCKETS
        await TrioRuntime().beside([give_and_take] if one_task else [take_for_ever, give_for_ever], wait)

    async def measure_flood(stream: trio.SocketStream) -> None:
        received = 0

        async def take() -> None:
            nonlocal received
            while data := await stream.receive_some(READ_SIZE):
                received += len(data)
                meter.count = received // workload.size

        await TrioRuntime().beside([take], wait)

    async def run_async() -> None:
        async with await trio.open_tcp_stream(options.host, options.port) as stream:
            if workload.shape is Shape.SERVER_STREAM:
                await measure_flood(stream)
            elif workload.concurrency > 1:
                await measure_batches(stream)
            else:
                await measure_echo(stream)
            report(meter)

    trio.run(run_async)


if __name__ == "__main__":
    main(serve, run)
