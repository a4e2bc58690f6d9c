"""Codecs that know nothing of protobuf: messages that stay bytes, and a pair of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from trio_grpc._options import check_kind

__all__ = ["BytesCodec", "FunctionCodec"]


@final
class BytesCodec:
    """The codec for messages that are bytes already: proxies, recorders, formats of one's own.

    What is sent may be `bytes`, `bytearray` or `memoryview`; what is received is `bytes`. Methods have the type
    ``bytes`` for both kinds of message.
    """

    @property
    def name(self) -> str:
        """The content subtype: none, as the content type says nothing of what the bytes are."""
        return ""

    def encoder(self, message_type: type[Any], /) -> Callable[[Any], bytes]:  # noqa: ARG002
        """Return a function that takes bytes as they are; it raises `TypeError` for anything else."""
        return _as_bytes

    def decoder(self, message_type: type[Any], /) -> Callable[[bytes], bytes]:  # noqa: ARG002
        """Return a function that gives bytes as they came."""
        return bytes


@final
class FunctionCodec:
    """The codec of a single method, made of two functions.

    It goes into a `Method`, one for each side: the client's turns requests into bytes and responses back, the server's
    does it the other way round. The methods of generated grpcio stubs are such methods.

    Args:
        encode: takes a message and returns its bytes; None for messages that are bytes.
        decode: takes `bytes` and returns a message, and may raise anything; None for messages that are bytes.
        name: what follows ``application/grpc+`` in the content type; empty for nothing, as grpcio has it.

    Raises:
        TypeError: an argument is of another type.
    """

    __slots__ = ("_decode", "_encode", "_name")

    def __init__(
        self,
        encode: Callable[[Any], bytes] | None = None,
        decode: Callable[[bytes], Any] | None = None,
        *,
        name: str = "",
    ) -> None:
        for option, function in ("encode", encode), ("decode", decode):
            if function is not None and not callable(function):
                raise TypeError(f"{option} must be a function or None, not {type(function).__name__}")
        self._encode = encode
        self._decode = decode
        self._name: str = check_kind("name", name, str)

    @property
    def name(self) -> str:
        """The content subtype."""
        return self._name

    def encoder(self, message_type: type[Any], /) -> Callable[[Any], bytes]:  # noqa: ARG002
        """Return the function for messages that are sent; it raises `TypeError` where ``encode`` gives no bytes."""
        encode = self._encode
        if encode is None:
            return _as_bytes
        return lambda message: _as_bytes(encode(message))

    def decoder(self, message_type: type[Any], /) -> Callable[[bytes], Any]:  # noqa: ARG002
        """Return the function for messages that are received."""
        return bytes if self._decode is None else self._decode


def _as_bytes(message: Any) -> bytes:
    if type(message) is bytes:
        return message
    if isinstance(message, (bytes, bytearray, memoryview)):
        return bytes(message)
    raise TypeError(f"the bytes of a message must be bytes, bytearray or memoryview, not {type(message).__name__}")
