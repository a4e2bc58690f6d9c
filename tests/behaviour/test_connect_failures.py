"""What calls are told when there is no connection (case 11), and how often a backend that fails is dialled."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.support.backends import Backend
from tests.support.network import Network
from trio_grpc import ConnectivityState, Endpoint, RpcError, StatusCode
from trio_grpc.testing import ManualResolver, MemoryListener

Clock = trio.testing.MockClock
Start = Callable[[EchoStub], Awaitable[object]]

settle = trio.testing.wait_all_tasks_blocked


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    network = Network()
    network.install(monkeypatch)
    return network


async def failure(channel: trio_grpc.Channel, **options: Any) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await EchoStub(channel).Unary(EchoRequest(), **options)
    return caught.value


async def failure_of_a_block(channel: trio_grpc.Channel, **options: Any) -> RpcError:
    with pytest.raises(RpcError) as caught:
        async with EchoStub(channel).ServerStream(EchoRequest(), **options):
            raise AssertionError("the block was entered")
    return caught.value


REFUSED = f"[Errno {errno.ECONNREFUSED}] {os.strerror(errno.ECONNREFUSED)}"


@pytest.mark.parametrize("ask", [failure, failure_of_a_block])
async def test_failing_at_once_is_a_checkpoint(
    network: Network, autojump_clock: Clock, ask: Callable[[trio_grpc.Channel], Awaitable[RpcError]]
) -> None:
    """A caller that tries again and again would otherwise keep the channel itself from ever connecting."""
    async with trio_grpc.open_channel("closed.example:50051") as channel:
        await ask(channel)
        assert channel.state is ConnectivityState.TRANSIENT_FAILURE
        with trio.testing.assert_checkpoints():
            await ask(channel)


async def test_a_closed_port(network: Network, autojump_clock: Clock) -> None:
    async with trio_grpc.open_channel("closed.example:50051") as channel:
        for ask in (failure, failure_of_a_block):
            error = await ask(channel)
            assert error.code is StatusCode.UNAVAILABLE
            assert error.message == f"failed to connect to 10.0.0.1:50051: {REFUSED} (target closed.example:50051)"
            assert isinstance(error.__cause__, ConnectionRefusedError)
        assert trio.current_time() == 0


async def test_a_closed_port_of_this_machine() -> None:
    # Bound and not listening: nobody else gets the port meanwhile.
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*sock.getsockname())
        async with trio_grpc.open_channel(address) as channel:
            error = await failure(channel)
            assert error.message == f"failed to connect to {address}: {REFUSED}"
            assert isinstance(error.__cause__, ConnectionRefusedError)
            error = await failure(channel, wait_for_ready=True, timeout=0.2)
            assert error.code is StatusCode.DEADLINE_EXCEEDED
            assert f"failed to connect to {address}: {REFUSED}" in error.message


async def test_waiting_for_ready_ends_with_the_deadline_and_says_why_it_waited(
    network: Network, autojump_clock: Clock
) -> None:
    async with trio_grpc.open_channel("closed.example:50051") as channel:
        for ask in (failure, failure_of_a_block):
            start = trio.current_time()
            error = await ask(channel, wait_for_ready=True, timeout=0.2)
            assert trio.current_time() - start == pytest.approx(0.2)
            assert error.code is StatusCode.DEADLINE_EXCEEDED
            assert "exceeded; not connected: failed to connect to 10.0.0.1:50051" in error.message
            assert REFUSED in error.message
        assert channel.statistics().unconnected == 0


async def test_a_listener_that_accepts_and_never_speaks(network: Network, autojump_clock: Clock) -> None:
    listener = network.listen("hole.example:1")
    async with trio_grpc.open_channel("hole.example:1") as channel:
        error = await failure(channel, wait_for_ready=True, timeout=0.2)
        assert error.code is StatusCode.DEADLINE_EXCEEDED
        assert error.message == "deadline of 0.2 s exceeded; not connected: still connecting to hole.example:1"
        error = await failure(channel)
        assert error.code is StatusCode.UNAVAILABLE
        assert "no answer within 20 s" in error.message or "no SETTINGS frame from the peer in 20 s" in error.message
        assert trio.current_time() == pytest.approx(20)
        await listener.aclose()


async def test_a_name_that_does_not_resolve(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_at: list[float] = []

    async def getaddrinfo(host: str, port: int, **_: Any) -> Any:
        asked_at.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(trio.socket, "getaddrinfo", getaddrinfo)
    async with trio_grpc.open_channel("nowhere.example:50051") as channel:
        for _ in range(100):
            error = await failure(channel)
            assert error.code is StatusCode.UNAVAILABLE
            assert "failed to resolve nowhere.example:50051" in error.message
            assert "no such name" in error.message
            assert isinstance(error.__cause__, socket.gaierror)
        assert len(asked_at) == 1
        assert channel.state is ConnectivityState.TRANSIENT_FAILURE
        error = await failure(channel, wait_for_ready=True, timeout=10)
        assert error.code is StatusCode.DEADLINE_EXCEEDED
        assert "failed to resolve nowhere.example:50051" in error.message
        # 1 s, x1.6, 20 % either way.
        gaps = [later - sooner for sooner, later in pairwise(asked_at)]
        assert all(0.8 * 1.6**n <= gap <= 1.2 * 1.6**n for n, gap in enumerate(gaps))
        assert len(gaps) >= 3


async def test_a_resolver_that_hangs(autojump_clock: Clock) -> None:
    async with trio_grpc.open_channel("test:///x", resolvers={"test": ManualResolver()}) as channel:
        error = await failure(channel, timeout=0.2)
        assert error.code is StatusCode.DEADLINE_EXCEEDED
        assert error.message == "deadline of 0.2 s exceeded; not connected: still resolving test:///x"


async def test_a_resolver_that_finds_nothing(autojump_clock: Clock) -> None:
    resolver = ManualResolver()
    for load_balancing in ("pick_first", "round_robin"):
        async with trio_grpc.open_channel(
            "test:///x",
            resolvers={"test": resolver},
            load_balancing=load_balancing,  # type: ignore[arg-type]
        ) as channel:
            channel.connect()
            await settle()
            resolver.update()
            error = await failure(channel)
            assert error.code is StatusCode.UNAVAILABLE
            assert error.message == "the resolver found no addresses (target test:///x)"
            await settle()
            assert resolver.requests
            resolver.requests = 0


async def test_all_addresses_are_named(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = [Backend(nursery, name) for name in ("one", "two")]
    for load_balancing in ("pick_first", "round_robin"):
        resolver = ManualResolver(*(backend.endpoint for backend in backends))
        async with trio_grpc.open_channel(
            "test:///x",
            resolvers={"test": resolver},
            load_balancing=load_balancing,  # type: ignore[arg-type]
        ) as channel:
            error = await failure(channel)
            assert error.code is StatusCode.UNAVAILABLE
            assert error.message == (
                "failed to connect to one: no server here; failed to connect to two: no server here (target test:///x)"
            )
            assert isinstance(error.__cause__, ConnectionRefusedError)


async def test_calls_that_do_not_wait_do_not_make_the_channel_dial_more_often(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backend = Backend(nursery, "one")
    async with trio_grpc.open_channel(backend.dial) as channel:
        with trio.move_on_after(600):
            while True:
                assert (await failure(channel)).code is StatusCode.UNAVAILABLE
                await trio.sleep(0.1)
        # 1, 1.6, ... 120 s, and their jitter.
        assert 10 <= backend.dials <= 18


async def test_a_peer_that_does_not_speak_http2_does_not_reset_the_backoff(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    """Neither TCP nor TLS resets it: only a peer that has shown that it speaks HTTP/2."""
    dialled_at: list[float] = []
    far_ends: list[Any] = []

    async def accept_and_end() -> trio.abc.Stream:
        dialled_at.append(trio.current_time())
        near, far = trio.testing.memory_stream_pair()
        await far.send_stream.aclose()
        far_ends.append(far)
        return near

    async with trio_grpc.open_channel(accept_and_end) as channel:
        channel.connect()
        await trio.sleep(60)
    gaps = [later - sooner for sooner, later in pairwise(dialled_at)]
    assert all(0.8 * 1.6**n <= gap <= 1.2 * 1.6**n + 1 for n, gap in enumerate(gaps))


async def test_an_endpoint_of_the_wrong_type_is_told(autojump_clock: Clock) -> None:
    async def resolver(target: trio_grpc.ResolverTarget, resolution: trio_grpc.Resolution, /) -> None:
        await trio.lowlevel.checkpoint()
        resolution.update(["127.0.0.1:1"])  # type: ignore[list-item]

    async with trio_grpc.open_channel("test:///x", resolvers={"test": resolver}) as channel:
        error = await failure(channel)
        assert error.code is StatusCode.UNAVAILABLE
        assert "failed to resolve test:///x: resolvers publish Endpoint objects, not str" in error.message


async def test_a_single_endpoint_is_told_from_a_list_of_one(autojump_clock: Clock) -> None:
    async def resolver(target: trio_grpc.ResolverTarget, resolution: trio_grpc.Resolution, /) -> None:
        await trio.lowlevel.checkpoint()
        resolution.update(Endpoint("127.0.0.1:1"))  # type: ignore[arg-type]

    async with trio_grpc.open_channel("test:///x", resolvers={"test": resolver}) as channel:
        error = await failure(channel)
        assert error.code is StatusCode.UNAVAILABLE
        assert "failed to resolve test:///x: resolvers publish several Endpoint objects" in error.message
        assert "not a single Endpoint" in error.message


async def test_a_resolver_that_fails_later_is_logged(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    listener = MemoryListener()
    endpoint = Endpoint("one", connect=listener.connect)
    resolver = ManualResolver(endpoint)
    async with trio_grpc.open_channel("test:///x", resolvers={"test": resolver}) as channel:
        channel.connect()
        await settle()
        assert caplog.messages == []
        resolver.fail(KeyError("addresses"))
        await settle()
    assert caplog.messages == [
        "resolving test:///x failed, and what was found before stays: KeyError: 'addresses'",
    ]


@pytest.mark.parametrize(
    "returned", [None, "a stream", trio.testing.MemorySendStream()], ids=lambda x: type(x).__name__
)
async def test_a_function_that_returns_no_stream_fails_the_call_and_is_named(
    returned: object, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def connect() -> Any:
        await trio.lowlevel.checkpoint()
        return returned

    for target in (connect, "test:///x"):
        resolver = ManualResolver(Endpoint("connect", connect=connect))
        async with trio_grpc.open_channel(target, resolvers={"test": resolver}) as channel:
            error = await failure(channel)
            assert error.code is StatusCode.UNAVAILABLE
            assert f"must return a trio.abc.Stream, not {type(returned).__name__}" in error.message
            assert isinstance(error.__cause__, TypeError)
    assert not caplog.records


async def test_a_policy_that_raises_fails_the_calls_and_nothing_else(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(trio_grpc.LoadBalancingPolicy):
        def update_endpoints(self, endpoints: Any) -> None:
            raise ZeroDivisionError("a mistake in the application")

        def subchannel_changed(self, subchannel: Any, state: Any) -> None:
            raise AssertionError

    resolver = ManualResolver(Endpoint("x", connect=trio.sleep_forever))
    async with trio_grpc.open_channel("test:///x", resolvers={"test": resolver}, load_balancing=Broken) as channel:
        error = await failure(channel)
        assert error.code is StatusCode.UNAVAILABLE
        assert "a mistake in the application" in error.message
        assert isinstance(error.__cause__, ZeroDivisionError)
    assert "load balancing policy of the channel to test:///x failed" in caplog.text
