"""The traffic of `run`: three loops of a client, and the service that they meet.

    unary          call, wait for the reply, call again
    streaming      on one long stream: send, wait for the reply, send again (ping-pong)
    unconstrained  on one long stream: both sides send, and both receive, as fast as they can, each on its own

A loop runs for ever; who started it decides when its counting begins and ends.
"""

# ruff: noqa: ARG002 -- handlers have the signature that gRPC gives them

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import trio

import trio_grpc
from benchmarks.protos import bench_pb2
from benchmarks.protos.bench_trio_grpc import BenchServicer, BenchStub

#: What production puts on every call: a token of this size, a trace of its own, a deadline.
TOKEN = "Bearer " + "t" * (800 - len("Bearer "))
#: Seconds; none is meant to expire, and streams live as long as the whole run.
UNARY_DEADLINE = 60.0
STREAM_DEADLINE = 86_400.0
#: Random bytes with four of their eight bits, so that compression halves a payload, about as it does with real ones;
#: longer than any window in which it would find the block again.
_BLOCK = random.Random(4).randbytes(1024 * 1024).translate(bytes(range(16)) * 16)


@dataclass
class Tally:
    """What one end has done since it began.  The loops add to it directly: a method call would be measured too.

    Attributes:
        sent: Messages sent.
        received: Messages received.
        latencies: Nanoseconds of each round trip.
    """

    sent: int = 0
    received: int = 0
    latencies: list[int] = field(default_factory=list)


def message(size: int) -> bench_pb2.Message:
    """Returns a message with `size` bytes of payload, always the same ones."""
    return bench_pb2.Message(payload=(_BLOCK * (size // len(_BLOCK) + 1))[:size])


class Bench(BenchServicer):
    """Answers with messages of one size.

    Args:
        response_size: Payload bytes of each.
        tally: Counts.
        unconstrained: Whether streams are answered without waiting for requests.
    """

    def __init__(self, response_size: int, tally: Tally, unconstrained: bool) -> None:
        self._reply = message(response_size)
        self._tally = tally
        self._unconstrained = unconstrained

    async def Unary(
        self, request: bench_pb2.Message, context: trio_grpc.ServicerContext[bench_pb2.Message]
    ) -> bench_pb2.Message:
        """Answers."""
        self._tally.received += 1
        self._tally.sent += 1
        return self._reply

    async def Bidi(
        self,
        requests: trio_grpc.RequestStream[bench_pb2.Message],
        context: trio_grpc.ServicerContext[bench_pb2.Message],
    ) -> None:
        """Answers each request, or sends for ever."""
        tally = self._tally
        reply = self._reply
        if not self._unconstrained:
            async for _ in requests:
                tally.received += 1
                await context.send(reply)
                tally.sent += 1
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_receive_all, requests, tally)
            while True:
                await context.send(reply)
                tally.sent += 1


async def _receive_all(messages: Any, tally: Tally) -> None:
    async for _ in messages:
        tally.received += 1


class Metadata:
    """What a call carries besides its message.

    Args:
        rich: A deadline, a traceparent of the call's own and a bearer token, or nothing at all.
    """

    def __init__(self, rich: bool) -> None:
        self.rich = rich
        self._spans = itertools.count(1)

    def options(self, deadline: float) -> dict[str, Any]:
        """Returns the keyword arguments of the next call."""
        if not self.rich:
            return {}
        trace = f"00-4bf92f3577b34da6a3ce929d0e0e4736-{next(self._spans):016x}-01"
        return {"timeout": deadline, "metadata": [("traceparent", trace), ("authorization", TOKEN)]}


async def call_for_ever(stub: BenchStub, request: bench_pb2.Message, metadata: Metadata, tally: Tally) -> None:
    """The loop of `unary`."""
    clock = time.perf_counter_ns
    unary = stub.Unary
    latencies = tally.latencies
    while True:
        started = clock()
        # Two calls, so that a plain one is not made with an empty dictionary that no application would make.
        if metadata.rich:
            await unary(request, **metadata.options(UNARY_DEADLINE))
        else:
            await unary(request)
        latencies.append(clock() - started)
        tally.sent += 1
        tally.received += 1


async def ping_pong_for_ever(stub: BenchStub, request: bench_pb2.Message, metadata: Metadata, tally: Tally) -> None:
    """The loop of `streaming`."""
    clock = time.perf_counter_ns
    latencies = tally.latencies
    async with stub.Bidi(**metadata.options(STREAM_DEADLINE)) as call:
        while True:
            started = clock()
            await call.send(request)
            await call.receive()
            latencies.append(clock() - started)
            tally.sent += 1
            tally.received += 1


async def flow_for_ever(stub: BenchStub, request: bench_pb2.Message, metadata: Metadata, tally: Tally) -> None:
    """The loop of `unconstrained`."""
    async with stub.Bidi(**metadata.options(STREAM_DEADLINE)) as call, trio.open_nursery() as nursery:
        nursery.start_soon(_receive_all, call, tally)
        while True:
            await call.send(request)
            tally.sent += 1


@dataclass(frozen=True)
class Traffic:
    """One workload.

    Attributes:
        name: What `--workload` calls it.
        title: What it does, in words.
        loop: One worker of the client.
        round_trips: Whether an operation is a round trip; otherwise each message is one, sent or received.
    """

    name: str
    title: str
    loop: Callable[[BenchStub, bench_pb2.Message, Metadata, Tally], Awaitable[None]]
    round_trips: bool

    def operations(self, sent: int, received: int) -> int:
        """Returns how many operations so many messages are, at either end."""
        return min(sent, received) if self.round_trips else sent + received


TRAFFIC = {
    traffic.name: traffic
    for traffic in (
        Traffic("unary", "calls one after the other", call_for_ever, round_trips=True),
        Traffic("streaming", "ping-pong on long streams", ping_pong_for_ever, round_trips=True),
        Traffic("unconstrained", "both directions of long streams at full speed", flow_for_ever, round_trips=False),
    )
}
