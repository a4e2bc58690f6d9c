"""Calls of all kinds under any policy, to backends that fail, refuse, stop and drain, by callers who give up.

Whatever happens, each call ends once; it is run no more often than its policy permits, and not again once its response
has begun; what a handler reads is what was sent, from the start and in order; and nothing of it stays behind.
"""

from __future__ import annotations

import gc
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import attrs
import pytest
import trio
import trio._core._run as trio_run
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

import trio_grpc
from tests.support.backends import Backend
from tests.support.retries import PUSHBACK, hedging_policy, retry_policy
from trio_grpc import Limits, MethodConfig, RetryThrottling, RpcError, ServiceConfig, StatusCode
from trio_grpc._attempts import Attempts
from trio_grpc.testing import ManualResolver

Clock = trio.testing.MockClock

ANY_CODE = set(StatusCode) - {StatusCode.OK}
#: Options of a method, and how often a call of it may be run.
POLICIES: list[tuple[dict[str, Any], int]] = [
    ({}, 1),
    ({"retry_policy": retry_policy(max_attempts=3, initial_backoff=0.1)}, 3),
    ({"retry_policy": retry_policy(max_attempts=5, initial_backoff=0.001, retryable_status_codes=ANY_CODE)}, 5),
    ({"hedging_policy": hedging_policy(hedging_delay=0)}, 3),
    ({"hedging_policy": hedging_policy(max_attempts=5, hedging_delay=0.05, non_fatal_status_codes=ANY_CODE)}, 5),
]


@attrs.define
class Call:
    """What is known of one call.

    Attributes:
        sequential: its attempts come one after the other.
        runs: how often a handler has begun.
        begun: its caller has seen the response begin.
        ends: how often it has ended.
    """

    sequential: bool
    runs: int = 0
    begun: bool = False
    ends: int = 0


class Moody(EchoServicer):
    """Fails as chance will have it."""

    def __init__(self, chance: Random, calls: dict[str, Call], failures: float) -> None:
        self._chance = chance
        self._known = calls
        self._failures = failures
        self.calls = 0
        self.running = 0

    async def _run(self, requests: Any, context: Any, reply: Callable[[EchoRequest], Awaitable[None]] | None) -> int:
        chance = self._chance
        call = self._known[context.metadata["call"]]
        # A hedge may be under way when another one wins.
        assert not (call.sequential and call.begun), "run again after its response had begun"
        call.runs += 1
        self.running += 1
        count = 0
        try:
            await trio.sleep(chance.choice([0, 0, 0.01, 0.3, 1.5]))
            if chance.random() < 0.1:
                await context.send_initial_metadata()
            fails, enough = chance.random() < self._failures, chance.randrange(3)
            if requests is not None:
                async for request in requests:
                    assert request.count == count
                    count += 1
                    if fails and count > enough:
                        break
                    if reply is not None and not fails:
                        await reply(request)
            if fails:
                value = chance.choice([*[""] * 10, "0", "10", "1500", "-1", "x"])
                code = chance.choice([StatusCode.UNAVAILABLE, StatusCode.UNAVAILABLE, StatusCode.ABORTED])
                raise RpcError(code, "moody", trailing_metadata={PUSHBACK: value} if value else {})
            return count
        finally:
            self.running -= 1

    async def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
        await self._run(None, context, None)
        return EchoReply(payload=request.payload, count=1)

    async def ServerStream(self, request: EchoRequest, context: Any) -> None:
        await self._run(None, context, None)
        for number in range(request.count):
            await context.send(EchoReply(count=number))

    async def ClientStream(self, requests: Any, context: Any) -> EchoReply:
        return EchoReply(count=await self._run(requests, context, None))

    async def Bidi(self, requests: Any, context: Any) -> None:
        async def reply(request: EchoRequest) -> None:
            await context.send(EchoReply(count=request.count))

        await self._run(requests, context, reply)


