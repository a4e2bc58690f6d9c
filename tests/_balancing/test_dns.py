"""The ``dns`` resolver, with a look-up that the test makes up."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing

import trio_grpc
from trio_grpc import Endpoint, Resolution, ResolverTarget, ServiceConfig, ServiceConfigError
from trio_grpc._balancing.dns import DnsResolver, system_addresses
from trio_grpc._balancing.dns_service_config import DnsServiceConfig

Clock = trio.testing.MockClock

settle = trio.testing.wait_all_tasks_blocked


class Bench:
    """A resolver, what it has published, and when it was asked to look up."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.lookups: list[tuple[float, str, int]] = []
        self.answer: list[str] = ["10.0.0.1"]
        self.takes = 0.0
        self.published: list[list[str]] = []
        self.configs: list[object] = []
        self.texts: Exception | list[str] = []
        self.texts_take = 0.0
        self.texts_asked: list[str] = []
        self.error: Exception | None = None
        self.resolution = Resolution(self._on_update, lambda _: None)
        self._nursery = nursery

    def _on_update(self, endpoints: tuple[Endpoint, ...], config: object) -> None:
        self.published.append([endpoint.address for endpoint in endpoints])
        self.configs.append(config)

    async def _lookup(self, host: str, port: int) -> Sequence[str]:
        self.lookups.append((trio.current_time(), host, port))
        await trio.sleep(self.takes)
        if isinstance(self.error, Exception):
            raise self.error
        return self.answer

    async def _find_texts(self, name: str) -> Sequence[str]:
        self.texts_asked.append(name)
        await trio.sleep(self.texts_take)
        if isinstance(self.texts, Exception):
            raise self.texts
        return self.texts

    async def run_with_config(self) -> None:
        """The same, with the service config from DNS."""
        look_up = DnsServiceConfig(self._find_texts, hostname="here", random_percentage=20).look_up
        await DnsResolver(self._lookup, look_up)(ResolverTarget("dns", "", "name.example:50051"), self.resolution)

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


# ---------------------------------------------------------------------------------------------------------------------
# Service configs (gRFC A2)


async def test_the_service_config_is_looked_up_with_the_addresses(
    bench: Bench, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    bench.takes = bench.texts_take = 5
    bench.texts = ["v=spf1", 'grpc_config=[{"serviceConfig": {"loadBalancingConfig": [{"round_robin": {}}]}}]']
    nursery.start_soon(bench.run_with_config)
    await trio.sleep(5.1)
    assert bench.texts_asked == ["_grpc_config.name.example"]
    assert bench.published == [["10.0.0.1:50051"]]
    assert bench.configs == [ServiceConfig(load_balancing=trio_grpc.RoundRobin())]
    # It comes and goes with the record.
    bench.texts = []
    bench.resolution.request()
    await trio.sleep(60)
    assert bench.configs[1:] == [None]


@pytest.mark.parametrize(
    ("choice", "taken"),
    [
        ('"percentage": 21', True),
        ('"percentage": 20', False),
        ('"clientHostname": ["there", "here"]', True),
        ('"clientHostname": ["there"]', False),
    ],
)
async def test_a_choice_is_for_some_clients(
    bench: Bench, nursery: trio.Nursery, autojump_clock: Clock, choice: str, taken: bool
) -> None:
    bench.texts = [f'grpc_config=[{{{choice}, "serviceConfig": {{}}}}]']
    nursery.start_soon(bench.run_with_config)
    await settle()
    assert bench.configs == [ServiceConfig() if taken else None]


async def test_a_look_up_of_the_service_config_that_fails_finds_none(
    bench: Bench, nursery: trio.Nursery, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_grpc")
    bench.texts = OSError("SERVFAIL")
    nursery.start_soon(bench.run_with_config)
    await settle()
    assert (bench.published, bench.configs) == ([["10.0.0.1:50051"]], [None])
    assert caplog.messages == ["no service config for name.example from DNS: SERVFAIL"]


async def test_a_look_up_of_the_service_config_that_hangs_finds_none(
    bench: Bench, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    bench.texts_take = 1000
    bench.takes = 7
    nursery.start_soon(bench.run_with_config)
    await trio.sleep(11.9)
    assert not bench.published
    await trio.sleep(0.2)
    assert (bench.published, bench.configs) == ([["10.0.0.1:50051"]], [None])


async def test_a_wrong_service_config_is_published_as_wrong(
    bench: Bench, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    bench.texts = ["grpc_config={}"]
    nursery.start_soon(bench.run_with_config)
    await settle()
    (config,) = bench.configs
    assert isinstance(config, ServiceConfigError)
    assert "grpc_config: must be a list of choices" in str(config)


async def test_without_addresses_a_service_config_is_not_waited_for(bench: Bench, autojump_clock: Clock) -> None:
    bench.error = socket.gaierror(socket.EAI_NONAME, "no such name")
    bench.texts_take = 10
    with pytest.raises(socket.gaierror):
        await bench.run_with_config()
    assert trio.current_time() == 0
