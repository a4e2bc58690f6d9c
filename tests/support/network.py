"""A network in memory: names that lead to listeners, in place of the system's."""

from __future__ import annotations

import errno
import os

import trio

from trio_grpc.testing import MemoryListener


class Network:
    """Stands for `trio.open_tcp_stream`: ``monkeypatch.setattr(trio, "open_tcp_stream", network.open_tcp_stream)``.

    Attributes:
        dialled: what was connected to, successfully or not, in order.
    """

    def __init__(self) -> None:
        self.dialled: list[str] = []
        self._listeners: dict[str, MemoryListener] = {}

    def listen(self, address: str, *, sockets: bool = False) -> MemoryListener:
        """Open an address, ``name:port``; with a socket pair per connection if asked."""
        return self._listeners.setdefault(address, MemoryListener(sockets=sockets))

    async def open_tcp_stream(self, host: str, port: int) -> trio.abc.Stream:
        """Connect to what listens at this address."""
        address = f"{host}:{port}"
        self.dialled.append(address)
        listener = self._listeners.get(address)
        if listener is None:
            await trio.lowlevel.checkpoint()
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        return await listener.connect()
