"""What interceptors that do nothing cost a unary call, on the side that has them.

Client and server are processes of their own, and what is compared is each one's processor time per call: the rate of
both together would hide what the side costs that is not the slower one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.arguments import positive
from benchmarks.statistics import median

HELP = "what interceptors that do nothing cost a unary call"
#: The share of its side's unary throughput that one interceptor may cost.
LIMIT = 0.15
#: Interceptors on the client and on the server.
PLANS = {"none": (0, 0), "client 1": (1, 0), "client 2": (2, 0), "server 1": (0, 1), "server 2": (0, 2)}
CONCURRENCY = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=positive(int), default=5, help="rounds of everything (default: 5)")
    parser.add_argument(
        "--duration", type=positive(float), default=1.0, metavar="SECONDS", help="of each measurement (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--serve", type=int, metavar="INTERCEPTORS", help=argparse.SUPPRESS)


async def do_nothing(call: Any, proceed: Any) -> None:
    await proceed()


async def serve(interceptors: int) -> None:
    """Serves until stdin ends; answers each line there with the processor time so far."""
    import trio

    import trio_grpc
    from benchmarks.protos.bench_pb2 import Message
    from benchmarks.protos.bench_trio_grpc import BenchServicer

    class Bench(BenchServicer):
        async def Unary(self, request: Message, _: trio_grpc.ServicerContext[Message], /) -> Message:
            return request

    async with trio.open_nursery() as nursery:
        start = partial(trio_grpc.serve, interceptors=[do_nothing] * interceptors)
        server = await nursery.start(start, [Bench()], "127.0.0.1:0")
        print(server.addresses[0], flush=True)
        while await trio.to_thread.run_sync(sys.stdin.readline):
            print(time.process_time(), flush=True)
        nursery.cancel_scope.cancel()


async def call(target: str, interceptors: int, duration: float) -> tuple[float, int]:
    """Makes calls for so long; returns the processor time of one, and how many there were with those of warming up."""
    import trio

    import trio_grpc
    from benchmarks.protos.bench_pb2 import Message
    from benchmarks.protos.bench_trio_grpc import BenchStub

    calls = 0
    over = trio.current_time() + 0.3
    async with trio_grpc.open_channel(target, interceptors=[do_nothing] * interceptors) as channel:
        stub = BenchStub(channel)

        async def repeat() -> None:
            nonlocal calls
            request = Message(payload=bytes(100))
            while trio.current_time() < over:
                await stub.Unary(request)
                calls += 1

        async def all_at_once() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(CONCURRENCY):
                    nursery.start_soon(repeat)

        await all_at_once()
        warm_up = calls
        over = trio.current_time() + duration
        began = time.process_time()
        await all_at_once()
        return (time.process_time() - began) / (calls - warm_up), calls


@contextlib.contextmanager
def server(interceptors: int) -> Iterator[tuple[str, Any]]:
    """Runs a server for the length of a block; gives its address, and what tells its processor time."""
    command = [sys.executable, "-m", "benchmarks", "interceptors", "--serve", str(interceptors)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def processor_time() -> float:
            stdin.write("\n")
            stdin.flush()
            return float(stdout.readline())

        try:
            yield stdout.readline().strip(), processor_time
        finally:
            stdin.close()


def measure(plan: tuple[int, int], duration: float) -> dict[str, float]:
    """Returns microseconds of processor time per call, of either side."""
    import trio

    on_client, on_server = plan
    with server(on_server) as (target, processor_time):
        before = processor_time()
        seconds, calls = trio.run(call, target, on_client, duration)
        return {"client": seconds * 1e6, "server": (processor_time() - before) / calls * 1e6}


def main(arguments: argparse.Namespace) -> int:
    """Prints medians of rounds in which all plans take turns; 1 where an interceptor costs more than it may."""
    if arguments.serve is not None:
        import trio

        trio.run(serve, arguments.serve)
        return 0
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in PLANS}
    for _ in range(arguments.rounds):
        for name, plan in PLANS.items():
            rounds[name].append(measure(plan, arguments.duration))
    costs = {}
    for name, plan in PLANS.items():
        side = name.partition(" ")[0]
        if side != "none":
            with_them, without = (median([one[side] for one in rounds[which]]) for which in (name, "none"))
            # Of the throughput: of what a core could do without them.
            costs[name] = (1 - without / with_them) / max(plan)
    if arguments.json:
        print(json.dumps({"limit": LIMIT, "cost_of_each": costs, "rounds": rounds}, indent=2))
    else:
        for side in "client", "server":
            print(f"{side}: {median([one[side] for one in rounds['none']]):6.1f} us of processor time per call without")
        for name, cost in costs.items():
            print(f"{name}: each costs {cost:6.1%} of the throughput")
    return int(max(costs.values()) > LIMIT)


__all__ = ["HELP", "LIMIT", "add_arguments", "main"]