async def make(stub: EchoStub, chance: Random, call: Call, options: dict[str, Any]) -> None:
    """Make a call of any kind, and look at its replies."""
    kind = chance.choice(["Unary", "ServerStream", "ClientStream", "Bidi"])
    number, size = chance.randrange(5), chance.choice([0, 0, 10, 3000, 30_000])

    def pause() -> float:
        return chance.random() if chance.random() < 0.2 else 0

    async def requests() -> AsyncIterator[EchoRequest]:
        for count in range(number):
            yield EchoRequest(count=count, payload=bytes(size))
            await trio.sleep(pause())

    if kind == "Unary" and chance.random() < 0.7:
        assert len((await stub.Unary(EchoRequest(payload=bytes(size)), **options)).payload) == size
        return
    if kind == "ClientStream" and chance.random() < 0.5:
        assert (await stub.ClientStream(requests(), **options)).count == number
        return
    first = [EchoRequest(count=number, payload=bytes(size))] if kind in ("Unary", "ServerStream") else []
    async with getattr(stub, kind).open(*first, **options) as block:
        if not first:
            with suppress(trio.BrokenResourceError):
                for count in range(number):
                    await block.send(EchoRequest(count=count, payload=bytes(size)))
                    await trio.sleep(pause())
                await block.done_sending()
        if chance.random() < 0.1:
            block.cancel()
        if chance.random() < 0.3:
            await block.wait_initial_metadata()
            call.begun = True
        if kind in ("Unary", "ClientStream"):
            assert (await block.receive()).count == (1 if first else number)
            return
        counts = []
        async for reply in block:
            call.begun = True
            counts.append(reply.count)
        assert counts == list(range(number))


@pytest.fixture
def chance(seed: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Random]:
    """The same schedule and the same jitter for the same seed."""
    own = Random(seed)
    monkeypatch.setattr(random, "uniform", own.uniform)
    state = trio_run._r.getstate()
    trio_run._r.seed(seed)
    yield own
    trio_run._r.setstate(state)


@pytest.mark.parametrize("seed", range(30))
async def test_calls_whatever_happens(seed: int, chance: Random, nursery: trio.Nursery, autojump_clock: Clock) -> None:
    options, most = POLICIES[seed % 5]
    failures = [1, 0.6, 0.3, 0][seed // 5 % 4]
    calls: dict[str, Call] = {}
    servicers: list[Moody] = []
    backends = [Backend(nursery, f"backend{number}") for number in range(2)]

    async def start(backend: Backend) -> None:
        servicers.append(Moody(Random(chance.random()), calls, failures))
        limits = Limits(adaptive_window=False, max_concurrent_streams=chance.choice([2, 5, 100]))
        await backend.start(servicers[-1], limits)  # type: ignore[arg-type]

    async def disorder() -> None:
        for _ in range(chance.randrange(6)):
            await trio.sleep(chance.random())
            backend = chance.choice(backends)
            await (backend.stop() if chance.random() < 0.5 else backend.drain())
            await trio.sleep(chance.random())
            await start(backend)

    async def caller(name: str) -> None:
        call = calls[name] = Call("hedging_policy" not in options)
        await trio.sleep(chance.choice([0, 0, 3 * chance.random()]))
        per_call = {
            "metadata": {"call": name},
            "timeout": chance.choice([None, None, None, 0.01, 0.3, 2, 10]),
            "wait_for_ready": chance.choice([None, True]),
        }
        with trio.CancelScope() as scope, suppress(RpcError, trio.ClosedResourceError):
            if chance.random() < 0.15:
                scope.deadline = trio.current_time() + chance.choice([0, 0.001, 0.1, 1, 2])
            await make(stub, Random(chance.random()), call, per_call)
        call.ends += 1

    for backend in backends:
        await start(backend)
    throttling = RetryThrottling(max_tokens=10, token_ratio=0.5) if chance.random() < 0.4 else None
    async with trio_grpc.open_channel(
        "test:///backends",
        resolvers={"test": ManualResolver(*[backend.endpoint for backend in backends])},
        load_balancing=chance.choice(["pick_first", "round_robin"]),
        limits=Limits(adaptive_window=False, retry_buffer_size=chance.choice([100, 50_000, 2**18])),
        service_config=ServiceConfig(methods=[MethodConfig(**options)], retry_throttling=throttling),
    ) as channel:
        stub = EchoStub(channel)
        with trio.fail_after(1000):
            async with trio.open_nursery() as callers:
                callers.start_soon(disorder)
                for number in range(chance.choice([1, 3, 15])):
                    callers.start_soon(caller, str(number))
                if chance.random() < 0.15:
                    await trio.sleep(2 * chance.random())
                    await channel.aclose()
        await trio.sleep(5)
        statistics = channel.statistics()
        assert (statistics.streams, statistics.waiting, statistics.unconnected) == (0, 0, 0)
        assert channel._retry_bytes == 0
    for call in calls.values():
        assert call.ends == 1
        assert call.runs <= most
    assert not any(servicer.running for servicer in servicers)
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, Attempts)]
    nursery.cancel_scope.cancel()
