"""The ``dns`` resolver: all addresses of a host name, asked again when connections fail."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.resolver import Resolution
from trio_grpc._balancing.target import ResolverTarget, TcpTarget, parse_target

#: Seconds between two look-ups of a name, however often connections fail (grpc-go, internal/resolver/dns).
MIN_INTERVAL = 30.0
#: Seconds that one look-up may take (same place).
LOOKUP_TIMEOUT = 30.0

#: Asked for the addresses of a host; told the port, as some name services want.
Lookup = Callable[[str, int], Awaitable[Sequence[str]]]


async def system_addresses(host: str, port: int) -> Sequence[str]:
    """Ask what the operating system is set up to ask."""
    found: Sequence[Any] = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for family, _, _, _, address in found if family in (socket.AF_INET, socket.AF_INET6)]


class DnsResolver:
    """Resolves ``dns:host:port``.

    A failed look-up is raised: the channel tries again with its backoff.

    Args:
        lookup: finds addresses.
        min_interval: seconds between two look-ups.
        timeout: seconds that one may take.
    """

    def __init__(
        self,
        lookup: Lookup = system_addresses,
        *,
        min_interval: float = MIN_INTERVAL,
        timeout: float = LOOKUP_TIMEOUT,
    ) -> None:
        self.lookup = lookup
        self._min_interval = min_interval
        self._timeout = timeout

    async def __call__(self, target: ResolverTarget, resolution: Resolution, /) -> None:
        address = parse_target(f"dns:{target.path}")
        assert isinstance(address, TcpTarget)
        if address.version is not None:
            await trio.lowlevel.checkpoint()
            resolution.update([Endpoint(str(address))])
            return
        while True:
            asked_at = trio.current_time()
            resolution.update(await self._resolve(address))
            await resolution.wait_stale()
            await trio.sleep_until(asked_at + self._min_interval)

    async def _resolve(self, address: TcpTarget) -> list[Endpoint]:
        with trio.move_on_after(self._timeout) as scope:
            found = await self.lookup(address.host, address.port)
        if scope.cancelled_caught:
            raise TimeoutError(f"no answer within {self._timeout:g} s")
        if not found:
            raise OSError(f"{address.host} has no addresses")
        # One may come once per protocol.
        return [Endpoint(str(TcpTarget(host, address.port))) for host in dict.fromkeys(found)]
