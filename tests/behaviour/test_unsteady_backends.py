"""Ten backends that stop, drain, start and move while calls go on: a simulation in virtual time, with a seed."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.echo_service import Context, Echo
from tests.support.backends import Backend
from trio_grpc import ConnectivityState, RpcError, StatusCode
from trio_grpc.testing import ManualResolver

#: Policies that keep a connection to every backend.
ALL_CONNECTED = ("round_robin", "weighted_round_robin", "least_request")
POLICIES = ("pick_first", *ALL_CONNECTED, "ring_hash")


class Slow(Echo):
    """Takes up to 50 ms for each call."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        await trio.sleep(self._rng.uniform(0, 0.05))
        return await super().Unary(request, context)


class Shaker:
    """Does something to one backend every half a second, for half a minute, and leaves the channel some to call."""

    def __init__(
        self, backends: list[Backend], resolver: ManualResolver, rng: random.Random, load_balancing: str
    ) -> None:
        self.backends = backends
        self.resolver = resolver
        self.rng = rng
        self.load_balancing = load_balancing
        self.up = set(backends)
        self.listed = set(backends)
        self.in_flight = 0

    def usable(self, backend: Backend) -> bool:
        """Whether a call can go there at once: it is up, the channel knows, and it is not in backoff."""
        if backend not in self.up or backend not in self.listed:
            return False
        if self.load_balancing in ALL_CONNECTED:
            assert backend.server is not None
            return backend.server.statistics().connections > 0
        return not backend.refusals

    def publish(self) -> None:
        self.resolver.update(*(backend.endpoint for backend in self.backends if backend in self.listed))

    async def run(self) -> None:
        for _ in range(60):
            await trio.sleep(self.rng.expovariate(2))
            backend = self.rng.choice(self.backends)
            if backend not in self.up:
                await backend.start(Slow(self.rng))
                self.up.add(backend)
            elif sum(self.usable(other) for other in self.backends if other is not backend) >= 2:
                await self.end(backend)
            if self.rng.random() < 0.2:
                self.listed = {one for one in self.backends if one in self.up or self.rng.random() < 0.5}
                self.publish()
        self.listed = set(self.backends)
        self.publish()
        for backend in self.backends:
            if backend not in self.up:
                await backend.start(Slow(self.rng))

    async def end(self, backend: Backend) -> None:
        self.up.discard(backend)
        if self.rng.random() < 0.5:
            await backend.drain()
        else:
            assert backend.server is not None
            self.in_flight += backend.server.statistics().handlers
            await backend.stop()


@pytest.mark.parametrize(
    ("load_balancing", "seed"), [(policy, 0) for policy in POLICIES] + [("pick_first", 1), ("round_robin", 1)]
)
async def test_only_calls_in_flight_fail(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, load_balancing: Any, seed: int
) -> None:
    rng = random.Random(seed)
    backends = [Backend(nursery, f"backend {number}") for number in range(10)]
    for backend in backends:
        await backend.start(Slow(rng))
    resolver = ManualResolver(*(backend.endpoint for backend in backends))
    shaker = Shaker(backends, resolver, rng, load_balancing)
    outcomes: Counter[StatusCode] = Counter()
    over = trio.Event()

    async with trio_grpc.open_channel(
        "test:///x", resolvers={"test": resolver}, load_balancing=load_balancing
    ) as channel:
        echo = EchoStub(channel)

        async def client(number: int) -> None:
            while not over.is_set():
                try:
                    reply = await echo.Unary(EchoRequest(count=number), timeout=30)
                except RpcError as error:
                    outcomes[error.code] += 1
                else:
                    assert reply.count == number
                    outcomes[StatusCode.OK] += 1
                await trio.sleep(0.1)

        async with trio.open_nursery() as clients:
            for number in range(5):
                clients.start_soon(client, number)
            await shaker.run()
            over.set()

        assert set(outcomes) <= {StatusCode.OK, StatusCode.UNAVAILABLE}
        assert outcomes[StatusCode.OK] > 500
        assert outcomes[StatusCode.UNAVAILABLE] <= shaker.in_flight

        # All are up: after the longest backoff each has its connection again, and nothing is left of the old ones.
        await trio.sleep(150)
        await echo.Unary(EchoRequest())
        assert channel.state is ConnectivityState.READY
        statistics = channel.statistics()
        # (ring_hash has those that calls have asked for, and here calls do not care.)
        low, high = {"pick_first": (1, 1), "ring_hash": (1, 10)}.get(load_balancing, (10, 10))
        assert low <= statistics.connections <= high
        assert (statistics.streams, statistics.unconnected) == (0, 0)
        before = [backend.calls for backend in backends]
        for _ in range(50):
            await echo.Unary(EchoRequest())
        shares = sorted(backend.calls - calls for backend, calls in zip(backends, before, strict=True))
        if load_balancing == "pick_first":
            assert shares == [0] * 9 + [50]
        elif load_balancing in ("round_robin", "weighted_round_robin"):
            assert shares == [5] * 10
        else:
            assert sum(shares) == 50


@pytest.mark.parametrize("load_balancing", POLICIES)
async def test_calls_that_wait_for_ready_survive_an_outage_of_all(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, load_balancing: Any
) -> None:
    rng = random.Random(7)
    backends = [Backend(nursery, f"backend {number}") for number in range(10)]
    resolver = ManualResolver(*(backend.endpoint for backend in backends))
    async with trio_grpc.open_channel(
        "test:///x", resolvers={"test": resolver}, load_balancing=load_balancing
    ) as channel:
        echo = EchoStub(channel)
        for _ in range(3):
            async with trio.open_nursery() as calls:
                for _ in range(20):
                    calls.start_soon(lambda: echo.Unary(EchoRequest(), wait_for_ready=True))
                await trio.sleep(rng.uniform(1, 100))
                assert channel.statistics().unconnected == 20
                for backend in backends:
                    await backend.start()
            dials = sum(backend.dials for backend in backends)
            for backend in backends:
                await backend.stop()
            await trio.sleep(1)
            # Nobody storms a backend that is down.
            assert sum(backend.dials for backend in backends) - dials <= 30
