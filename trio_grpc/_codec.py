"""Codecs: how the messages of an application become bytes, and back.

The only room of the core that imports protobuf. It holds the `Codec` protocol, the protobuf codec that
everything uses unless told otherwise, and the serialization of error details (``google.rpc.Status``). Framing
and compression of the bytes belong to others.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar, runtime_checkable

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

__all__ = ["Codec", "ProtobufCodec", "decode_status_details", "encode_status_details"]

MessageT = TypeVar("MessageT", bound=Message)

#: RFC 6838, 4.2, and the empty name of codecs that name nothing.
_NAME = re.compile(r"[A-Za-z0-9!#$&^_.+-]*")


@runtime_checkable
class Codec(Protocol):
    """Turns messages into bytes and back.

    A codec is asked once per method and message type; the functions it returns then run for every message. A
    codec for JSON, say::

        class JsonCodec:
            name = "json"

            def encoder(self, message_type: type[T]) -> Callable[[T], bytes]:
                return lambda message: json.dumps(message).encode()

            def decoder(self, message_type: type[T]) -> Callable[[bytes], T]:
                return lambda data: message_type(json.loads(data))
    """

    @property
    def name(self) -> str:
        """What follows ``application/grpc+`` in the content type, such as ``proto``."""

    def encoder(self, message_type: type[Any], /) -> Callable[[Any], bytes]:
        """Return the function that serializes messages of this type.

        That function should raise `TypeError` for anything that is no message of this type.
        """

    def decoder(self, message_type: type[Any], /) -> Callable[[bytes], Any]:
        """Return the function that makes a message of this type from bytes.

        That function may raise any exception when the bytes are no such message.
        """


def choose_codec(codec: object) -> Codec:
    """Return what ``codec=`` means.

    Raises:
        TypeError: it is no codec, or its name is no text.
        ValueError: its name cannot be a part of a content type.
    """
    if codec is None:
        return ProtobufCodec()
    if isinstance(codec, type) or not isinstance(codec, Codec):
        raise TypeError(f"codec must have a name, an encoder and a decoder (see Codec), got {codec!r}")
    name: object = codec.name
    if not isinstance(name, str):
        raise TypeError(f"the name of a codec must be str, not {type(name).__name__} ({codec!r})")
    if not _NAME.fullmatch(name):
        raise ValueError(f"the name of a codec goes into the content type, which cannot have {name!r} in it")
    return codec


class ProtobufCodec:
    """The codec for protobuf messages."""

    @property
    def name(self) -> str:
        """The content subtype, ``proto``."""
        return "proto"

    def encoder(self, message_type: type[MessageT], /) -> Callable[[MessageT], bytes]:
        """Return the function that serializes messages of this type.

        Args:
            message_type: A class that protobuf generated.

        Returns:
            A function that takes a message and returns its bytes. It raises `TypeError` for a message of any
            other type.

        Raises:
            TypeError: ``message_type`` is not a protobuf message class.
        """
        _check_message_type(message_type)
        serialize = message_type.SerializeToString

        # The bare method would save some 40 ns, but protobuf has one and the same for all classes: given a message of
        # another type it serializes that one without a word, and the peer reads nonsense.
        def encode(message: MessageT) -> bytes:
            if type(message) is not message_type:
                raise _wrong_message(message_type, message)
            return serialize(message)

        return encode

    def decoder(self, message_type: type[MessageT], /) -> Callable[[bytes | bytearray | memoryview], MessageT]:
        """Return the function that makes a message of this type from bytes.

        Args:
            message_type: A class that protobuf generated.

        Returns:
            A function that takes bytes and returns a message, which shares no memory with them. It raises
            ``google.protobuf.message.DecodeError``, which names the type, when the bytes are no such message.
            `bytes` and `bytearray` are read where they lie; protobuf before 7 first copies a `memoryview`.

        Raises:
            TypeError: ``message_type`` is not a protobuf message class.
        """
        _check_message_type(message_type)
        return message_type.FromString  # type: ignore[return-value] # typeshed says bytes; every buffer works


def encode_status_details(code: int, message: str, details: Iterable[Message]) -> bytes:
    """Serialize a ``google.rpc.Status``, the value of the ``grpc-status-details-bin`` trailer.

    Args:
        code: The status code.
        message: The text of the status.
        details: The messages to pack. One that already is an ``Any`` goes as it is.

    Returns:
        The serialized status.

    Raises:
        TypeError: One of the details is not a protobuf message.
    """
    status = _status_class()()
    status.code = code
    # A text with lone surrogates is no protobuf string, and the error that it tells about must get through.
    status.message = message.encode("utf-8", "replace").decode("utf-8")
    for detail in details:
        if not isinstance(detail, Message):
            raise TypeError(f"error details must be protobuf messages, not {type(detail).__name__}")
        packed = status.details.add()
        if isinstance(detail, any_pb2.Any):
            packed.type_url = detail.type_url
            packed.value = detail.value
        else:
            packed.type_url = f"type.googleapis.com/{detail.DESCRIPTOR.full_name}"
            packed.value = detail.SerializeToString()
    data: bytes = status.SerializeToString()
    return data


def decode_status_details(data: bytes, /) -> tuple[Message, ...]:
    """Unpack the details of a serialized ``google.rpc.Status``.

    Args:
        data: The bytes of the ``grpc-status-details-bin`` trailer.

    Returns:
        The details. One whose type this program has not imported, or that does not parse, stays an ``Any``.
        Nothing at all when ``data`` is no status: the error that it belongs to matters more.
    """
    try:
        status = _status_class().FromString(data)
    except (DecodeError, UnicodeDecodeError):  # the pure-Python protobuf raises the latter
        return ()
    return tuple([_unpack(detail.type_url, detail.value) for detail in status.details])


def _unpack(type_url: str, value: bytes) -> Message:
    try:
        # The pool of any generated file is the default one.
        descriptor = any_pb2.DESCRIPTOR.pool.FindMessageTypeByName(type_url.rpartition("/")[2])
        detail: Message = message_factory.GetMessageClass(descriptor).FromString(value)
    except (KeyError, DecodeError, UnicodeDecodeError):
        return any_pb2.Any(type_url=type_url, value=value)
    return detail


@functools.cache
def _status_class() -> type[Any]:
    """Return the class of ``google.rpc.Status``.

    It lives in a pool of its own: in the default pool it would clash with the same file from
    ``googleapis-common-protos``.
    """
    pool: Any = descriptor_pool.DescriptorPool()  # Any: not every release of the stubs has types for it
    pool.AddSerializedFile(any_pb2.DESCRIPTOR.serialized_pb)
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="google/rpc/status.proto",
        package="google.rpc",
        syntax="proto3",
        dependency=[any_pb2.DESCRIPTOR.name],
        message_type=[
            descriptor_pb2.DescriptorProto(
                name="Status",
                field=[
                    field(name="code", number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL),
                    field(name="message", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL),
                    field(
                        name="details",
                        number=3,
                        type=field.TYPE_MESSAGE,
                        type_name=".google.protobuf.Any",
                        label=field.LABEL_REPEATED,
                    ),
                ],
            )
        ],
    )
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("google.rpc.Status"))


def _check_message_type(message_type: object) -> None:
    if not (isinstance(message_type, type) and issubclass(message_type, Message)):
        raise TypeError(f"the protobuf codec needs a protobuf message class, got {message_type!r}")


def _wrong_message(message_type: type[Message], message: object) -> TypeError:
    expected = message_type.DESCRIPTOR.full_name
    if not isinstance(message, Message):
        return TypeError(f"expected a message of type {expected}, got {type(message).__qualname__}")
    actual = message.DESCRIPTOR.full_name
    if actual == expected:
        # Two classes for one name: the message was made from another descriptor pool.
        return TypeError(f"expected a message of type {expected}, got one of another class for the same name")
    return TypeError(f"expected a message of type {expected}, got {actual}")
