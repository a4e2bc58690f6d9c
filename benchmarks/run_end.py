"""One end of a case of `run`, or both of them, in a process of its own; started by `python -m benchmarks run`.

It plays until its standard input ends, and answers each line that it reads there with one line of JSON:

    mark    what was counted since the last mark: seconds, CPU, the CPU that other programs took on its core,
            messages, latencies
    count   the same, and begins to count allocations; the next mark tells them
    look    messages since the last mark, and goes on
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

import trio_grpc
from benchmarks.allocations import Counted, counted
from benchmarks.certificates import client_context, server_context
from benchmarks.libraries.base import core_seconds
from benchmarks.machine import pin
from benchmarks.network import NETWORKS, ShapedListener, shaped
from benchmarks.protos.bench_trio_grpc import BenchStub
from benchmarks.traffic import TRAFFIC, Bench, Metadata, Tally, message

SERVER = "server"
CLIENT = "client"
BOTH = "client-and-server"


@dataclass(frozen=True)
class Plan:
    """What the two ends of a case are told.

    Attributes:
        workload: A key of `TRAFFIC`.
        calls: Loops on each connection.
        connections: Connections, each a channel of its own.
        request_size: Payload bytes of a request.
        response_size: Payload bytes of a response.
        gzip: Whether both directions are compressed.
        network: A key of `NETWORKS`.
        rich: Whether calls carry rich metadata.
        tls: The folder of the certificates, None for plaintext.
    """

    workload: str
    calls: int
    connections: int
    request_size: int
    response_size: int
    gzip: bool
    network: str
    rich: bool
    tls: str | None

    def to_json(self) -> str:
        """Returns it as an argument of a process."""
        return json.dumps(asdict(self))

    @property
    def compression(self) -> str | None:
        """The algorithm, as the library's options want it."""
        return "gzip" if self.gzip else None

    @property
    def limits(self) -> trio_grpc.Limits:
        """The defaults, raised where the plan would not fit into them."""
        defaults = trio_grpc.Limits()
        # Field number and length come on top of the payload.
        largest = max(self.request_size, self.response_size) + 16
        return trio_grpc.Limits(
            max_receive_message_length=max(defaults.receive_limit, largest),
            max_concurrent_streams=max(defaults.max_concurrent_streams, self.calls),
        )


class Counters:
    """What is told at each mark.

    Args:
        tally: Of this process's client; of its server if it has none.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._counting = ExitStack()
        self._allocated = Counted()
        self._begin()

    def _begin(self) -> None:
        self._tally.latencies.clear()
        self._sent, self._received = self._tally.sent, self._tally.received
        self._cpu = time.process_time()
        self._core = core_seconds(os.getpid())
        self._time = time.perf_counter()

    def look(self) -> dict[str, Any]:
        """Returns the messages since the last mark."""
        return {"sent": self._tally.sent - self._sent, "received": self._tally.received - self._received}

    def mark(self, count: bool) -> dict[str, Any]:
        """Returns the figures since the last mark, and begins anew.

        Args:
            count: Whether to count allocations from here on.
        """
        seconds = time.perf_counter() - self._time
        cpu = time.process_time() - self._cpu
        core = core_seconds(os.getpid())
        self._counting.close()
        figures: dict[str, Any] = {
            "seconds": seconds,
            "cpu": cpu,
            "foreign_cpu": None if core is None or self._core is None else max(0.0, core - self._core - cpu),
            **self.look(),
            "allocations": self._allocated.allocations,
            "bytes": self._allocated.bytes,
            **summary(self._tally.latencies),
        }
        self._allocated = self._counting.enter_context(counted()) if count else Counted()
        self._begin()
        return figures


def summary(latencies: list[int]) -> dict[str, float]:
    """Returns the percentiles and the mean of nanoseconds, in microseconds; nothing of nothing."""
    if not latencies:
        return {}
    ordered = sorted(latencies)
    figures = {f"p{percent}_us": percentile(ordered, percent) / 1000 for percent in (50, 90, 99)}
    return {**figures, "average_us": sum(ordered) / len(ordered) / 1000}


def percentile(ordered: list[int], percent: int) -> int:
    """Returns the smallest value that at least `percent` of all are not above."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


