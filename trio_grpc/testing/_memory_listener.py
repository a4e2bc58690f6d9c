"""A listener without a network: connections are pairs of in-memory streams."""

from __future__ import annotations

import socket

import trio
import trio.testing

from trio_grpc.testing._faults import Faults


class MemoryListener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts what `connect` makes.

    Give it to `trio_grpc.serve` as the address, and its `connect` to `trio_grpc.open_channel` as the target.

    Args:
        sockets: use a `socket.socketpair` per connection instead of in-memory streams: the production I/O path.
        faults: what lies between the two ends of each connection.

    Raises:
        ValueError: ``sockets`` together with ``faults``: real sockets have no virtual latency.
    """

    name = "memory"

    def __init__(self, *, sockets: bool = False, faults: Faults | None = None) -> None:
        if sockets and faults is not None:
            raise ValueError("faults are for connections in memory, so sockets must be False")
        self._faults = faults
        self._sockets = sockets
        send_streams, receive_streams = trio.open_memory_channel[trio.abc.Stream](float("inf"))
        self._send_streams = send_streams
        self._receive_streams = receive_streams

    async def connect(self) -> trio.abc.Stream:
        """Return the client's end of a new connection.

        Raises:
            ConnectionRefusedError: the listener is closed, or the faults say so.
        """
        if self._faults is not None:
            return await self._faults.connect(self._deliver)
        await trio.lowlevel.checkpoint()
        near: trio.abc.Stream
        far: trio.abc.Stream
        if self._sockets:
            near, far = (trio.SocketStream(trio.socket.from_stdlib_socket(one)) for one in socket.socketpair())
        else:
            near, far = trio.testing.memory_stream_pair()
        try:
            self._deliver(far)
        except ConnectionRefusedError:
            await trio.aclose_forcefully(near)
            await trio.aclose_forcefully(far)
            raise
        return near

    def _deliver(self, far: trio.abc.Stream) -> None:
        try:
            self._send_streams.send_nowait(far)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionRefusedError("the in-memory listener is closed") from error

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
