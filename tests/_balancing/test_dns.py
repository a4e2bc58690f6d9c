"""The ``dns`` resolver, with a look-up that the test makes up."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing

from trio_grpc import Endpoint, Resolution, ResolverTarget
from trio_grpc._balancing.dns import DnsResolver, system_addresses

Clock = trio.testing.MockClock

settle = trio.testing.wait_all_tasks_blocked


class Bench:
    """A resolver, what it has published, and when it was asked to look up."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.lookups: list[tuple[float, str, int]] = []
        self.answer: list[str] = ["10.0.0.1"]
        self.takes = 0.0
        self.published: list[list[str]] = []
        self.error: Exception | None = None
        self.resolution = Resolution(self._on_update, lambda _: None)
        self._nursery = nursery

    def _on_update(self, endpoints: tuple[Endpoint, ...], _: object) -> None:
        self.published.append([endpoint.address for endpoint in endpoints])

    async def _lookup(self, host: str, port: int) -> Sequence[str]:
        self.lookups.append((trio.current_time(), host, port))
        await trio.sleep(self.takes)
        if isinstance(self.error, Exception):
            raise self.error
        return self.answer

    async def run(self, path: str = "name.example:50051") -> None:
        await DnsResolver(self._lookup)(ResolverTarget("dns", "", path), self.resolution)


@pytest.fixture
def bench(nursery: trio.Nursery) -> Bench:
    return Bench(nursery)


async def test_all_addresses_are_published_once_each(
    bench: Bench, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    bench.answer = ["::1", "10.0.0.1", "10.0.0.2", "10.0.0.1"]
    nursery.start_soon(bench.run)
    await settle()
    assert bench.lookups == [(0, "name.example", 50051)]
    assert bench.published == [["[::1]:50051", "10.0.0.1:50051", "10.0.0.2:50051"]]


async def test_the_default_port(bench: Bench, nursery: trio.Nursery, autojump_clock: Clock) -> None:
    nursery.start_soon(bench.run, "name.example")
    await settle()
    assert bench.published == [["10.0.0.1:443"]]


@pytest.mark.parametrize("path", ["127.0.0.1:5", "[::1]:5"])
async def test_an_address_is_not_looked_up(bench: Bench, autojump_clock: Clock, path: str) -> None:
    await bench.run(path)
    assert bench.published == [[path]]
    assert not bench.lookups


async def test_a_host_without_addresses(bench: Bench, autojump_clock: Clock) -> None:
    bench.answer = []
    with pytest.raises(OSError, match=r"name\.example has no addresses"):
        await bench.run()


async def test_it_looks_up_again_when_asked_but_not_more_often_than_twice_a_minute(
    bench: Bench, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    nursery.start_soon(bench.run)
    await settle()
    bench.answer = ["10.0.0.2"]
    for _ in range(70):
        bench.resolution.request()
        await trio.sleep(1)
    assert [at for at, _, _ in bench.lookups] == [0, 30, 60]
    assert bench.published == [["10.0.0.1:50051"], ["10.0.0.2:50051"], ["10.0.0.2:50051"]]


async def test_after_a_quiet_time_it_looks_up_at_once(
    bench: Bench, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    nursery.start_soon(bench.run)
    await trio.sleep(1000)
    assert len(bench.lookups) == 1
    bench.resolution.request()
    await settle()
    assert [at for at, _, _ in bench.lookups] == [0, 1000]


async def test_a_failure_is_raised(bench: Bench, autojump_clock: Clock) -> None:
    bench.error = socket.gaierror(socket.EAI_NONAME, "no such name")
    with pytest.raises(socket.gaierror):
        await bench.run()


async def test_a_look_up_that_hangs_ends(bench: Bench, autojump_clock: Clock) -> None:
    bench.takes = 1000
    with pytest.raises(TimeoutError, match="no answer within 30 s"):
        await bench.run()
    assert trio.current_time() == 30


class System(trio.abc.HostnameResolver):
    """What the operating system would answer."""

    def __init__(self, *found: tuple[socket.AddressFamily, str]) -> None:
        self._found = found

    async def getaddrinfo(self, host: object, port: object, *_: object, **__: object) -> list[Any]:
        await trio.lowlevel.checkpoint()
        assert host == b"name.example"
        return [(family, socket.SOCK_STREAM, 6, "", (address, port)) for family, address in self._found]

    async def getnameinfo(self, *_: object) -> tuple[str, str]:
        raise NotImplementedError


async def test_the_system_is_asked_through_trio(autojump_clock: Clock) -> None:
    trio.socket.set_custom_hostname_resolver(System((socket.AF_INET6, "::1"), (socket.AF_INET, "10.9.8.7")))
    published: list[Endpoint] = []
    resolution = Resolution(lambda endpoints, _: published.extend(endpoints), lambda _: None)
    with trio.move_on_after(1):
        await DnsResolver()(ResolverTarget("dns", "", "name.example:1"), resolution)
    assert published == [Endpoint("[::1]:1"), Endpoint("10.9.8.7:1")]


async def test_other_families_are_left_out(autojump_clock: Clock) -> None:
    trio.socket.set_custom_hostname_resolver(System((socket.AF_UNIX, "/x")))
    assert not await system_addresses("name.example", 1)
