"""The floor under the floor: the same bytes over blocking sockets, received with `recv_into`, and no event loop."""

from __future__ import annotations

import socket
import time

from benchmarks.libraries.base import Meter, ServeOptions, announce, main, report
from benchmarks.libraries.floor import flood_batch, reply_bytes, request_bytes
from benchmarks.workloads import Shape

WHOLE = socket.MSG_WAITALL


def serve(options: ServeOptions) -> None:
    """Serves one client after the other for ever: echoes, or streams messages without end."""
    workload = options.workload
    streams = workload.shape is Shape.SERVER_STREAM
    request = bytearray(request_bytes(workload))
    reply = bytes(flood_batch(workload)[1] if streams else reply_bytes(workload))
    with socket.create_server(("127.0.0.1", options.port)) as listener:
        announce(listener.getsockname()[1])
        while True:
            client, _ = listener.accept()
            with client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    while streams or client.recv_into(request, 0, WHOLE) == len(request):
                        client.sendall(reply)
                except ConnectionError:
                    # The client has measured enough.
                    continue


def run(meter: Meter) -> None:
    """Plays one workload."""
    options = meter.options
    workload = options.workload
    streams = workload.shape is Shape.SERVER_STREAM
    request = bytes(request_bytes(workload))
    messages, length = flood_batch(workload) if streams else (1, reply_bytes(workload))
    reply = bytearray(length)
    clock = time.perf_counter_ns
    with socket.create_connection((options.host, options.port)) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def receive() -> None:
            if server.recv_into(reply, 0, WHOLE) != length:
                raise SystemExit("the floor's server went away")

        def step() -> None:
            if not streams:
                server.sendall(request)
            receive()

        end_of_warmup = time.perf_counter() + options.warmup
        while time.perf_counter() < end_of_warmup:
            step()
        meter.begin()
        end = time.perf_counter() + options.duration
        while time.perf_counter() < end or not meter.latencies:
            started = clock()
            step()
            meter.latencies.append(clock() - started)
            meter.count += messages
        meter.end()
        report(meter)


if __name__ == "__main__":
    main(serve, run)
