"""The codec for JSON: protobuf messages in protobuf's JSON mapping, and plain values."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, final

from google.protobuf import json_format
from google.protobuf.message import Message

from trio_grpc._options import check_kind

__all__ = ["JsonCodec"]


@final
class JsonCodec:
    """The codec for JSON, ``application/grpc+json`` on the wire.

    Messages of protobuf classes follow `protobuf's JSON mapping <https://protobuf.dev/programming-guides/json/>`_.
    Methods of any other type carry what `json` can write, and receive what it reads: dictionaries, lists, text and
    numbers. It costs several times what protobuf's own bytes cost.

    Args:
        ignore_unknown_fields: read messages with fields that their class does not have; without it they are malformed.
        preserving_proto_field_name: write ``field_name`` as in the .proto file, not ``fieldName``. Both are read.

    Raises:
        TypeError: an argument is no bool.
    """

    __slots__ = ("_ignore_unknown_fields", "_preserving_proto_field_name")

    def __init__(self, *, ignore_unknown_fields: bool = False, preserving_proto_field_name: bool = False) -> None:
        self._ignore_unknown_fields: bool = check_kind("ignore_unknown_fields", ignore_unknown_fields, bool)
        self._preserving_proto_field_name: bool = check_kind(
            "preserving_proto_field_name", preserving_proto_field_name, bool
        )

    @property
    def name(self) -> str:
        """The content subtype, ``json``."""
        return "json"

    def encoder(self, message_type: type[Any], /) -> Callable[[Any], bytes]:
        """Return the function that writes messages of this type.

        It raises `TypeError` for a message of another type, and `ValueError` for numbers that JSON does not have.
        """
        if not _is_message_class(message_type):
            return _write_plain
        write = partial(
            json_format.MessageToJson,
            indent=None,
            preserving_proto_field_name=self._preserving_proto_field_name,
            ensure_ascii=False,
        )

        def encode(message: Any) -> bytes:
            if type(message) is not message_type:
                expected = message_type.DESCRIPTOR.full_name
                raise TypeError(f"expected a message of type {expected}, got {type(message).__qualname__}")
            return write(message).encode()

        return encode

    def decoder(self, message_type: type[Any], /) -> Callable[[bytes], Any]:
        """Return the function that reads messages of this type; it raises where the bytes are no such message."""
        if not _is_message_class(message_type):
            return _read_plain
        ignore_unknown_fields = self._ignore_unknown_fields
        # Some of protobuf's own types are written as a text, a number, a list or null.
        is_object = not message_type.DESCRIPTOR.full_name.startswith("google.protobuf.")

        def decode(data: bytes) -> Any:
            if is_object and data.lstrip()[:1] != b"{":
                # json_format takes an empty list, too.
                raise ValueError("that is no JSON object")
            return json_format.Parse(data, message_type(), ignore_unknown_fields=ignore_unknown_fields)

        return decode


def _is_message_class(message_type: object) -> bool:
    return isinstance(message_type, type) and issubclass(message_type, Message)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


#: RFC 8259, 6: what Python reads beyond it could not be sent on.
_DECODER = json.JSONDecoder(parse_constant=_no_number)


def _read_plain(data: bytes) -> Any:
    # RFC 8259, 8.1: UTF-8, and the mark that some begin it with may be ignored.
    return _DECODER.decode(data.decode("utf-8-sig"))


def _write_plain(message: Any) -> bytes:
    # RFC 8259, 6: there is no NaN in JSON, and other languages would not read it.
    return json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
