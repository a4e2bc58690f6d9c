"""From a message to the bytes that a stream carries, and back: codec, size limits and compression, for either side.

A client sends requests and a server sends responses, but what is done to one message is the same. Framing belongs to
the transport; which encoding a call uses, and what follows from an error, to those who own the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from trio_grpc._codec import Codec
from trio_grpc._compression import DecompressedTooLarge, accept_encoding, get_compressor
from trio_grpc._observing import Observation
from trio_grpc._options import Limits
from trio_grpc._status import RpcError, StatusCode
from trio_grpc._transport.messages import CompressedBytes, Message

SentT = TypeVar("SentT")
ReceivedT = TypeVar("ReceivedT")

InterceptedCoderT = TypeVar("InterceptedCoderT", bound="InterceptedCoder[Any, Any]")

#: Makes the errors of one side: a client's are marked as received, see `RpcError.received`.
ErrorMaker = Callable[[StatusCode, str], RpcError]


class Source(Protocol):
    """The stream that a message came on."""

    @property
    def message_compressed(self) -> bool:
        """Whether the message parsed last was compressed; noted here."""

    @message_compressed.setter
    def message_compressed(self, value: bool) -> None: ...

    @property
    def peer_encoding(self) -> str:
        """The encoding of compressed ones."""


class MessageCoder(Generic[SentT, ReceivedT]):
    """Codes the messages of one method as one side sees them. A base, not a part: it is asked for every message.

    Args:
        codec: turns messages into bytes and back.
        limits: message sizes.
        sent_type: class of the messages that this side sends.
        received_type: class of the messages that the peer sends.
        received_word: what the peer's messages are called in errors, ``request`` or ``response``.
        make_error: makes the errors.

    Raises:
        TypeError: the codec cannot handle one of the classes.
    """

    #: Of one call, where it has observers; see `InterceptedCoder`.
    observation: Observation | None = None

    __slots__ = (
        "_decode",
        "_encode",
        "_make_error",
        "_receive_limit",
        "_received_type",
        "_received_word",
        "_send_limit",
        "_send_option",
    )

    def __init__(
        self,
        codec: Codec,
        limits: Limits,
        *,
        sent_type: type[SentT],
        received_type: type[ReceivedT],
        received_word: str,
        make_error: ErrorMaker,
    ) -> None:
        self._encode: Callable[[SentT], bytes] = codec.encoder(sent_type)
        self._decode: Callable[[Any], ReceivedT] = bytes_decoder(codec, received_type)
        self._send_limit = limits.send_limit
        self._receive_limit = limits.receive_limit
        #: What errors name: service configs have limits, too.
        self._send_option = "max_send_message_length"
        self._received_type = received_type
        self._received_word = received_word
        self._make_error = make_error

    def lower_limits(self, send_limit: int | None, receive_limit: int | None) -> None:
        """Hold this coder's messages to limits of a service config where these are lower; None for none."""
        if send_limit is not None and send_limit < self._send_limit:
            self._send_limit = send_limit
            self._send_option = "maxRequestMessageBytes of the service config"
        if receive_limit is not None:
            self._receive_limit = min(receive_limit, self._receive_limit)

    @property
    def receive_limit(self) -> int:
        """Bytes that a message of the peer may have."""
        return self._receive_limit

    def serialize(self, message: SentT, encoding: str) -> tuple[bytes, bool]:
        """Return a message's bytes and whether they are compressed.

        Args:
            message: what to send.
            encoding: wire name of a compressor that is registered, or ``identity``.

        Raises:
            RpcError: RESOURCE_EXHAUSTED, the message is over ``max_send_message_length``.
        """
        data = self._encode(message)
        if len(data) > self._send_limit:
            self.check_size(len(data))
        if encoding == "identity":
            return data, False
        compressor = get_compressor(encoding)
        # Whoever chose the encoding has refused names that are not registered.
        assert compressor is not None
        return compressor.compress(data), True

    def check_size(self, size: int) -> None:
        """Check the bytes of a message that is to be sent.

        Raises:
            RpcError: RESOURCE_EXHAUSTED, there are too many.
        """
        if size > self._send_limit:
            raise self._make_error(
                StatusCode.RESOURCE_EXHAUSTED,
                f"message of {size} bytes is over the limit of {self._send_limit} bytes (option {self._send_option})",
            )

    def parse(self, message: Message, stream: Source) -> ReceivedT:
        """Return a message from its bytes, and note on its stream whether they came compressed.

        Raises:
            RpcError: INTERNAL or RESOURCE_EXHAUSTED, the bytes are no such message.
        """
        if isinstance(message, CompressedBytes):
            stream.message_compressed = True
            message = decompress(message, stream.peer_encoding, self._receive_limit, self._make_error)
        elif stream.message_compressed:
            stream.message_compressed = False
        try:
            return self._decode(message)
        except Exception as error:
            raise self._make_error(
                StatusCode.INTERNAL,
                f"failed to parse the {self._received_word} as {self._received_type.__name__}: {error}",
            ) from error


