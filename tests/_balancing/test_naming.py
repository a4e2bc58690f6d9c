"""What targets mean."""

from __future__ import annotations

import pytest
import trio

from trio_grpc import Endpoint, Resolution, ResolverTarget
from trio_grpc._balancing.dns import DnsResolver
from trio_grpc._balancing.naming import StaticResolver, resolve_name, static_name, unresolved
from trio_grpc._balancing.target import TcpTarget
from trio_grpc.testing import ManualResolver


@pytest.mark.parametrize(
    ("target", "text", "hostname", "authority"),
    [
        ("localhost:1", "localhost:1", "localhost", "localhost:1"),
        ("dns:///example.org", "example.org:443", "example.org", "example.org:443"),
        ("[::1]:5", "[::1]:5", "::1", "[::1]:5"),
        ("unknown:5", "unknown:5", "unknown", "unknown:5"),
    ],
)
def test_names_go_to_dns(target: str, text: str, hostname: str, authority: str) -> None:
    name = resolve_name(target, {})
    assert (name.text, name.hostname, name.authority) == (text, hostname, authority)
    assert isinstance(name.resolver, DnsResolver)
    assert name.address is not None


@pytest.mark.parametrize(
    ("target", "text", "hostname", "authority", "addresses"),
    [
        ("ipv4:10.0.0.1:5", "10.0.0.1:5", "10.0.0.1", "10.0.0.1:5", ["10.0.0.1:5"]),
        (
            "ipv4:10.0.0.1:5,10.0.0.2,10.0.0.3:7",
            "10.0.0.1:5,10.0.0.2:443,10.0.0.3:7",
            "10.0.0.1",
            "10.0.0.1:5",
            ["10.0.0.1:5", "10.0.0.2:443", "10.0.0.3:7"],
        ),
        ("ipv4:///10.0.0.1:5", "10.0.0.1:5", "10.0.0.1", "10.0.0.1:5", ["10.0.0.1:5"]),
        ("ipv6:[::1]:5,[fe80::1]:6", "[::1]:5,[fe80::1]:6", "::1", "[::1]:5", ["[::1]:5", "[fe80::1]:6"]),
        ("unix:/run/s", "unix:/run/s", "localhost", "localhost", ["unix:/run/s"]),
        ("unix-abstract:s", "unix-abstract:s", "localhost", "localhost", ["unix-abstract:s"]),
    ],
)
def test_lists_are_what_they_say(target: str, text: str, hostname: str, authority: str, addresses: list[str]) -> None:
    name = resolve_name(target, {})
    assert (name.text, name.hostname, name.authority) == (text, hostname, authority)
    assert isinstance(name.resolver, StaticResolver)
    assert [endpoint.address for endpoint in name.resolver.endpoints] == addresses


@pytest.mark.parametrize(
    ("target", "parts", "hostname", "authority"),
    [
        ("test:///a.example:5", ("test", "", "a.example:5"), "a.example", "a.example:5"),
        ("test://auth/greeter", ("test", "auth", "greeter"), "greeter", "greeter"),
        ("test:greeter/v1", ("test", "", "greeter/v1"), "greeter/v1", "greeter%2Fv1"),
    ],
)
def test_schemes_of_the_users_own(target: str, parts: tuple[str, str, str], hostname: str, authority: str) -> None:
    resolver = ManualResolver()
    name = resolve_name(target, {"test": resolver})
    assert name.target == ResolverTarget(*parts)
    assert (name.text, name.hostname, name.authority) == (target, hostname, authority)
    assert name.resolver is resolver
    assert name.custom


def test_built_in_schemes_can_be_taken_over() -> None:
    resolver = ManualResolver()
    for target in ("localhost:1", "dns:///localhost:1"):
        name = resolve_name(target, {"dns": resolver})
        assert (name.text, name.authority, name.resolver) == ("localhost:1", "localhost:1", resolver)
        assert name.target.path == "localhost:1"
    assert resolve_name("ipv4:10.0.0.1:5", {"ipv4": resolver}).resolver is resolver
    assert resolve_name("unix:/s", {"unix": resolver}).resolver is resolver


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("", "empty"),
        ("test:", "has no name"),
        ("test://x", "test:///x"),
        ("other:///x", "resolvers="),
        ("ipv4:", "no host"),
        ("ipv4:localhost:5", "'localhost' is not an IPv4 address"),
        ("ipv4:10.0.0.1:5,[::1]:5", "'::1' is not an IPv4 address"),
        ("ipv6:10.0.0.1:5", "'10.0.0.1' is not an IPv6 address"),
        ("ipv4:10.0.0.1:5,", "no host"),
        ("unix-abstract:", "no name"),
    ],
)
def test_malformed_targets(target: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        resolve_name(target, {"test": ManualResolver()})


async def test_static_resolvers_publish_and_end() -> None:
    name = static_name(Endpoint("x", connect=trio.sleep_forever))
    published: list[Endpoint] = []
    await name.resolver(name.target, Resolution(lambda endpoints, _: published.extend(endpoints), lambda _: None))
    assert [endpoint.address for endpoint in published] == ["x"]
    assert (name.text, name.authority, name.hostname, name.address) == ("x", "localhost", "localhost", None)


def test_a_proxy_resolves_names_itself() -> None:
    name = unresolved(resolve_name("example.org:5", {}))
    assert isinstance(name.resolver, StaticResolver)
    assert name.resolver.endpoints == (Endpoint("example.org:5"),)
    assert name.address == TcpTarget("example.org", 5)
    static = resolve_name("ipv4:10.0.0.1:5,10.0.0.2:5", {})
    assert unresolved(static) is static
