"""gRPC's length-prefixed messages (PROTOCOL-HTTP2, "Length-Prefixed-Message"), put together from DATA payloads.

Pure: bytes in, whole messages out. Nothing here knows frames, windows, compression codecs or protobuf.

Memory is bounded by what arrived: a message still incomplete lives in a ``bytearray`` that grows by appending (CPython
over-allocates by an eighth), so a prefix that promises 4 GiB allocates nothing. A message that lies whole in one read
is one slice of it: either way its bytes are copied once between the kernel and the codec.
"""

from __future__ import annotations

import struct
from collections import deque

from trio_grpc._transport.allocator import LARGE_MESSAGE, settle_allocator

PREFIX_LENGTH = 5
_PREFIX = struct.Struct(">BL")
_UNPACK = _PREFIX.unpack_from
#: Bytes of a request that is not gRPC that are awaited before it is answered, so that most get their answer after their
#: end, as HTTP clients expect.
_UNWANTED = 16_384
#: Bytes of a body that is not gRPC that go into the status message.
_SNIPPET = 200


class MessageError(Exception):
    """A prefix that ends the call. The connection is untouched (the fault is in one stream's bytes)."""


class BadPrefix(MessageError):
    """The compressed-flag byte is neither 0 nor 1: not gRPC, or out of step."""

    def __init__(self, flag: int) -> None:
        super().__init__(f"message prefix has compressed flag {flag}, which is neither 0 nor 1")


class MessageTooLarge(MessageError):
    """The prefix promises more bytes than ``max_receive_message_length`` allows.

    Attributes:
        length: the bytes promised.
        limit: the bytes allowed.
    """

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(
            f"received message of {length} bytes is over the limit of {limit} bytes (option max_receive_message_length)"
        )
        self.length = length
        self.limit = limit


class TooManyMessages(MessageError):
    """A second message where the method has one."""

    def __init__(self) -> None:
        super().__init__("more than one message came for a method that has one")


class WrongLength(MessageError):
    """More bytes than the content-length announced (RFC 9113, 8.1.1)."""

    def __init__(self) -> None:
        super().__init__("more bytes came than the content-length announced")


class NotMessages(MessageError):
    """The body is not gRPC; its text is how it begins."""


class CompressedBytes(bytes):
    """The bytes of a message whose prefix carried compressed flag 1."""

    __slots__ = ()


Message = bytes | bytearray


def frame_message(data: bytes, compressed: bool = False) -> bytes:
    """Return ``data`` behind its prefix in one bytes object: for messages small enough that a copy is cheap."""
    return _PREFIX.pack(compressed, len(data)) + data


def prefix(length: int, compressed: bool = False) -> bytes:
    """Return the 5-byte prefix of a message of ``length`` bytes."""
    return _PREFIX.pack(compressed, length)