async def serve(plan: Plan, listener: trio.abc.Listener[Any], tally: Tally, services: trio.Nursery) -> None:
    """Starts the server in `services`."""
    if (network := NETWORKS[plan.network]) is not None:
        listener = ShapedListener(listener, network, services)
    ssl_context = server_context(Path(plan.tls)) if plan.tls else None
    servicer = Bench(plan.response_size, tally, unconstrained=plan.workload == "unconstrained")
    options: dict[str, Any] = {
        "ssl_context": ssl_context,
        "limits": plan.limits,
        "compression": plan.compression,
    }
    await services.start(partial(trio_grpc.serve, [servicer], listener, **options))


async def connect(
    plan: Plan,
    target: str | Callable[[], Awaitable[trio.abc.Stream]],
    services: trio.Nursery,
    channels: AsyncExitStack,
) -> list[BenchStub]:
    """Opens the channels, each connected by a call that does not count."""
    if (network := NETWORKS[plan.network]) is not None:
        target = shaped(_connect(target) if isinstance(target, str) else target, network, services)
    ssl_context = client_context(Path(plan.tls)) if plan.tls else None
    stubs = []
    for _ in range(plan.connections):
        channel = await channels.enter_async_context(
            trio_grpc.open_channel(
                target,
                ssl_context=ssl_context,
                server_hostname=None if ssl_context is None else "localhost",
                limits=plan.limits,
                compression=plan.compression,
                http_proxy=False,
            )
        )
        stubs.append(BenchStub(channel))
        await stubs[-1].Unary(message(0))
    return stubs


def start(plan: Plan, stub: BenchStub, tally: Tally, loops: trio.Nursery) -> None:
    """Starts the loops of one connection."""
    request = message(plan.request_size)
    metadata = Metadata(plan.rich)
    for _ in range(plan.calls):
        loops.start_soon(TRAFFIC[plan.workload].loop, stub, request, metadata, tally)


def _connect(target: str) -> Callable[[], Awaitable[trio.abc.Stream]]:
    host, _, port = target.rpartition(":")
    return partial(trio.open_tcp_stream, host, int(port))


def _say(record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)


async def run(plan: Plan, role: str, target: str) -> None:
    """Plays one end, or both, until standard input ends."""
    tally = Tally()
    port = None
    stubs: list[BenchStub] = []
    # The loops end first, then their channels, then what these need: no call fails because a run is over.
    async with trio.open_nursery() as services:
        async with AsyncExitStack() as channels:
            if role == SERVER:
                (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
                port = listener.socket.getsockname()[1]
                await serve(plan, listener, tally, services)
            elif role == CLIENT:
                stubs = await connect(plan, target, services, channels)
            else:
                # Only here: it brings half of pytest along, which ends over TCP should not have in their memory.
                from trio_grpc.testing import MemoryListener

                memory = MemoryListener()
                await serve(plan, memory, Tally(), services)
                stubs = await connect(plan, memory.connect, services, channels)
            async with trio.open_nursery() as loops:
                for stub in stubs:
                    start(plan, stub, tally, loops)
                await obey(Counters(tally), port)
                loops.cancel_scope.cancel()
        services.cancel_scope.cancel()


async def obey(counters: Counters, port: int | None) -> None:
    """Says that all is ready, and then answers commands until standard input ends."""
    _say({"port": port})
    # A descriptor of its own, because trio makes it non-blocking and closes it.
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as commands:
        async for chunk in commands:
            for command in chunk.split():
                _say(counters.look() if command == b"look" else counters.mark(count=command == b"count"))


def main() -> None:
    """Runs one end."""
    parser = argparse.ArgumentParser(description="One end of a case; started by `python -m benchmarks run`.")
    parser.add_argument("role", choices=[SERVER, CLIENT, BOTH])
    parser.add_argument("plan", help="as JSON")
    parser.add_argument("--target", default="", metavar="HOST:PORT", help="of a client")
    parser.add_argument("--core", type=int, help="pin this process to one core")
    arguments = parser.parse_args()
    pin(arguments.core)
    trio.run(run, Plan(**json.loads(arguments.plan)), arguments.role, arguments.target)


if __name__ == "__main__":
    main()
