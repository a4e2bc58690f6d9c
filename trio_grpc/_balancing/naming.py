"""Which resolver a target goes to, and what the target means beside its addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import quote

import attrs
import trio

from trio_grpc._balancing.dns import DnsResolver, system_addresses
from trio_grpc._balancing.dns_service_config import DnsServiceConfig
from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.name_server import NameServer, parse_name_server
from trio_grpc._balancing.resolver import Resolution, Resolver
from trio_grpc._balancing.target import (
    DEFAULT_PORT,
    ResolverTarget,
    TcpTarget,
    UnixTarget,
    parse_addresses,
    parse_host_port,
    parse_target,
    split_target,
)

_BUILT_IN = ("dns", "ipv4", "ipv6", "unix", "unix-abstract")


class StaticResolver:
    """Publishes a list that never changes.

    Args:
        endpoints: the list.
    """

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self.endpoints = tuple(endpoints)

    async def __call__(self, _target: ResolverTarget, resolution: Resolution, /) -> None:
        await trio.lowlevel.checkpoint()
        resolution.update(self.endpoints)


@attrs.frozen
class Name:
    """What a target means.

    Attributes:
        text: the target, for messages.
        hostname: the name that a peer's certificate must carry, unless the user says another.
        authority: the ``:authority`` of requests, unless the user says another.
        resolver: finds the endpoints.
        target: what it is asked for.
        address: the target, or the first address that it lists, where that is one of TCP.
        custom: a resolver of the user's finds the endpoints.
    """

    text: str
    hostname: str
    authority: str
    resolver: Resolver
    target: ResolverTarget
    address: TcpTarget | None = None
    custom: bool = False

    @property
    def local(self) -> bool:
        """Whether all that is sent there stays in this machine, between its users: unix sockets, and nothing else."""
        resolver = self.resolver
        return isinstance(resolver, StaticResolver) and all(
            isinstance(endpoint._dialled, UnixTarget) for endpoint in resolver.endpoints
        )


def resolve_name(text: str, resolvers: Mapping[str, Resolver], *, service_config_from_dns: bool = False) -> Name:
    """Return what a target means.

    Args:
        text: the target.
        resolvers: the user's resolvers by scheme; they go before ours.
        service_config_from_dns: where we ask DNS, ask for the service config as well.

    Raises:
        ValueError: the target is malformed; the message shows it.
        ModuleNotFoundError: that takes dnspython, which is not installed.
    """
    target = split_target(text, {*_BUILT_IN, *resolvers})
    custom = resolvers.get(target.scheme)
    if custom is not None and target.scheme not in _BUILT_IN:
        if not target.path:
            raise ValueError(f"target {text!r} has no name")
        # As C-core makes it: what a URI's authority may not hold is escaped.
        authority = quote(target.path, safe=":[]!$&'()*+,;=-._~")
        return Name(text, _host_of(target.path), authority, custom, target, custom=True)
    if target.scheme in ("ipv4", "ipv6"):
        addresses = parse_addresses(target)
        shown = ",".join(map(str, addresses))
        resolver = custom or StaticResolver(Endpoint(str(address)) for address in addresses)
        return Name(shown, addresses[0].host, str(addresses[0]), resolver, target, addresses[0])
    if target.scheme == "dns":
        address = parse_host_port(target.path, text, DEFAULT_PORT)
        shown = f"dns://{target.authority}/{address}" if target.authority else str(address)
        resolver = custom or _dns_resolver(text, target, service_config_from_dns)
        return Name(shown, address.host, str(address), resolver, target, address)
    path = parse_target(text)
    # gRPC sends "localhost" for unix sockets: their paths are no authority.
    return Name(str(path), "localhost", "localhost", custom or StaticResolver([Endpoint(str(path))]), target)


def _dns_resolver(text: str, target: ResolverTarget, service_config_from_dns: bool) -> DnsResolver:
    if not (target.authority or service_config_from_dns):
        return DnsResolver()
    server_address, needed_for = None, "service_config_from_dns"
    if target.authority:
        server_address, needed_for = parse_name_server(target.authority, text), f"target {text!r}"
    server = NameServer(server_address, needed_for)
    return DnsResolver(
        server.addresses if target.authority else system_addresses,
        DnsServiceConfig(server.texts).look_up if service_config_from_dns else None,
    )


def unresolved(name: Name) -> Name:
    """Return the same name, its host left for others to resolve: a proxy in front of it does that (gRFC A1).

    Where the target names a name server, that is asked all the same: others would not know what it knows.
    """
    if isinstance(name.resolver, DnsResolver) and not name.target.authority:
        return attrs.evolve(name, resolver=StaticResolver([Endpoint(name.text)]))
    return name


def static_name(endpoint: Endpoint) -> Name:
    """Return what a target that is an endpoint means."""
    resolver = StaticResolver([endpoint])
    return Name(endpoint.address, "localhost", "localhost", resolver, ResolverTarget("", "", endpoint.address))


def _host_of(path: str) -> str:
    """The host in a name that looks like ``host:port``, otherwise the name."""
    try:
        address = parse_target(f"dns:{path}")
    except ValueError:
        return path
    assert isinstance(address, TcpTarget)
    return address.host
