"""Bytes in and bytes out: the one seam between a connection and its operating system or its `trio.abc.Stream`.

Two ways behind one face. `SocketByteStream` owns a non-blocking socket and asks trio only when the kernel says "not
now": trio's own socket calls pass through the scheduler once per operation. `TrioByteStream` takes anything else (TLS,
in-memory streams, a user's own). Nothing here knows HTTP/2.
"""

from __future__ import annotations

import abc
import socket
from collections.abc import Sequence

import trio

#: Pieces are joined into one buffer up to this size, or while they are smaller than `_JOIN_PIECE` on average; otherwise
#: the kernel gathers them. Joining costs a copy, gathering costs an iovec entry each.
_JOIN_LIMIT = 65_536
_JOIN_PIECE = 2048
#: IOV_MAX on Linux and macOS.
_IOV_MAX = 1024

Buffer = bytes | bytearray | memoryview
Socket = socket.socket | trio.socket.SocketType


class ByteStream(abc.ABC):
    """What the reader reads from and the loopy writer writes to."""

    __slots__ = ()

    @abc.abstractmethod
    async def receive(self, size: int) -> bytes:
        """Return the next bytes, at most ``size`` of them, ``b""`` at the end. Always a checkpoint.

        Raises:
            OSError, trio.BrokenResourceError, trio.ClosedResourceError: the stream is gone.
        """

    @abc.abstractmethod
    async def send(self, pieces: Sequence[Buffer]) -> None:
        """Write all pieces in order.

        Raises:
            OSError, trio.BrokenResourceError, trio.ClosedResourceError: the stream is gone.
        """

    def send_nowait(self, data: Buffer) -> int:  # noqa: ARG002 -- most streams cannot
        """Write what goes without waiting, and say how much that was. Never raises: `send` will."""
        return 0

    @abc.abstractmethod
    async def send_eof(self) -> None:
        """Tell the peer that no more bytes come, where the stream can say that.

        Raises:
            OSError, trio.BrokenResourceError, trio.ClosedResourceError: the stream is gone.
        """

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Close without waiting for the peer; idempotent, and done even when cancelled."""

    @property
    def socket(self) -> Socket | None:
        """The socket under it, to be looked at only; None where there is none, or none any more."""
        return None

    def set_user_timeout(self, seconds: float) -> None:
        """Bound the time that written bytes may stay unacknowledged: TCP_USER_TIMEOUT, where there is one."""
        sock = self.socket
        if sock is not None:
            _set_user_timeout(sock, seconds)


class SocketByteStream(ByteStream):
    """A connected stream socket, non-blocking, owned by this object."""

    __slots__ = ("_closed", "_drained", "_socket")

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._drained = True
        self._closed = False

    @classmethod
    def from_trio(cls, stream: trio.SocketStream) -> SocketByteStream:
        """Take the socket over from a trio stream, which must not be used again."""
        return cls(socket.socket(fileno=stream.socket.detach()))

    async def receive(self, size: int) -> bytes:
        sock = self._socket
        # After a short read the kernel's buffer was empty: go to sleep without asking it again.
        if not self._drained:
            try:
                data = sock.recv(size)
            except BlockingIOError:
                pass
            else:
                self._drained = len(data) < size
                await trio.lowlevel.checkpoint()
                return data
        while True:
            await trio.lowlevel.wait_readable(sock)
            if self._closed:
                raise trio.ClosedResourceError
            try:
                data = sock.recv(size)
            except BlockingIOError:
                continue
            self._drained = len(data) < size
            return data

    async def send(self, pieces: Sequence[Buffer]) -> None:
        total = 0
        for piece in pieces:
            total += len(piece)
        count = len(pieces)
        if total <= _JOIN_LIMIT or total < count * _JOIN_PIECE or count == 1:
            await self._send_one(pieces[0] if count == 1 else b"".join(pieces))
        else:
            await self._send_gathered(pieces)

    def send_nowait(self, data: Buffer) -> int:
        try:
            return self._socket.send(data)
        except OSError:
            # Full, or broken.
            return 0

    async def _send_one(self, data: Buffer) -> None:
        sock = self._socket
        try:
            sent = sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent == len(data):
            return
        with memoryview(data) as view:
            while sent < len(view):
                await trio.lowlevel.wait_writable(sock)
                try:
                    sent += sock.send(view[sent:])
                except BlockingIOError:
                    continue

    async def _send_gathered(self, pieces: Sequence[Buffer]) -> None:
        sock = self._socket
        index = 0
        # What is left of a piece that was cut.
        rest: list[Buffer] = []
        while index < len(pieces):
            batch = rest + list(pieces[index + len(rest) : index + _IOV_MAX])
            try:
                sent = sock.sendmsg(batch)
            except BlockingIOError:
                sent = 0
            for piece in batch:
                if sent < len(piece):
                    break
                sent -= len(piece)
                index += 1
            else:
                rest = []
                continue
            rest = [memoryview(piece)[sent:]]
            # The kernel's buffer was full. It has space again in fewer and larger portions for who waits for it.
            await trio.lowlevel.wait_writable(sock)

    @property
    def socket(self) -> Socket | None:
        return None if self._closed else self._socket

    async def send_eof(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        await trio.lowlevel.checkpoint()


class TrioByteStream(ByteStream):
    """Any `trio.abc.Stream`: TLS, in-memory, a user's own."""

    __slots__ = ("_stream",)

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive(self, size: int) -> bytes:
        data = await self._stream.receive_some(size)
        return data if type(data) is bytes else bytes(data)

    async def send(self, pieces: Sequence[Buffer]) -> None:
        await self._stream.send_all(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    async def send_eof(self) -> None:
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()
        else:
            await trio.lowlevel.checkpoint()

    @property
    def socket(self) -> Socket | None:
        stream = self._stream
        while isinstance(stream, trio.SSLStream):
            stream = stream.transport_stream
        # A trio socket that is closed has no file number any more.
        return stream.socket if isinstance(stream, trio.SocketStream) and stream.socket.fileno() >= 0 else None

    async def aclose(self) -> None:
        # Forcefully: what had to be said was said in frames, and a TLS close_notify could wait for a silent peer.
        await trio.aclose_forcefully(self._stream)


#: Milliseconds that fit into TCP_USER_TIMEOUT; Linux takes a C int.
_MAX_USER_TIMEOUT = 2**31 - 1


def _set_user_timeout(sock: Socket, seconds: float) -> None:
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    try:
        sock.setsockopt(socket.IPPROTO_TCP, option, int(max(1, min(seconds * 1000, _MAX_USER_TIMEOUT))))
    except OSError:
        # The connection is gone already, or its kernel knows no such option: reading will tell, and PINGs do the rest.
        return


def wrap(stream: trio.abc.Stream) -> ByteStream:
    """Return the quickest byte stream for a trio stream, which must not be used directly any more."""
    if isinstance(stream, trio.SocketStream):
        return SocketByteStream.from_trio(stream)
    return TrioByteStream(stream)
