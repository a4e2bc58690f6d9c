"""The ``dns`` resolver: all addresses of a host name, asked again when connections fail."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import trio

from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.json_fields import ServiceConfigError
from trio_grpc._balancing.resolver import Resolution
from trio_grpc._balancing.target import ResolverTarget, TcpTarget, parse_target

#: Seconds between two look-ups of a name, however often connections fail (grpc-go, internal/resolver/dns).
MIN_INTERVAL = 30.0
#: Seconds that one look-up may take (same place).
LOOKUP_TIMEOUT = 30.0
#: Seconds that the look-up of the service config may go on once the addresses are there: time for a second query.
CONFIG_GRACE = 5.0

#: Asked for the addresses of a host; told the port, as some name services want.
Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
#: A service config, or what is wrong with the one that there is; None where there is none.
FoundConfig = Mapping[str, object] | ServiceConfigError | None


async def system_addresses(host: str, port: int) -> Sequence[str]:
    """Ask what the operating system is set up to ask."""
    found: Sequence[Any] = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for family, _, _, _, address in found if family in (socket.AF_INET, socket.AF_INET6)]


class DnsResolver:
    """Resolves ``dns:host:port``.

    A failed look-up is raised: the channel tries again with its backoff.

    Args:
        lookup: finds addresses.
        config_lookup: finds the service config of a host, at the same time; None to do without.
        min_interval: seconds between two look-ups.
        timeout: seconds that one may take.
    """

    def __init__(
        self,
        lookup: Lookup = system_addresses,
        config_lookup: Callable[[str], Awaitable[FoundConfig]] | None = None,
        *,
        min_interval: float = MIN_INTERVAL,
        timeout: float = LOOKUP_TIMEOUT,
    ) -> None:
        self.lookup = lookup
        self.config_lookup = config_lookup
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
            endpoints, config = await self._resolve(address)
            resolution.update(endpoints, config)
            await resolution.wait_stale()
            await trio.sleep_until(asked_at + self._min_interval)

    async def _resolve(self, address: TcpTarget) -> tuple[list[Endpoint], FoundConfig]:
        found: Sequence[str] | None = None
        config: FoundConfig = None
        failure: Exception | None = None

        async def find_config(look_up: Callable[[str], Awaitable[FoundConfig]]) -> None:
            nonlocal config
            config = await look_up(address.host)

        with trio.move_on_after(self._timeout):
            async with trio.open_nursery() as nursery:
                if self.config_lookup is not None:
                    nursery.start_soon(find_config, self.config_lookup)
                try:
                    found = await self.lookup(address.host, address.port)
                except Exception as error:
                    # Not through the nursery, which would wrap it.
                    failure = error
                    nursery.cancel_scope.cancel()
                nursery.cancel_scope.deadline = trio.current_time() + CONFIG_GRACE
        if failure is not None:
            try:
                raise failure
            finally:
                # Its traceback has this frame in it.
                del failure
        if found is None:
            raise TimeoutError(f"no answer within {self._timeout:g} s")
        if not found:
            raise OSError(f"{address.host} has no addresses")
        # One may come once per protocol.
        return [Endpoint(str(TcpTarget(host, address.port))) for host in dict.fromkeys(found)], config