class InterceptedCoder(MessageCoder[SentT, ReceivedT]):
    """A coder that shows the messages of one call to its interceptors, and their sizes to its observers.

    A mixin, in front of the class that it is `copied` from.

    Attributes:
        sent_maps: called in this order with each message to send.
        received_maps: called in this order with each message received.
        observation: told of sizes; of messages that are sent only where ``tells_sent``, for a client's attempts do so
            themselves.
    """

    tells_sent = False

    sent_maps: tuple[Callable[[Any], Any], ...]
    received_maps: tuple[Callable[[Any], Any], ...]

    @classmethod
    def copied(  # noqa: PYI019 # typing.Self is 3.11's
        cls: type[InterceptedCoderT],
        coder: MessageCoder[Any, Any],
        sent_maps: tuple[Callable[[Any], Any], ...],
        received_maps: tuple[Callable[[Any], Any], ...],
        observation: Observation | None,
    ) -> InterceptedCoderT:
        """Return a coder that is like another one but for these functions and observers."""
        copy = cls.__new__(cls)
        for kind in type(coder).__mro__:
            for name in getattr(kind, "__slots__", ()):
                setattr(copy, name, getattr(coder, name))
        copy.sent_maps = sent_maps
        copy.received_maps = received_maps
        copy.observation = observation
        return copy

    def serialize(self, message: SentT, encoding: str) -> tuple[bytes, bool]:
        for function in self.sent_maps:
            message = function(message)
        data, compressed = super().serialize(message, encoding)
        if self.tells_sent and self.observation is not None:
            self.observation.tell("message_sent", len(data), compressed, None)
        return data, compressed

    def parse(self, message: Message, stream: Source) -> ReceivedT:
        compressed_size: int | None = None
        if self.observation is not None:
            if isinstance(message, CompressedBytes):
                compressed_size = len(message)
                message = decompress(message, stream.peer_encoding, self._receive_limit, self._make_error)
            self.observation.received(stream, len(message), compressed_size)
        received = super().parse(message, stream)
        if compressed_size is not None:
            stream.message_compressed = True
        for function in self.received_maps:
            received = function(received)
        return received


def bytes_decoder(codec: Codec, message_type: type[Any]) -> Callable[[Any], Any]:
    """Return a decoder for what the transport has: protobuf reads a bytearray where it lies, others get bytes."""
    decode: Callable[[Any], Any] = codec.decoder(message_type)
    if codec.name == "proto":
        return decode
    return lambda data: decode(bytes(data))


def decompress(message: CompressedBytes, encoding: str, limit: int, make_error: ErrorMaker) -> bytes:
    """Return the bytes behind a message with compressed flag 1 (gRPC compression.md).

    Args:
        message: the bytes as they came.
        encoding: the ``grpc-encoding`` that the peer announced.
        limit: bytes that the message may have, ``max_receive_message_length``.
        make_error: makes the errors.

    Raises:
        RpcError: INTERNAL for a flag without an encoding, an unknown encoding or bad data; RESOURCE_EXHAUSTED for more
            bytes than ``limit``.
    """
    if encoding == "identity":
        raise make_error(StatusCode.INTERNAL, "message has the compressed flag, but no grpc-encoding was announced")
    compressor = get_compressor(encoding)
    if compressor is None:
        raise make_error(
            StatusCode.INTERNAL,
            f"message is compressed with {encoding!r}, which is not supported here; supported: {accept_encoding()}",
        )
    try:
        return compressor.decompress(message, limit)
    except DecompressedTooLarge as error:
        raise make_error(
            StatusCode.RESOURCE_EXHAUSTED,
            f"message is over the limit of {limit} bytes after decompression (option max_receive_message_length)",
        ) from error
    except Exception as error:
        # A `CompressionError`, or whatever a registered compressor raises for data that it cannot read.
        raise make_error(StatusCode.INTERNAL, f"failed to decompress a message with {encoding}: {error}") from error
