"""The floor under every trio library: the same bytes over a bare trio TCP stream, without HTTP/2, gRPC or protobuf."""

from __future__ import annotations

import time

import trio

from benchmarks.libraries.base import Meter, ServeOptions, TrioRuntime, announce, main, report
from benchmarks.workloads import Shape, Workload
from trio_grpc import Limits

# What a call costs on the wire beside its messages, with HPACK in its steady state: HEADERS of nothing but indexed
# fields in front of a request; HEADERS in front of a reply, and trailers behind it.
REQUEST_HEAD = 9 + 8
REPLY_HEAD_AND_TAIL = 9 + 3 + 9 + 1
FRAME_HEADER = 9
MESSAGE_PREFIX = 5
FRAME_SIZE = Limits().max_frame_size
# The write quota of a stream: as much of small messages goes into one write.
WRITE_SIZE = 65_536
READ_SIZE = 256 * 1024
# Our reader aims at this many woken tasks a read, so that both ends work at the same time, and reads no less than this.
BATCH = 32
LEAST_READ = 1024
# What the sockets' buffers hold for certain, so that one task can write all of it before it reads any answer.
HELD_BY_SOCKETS = 64 * 1024


def message_bytes(size: int) -> int:
    """Returns what a message with a payload of `size` bytes takes within DATA: prefix, protobuf's tag and length."""
    length_of_length = max(1, -(-size.bit_length() // 7))
    return MESSAGE_PREFIX + (1 + length_of_length + size if size else 0)


def data_bytes(size: int) -> int:
    """Returns what such a message takes on the wire, alone in its DATA frames."""
    length = message_bytes(size)
    return length + FRAME_HEADER * -(-length // FRAME_SIZE)


def request_bytes(workload: Workload) -> int:
    """Returns what one request takes on the wire, WINDOW_UPDATEs aside."""
    return data_bytes(workload.size) + (REQUEST_HEAD if workload.shape is Shape.UNARY else 0)


def reply_bytes(workload: Workload) -> int:
    """Returns what one reply takes on the wire, WINDOW_UPDATEs aside."""
    return data_bytes(workload.size) + (REPLY_HEAD_AND_TAIL if workload.shape is Shape.UNARY else 0)


def flood_batch(workload: Workload) -> tuple[int, int]:
    """Returns how many messages of a stream go into one write, and what they take on the wire."""
    messages = max(1, WRITE_SIZE // message_bytes(workload.size))
    length = messages * message_bytes(workload.size)
    return messages, length + FRAME_HEADER * -(-length // FRAME_SIZE)


def read_size(workload: Workload, length: int) -> int:
    """Returns how much to read at once where each of `length` bytes wakes a task."""
    if workload.concurrency == 1:
        return READ_SIZE
    return min(READ_SIZE, max(LEAST_READ, BATCH * length))


def serve(options: ServeOptions) -> None:
    """Serves for ever: echoes, or streams messages of the workload's size without end."""
    workload = options.workload
    request_length = request_bytes(workload)
    reply = bytes(reply_bytes(workload))
    size = read_size(workload, request_length)

    async def echo(stream: trio.SocketStream) -> None:
        stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
        received = 0
        while data := await stream.receive_some(size):
            complete, received = divmod(received + len(data), request_length)
            if complete:
                await stream.send_all(reply * complete if complete > 1 else reply)

    async def flood(stream: trio.SocketStream) -> None:
        batch = bytes(flood_batch(workload)[1])
        try:
            while True:
                await stream.send_all(batch)
        except trio.BrokenResourceError:
            pass

    async def serve_async() -> None:
        (listener,) = await trio.open_tcp_listeners(options.port, host="127.0.0.1")
        announce(listener.socket.getsockname()[1])
        await trio.serve_listeners(flood if workload.shape is Shape.SERVER_STREAM else echo, [listener])

    trio.run(serve_async)


def run(meter: Meter) -> None:
    """Plays one workload."""
    options = meter.options
    workload = options.workload
    request = bytes(request_bytes(workload))
    reply_length = reply_bytes(workload)
    size = read_size(workload, reply_length)

    async def wait() -> None:
        await trio.sleep(options.warmup)
        meter.begin()
        await trio.sleep(options.duration)
        meter.end()

    async def receive(stream: trio.SocketStream) -> int:
        if not (data := await stream.receive_some(size)):
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
        messages, length = flood_batch(workload)
        received = 0

        async def take() -> None:
            nonlocal received
            while data := await stream.receive_some(READ_SIZE):
                received += len(data)
                meter.count = received * messages // length

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
