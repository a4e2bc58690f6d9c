"""One end of `python -m benchmarks memory`: a process that does as it is told, one command a line on standard input.

Each command is answered by one line of JSON.  The process that measures is a third one, so that neither end's memory
has anything in it but the library, and what it takes to be told.
"""

from __future__ import annotations

import gc
import json
import linecache
import os
import re
import sys
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

import trio_grpc
from benchmarks.libraries.base import rss_mib
from benchmarks.libraries.trio_grpc import Bench
from benchmarks.machine import ROOT
from benchmarks.protos import bench_pb2
from benchmarks.protos.bench_trio_grpc import BenchStub
from benchmarks.workloads import MEBIBYTE

Commands = dict[str, Callable[..., Awaitable[Any]]]
# Handshakes in progress at once: enough to keep both ends busy, too few to pile up buffers that measure nothing.
OPENING_AT_ONCE = 32
BREAKDOWN_LINES = 25


def rss(pid: int) -> int:
    """Returns the resident memory of a process in bytes.

    `statm` is what the kernel has counted so far, and may lag by some pages for each core; `smaps_rollup` looks.
    """
    try:
        found = re.search(r"^Rss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return int(found.group(1)) * 1024 if found else round(rss_mib(pid) * MEBIBYTE)


def _types() -> tuple[Counter[str], Counter[str]]:
    """Counts the objects that the collector knows, and their bytes, by type."""
    number: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for thing in gc.get_objects():
        name = f"{type(thing).__module__}.{type(thing).__qualname__}".removeprefix("builtins.")
        number[name] += 1
        size[name] += sys.getsizeof(thing)
    return number, size


class Tracer:
    """Tells what was allocated since it began, by line, by file and by type."""

    async def begin(self) -> None:
        """Starts to trace."""
        gc.collect()
        tracemalloc.start()
        self._before = _types()

    async def report(self, number: int) -> dict[str, Any]:
        """Returns bytes and pieces for each of `number` things that were made since."""
        gc.collect()
        snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, tracemalloc.__file__)])
        counted, sized = _types()
        counted.subtract(self._before[0])
        sized.subtract(self._before[1])
        lines = snapshot.statistics("lineno")
        return {
            "bytes": sum(line.size for line in lines) / number,
            "files": [
                {
                    "where": _place(item.traceback[0].filename),
                    "bytes": item.size / number,
                    "pieces": item.count / number,
                }
                for item in snapshot.statistics("filename")[:BREAKDOWN_LINES]
            ],
            "lines": [
                {
                    "where": f"{_place(item.traceback[0].filename)}:{item.traceback[0].lineno}",
                    "bytes": item.size / number,
                    "pieces": item.count / number,
                    "text": linecache.getline(item.traceback[0].filename, item.traceback[0].lineno).strip(),
                }
                for item in lines[:BREAKDOWN_LINES]
            ],
            "types": [
                {"where": name, "bytes": size / number, "pieces": counted[name] / number}
                for name, size in sized.most_common(BREAKDOWN_LINES)
            ],
        }


def _place(filename: str) -> str:
    """Shortens a file's name to what tells it from others."""
    path = Path(filename)
    if path.is_relative_to(ROOT) and "site-packages" not in path.parts:
        return str(path.relative_to(ROOT))
    return "/".join(path.parts[-2:])


async def _measure_rss() -> int:
    gc.collect()
    return rss(os.getpid())


async def obey(commands: Commands) -> None:
    """Does one command after another, until the other side closes."""
    tracer = Tracer()
    commands = {"rss": _measure_rss, "trace": tracer.begin, "report": tracer.report, **commands}
    while True:
        # A command is written whole and the next one only after the answer: a line is there as soon as a byte is.
        await trio.lowlevel.wait_readable(sys.stdin)
        if not (words := sys.stdin.readline().split()):
            return
        answer = await commands[words[0]](*map(int, words[1:]))
        print(json.dumps(answer), flush=True)


async def serve() -> None:
    """Serves until the other side closes; the first line it prints is its address."""
    async with trio.open_nursery() as nursery:
        server = await nursery.start(trio_grpc.serve, [Bench()], "127.0.0.1:0")
        print(json.dumps(server.addresses[0]), flush=True)
        await obey({})
        nursery.cancel_scope.cancel()


class Client:
    """Holds connections and streams open.

    Each has a task of its own that waits inside its `async with`, as an application would have it.

    Attributes:
        address: The server's.
        stubs: One for each connection.
    """

    def __init__(self, address: str, nursery: trio.Nursery) -> None:
        self.address = address
        self.stubs: list[BenchStub] = []
        self._nursery = nursery
        self._opening = trio.Semaphore(OPENING_AT_ONCE)

    async def _hold_connection(
        self, with_call: bool, task_status: trio.TaskStatus[BenchStub] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with trio_grpc.open_channel(self.address) as channel:
            stub = BenchStub(channel)
            if with_call:
                await stub.Unary(bench_pb2.Message())
            else:
                channel.connect()
                await channel.wait_ready()
            task_status.started(stub)
            await trio.sleep_forever()

    async def _hold_stream(
        self, stub: BenchStub, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with stub.Bidi() as call:
            await call.send(bench_pb2.Message())
            await call.receive()
            task_status.started()
            await trio.sleep_forever()

    async def connect(self, number: int, with_call: int) -> None:
        """Opens connections: each is ready, and one call was made and has ended if so wanted."""

        async def open_one() -> None:
            async with self._opening:
                self.stubs.append(await self._nursery.start(self._hold_connection, bool(with_call)))

        async with trio.open_nursery() as openers:
            for _ in range(number):
                openers.start_soon(open_one)

    async def open_streams(self, number: int, connection: int) -> None:
        """Opens streams on one connection: one message went each way, and nothing goes any more."""

        async def open_one() -> None:
            async with self._opening:
                await self._nursery.start(self._hold_stream, self.stubs[connection])

        async with trio.open_nursery() as openers:
            for _ in range(number):
                openers.start_soon(open_one)

    async def read_slowly(self, number: int, size: int, milliseconds: int) -> int:
        """Streams `number` messages of `size` bytes, stops reading after the first for a while, then takes the rest."""
        taken = 0
        async with self.stubs[0].ServerStream(bench_pb2.StreamRequest(count=number, size=size)) as call:
            async for _ in call:
                taken += 1
                if taken == 1:
                    await trio.sleep(milliseconds / 1000)
        return taken


async def run(address: str) -> None:
    """Is a client until the other side closes."""
    async with trio.open_nursery() as nursery:
        client = Client(address, nursery)
        await obey({"connect": client.connect, "streams": client.open_streams, "read_slowly": client.read_slowly})
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    if sys.argv[1] == "server":
        trio.run(serve)
    else:
        trio.run(run, sys.argv[2])
