"""Options that come in groups, as frozen records. A wrong value fails at once and names the option."""

from __future__ import annotations

from typing import Any

import attrs

DEFAULT_MAX_RECEIVE_MESSAGE_LENGTH = 4 * 2**20
# RFC 9113, 6.9.2 and 6.9.1. Written anew: options are read by the transport, and know nothing of it.
_DEFAULT_WINDOW = 65_535
_MAX_WINDOW = 2**31 - 1
#: gRPC's length prefix is an unsigned 32-bit number.
_MAX_MESSAGE_LENGTH = 2**32 - 1


def _between(low: int, high: int) -> Any:
    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"Limits.{attribute.name} must be int, not {type(value).__name__}")
        if not low <= value <= high:
            raise ValueError(f"Limits.{attribute.name} must be between {low} and {high}, got {value}")

    return check


def _optional_between(low: int, high: int) -> Any:
    return attrs.validators.optional(_between(low, high))


@attrs.frozen(kw_only=True)
class Limits:
    """What one connection accepts, and how much memory it may be made to use.

    Attributes:
        max_receive_message_length: Bytes of the largest message accepted, judged at its 5-byte prefix before anything
            is buffered. 4 MiB, as in every gRPC library; None for no limit but the wire's (4 GiB).
        max_send_message_length: Bytes of the largest message sent. None for no limit, as elsewhere.
        max_concurrent_streams: Calls that a server runs at once on one connection
            (``SETTINGS_MAX_CONCURRENT_STREAMS``, RFC 9113, 5.1.2); one more is refused with REFUSED_STREAM. Running
            handlers are held to the same number.
        max_header_list_size: Bytes of metadata accepted per header block, counted as RFC 9113, 6.5.2 says (name,
            value and 32 per field). 16 KiB, as tonic and C-core's hard limit have it.
        initial_window_size: Bytes of flow-control credit that a stream starts with (RFC 9113, 6.9.2). This is what
            bounds the memory of a stream whose consumer does not read.
        initial_connection_window_size: Bytes of credit of the whole connection; returned as DATA arrives.
        adaptive_window: Whether windows of streams with a waiting receiver grow with the measured bandwidth-delay
            product, up to 16 MiB, as grpc-go's and C-core's do.
        max_frame_size: Bytes of the largest frame accepted (``SETTINGS_MAX_FRAME_SIZE``). 64 KiB, as in C-core and
            grpc-java.

    Raises:
        TypeError: A value is not an int.
        ValueError: A value is out of its range; the message names the option.
    """

    max_receive_message_length: int | None = attrs.field(
        default=DEFAULT_MAX_RECEIVE_MESSAGE_LENGTH, validator=_optional_between(0, _MAX_MESSAGE_LENGTH)
    )
    max_send_message_length: int | None = attrs.field(default=None, validator=_optional_between(0, _MAX_MESSAGE_LENGTH))
    max_concurrent_streams: int = attrs.field(default=1000, validator=_between(1, 2**31 - 1))
    max_header_list_size: int = attrs.field(default=16_384, validator=_between(1, 2**31 - 1))
    initial_window_size: int = attrs.field(default=_DEFAULT_WINDOW, validator=_between(1, _MAX_WINDOW))
    initial_connection_window_size: int = attrs.field(default=2**20, validator=_between(_DEFAULT_WINDOW, _MAX_WINDOW))
    adaptive_window: bool = attrs.field(default=True, validator=attrs.validators.instance_of(bool))
    max_frame_size: int = attrs.field(default=65_536, validator=_between(16_384, 2**24 - 1))

    @property
    def receive_limit(self) -> int:
        """``max_receive_message_length`` as a number."""
        return _MAX_MESSAGE_LENGTH if self.max_receive_message_length is None else self.max_receive_message_length

    @property
    def send_limit(self) -> int:
        """``max_send_message_length`` as a number."""
        return _MAX_MESSAGE_LENGTH if self.max_send_message_length is None else self.max_send_message_length