class MessageAssembler:
    """Cuts one stream's DATA payloads into messages.

    Attributes:
        messages: whole messages in order, not yet taken.
        missing: bytes still to come of the message begun, 0 between messages.
    """

    __slots__ = ("_buffer", "_compressed", "_limit", "_prefix", "messages", "missing")

    def __init__(self, limit: int) -> None:
        self.messages: deque[Message] = deque()
        self.missing: int = 0
        self._limit = limit
        self._prefix = b""
        self._buffer: bytearray | None = None
        self._compressed = False

    @property
    def mid_message(self) -> bool:
        """Whether the payloads so far end inside a message or its prefix."""
        return self.missing > 0 or bool(self._prefix)

    @property
    def place(self) -> str:
        """Where the payloads end while `mid_message` is true, for messages."""
        return "in the middle of a message"

    def feed(self, data: bytes, start: int, end: int) -> int:
        """Take the payload bytes ``data[start:end]``; return how many messages became whole.

        Raises:
            BadPrefix: the flag byte is not 0 or 1.
            MessageTooLarge: judged at the prefix, before a byte of the message is kept.
        """
        complete = 0
        while start < end:
            missing = self.missing
            if missing:
                buffer = self._buffer
                assert buffer is not None
                available = end - start
                if available < missing:
                    buffer += memoryview(data)[start:end]
                    self.missing = missing - available
                    return complete
                stop = start + missing
                buffer += memoryview(data)[start:stop]
                self.missing = 0
                self._buffer = None
                self.messages.append(CompressedBytes(buffer) if self._compressed else buffer)
                complete += 1
                start = stop
                continue
            if self._prefix or end - start < PREFIX_LENGTH:
                take = min(PREFIX_LENGTH - len(self._prefix), end - start)
                self._prefix += data[start : start + take]
                start += take
                if len(self._prefix) < PREFIX_LENGTH:
                    return complete
                flag, length = _UNPACK(self._prefix, 0)
                self._prefix = b""
            else:
                flag, length = _UNPACK(data, start)
                start += PREFIX_LENGTH
            if flag > 1:
                raise BadPrefix(flag)
            if length > self._limit:
                raise MessageTooLarge(length, self._limit)
            stop = start + length
            if stop <= end:
                message = data[start:stop]
                self.messages.append(CompressedBytes(message) if flag else message)
                complete += 1
                start = stop
            else:
                if length >= LARGE_MESSAGE:
                    settle_allocator()
                self._buffer = bytearray(memoryview(data)[start:end])
                self._compressed = flag == 1
                self.missing = stop - end
                return complete
        return complete

    def discard(self) -> int:
        """Forget all messages, whole and begun; return how many payload bytes they held."""
        held = len(self._prefix) + sum(PREFIX_LENGTH + len(message) for message in self.messages)
        if self._buffer is not None:
            held += PREFIX_LENGTH + len(self._buffer)
        self.messages.clear()
        self.missing = 0
        self._prefix = b""
        self._buffer = None
        return held


class MeasuredAssembler(MessageAssembler):
    """An assembler for a body whose content-length was announced, which hardly any gRPC peer does (RFC 9113, 8.1.1)."""

    __slots__ = ("_left",)

    def __init__(self, plain: MessageAssembler, content_length: int) -> None:
        super().__init__(plain._limit)
        self._left = content_length

    @property
    def mid_message(self) -> bool:
        return self._left > 0 or super().mid_message

    @property
    def short(self) -> bool:
        """Whether the announced length has not been reached."""
        return self._left > 0

    @property
    def place(self) -> str:
        return f"{self._left} bytes short of its content-length" if self._left else super().place

    def feed(self, data: bytes, start: int, end: int) -> int:
        self._left -= end - start
        if self._left < 0:
            raise WrongLength
        return super().feed(data, start, end)


class NoMoreMessages(MeasuredAssembler):
    """Takes the place of an assembler whose only message has been taken, while its stream goes on.

    Raises:
        TooManyMessages: another message has begun already.
    """

    __slots__ = ()

    def __init__(self, plain: MessageAssembler) -> None:
        super().__init__(plain, plain._left if isinstance(plain, MeasuredAssembler) else 0)
        if plain.missing or plain._prefix:
            raise TooManyMessages

    def feed(self, data: bytes, start: int, end: int) -> int:  # noqa: ARG002 # no byte of it is wanted
        if start < end:
            raise TooManyMessages
        return 0


class UnwantedBody(MessageAssembler):
    """Takes the place of an assembler where nothing of the body is wanted: drops it, up to a bound."""

    __slots__ = ("_announced", "_left")

    def __init__(self, content_length: int | None) -> None:
        super().__init__(0)
        self._left = _UNWANTED
        self._announced = content_length

    @property
    def mid_message(self) -> bool:
        return bool(self._announced)

    @property
    def short(self) -> bool:
        """Whether the announced length has not been reached."""
        return bool(self._announced)

    @property
    def place(self) -> str:
        return f"{self._announced} bytes short of its content-length"

    def feed(self, data: bytes, start: int, end: int) -> int:  # noqa: ARG002 # the bytes do not matter
        if self._announced is not None:
            self._announced -= end - start
            if self._announced < 0:
                raise WrongLength
        self._left -= end - start
        if self._left < 0:
            raise NotMessages("body of a request that is not gRPC")
        return 0


class ForeignBody(MessageAssembler):
    """Takes the place of an assembler where the headers say that the body is not gRPC: its beginning tells why."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(0)

    def feed(self, data: bytes, start: int, end: int) -> int:
        if start < end:
            raise NotMessages(repr(data[start : min(end, start + _SNIPPET)].decode("utf-8", "replace")))
        return 0
