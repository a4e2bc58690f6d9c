"""One place that a channel can connect to, as resolvers publish it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio

from trio_grpc._balancing.target import TcpTarget, UnixTarget, parse_target
from trio_grpc._options import check_async_callable


@attrs.frozen
class Endpoint:
    """One place that a channel can connect to.

    Attributes:
        address: ``"host:port"``, ``"[v6 address]:port"``, ``"unix:path"`` or ``"unix-abstract:name"``; with
            ``connect``, any text that tells users what it is.
        connect: an async callable that returns a new connected `trio.abc.Stream` each time, in the place of a socket
            to the address. For tests, and for transports of your own.

    Raises:
        ValueError: the address is malformed and there is no ``connect``.
        TypeError: the address is no text, or ``connect`` cannot be called.
    """

    address: str
    connect: Callable[[], Awaitable[trio.abc.Stream]] | None = attrs.field(default=None, kw_only=True, repr=False)
    _location: TcpTarget | UnixTarget | None = attrs.field(default=None, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.address, str):
            raise TypeError(f"Endpoint.address must be str, not {type(self.address).__name__}")
        if self.connect is not None:
            check_async_callable("Endpoint.connect", self.connect, " or None")
        else:
            location = parse_target(self.address)
            object.__setattr__(self, "_location", location)
            object.__setattr__(self, "address", str(location))

    @property
    def _dialled(self) -> TcpTarget | UnixTarget | Callable[[], Awaitable[trio.abc.Stream]]:
        """What the dialer takes."""
        if self.connect is not None:
            return self.connect
        assert self._location is not None
        return self._location

    def __str__(self) -> str:
        return self.address


__all__ = ["Endpoint"]
