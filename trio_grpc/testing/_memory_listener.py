"""A listener without a network: connections are pairs of in-memory streams."""

from __future__ import annotations

import socket

import trio
import trio.testing


class MemoryListener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts what `connect` makes.

    Give it to `trio_grpc.serve` as the address, and its `connect` to `trio_grpc.open_channel` as the target.

    Args:
        sockets: use a `socket.socketpair` per connection instead of in-memory streams: the production I/O path.
    """

    name = "memory"

    def __init__(self, *, sockets: bool = False) -> None:
        self._sockets = sockets
        send_streams, receive_streams = trio.open_memory_channel[trio.abc.Stream](float("inf"))
        self._send_streams = send_streams
        self._receive_streams = receive_streams

    async def connect(self) -> trio.abc.Stream:
        """Return the client's end of a new connection.

        Raises:
            ConnectionRefusedError: the listener is closed.
        """
        await trio.lowlevel.checkpoint()
        near: trio.abc.Stream
        far: trio.abc.Stream
        if self._sockets:
            near, far = (trio.SocketStream(trio.socket.from_stdlib_socket(one)) for one in socket.socketpair())
        else:
            near, far = trio.testing.memory_stream_pair()
        try:
            self._send_streams.send_nowait(far)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            await trio.aclose_forcefully(near)
            await trio.aclose_forcefully(far)
            raise ConnectionRefusedError("the in-memory listener is closed") from error
        return near

    async def accept(self) -> trio.abc.Stream:
        """Wait for the server's end of the next connection.

        Raises:
            trio.ClosedResourceError: the listener is closed.
        """
        try:
            return await self._receive_streams.receive()
        except trio.EndOfChannel:
            raise trio.ClosedResourceError from None

    async def aclose(self) -> None:
        """Accept no more. Connections that nobody has accepted end, as those in a socket's backlog do."""
        self._send_streams.close()
        with self._receive_streams:
            while True:
                try:
                    stream = self._receive_streams.receive_nowait()
                except (trio.EndOfChannel, trio.ClosedResourceError):
                    break
                await trio.aclose_forcefully(stream)
        await trio.lowlevel.checkpoint()
