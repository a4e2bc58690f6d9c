"""A message through the codec, over a real socket and back: time, allocations, and copies of its bytes.

Client and server share this process and one event loop, so a figure is the sum of both ends.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

import trio_grpc
from benchmarks import allocations, results
from benchmarks.arguments import json_path, positive, size_title, sizes
from benchmarks.copies import Ledger, NotSeenError, WatchedCodec, watched
from benchmarks.libraries.trio_grpc import Bench
from benchmarks.machine import RESULTS
from benchmarks.protos import bench_pb2
from benchmarks.protos.bench_trio_grpc import BenchStub
from benchmarks.statistics import median, spread

HELP = "a message through the codec, over loopback and back: time, allocations, copies"
DEFAULT_SIZES = (350, 10_240, 1_048_576)
#: Calls before anything is measured, and calls of the two counted phases.
WARM_UP = 20
COUNTED = 50
WATCHED = 8

EPILOG = """\
One op is one unary call over loopback TCP whose request and reply are one protobuf message with a payload of the given
size: serialised and parsed twice, sent and received twice. Both ends run in this one process, one call at a time.

  ns/op       wall-clock time of a call
  allocs/op   blocks of memory that Python's allocators (MEM and OBJ) handed out, both ends together, counted by a hook
              in a phase of its own; objects from the interpreter's free lists and protobuf's arenas do not appear.
              Needs a C compiler.
  bytes/op    the sizes of those blocks together
  copies in   bytes copied in user space between the kernel and the codec, divided by the bytes of the messages. Counted
              in another phase of its own, by comparing the memory that the bytes lie in at each place that they pass:
              what the kernel wrote, what goes into the message, the message, what the codec is handed.
  copies out  the same on the way from the codec to the kernel: what the codec made, what is queued, what the kernel is
              given to read. HTTP/2 and gRPC put headers in front: small messages are joined with them to save writes.
"""


class WrongAnswerError(Exception):
    """A reply was not its request."""


@asynccontextmanager
async def loopback(codec: Any = None) -> AsyncIterator[BenchStub]:
    """Yields a stub whose server is in this process, behind a real socket."""
    async with trio.open_nursery() as nursery:
        # The channel's codec is the server's as well: both ends are measured.
        server = await nursery.start(
            lambda **options: trio_grpc.serve([Bench()], "127.0.0.1:0", codec=codec, **options)
        )
        async with trio_grpc.open_channel(server.addresses[0], codec=codec) as channel:
            yield BenchStub(channel)
        nursery.cancel_scope.cancel()


async def _calls(stub: BenchStub, message: bench_pb2.Message, count: int) -> None:
    for _ in range(count):
        reply = await stub.Unary(message)
        if len(reply.payload) != len(message.payload):
            raise WrongAnswerError(f"a reply of {len(reply.payload)} bytes to a request of {len(message.payload)}")


async def measure_time(size: int, duration: float) -> float:
    """Returns the nanoseconds of one round trip, measured for at least `duration` seconds."""
    message = bench_pb2.Message(payload=bytes(size))
    clock = time.perf_counter_ns
    async with loopback() as stub:
        await _calls(stub, message, WARM_UP)
        calls = 0
        started = clock()
        end = started + duration * 1e9
        while (now := clock()) < end or not calls:
            await _calls(stub, message, 10)
            calls += 10
    return (now - started) / calls


async def count_allocations(size: int) -> dict[str, float]:
    """Returns allocations and bytes of one round trip."""
    message = bench_pb2.Message(payload=bytes(size))
    async with loopback() as stub:
        await _calls(stub, message, WARM_UP)
        with allocations.counted() as counted:
            await _calls(stub, message, COUNTED)
    return {"allocs_per_op": counted.allocations / COUNTED, "bytes_per_op": counted.bytes / COUNTED}


async def watch_copies(size: int, calls: int = WATCHED) -> Ledger:
    """Returns the ledger of some round trips.

    Raises:
        NotSeenError: Bytes of messages took a way that is not watched.
    """
    message = bench_pb2.Message(payload=bytes(size))
    with watched() as ledger:
        async with loopback(WatchedCodec(ledger)) as stub:
            await _calls(stub, message, calls)
    return ledger


def measure(sizes: tuple[int, ...], rounds: int, duration: float) -> dict[str, list[dict[str, float]]]:
    """Measures every size in each round, telling on stderr how far it is.

    Raises:
        NotSeenError: Bytes of messages took a way that is not watched.
        WrongAnswerError: A reply was not its request.
    """
    figures: dict[str, list[dict[str, float]]] = {size_title(size): [] for size in sizes}
    counts: dict[int, dict[str, float]] = {}
    if (reason := allocations.missing()) is not None:
        print(f"no allocations: {reason}", file=sys.stderr)
    for size in sizes:
        print(f"counting {size_title(size)}", file=sys.stderr, flush=True)
        counts[size] = trio.run(count_allocations, size) if reason is None else {}
        ledger = trio.run(watch_copies, size)
        counts[size]["copies_per_message"] = ledger.receive_copies / ledger.received
        counts[size]["send_copies_per_message"] = ledger.send_copies / ledger.sent
    for round_number in range(rounds):
        for size in sizes:
            nanoseconds = trio.run(measure_time, size, duration)
            print(f"[round {round_number + 1}/{rounds}] {size_title(size):8} {nanoseconds:12,.0f} ns", file=sys.stderr)
            figures[size_title(size)].append({"ns_per_op": nanoseconds, **counts[size]})
    return figures


def table(figures: dict[str, list[dict[str, float]]]) -> str:
    """Writes the report."""
    titles = ("ns/op", "spread", "bytes/op", "allocs/op", "copies in", "copies out")
    lines = ["{:10} {:>12} {:>7} {:>12} {:>10} {:>10} {:>10}".format("message", *titles)]
    for name, by_round in figures.items():
        times = [figure["ns_per_op"] for figure in by_round]
        first = by_round[0]
        counts = ["-", "-"]
        if "allocs_per_op" in first:
            counts = [f"{first['bytes_per_op']:,.0f}", f"{first['allocs_per_op']:,.1f}"]
        lines.append(
            f"{name:10} {median(times):>12,.0f} {spread(times):>7.0%} {counts[0]:>12} {counts[1]:>10} "
            f"{first['copies_per_message']:>10.2f} {first['send_copies_per_message']:>10.2f}"
        )
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `codec`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "--sizes",
        type=sizes,
        default=DEFAULT_SIZES,
        metavar="A,B",
        help="payload bytes of the messages, K and M allowed (default: 350,10K,1M)",
    )
    parser.add_argument("--rounds", type=positive(int), default=5, help="rounds of all sizes (default: 5)")
    parser.add_argument(
        "--duration",
        type=positive(float),
        default=1.0,
        metavar="SECONDS",
        help="of each size in each round (default: 1)",
    )
    parser.add_argument(
        "--json",
        type=json_path,
        default=RESULTS / "codec.json",
        metavar="FILE",
        help="where the results go (default: benchmarks/results/codec.json)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Measures, prints the table, writes the JSON."""
    try:
        figures = measure(arguments.sizes, arguments.rounds, arguments.duration)
    except (NotSeenError, WrongAnswerError) as error:
        print(f"codec: {error}", file=sys.stderr)
        return 1
    print(table(figures))
    options = {"sizes": arguments.sizes, "rounds": arguments.rounds, "duration": arguments.duration}
    results.write(arguments.json, results.record("codec", options, figures))
    return 0
