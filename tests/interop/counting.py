"""Streams that count their bytes: what compression saves can only be seen on the wire."""

from __future__ import annotations

import trio


class CountingStream(trio.abc.Stream):
    """A stream around another one.

    Attributes:
        sent, received: bytes so far.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.sent = 0
        self.received = 0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += len(data)
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        self.received += len(data)
        return data

    async def aclose(self) -> None:
        await self._stream.aclose()


class CountingListener(trio.abc.Listener[trio.abc.Stream]):
    """A TCP listener whose connections count.

    Attributes:
        port: where it listens.
        streams: the connections it accepted.
    """

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener
        self.port: int = listener.socket.getsockname()[1]
        self.streams: list[CountingStream] = []

    async def accept(self) -> trio.abc.Stream:
        stream = CountingStream(await self._listener.accept())
        self.streams.append(stream)
        return stream

    async def aclose(self) -> None:
        await self._listener.aclose()
