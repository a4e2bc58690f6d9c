"""Counts how often the bytes of messages are copied in user space between the kernel and the codec.

Nothing is believed: at each place that a message's bytes pass, the memory that they lie in is compared with the memory
at the place before.  The same memory costs nothing; other memory means that the bytes were copied.

    receiving: what the kernel wrote, what goes into the message, the message, what the codec is handed
    sending: what the codec made, what the stream queues, what the kernel is given to read

The kernel's own copy is not counted, nor is what the codec does.  A buffer that grows may be moved by the C library:
that is seen by `benchmarks.allocations`, not here.  Plain sockets only.
"""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from trio_grpc import ProtobufCodec
from trio_grpc._message_coding import MessageCoder
from trio_grpc._transport.byte_stream import SocketByteStream
from trio_grpc._transport.messages import MessageAssembler
from trio_grpc._transport.stream import Stream

Buffer = bytes | bytearray | memoryview


class NotSeenError(Exception):
    """Bytes of messages took a way that is not watched; the text says which."""


class _PyBuffer(ctypes.Structure):
    """Py_buffer of the C API."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def address(buffer: Buffer) -> int:
    """Returns where the bytes of a buffer lie."""
    view = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(buffer), ctypes.byref(view), 0)
    try:
        return view.buf or 0
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))


class Regions:
    """Pieces of memory, each kept alive so that its address stays its own."""

    def __init__(self) -> None:
        self._pieces: list[tuple[Buffer, int, int]] = []

    def add(self, buffer: Buffer, start: int, stop: int) -> None:
        """Adds `buffer[start:stop]`.  What a view shows is kept, not the view, which would forbid it to grow."""
        if isinstance(buffer, memoryview):
            owner: Any = buffer.obj
            offset = address(buffer) - address(owner)
            buffer, start, stop = owner, start + offset, stop + offset
        self._pieces.append((buffer, start, stop))

    def covered(self, start: int, stop: int) -> int:
        """Returns how many of the bytes at these addresses lie in any of the pieces."""
        cuts = []
        for buffer, first, last in self._pieces:
            base = address(buffer)
            low, high = max(start, base + first), min(stop, base + last)
            if low < high:
                cuts.append((low, high))
        total = 0
        for low, high in sorted(cuts):
            total += max(0, high - max(low, start))
            start = max(start, high)
        return total


class Ledger:
    """The accounts of one watched phase.

    Attributes:
        received: Bytes of messages handed to the codec.
        receive_copies: Bytes copied on the way there.
        sent: Bytes of messages that the codec made.
        send_copies: Bytes copied on their way to the kernel; known once all is sent.
    """

    def __init__(self) -> None:
        self.received = 0
        self.receive_copies = 0
        self.sent = 0
        self.send_copies = 0
        self._from_kernel = Regions()
        self._payloads = Regions()
        self._kernel_bytes = 0
        self._transport: Buffer = b""
        self._made: dict[int, Buffer] = {}
        self._made_count = 0
        self._queued: list[tuple[Buffer, int]] = []
        self._to_kernel = Regions()

    # -- receiving

    def kernel_wrote(self, buffer: Buffer, length: int) -> None:
        self._from_kernel.add(buffer, 0, length)
        self._kernel_bytes += length

    def payload(self, data: Buffer, start: int, stop: int) -> None:
        place = address(data)
        self.receive_copies += stop - start - self._from_kernel.covered(place + start, place + stop)
        self._payloads.add(data, start, stop)

    def message(self, message: Buffer) -> None:
        place, length = address(message), len(message)
        in_place = max(regions.covered(place, place + length) for regions in (self._from_kernel, self._payloads))
        self.receive_copies += length - in_place
        self._transport = message

    def decoded(self, data: Buffer) -> None:
        self.received += len(data)
        if address(data) != address(self._transport):
            self.receive_copies += len(data)

    # -- sending

    def encoded(self, data: Buffer) -> None:
        self.sent += len(data)
        self._made_count += 1
        self._made[address(data)] = data

    def queued(self, data: Buffer, chunks: list[Buffer]) -> None:
        place, length = address(data), len(data)
        if place not in self._made:
            self.send_copies += length
        chunk = chunks[-1]
        if address(chunk) != place:
            # It lies at the end of a chunk, behind its prefix.
            self.send_copies += length
        self._queued.append((chunk, length))

    def kernel_read(self, buffer: Buffer, length: int) -> None:
        self._to_kernel.add(buffer, 0, length)

    def close(self) -> None:
        """Ends the accounts.

        Raises:
            NotSeenError: More came out than was seen to go in.
        """
        if self._kernel_bytes < self.received:
            raise NotSeenError(f"{self.received} bytes of messages came, but the kernel gave {self._kernel_bytes}")
        if len(self._queued) != self._made_count:
            raise NotSeenError(f"the codec made {self._made_count} messages, but {len(self._queued)} were queued")
        for chunk, length in self._queued:
            end = address(chunk) + len(chunk)
            self.send_copies += length - self._to_kernel.covered(end - length, end)


class _WatchedSocket(socket.socket):
    """A socket that tells a ledger which memory the kernel writes and reads."""

    ledger: Ledger

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        self.ledger.kernel_wrote(data, len(data))
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        received = super().recv_into(buffer, nbytes, flags)
        self.ledger.kernel_wrote(buffer, received)
        return received

    def recvmsg_into(self, *_: Any) -> Any:
        raise NotSeenError("recvmsg_into is not watched")

    def send(self, data: Any, flags: int = 0) -> int:
        sent = super().send(data, flags)
        self.ledger.kernel_read(data, sent)
        return sent

    def sendmsg(self, buffers: Any, *rest: Any) -> int:
        left = sent = super().sendmsg(buffers, *rest)
        for buffer in buffers:
            self.ledger.kernel_read(buffer, min(left, len(buffer)))
            left -= min(left, len(buffer))
        return sent


class WatchedCodec(ProtobufCodec):
    """The protobuf codec, telling a ledger what it is handed and what it makes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def encoder(self, message_type: type[Any], /) -> Callable[[Any], bytes]:
        encode = super().encoder(message_type)

        def watched(message: Any) -> bytes:
            data = encode(message)
            self._ledger.encoded(data)
            return data

        return watched

    def decoder(self, message_type: type[Any], /) -> Callable[[Any], Any]:
        decode = super().decoder(message_type)

        def watched(data: Buffer) -> Any:
            self._ledger.decoded(data)
            return decode(data)

        return watched


