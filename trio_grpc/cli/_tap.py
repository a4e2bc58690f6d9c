"""A byte stream that shows what passes to somebody who only looks."""

from __future__ import annotations

from collections.abc import Callable

import trio

#: Given what was sent (True) or received (False).
Look = Callable[[bool, bytes], None]


class TappedStream(trio.abc.HalfCloseableStream):
    """Hands everything on to another stream, and shows it.

    Args:
        stream: the other one; its end is this one's.
        look: shown what is sent before it goes, and what is received when it has come.
    """

    def __init__(self, stream: trio.abc.Stream, look: Look) -> None:
        self._stream = stream
        self._look = look

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._look(True, bytes(data))
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        if data:
            self._look(False, bytes(data))
        return data

    async def aclose(self) -> None:
        await self._stream.aclose()


__all__ = ["Look", "TappedStream"]
