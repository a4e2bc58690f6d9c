"""Options: those that come in groups, as frozen records. A wrong value fails at once and names the option."""

from __future__ import annotations

import logging
from inspect import isasyncgenfunction
from math import inf, isnan
from typing import Any, TypeVar

import attrs

OptionT = TypeVar("OptionT")

_logger = logging.getLogger("trio_grpc")

DEFAULT_MAX_RECEIVE_MESSAGE_LENGTH = 4 * 2**20
# RFC 9113, 6.9.2 and 6.9.1. Written anew: options are read by the transport, and know nothing of it.
_DEFAULT_WINDOW = 65_535
_MAX_WINDOW = 2**31 - 1
#: gRPC's length prefix is an unsigned 32-bit number.
_MAX_MESSAGE_LENGTH = 2**32 - 1
#: A client that pings more often than this is a burden for its servers; gRFC A8 has clients keep to it.
_MIN_KEEPALIVE_TIME = 10.0
#: The same for a server (grpc-go, keepalive.go).
_MIN_SERVER_KEEPALIVE_TIME = 1.0


def int_between(low: int, high: int) -> Any:
    """Return a validator of a field of a record, which lets whole numbers in this range pass."""

    def check(record: object, attribute: attrs.Attribute[Any], value: object) -> None:
        name = f"{type(record).__name__}.{attribute.name}"
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be int, not {type(value).__name__}")
        if not low <= value <= high:
            raise ValueError(f"{name} must be between {low} and {high}, got {value}")

    return check