@contextmanager
def watched() -> Iterator[Ledger]:
    """Keeps a ledger of all connections opened within the block by channels and servers with its `WatchedCodec`.

    The accounts are complete after the block.

    Raises:
        NotSeenError: Bytes of messages took a way that is not watched.
    """
    ledger = Ledger()
    init, feed, parse, queue_message = (
        SocketByteStream.__init__,
        MessageAssembler.feed,
        MessageCoder.parse,
        Stream.queue_message,
    )

    def watched_init(self: SocketByteStream, sock: socket.socket) -> None:
        watched_socket = _WatchedSocket(fileno=sock.detach())
        watched_socket.ledger = ledger
        init(self, watched_socket)

    def watched_feed(self: MessageAssembler, data: Buffer, start: int, end: int) -> bool:
        ledger.payload(data, start, end)
        return feed(self, data, start, end)

    def watched_parse(self: MessageCoder[Any, Any], message: Any, stream: Stream) -> Any:
        ledger.message(message)
        return parse(self, message, stream)

    def watched_queue_message(self: Stream, data: bytes, compressed: bool = False) -> None:
        before = len(self.chunks)
        queue_message(self, data, compressed)
        ledger.queued(data, list(self.chunks)[before:])

    with ExitStack() as stack:
        for owner, name, function in (
            (SocketByteStream, "__init__", watched_init),
            (MessageAssembler, "feed", watched_feed),
            (MessageCoder, "parse", watched_parse),
            (Stream, "queue_message", watched_queue_message),
        ):
            stack.enter_context(mock.patch.object(owner, name, function))
        yield ledger
    ledger.close()
