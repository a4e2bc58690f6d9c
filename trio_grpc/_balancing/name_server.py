"""Asking a name server itself, where the operating system's own look-up does not do: by dnspython (extra ``dns``)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import trio

from trio_grpc._balancing.target import TcpTarget, parse_host_port

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver

#: Where name servers listen (RFC 1035, 4.2).
_PORT = 53
#: Bytes of an answer over UDP that arrive in one piece nearly everywhere (DNS flag day 2020); larger ones come by TCP.
_UDP_PAYLOAD = 1232
#: Seconds that the other kind of addresses may take once there are some: as long as resolv.conf(5) has a query take.
_GRACE = 5.0


class NameServer:
    """Looks names up at a name server, over UDP, and over TCP what is too large for that.

    How long it may take is up to the caller's cancel scope: an answer that is lost is asked for again for ever.

    Args:
        address: where the name server is; None for those that the operating system asks, with its search domains.
        needed_for: what an error calls that which asks for one.

    Raises:
        ModuleNotFoundError: dnspython is not installed.
    """

    def __init__(self, address: TcpTarget | None, needed_for: str) -> None:
        self.address = address
        try:
            import dns.asyncresolver  # noqa: F401, PLC0415 (an extra)
        except ImportError as error:
            raise ModuleNotFoundError(
                f"{needed_for} needs dnspython, which is not installed: pip install 'trio-grpc[dns]'"
            ) from error

    async def addresses(self, host: str, _port: int) -> Sequence[str]:
        """Return the addresses of a host, IPv6 first; there may be none. One kind may fail, or keep silent.

        Raises:
            dns.exception.DNSException: there is no such host, or the name server does not say.
        """
        found: dict[str, list[str]] = {"AAAA": [], "A": []}
        failures: list[Exception] = []

        async def ask(kind: str) -> None:
            try:
                found[kind] = [record.address for record in await self._ask(host, kind)]
            except Exception as error:
                failures.append(error)
            if found[kind]:
                nursery.cancel_scope.deadline = trio.current_time() + _GRACE

        async with trio.open_nursery() as nursery:
            for kind in found:
                nursery.start_soon(ask, kind)
        addresses = [*found["AAAA"], *found["A"]]
        if failures and not addresses:
            raise failures.pop(0)
        return addresses

    async def texts(self, name: str) -> Sequence[str]:
        """Return the TXT records of a name, each in one piece; there may be none.

        Raises:
            dns.exception.DNSException: the name server does not say.
        """
        from dns.resolver import NXDOMAIN  # noqa: PLC0415

        try:
            records = await self._ask(name, "TXT")
        except NXDOMAIN:
            return []
        return [b"".join(record.strings).decode("utf-8", "replace") for record in records]

    async def _ask(self, name: str, kind: str) -> Sequence[Any]:
        """Return all records of one kind."""
        from dns.asyncbackend import get_backend  # noqa: PLC0415
        from dns.resolver import NoAnswer  # noqa: PLC0415

        resolver = await self._resolver()
        try:
            answer = await resolver.resolve(
                name, kind, lifetime=inf, search=self.address is None, backend=get_backend("trio")
            )
        except NoAnswer:
            return []
        return tuple(answer)

    async def _resolver(self) -> Resolver:
        from dns.asyncresolver import Resolver  # noqa: PLC0415
        from dns.nameserver import Do53Nameserver  # noqa: PLC0415

        if self.address is None:
            # Anew each time, as machines move between networks. It reads files.
            resolver = await trio.to_thread.run_sync(Resolver)
        else:
            resolver = Resolver(configure=False)
            resolver.nameservers = [Do53Nameserver(self.address.host, self.address.port)]
        resolver.use_edns(0, payload=_UDP_PAYLOAD)
        return resolver


def parse_name_server(authority: str, text: str) -> TcpTarget:
    """Return the address of the name server that a target names.

    Args:
        authority: what stands between ``dns://`` and the next slash: an IP address, and a port if it is not 53.
        text: the target, for messages.

    Raises:
        ValueError: it is no address, or the port is no number.
    """
    address = parse_host_port(authority, text, _PORT)
    if address.version is None:
        raise ValueError(
            f"target {text!r}: the name server {address.host!r} must be an IP address, as in "
            "dns://10.0.0.10/host:port or dns://[fd00::a]:53/host:port"
        )
    return address