def flag(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """A validator of a field of a record, which lets True and False pass."""
    if not isinstance(value, bool):
        raise TypeError(f"{type(instance).__name__}.{attribute.name} must be bool, not {type(value).__name__}")


def _optional_between(low: int, high: int) -> Any:
    return attrs.validators.optional(int_between(low, high))


def check_timeout(timeout: float | bool, name: str = "timeout") -> float:
    """Return a timeout that is a number.

    Raises:
        TypeError: it is something else.
        ValueError: it is NaN.
    """
    try:
        if isnan(timeout):
            raise ValueError(f"{name} must be a number of seconds, not NaN")
        # Calls pass here: this is quicker than asking for the type.
        if timeout is True or timeout is False:
            raise TypeError
    except TypeError:
        raise TypeError(f"{name} must be a number of seconds, not {type(timeout).__name__}") from None
    return timeout


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
        max_frame_size: Bytes of the largest frame accepted (``SETTINGS_MAX_FRAME_SIZE``). 256 KiB, as much as a
            connection writes at a time: 1 MiB messages cost 6 % less CPU than in the 64 KiB of C-core and grpc-java,
            and 1 MiB frames cost more again.
        max_premature_resets: Calls in a burst that a client may reset before they were answered, or that a server must
            reset for the client's fault; a client that goes on so loses its connection (ENHANCE_YOUR_CALM). Calls that
            are answered, and time, fill it up again. 1000, as in nghttp2; None for no limit.
        max_overhead_frames: Frames in a burst that carry nothing: empty DATA, PING, SETTINGS, WINDOW_UPDATE and others.
            A peer that goes on so loses its connection (ENHANCE_YOUR_CALM). Calls, messages and time fill it up again.
            10,000; None for no limit.
        retry_buffer_size: Bytes of requests that one call keeps until its response begins, so that it can send them
            again (gRFC A6). A call that sends more has one attempt. 256 KiB, as in grpc-go and C-core.
        total_retry_buffer_size: The same for all streams of requests of a channel together. 16 MiB, as in grpc-java.

    Raises:
        TypeError: A value is not an int.
        ValueError: A value is out of its range; the message names the option.
    """

    max_receive_message_length: int | None = attrs.field(
        default=DEFAULT_MAX_RECEIVE_MESSAGE_LENGTH, validator=_optional_between(0, _MAX_MESSAGE_LENGTH)
    )
    max_send_message_length: int | None = attrs.field(default=None, validator=_optional_between(0, _MAX_MESSAGE_LENGTH))
    max_concurrent_streams: int = attrs.field(default=1000, validator=int_between(1, 2**31 - 1))
    max_header_list_size: int = attrs.field(default=16_384, validator=int_between(1, 2**31 - 1))
    initial_window_size: int = attrs.field(default=_DEFAULT_WINDOW, validator=int_between(1, _MAX_WINDOW))
    initial_connection_window_size: int = attrs.field(
        default=2**20, validator=int_between(_DEFAULT_WINDOW, _MAX_WINDOW)
    )
    adaptive_window: bool = attrs.field(default=True, validator=flag)
    max_frame_size: int = attrs.field(default=262_144, validator=int_between(16_384, 2**24 - 1))
    max_premature_resets: int | None = attrs.field(default=1000, validator=_optional_between(0, 2**31 - 1))
    max_overhead_frames: int | None = attrs.field(default=10_000, validator=_optional_between(0, 2**31 - 1))
    retry_buffer_size: int = attrs.field(default=262_144, validator=int_between(0, 2**31 - 1))
    total_retry_buffer_size: int = attrs.field(default=2**24, validator=int_between(0, 2**31 - 1))

    @property
    def receive_limit(self) -> int:
        """``max_receive_message_length`` as a number."""
        return _MAX_MESSAGE_LENGTH if self.max_receive_message_length is None else self.max_receive_message_length

    @property
    def send_limit(self) -> int:
        """``max_send_message_length`` as a number."""
        return _MAX_MESSAGE_LENGTH if self.max_send_message_length is None else self.max_send_message_length


def _seconds(*, or_zero: bool = False) -> Any:
    """A validator for durations; infinity is one that never ends."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        name = f"{type(instance).__name__}.{attribute.name}"
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
        # Written so that it is not true of NaN.
        if not (value > 0 or (or_zero and value == 0)):
            raise ValueError(f"{name} must be {'0 or more' if or_zero else 'more than 0'} seconds, got {value}")

    return check


def _raise_time(option: Keepalive | ServerKeepalive, least: float) -> None:
    if option.time < least:
        _logger.warning("%s.time=%g is raised to %g s", type(option).__name__, option.time, least)
        object.__setattr__(option, "time", least)


@attrs.frozen(kw_only=True)
class Keepalive:
    """How a client finds out that a quiet connection is dead (gRFC A8).

    When nothing has come from the server for ``time`` seconds while a call is open, the client sends an HTTP/2 PING;
    when nothing at all comes within ``timeout`` seconds after that, the connection is given up, and its calls end with
    UNAVAILABLE. Servers end connections that ping too often: agree on ``time`` with who runs them. Most accept one
    PING in 5 minutes unless configured otherwise.

    Attributes:
        time: Seconds without a byte from the server after which it is asked. A smaller value than 10 is raised to 10,
            with a warning in the log, as gRFC A8 demands. Doubled for the channel's new connections whenever a server
            says ``too_many_pings``.
        timeout: Seconds for any byte of the server to arrive after that; 20, as in every gRPC library. On Linux it
            is also the connection's ``TCP_USER_TIMEOUT`` (gRFC A18).
        permit_without_calls: Whether to ask also while no call is open. Servers must permit it.

    Raises:
        TypeError: A value is of the wrong type.
        ValueError: A duration is not positive; the message names the option.
    """

    time: float = attrs.field(validator=_seconds())
    timeout: float = attrs.field(default=20.0, validator=_seconds())
    permit_without_calls: bool = attrs.field(default=False, validator=flag)

    def __attrs_post_init__(self) -> None:
        _raise_time(self, _MIN_KEEPALIVE_TIME)


@attrs.frozen(kw_only=True)
class ServerKeepalive:
    """How a server finds out that a quiet connection is dead (gRFC A9), whether calls are open or not.

    Attributes:
        time: Seconds without a byte from the client after which it is sent a PING; 2 hours, as in every gRPC library.
            A smaller value than 1 is raised to 1, with a warning in the log. `math.inf` turns keepalive off.
        timeout: Seconds for any byte of the client to arrive after that; then the connection is given up and its
            handlers are cancelled. On Linux it is also the connection's ``TCP_USER_TIMEOUT`` (gRFC A18).

    Raises:
        TypeError: A value is of the wrong type.
        ValueError: A duration is not positive; the message names the option.
    """

    time: float = attrs.field(default=7200.0, validator=_seconds())
    timeout: float = attrs.field(default=20.0, validator=_seconds())

    def __attrs_post_init__(self) -> None:
        _raise_time(self, _MIN_SERVER_KEEPALIVE_TIME)


@attrs.frozen(kw_only=True)
class KeepaliveEnforcement:
    """How often clients may ask whether a server is still there (gRFC A8).

    A PING that comes too early is a strike. More than two strikes end the connection with GOAWAY ENHANCE_YOUR_CALM
    ``too_many_pings``. What the server sends of its calls wipes them out, so PINGs by which clients measure the
    bandwidth of a download are none.

    Attributes:
        min_time: Seconds that must lie between two PINGs while a call is open; 5 minutes, as in every gRPC library.
        permit_without_calls: Whether the same holds while no call is open. Otherwise there must be 2 hours between two
            PINGs then.

    Raises:
        TypeError: A value is of the wrong type.
        ValueError: A duration is negative; the message names the option.
    """

    min_time: float = attrs.field(default=300.0, validator=_seconds(or_zero=True))
    permit_without_calls: bool = attrs.field(default=False, validator=flag)


@attrs.frozen(kw_only=True)
class ConnectionLifetime:
    """How long a server keeps a connection (gRFC A9). Without limit unless told otherwise.

    A connection ends in good order: the client is told with GOAWAY, its new calls go to a new connection, and those
    that are open finish.

    Attributes:
        max_idle: Seconds without an open call after which a connection ends; GOAWAY says ``max_idle``.
        max_age: Seconds after which a connection ends, so that clients spread anew over what is behind a load balancer;
            GOAWAY says ``max_age``. Each connection's own is up to 10 % more or less, lest they all come back at once.
        max_age_grace: Seconds that calls have to finish when a connection has reached its age; then they are
            cancelled.

    Raises:
        TypeError: A value is of the wrong type.
        ValueError: A duration is negative, or zero where that makes no sense; the message names the option.
    """

    max_idle: float = attrs.field(default=inf, validator=_seconds())
    max_age: float = attrs.field(default=inf, validator=_seconds())
    max_age_grace: float = attrs.field(default=inf, validator=_seconds(or_zero=True))


def option_or_default(name: str, value: OptionT | None, kind: type[OptionT]) -> OptionT:
    """Return what a user has given for an option, or what stands for None.

    Raises:
        TypeError: it is something else.
    """
    return kind() if value is None else check_kind(name, value, kind, " or None")


def check_kind(name: str, value: object, kind: type[OptionT], others: str = "") -> OptionT:
    """Return what a user has given for an option, or for an argument of this name.

    Args:
        name: of the option.
        value: what was given.
        kind: what it must be.
        others: what else would do, for the message.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {kind.__name__}{others}, not {type(value).__name__}")
    return value


def check_async_callable(name: str, value: object, others: str = "") -> None:
    """Check an option that is a function of the user's, to be called and awaited.

    What a plain function returns is not known before it is called.

    Args:
        name: of the option.
        value: what was given.
        others: what else would do, for the message.

    Raises:
        TypeError: it cannot be called, or not so: it is a class whose objects nobody could await, or a generator.
    """
    if not callable(value):
        raise TypeError(f"{name} must be an async callable{others}, not {type(value).__name__}")
    if isinstance(value, type):
        if not hasattr(value, "__await__"):
            named = value.__name__
            raise TypeError(f"{name} must be an async callable{others}, not the class {named}: did you mean {named}()?")
    elif isasyncgenfunction(value) or isasyncgenfunction(type(value).__call__):
        raise TypeError(f"{name} must be an async callable{others}, but {name_of(value)} has a 'yield'")


def name_of(function: object) -> str:
    """Return what a function of the user's, or an object that can be called, is called in messages."""
    return getattr(function, "__qualname__", None) or type(function).__name__


def check_text(name: str, value: object) -> str:
    """Return an option that becomes a header field or a host name.

    Raises:
        TypeError: it is no text.
        ValueError: it has a character that neither may have, such as a line feed or half a surrogate pair.
    """
    text = check_kind(name, value, str)
    if not text.isprintable():
        raise ValueError(f"{name} must be printable text, got {text!r}")
    return text


def check_ascii(name: str, value: object) -> str:
    """Return an option that becomes a header field as it is (RFC 9110, 5.5).

    Raises:
        TypeError: it is no text.
        ValueError: it is no printable ASCII.
    """
    text = check_text(name, value)
    if not text.isascii():
        raise ValueError(f"{name} must be printable ASCII, got {text!r}")
    return text


def check_seconds(name: str, value: object) -> float:
    """Return a duration that is not negative; infinity is one that never ends.

    Raises:
        TypeError: it is no number.
        ValueError: it is negative or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if not value >= 0:
        raise ValueError(f"{name} must be 0 or more seconds, got {value}")
    return value
