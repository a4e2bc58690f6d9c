"""A network in memory: names that lead to listeners, in place of the system's."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest
import trio

from trio_grpc.testing import MemoryListener


class Network:
    """Stands for `trio.open_tcp_stream` and `trio.socket.getaddrinfo` once it is installed.

    Attributes:
        dialled: what was connected to, successfully or not, in order.
    """

    def __init__(self) -> None:
        self.dialled: list[str] = []
        self._listeners: dict[str, MemoryListener] = {}
        self._names: dict[str, str] = {}

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of trio's functions."""
        monkeypatch.setattr(trio, "open_tcp_stream", self.open_tcp_stream)
        monkeypatch.setattr(trio.socket, "getaddrinfo", self.getaddrinfo)

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        """Give each name an address of its own."""
        await trio.lowlevel.checkpoint()
        number = len(self._names) + 1
        address = next((one for one, name in self._names.items() if name == host), f"10.0.0.{number}")
        self._names[address] = host
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))]

    def listen(self, address: str, *, sockets: bool = False) -> MemoryListener:
        """Open an address, ``name:port``; with a socket pair per connection if asked."""
        return self._listeners.setdefault(address, MemoryListener(sockets=sockets))

    async def open_tcp_stream(self, host: str, port: int) -> trio.abc.Stream:
        """Connect to what listens at this address."""
        address = f"{self._names.get(host, host)}:{port}"
        self.dialled.append(address)
        listener = self._listeners.get(address)
        if listener is None:
            await trio.lowlevel.checkpoint()
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        return await listener.connect()
