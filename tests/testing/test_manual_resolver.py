"""The resolver for tests."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.support.backends import Backend
from trio_grpc import ResolverTarget, RpcError
from trio_grpc.testing import ManualResolver

settle = trio.testing.wait_all_tasks_blocked


async def test_all_channels_get_what_is_published_now_and_later(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    one, two = Backend(nursery, "one"), Backend(nursery, "two")
    await one.start()
    await two.start()
    resolver = ManualResolver()
    resolvers = {"test": resolver}
    async with (
        trio_grpc.open_channel("test:///a", resolvers=resolvers) as first,
        trio_grpc.open_channel("test:///b", resolvers=resolvers) as second,
    ):
        first.connect()
        await settle()
        resolver.update(one.endpoint)
        await EchoStub(first).Unary(EchoRequest())
        await EchoStub(second).Unary(EchoRequest())
        assert one.calls == 2
        resolver.update(two.endpoint)
        await settle()
        await EchoStub(first).Unary(EchoRequest())
        await EchoStub(second).Unary(EchoRequest())
        assert two.calls == 2
    assert resolver.targets == [ResolverTarget("test", "", "a"), ResolverTarget("test", "", "b")]


async def test_failures(autojump_clock: trio.testing.MockClock) -> None:
    resolver = ManualResolver()
    resolver.fail(OSError("the name server is down"))
    async with trio_grpc.open_channel("test:///a", resolvers={"test": resolver}) as channel:
        with pytest.raises(RpcError, match="failed to resolve test:///a: the name server is down"):
            await EchoStub(channel).Unary(EchoRequest())


async def test_addresses_may_be_text(autojump_clock: trio.testing.MockClock) -> None:
    resolver = ManualResolver("unix:/nowhere/at/all")
    async with trio_grpc.open_channel("localhost", resolvers={"dns": resolver}) as channel:
        with pytest.raises(RpcError, match="failed to connect to unix:/nowhere/at/all"):
            await EchoStub(channel).Unary(EchoRequest())
        await settle()
        assert resolver.requests
    with pytest.raises(ValueError, match="no host"):
        resolver.update(":1")


async def test_service_configs_go_with_endpoints(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(ValueError, match="service_config is published with endpoints, and there are none"):
        ManualResolver(service_config="{}")
    backend = Backend(nursery, "backend")
    await backend.start()
    resolver = ManualResolver(backend.endpoint, service_config='{"methodConfig": [{"name": [{}], "timeout": "1"}]}')
    async with trio_grpc.open_channel("test:///a", resolvers={"test": resolver}) as channel:
        with pytest.raises(RpcError, match="timeout: must be a duration"):
            await EchoStub(channel).Unary(EchoRequest())
        resolver.update(backend.endpoint, service_config='{"methodConfig": [{"name": [{}], "timeout": "1s"}]}')
        await settle()
        await EchoStub(channel).Unary(EchoRequest())
    assert backend.calls == 1
    wrong: Any = ["10.0.0.1:1"]
    with pytest.raises(TypeError, match="each endpoint must be Endpoint or str, not list"):
        resolver.update(wrong)
