"""What gRPC puts into HTTP/2 header lists, and what it reads out of them.

Field lists in, immutable records out, and the other way round: the request head, the response head, the trailers,
``grpc-timeout``, ``grpc-message`` and the tables that turn HTTP and HTTP/2 errors into status codes. Records are
shared between calls (the header codec remembers them), so nothing here can be changed after it was made. HPACK,
frames, stream states and I/O may not live here.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Final

import attrs

from trio_grpc._status import StatusCode

Field = tuple[bytes, bytes]
"""A header field: lower-case name and raw value."""

_CONTENT_TYPE: Final = b"application/grpc"
_MAX_CONTENT_TYPE: Final = 127
_IDENTITY: Final = "identity"

# ---------------------------------------------------------------------------------------------------------------------
# grpc-timeout

_MAX_TIMEOUT_VALUE: Final = 99_999_999  # the protocol allows eight digits


def encode_timeout(seconds: float) -> bytes:
    """Encodes a timeout in the finest unit that fits eight digits, rounded up.

    Args:
        seconds: The time that is left. What is not positive goes out as ``0n``; what is too large even in hours
            goes out as the largest value there is, 11 000 years.

    Returns:
        The value of ``grpc-timeout``.

    Raises:
        ValueError: The timeout is infinite (then there is nothing to send) or not a number.
    """
    # These two bounds are a little below what fits, so that no rounding can give a ninth digit.
    if seconds < 0.0999:
        return b"%dn" % math.ceil(seconds * 1e9) if seconds > 0 else b"0n"
    if seconds < 99.9:
        return b"%du" % math.ceil(seconds * 1e6)
    if not seconds < math.inf:
        raise ValueError(f"timeout must be a finite number of seconds, not {seconds}")
    if (value := math.ceil(seconds * 1e3)) <= _MAX_TIMEOUT_VALUE:
        return b"%dm" % value
    if (value := math.ceil(seconds)) <= _MAX_TIMEOUT_VALUE:
        return b"%dS" % value
    if (value := math.ceil(seconds / 60)) <= _MAX_TIMEOUT_VALUE:
        return b"%dM" % value
    return b"%dH" % min(math.ceil(seconds / 3600), _MAX_TIMEOUT_VALUE)


# Below a second as divisors: unlike a product with 1e-6 a quotient is the float nearest to the decimal number.
_FINE_UNITS: Final = {b"u": 1e6, b"m": 1e3, b"n": 1e9, b"S": 1.0}
_COARSE_UNITS: Final = {b"M": 60.0, b"H": 3600.0}


def decode_timeout(value: bytes) -> float:
    """Decodes the value of ``grpc-timeout``.

    Args:
        value: One to eight digits and a unit.

    Returns:
        The timeout in seconds.

    Raises:
        ValueError: The value is malformed.
    """
    digits, unit = value[:-1], value[-1:]
    if len(digits) <= 8 and digits.isdigit():
        if unit in _FINE_UNITS:
            return int(digits) / _FINE_UNITS[unit]
        if unit in _COARSE_UNITS:
            return int(digits) * _COARSE_UNITS[unit]
    raise ValueError(f"malformed grpc-timeout {_show(value)}")


# ---------------------------------------------------------------------------------------------------------------------
# grpc-message

_ESCAPES: Final = [
    bytes((octet,)) if 0x20 <= octet <= 0x7E and octet != 0x25 else b"%%%02X" % octet for octet in range(256)
]
_is_plain_message: Final = re.compile(rb"(?:[!-$&-~](?:[ -$&-~]*[!-$&-~])?)?").fullmatch
_UNESCAPES: Final = {
    high.encode() + low.encode(): bytes((int(high + low, 16),))
    for high in "0123456789abcdefABCDEF"
    for low in "0123456789abcdefABCDEF"
}


def encode_message(text: str) -> bytes:
    """Encodes a status message: UTF-8, then percent-encoding of all but printable ASCII, and of ``%``.

    A space at either end is encoded too: gRPC would allow it, but HTTP does not (RFC 9113 section 8.2.1).

    Args:
        text: The message. Lone surrogates become question marks.

    Returns:
        The value of ``grpc-message``.
    """
    raw = text.encode("utf-8", "replace")
    if _is_plain_message(raw):
        return raw
    escaped = b"".join([_ESCAPES[octet] for octet in raw])
    if escaped[:1] == b" ":
        escaped = b"%20" + escaped[1:]
    if escaped[-1:] == b" ":
        escaped = escaped[:-1] + b"%20"
    return escaped


def decode_message(value: bytes) -> str:
    """Decodes a status message. Never fails: bad escapes stay as they are, bad UTF-8 gives U+FFFD.

    Args:
        value: The value of ``grpc-message``.

    Returns:
        The message.
    """
    if b"%" in value:
        first, *others = value.split(b"%")
        parts = [first]
        for other in others:
            octet = _UNESCAPES.get(other[:2])
            if octet is None:
                parts += (b"%", other)
            else:
                parts += (octet, other[2:])
        value = b"".join(parts)
    return value.decode("utf-8", "replace")


# ---------------------------------------------------------------------------------------------------------------------
# Records


@attrs.frozen
class Malformed:
    """A header list that breaks RFC 9113 sections 8.2 and 8.3: a stream error PROTOCOL_ERROR.

    Attributes:
        reason: What is wrong with it, for logs.
    """

    reason: str


@attrs.frozen
class Refusal:
    """The answer to a request that is right for HTTP but that no gRPC handler may see.

    Attributes:
        http_status: The ``:status`` of the answer.
        code: The ``grpc-status`` of the answer.
        message: The ``grpc-message`` of the answer.
    """

    http_status: int
    code: StatusCode
    message: str


@attrs.frozen
class RequestHeaders:
    """The head of a request.

    Attributes:
        path: The ``:path``, such as ``/package.Service/Method``.
        authority: The ``:authority``, else the ``host``, else the empty string.
        timeout: The ``grpc-timeout`` in seconds, None if there is none.
        encoding: The ``grpc-encoding``.
        accept_encoding: The ``grpc-accept-encoding``.
        fields: The custom metadata in wire order, and ``user-agent``; raw.
        content_length: The ``content-length``, None if there is none.
        refusal: How to answer if the request is not fit for a handler.
    """

    path: str
    authority: str
    timeout: float | None
    encoding: str
    accept_encoding: tuple[str, ...]
    fields: tuple[Field, ...]
    content_length: int | None
    refusal: Refusal | None

    @property
    def content_type(self) -> bytes:
        """The ``content-type`` of an answer that has no message."""
        return _CONTENT_TYPE


@attrs.frozen
class SubtypedRequestHeaders(RequestHeaders):
    """The head of a request that names another codec than protobuf's; few do, so that others need not pay for it.

    Attributes:
        content_type: The ``content-type``. connect-go and grpclib take no answer, not even an error, of another one.
    """

    content_type: bytes


@attrs.frozen
class RequestTrailers:
    """A header list without pseudo-header fields: what may end a request, and nothing that may begin one.

    Attributes:
        fields: The fields in wire order; raw.
    """

    fields: tuple[Field, ...]


@attrs.frozen
class ResponseHeaders:
    """The head of a response, or the trailers that end it.

    Attributes:
        http_status: The ``:status``; None in trailers.
        content_type: The ``content-type``, None if there is none.
        encoding: The ``grpc-encoding``.
        accept_encoding: The ``grpc-accept-encoding``.
        grpc_status: The ``grpc-status``, None if there is none; 2 (UNKNOWN) if it is not a known status code.
        message: The ``grpc-message``, decoded.
        status_details: The ``grpc-status-details-bin``, decoded; empty if there is none or it is not base64.
        fields: The custom metadata in wire order; raw.
        content_length: The ``content-length``, None if there is none.
    """

    http_status: int | None
    content_type: str | None
    encoding: str
    accept_encoding: tuple[str, ...]
    grpc_status: int | None
    message: str
    status_details: bytes
    fields: tuple[Field, ...]
    content_length: int | None

    @property
    def is_grpc(self) -> bool:
        """Whether it is the head of a gRPC response: anything else may come from who knows where on the way."""
        if self.http_status != 200 or self.content_type is None:
            return False
        return self.content_type == "application/grpc" or is_grpc_content_type(self.content_type)

    @property
    def is_initial(self) -> bool:
        """Whether it is a head that a response follows: no Trailers-Only, and gRPC."""
        return self.grpc_status is None and self.is_grpc


Record = RequestHeaders | RequestTrailers | ResponseHeaders | Malformed
"""What a header list turns out to be."""


# ---------------------------------------------------------------------------------------------------------------------
# Reading header lists

_PSEUDO: Final = 1
_RESERVED: Final = 2
_BANNED: Final = 3

# What to do with a name; names that are not here are custom metadata. ``grpc-previous-rpc-attempts`` and
# ``grpc-retry-pushback-ms`` are left to metadata on purpose, as in other implementations.
_KINDS: Final[dict[bytes, int]] = {
    b":method": _PSEUDO,
    b":scheme": _PSEUDO,
    b":path": _PSEUDO,
    b":authority": _PSEUDO,
    b":status": _PSEUDO,
    b"te": _RESERVED,
    b"host": _RESERVED,
    b"content-type": _RESERVED,
    b"content-length": _RESERVED,
    b"grpc-timeout": _RESERVED,
    b"grpc-encoding": _RESERVED,
    b"grpc-accept-encoding": _RESERVED,
    b"grpc-message-type": _RESERVED,
    b"grpc-status": _RESERVED,
    b"grpc-message": _RESERVED,
    b"grpc-status-details-bin": _RESERVED,
    # RFC 9113 section 8.2.2: connection-specific fields.
    b"connection": _BANNED,
    b"keep-alive": _BANNED,
    b"proxy-connection": _BANNED,
    b"transfer-encoding": _BANNED,
    b"upgrade": _BANNED,
}

# A token of RFC 9110 section 5.6.2 without upper-case letters (RFC 9113 section 8.2.1).
_is_name: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_BLANKS: Final = b" \t"
# Names of custom metadata that were seen: the same few come with every call. A hint, and bounded, as peers choose them.
_CUSTOM_NAMES: Final[set[bytes]] = set()
_MAX_CUSTOM_NAMES: Final = 256
_HARMLESS_OCTETS: Final = bytes([octet for octet in range(256) if octet not in b"\0\r\n \t"])


def _is_custom_name(name: bytes) -> bool:
    """Says whether a name is well-formed and one of custom metadata; remembers that it is."""
    if name in _KINDS or not _is_name(name):
        return False
    if len(_CUSTOM_NAMES) >= _MAX_CUSTOM_NAMES:
        _CUSTOM_NAMES.clear()
    _CUSTOM_NAMES.add(name)
    return True


def _is_value(value: bytes) -> bool:
    """Says whether a field value has no NUL, CR or LF and no blank at either end (RFC 9113 section 8.2.1).

    Octets from 0x80 on are legal obs-text; for blanks, see _check_values. Three searches at C speed take 0.3 µs for a
    token of 800 bytes, a regular expression 5.
    """
    if b"\n" in value or b"\r" in value or b"\0" in value:
        return False
    return not value or (value[0] not in _BLANKS and value[-1] not in _BLANKS)


# Stands for the value of a field that may come once only and came more than once.
_REPEATED: Final = b"(repeated)"


def _show(value: bytes) -> str:
    """Returns bytes of the peer as they may stand in a message: printable and not too long."""
    text = repr(value[:64])[1:]
    return text + "..." if len(value) > 64 else text


_Scanned = tuple[dict[bytes, bytes], dict[bytes, bytes], list[Field]]


def _check_values(fields: Sequence[Field]) -> Sequence[Field] | Malformed:
    """Checks all values by RFC 9113 section 8.2.1, with one mercy: blanks at the ends of metadata.

    C-core sends such metadata, and such a ``grpc-message``, as its users wrote them. PROTOCOL-HTTP2 (Custom-Metadata)
    lets the receiver strip them; in a message they are text.
    """
    # One pass in C over all values, joined by what none of them may have, instead of a match for each.
    rest = b"\n".join([value for _, value in fields]).translate(None, _HARMLESS_OCTETS)
    if len(rest) < len(fields):
        return fields
    checked: list[Field] = []
    for field in fields:
        name, value = field
        stripped = value.strip(_BLANKS)
        if not _is_value(stripped):
            break
        if stripped == value or name == b"grpc-message":
            checked.append(field)
        elif name in _KINDS or name[:1] == b":":
            break
        else:
            checked.append((name, stripped))
    else:
        return checked
    return Malformed(f"value of field {_show(name)} has a character or a blank that HTTP forbids")


def _scan(fields: Sequence[Field]) -> _Scanned | Malformed:
    """Sorts the fields of a header list and enforces what RFC 9113 section 8.2 says of all header lists.

    Returns:
        The pseudo-header fields, the reserved fields and the others in wire order.
    """
    pseudo: dict[bytes, bytes] = {}
    reserved: dict[bytes, bytes] = {}
    custom: list[Field] = []
    kind_of = _KINDS.get
    checked = _check_values(fields)
    if isinstance(checked, Malformed):
        return checked
    for field in checked:
        name, value = field
        kind = kind_of(name)
        if kind is None:
            if not _is_name(name):
                if name[:1] == b":":
                    return Malformed(f"unknown pseudo-header field {_show(name)}")
                return Malformed(f"field name {_show(name)} is not a lower-case token")
            custom.append(field)
        elif kind == _RESERVED:
            reserved[name] = value if name not in reserved else _combine(name, reserved[name], value)
        elif kind == _PSEUDO:
            if reserved or custom:
                return Malformed(f"pseudo-header field {_show(name)} after regular fields")
            if name not in pseudo:
                pseudo[name] = value
            elif name == b":authority":
                pseudo[name] = _REPEATED
            else:
                return Malformed(f"repeated pseudo-header field {_show(name)}")
        else:
            return Malformed(f"connection-specific field {_show(name)}")
    te = reserved.get(b"te")
    if te is not None and te != b"trailers" and te.lower() != b"trailers":
        return Malformed(f"field te is {_show(te)}, not 'trailers'")
    return pseudo, reserved, custom


def _combine(name: bytes, first: bytes, second: bytes) -> bytes:
    """Combines the values of a repeated field to a list, as RFC 9110 section 5.3 says.

    A list is no valid value of a field that may come once only, so contradictions come out by themselves. The same
    value again contradicts nothing.
    """
    if name == b"host":
        return _REPEATED
    return first if first == second else first + b", " + second


_MAX_LENGTH_DIGITS: Final = 19  # as many as 64 bits need; also keeps int() from quadratic work


def _parse_content_length(value: bytes) -> int | None:
    """Parses a ``content-length``; RFC 9110 section 8.6 allows a list of equal numbers. None if it is invalid."""
    for part in (parts := {part.strip(b" \t") for part in value.split(b",")}):
        if len(parts) == 1 and len(part) <= _MAX_LENGTH_DIGITS and part.isdigit():
            return int(part)
    return None


@lru_cache(maxsize=64)
def _parse_encodings(value: bytes) -> tuple[str, ...]:
    """Parses a ``grpc-accept-encoding``. There are few different ones in the world."""
    names = [name.strip(b" \t") for name in value.split(b",")]
    return tuple([name.decode("latin-1") for name in names if name])


def is_grpc_content_type(content_type: bytes | str) -> bool:
    """Tells whether a ``content-type`` means gRPC: ``application/grpc``, alone or with a ``+`` or ``;`` suffix.

    Args:
        content_type: The raw or decoded value.

    Returns:
        Whether it means gRPC.
    """
    raw = content_type.encode("latin-1", "replace") if isinstance(content_type, str) else content_type
    size = len(_CONTENT_TYPE)
    return raw[:size].lower() == _CONTENT_TYPE and raw[size:].lstrip(b" \t")[:1] in (b"", b"+", b";")


def _is_subtype(content_type: bytes) -> bool:
    """Tells whether an answer has to name the content type of its request; whoever says proto takes it without."""
    if content_type == _CONTENT_TYPE or content_type == _CONTENT_TYPE + b"+proto":
        return False
    # What nobody would register (RFC 6838, 4.2) is not sent back.
    return b"+" in content_type and b";" not in content_type and len(content_type) <= _MAX_CONTENT_TYPE


def parse_request(fields: Sequence[Field]) -> RequestHeaders | RequestTrailers | Malformed:
    """Parses a header list that a client sent.

    Args:
        fields: The fields in wire order.

    Returns:
        The head of a request if there are pseudo-header fields, else trailers; or what is wrong.
    """
    scanned = _scan(fields)
    if isinstance(scanned, Malformed):
        return scanned
    pseudo, reserved, custom = scanned
    if not pseudo:
        return RequestTrailers(tuple(custom))
    get = reserved.get
    # RFC 9113 section 8.3.1.
    method = pseudo.get(b":method")
    raw_path = pseudo.get(b":path")
    if b":status" in pseudo:
        return Malformed("pseudo-header field b':status' in a request")
    if not method:
        return Malformed("request without :method")
    if method != b"CONNECT":
        # RFC 9113 section 8.3.1: not empty either.
        if not raw_path:
            return Malformed("request without :path")
        if not pseudo.get(b":scheme"):
            return Malformed("request without :scheme")
    authority = pseudo.get(b":authority")
    host = get(b"host")
    if authority is None:
        authority = b"" if host is None else host
    elif (
        host is not None and host is not _REPEATED and authority is not _REPEATED and host.lower() != authority.lower()
    ):
        return Malformed(f"host {_show(host)} is not the :authority {_show(authority)}")
    content_length: int | None = None
    raw_length = get(b"content-length")
    if raw_length is not None:
        content_length = _parse_content_length(raw_length)
        if content_length is None:
            return Malformed(f"content-length is {_show(raw_length)}")

    path = "" if raw_path is None else raw_path.decode("latin-1")
    refusal: Refusal | None = None
    timeout: float | None = None
    content_type = get(b"content-type")
    raw_timeout = get(b"grpc-timeout")
    if raw_timeout is not None:
        try:
            timeout = decode_timeout(raw_timeout)
        except ValueError as error:
            refusal = Refusal(400, StatusCode.INTERNAL, str(error))
    if content_type != _CONTENT_TYPE and (content_type is None or not is_grpc_content_type(content_type)):
        shown = "missing" if content_type is None else _show(content_type)
        refusal = Refusal(415, StatusCode.INVALID_ARGUMENT, f"content-type is {shown}, not 'application/grpc'")
    if method != b"POST":
        refusal = Refusal(405, StatusCode.INTERNAL, f"method is {_show(method)}, not 'POST'")
    if authority is _REPEATED or host is _REPEATED:
        refusal = Refusal(400, StatusCode.INTERNAL, "more than one :authority or host")
        authority = b""
    if refusal is None and (path[:1] != "/" or path.rfind("/") < 1):
        refusal = Refusal(200, StatusCode.UNIMPLEMENTED, f"malformed method name {path[:256]!r}")
    make: Callable[..., RequestHeaders] = RequestHeaders
    if content_type is not None and refusal is None and _is_subtype(content_type):
        make = partial(SubtypedRequestHeaders, content_type=content_type)
    encoding = get(b"grpc-encoding")
    accept_encoding = get(b"grpc-accept-encoding")
    return make(
        path,
        authority.decode("latin-1"),
        timeout,
        _IDENTITY if not encoding else encoding.decode("latin-1"),
        () if accept_encoding is None else _parse_encodings(accept_encoding),
        tuple(custom),
        content_length,
        refusal,
    )


def extend_request(head: Record, tail: Sequence[Field]) -> RequestHeaders | None:
    """Makes the record of a request of which the record of the first fields is known.

    The fields that change from call to call, ``grpc-timeout`` and custom metadata, come last in most requests.

    Args:
        head: What :func:`parse_request` made of the first fields.
        tail: The other fields.

    Returns:
        What :func:`parse_request` would make of all the fields, or None: then it must be asked.
    """
    if type(head) is not RequestHeaders or head.refusal is not None:
        return None
    timeout = head.timeout
    custom: list[Field] = []
    for field in tail:
        name, value = field
        if name == b"grpc-timeout":
            if timeout is not None:
                return None
            try:
                timeout = decode_timeout(value)
            except ValueError:
                return None
        elif (name not in _CUSTOM_NAMES and not _is_custom_name(name)) or (value and not _is_value(value)):
            return None
        else:
            custom.append(field)
    return RequestHeaders(
        head.path,
        head.authority,
        timeout,
        head.encoding,
        head.accept_encoding,
        head.fields + tuple(custom) if custom else head.fields,
        head.content_length,
        None,
    )


_STATUSES: Final[dict[bytes, int]] = {b"%d" % code: code for code in range(17)}


def _parse_status(value: bytes, message: str) -> tuple[int, str]:
    """Parses a ``grpc-status``; one that is no known status code is UNKNOWN, and the message tells of it."""
    status = _STATUSES.get(value)
    if status is not None:
        return status, message
    if value.isdigit():
        status = _STATUSES.get(value.lstrip(b"0") or b"0")
        if status is not None:
            return status, message
        problem = f"unknown grpc-status {value[:64].decode('ascii')}"
    else:
        problem = f"malformed grpc-status {_show(value)}"
    return StatusCode.UNKNOWN.value, f"{problem}: {message}" if message else problem


def _parse_details(value: bytes) -> bytes:
    """Decodes a ``grpc-status-details-bin``, padded or not; empty if it is not base64.

    Details only explain a status, so bad ones must not replace it.
    """
    value = value.partition(b",")[0].strip(b" \t")
    try:
        return b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except Base64Error:
        return b""


def parse_response(fields: Sequence[Field]) -> ResponseHeaders | Malformed:
    """Parses a header list that a server sent.

    Args:
        fields: The fields in wire order.

    Returns:
        The head of a response if there is a ``:status``, else trailers; or what is wrong.
    """
    scanned = _scan(fields)
    if isinstance(scanned, Malformed):
        return scanned
    pseudo, reserved, custom = scanned
    http_status: int | None = None
    if pseudo:
        # RFC 9113 section 8.3.2: :status and nothing else.
        raw_http_status = pseudo.pop(b":status", b"")
        for name in pseudo:
            return Malformed(f"pseudo-header field {_show(name)} in a response")
        # RFC 9113 section 8.6: there is no 101 in HTTP/2.
        if len(raw_http_status) != 3 or not raw_http_status.isdigit() or raw_http_status in (b"000", b"101"):
            return Malformed(f":status is {_show(raw_http_status)}")
        http_status = int(raw_http_status)
        if http_status < 100:
            return Malformed(f":status is {_show(raw_http_status)}")
    get = reserved.get
    content_length: int | None = None
    raw_length = get(b"content-length")
    if raw_length is not None:
        content_length = _parse_content_length(raw_length)
        if content_length is None:
            return Malformed(f"content-length is {_show(raw_length)}")
    raw_message = get(b"grpc-message")
    message = decode_message(raw_message) if raw_message else ""
    status: int | None = None
    raw_status = get(b"grpc-status")
    if raw_status is not None:
        status, message = _parse_status(raw_status, message)
    details = get(b"grpc-status-details-bin")
    content_type = get(b"content-type")
    encoding = get(b"grpc-encoding")
    accept_encoding = get(b"grpc-accept-encoding")
    return ResponseHeaders(
        http_status,
        None if content_type is None else content_type.decode("latin-1"),
        _IDENTITY if not encoding else encoding.decode("latin-1"),
        () if accept_encoding is None else _parse_encodings(accept_encoding),
        status,
        message,
        _parse_details(details) if details else b"",
        tuple(custom),
        content_length,
    )


def extend_response(head: Record, tail: Sequence[Field]) -> ResponseHeaders | None:
    """Makes the record of a response, or of trailers, of which the record of the first fields is known.

    Args:
        head: What :func:`parse_response` made of the first fields.
        tail: The other fields.

    Returns:
        What :func:`parse_response` would make of all the fields, or None: then it must be asked.
    """
    if type(head) is not ResponseHeaders:
        return None
    for name, value in tail:
        if name in _KINDS or not _is_name(name) or (value and not _is_value(value)):
            return None
    return ResponseHeaders(
        head.http_status,
        head.content_type,
        head.encoding,
        head.accept_encoding,
        head.grpc_status,
        head.message,
        head.status_details,
        head.fields + tuple(tail),
        head.content_length,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Errors of HTTP as status codes

_HTTP_STATUSES: Final[dict[int, StatusCode]] = {
    400: StatusCode.INTERNAL,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.UNIMPLEMENTED,
    429: StatusCode.UNAVAILABLE,
    431: StatusCode.INTERNAL,
    502: StatusCode.UNAVAILABLE,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.UNAVAILABLE,
}

_RST_CODES: Final[dict[int, StatusCode]] = {
    0x0: StatusCode.INTERNAL,  # NO_ERROR
    0x1: StatusCode.INTERNAL,  # PROTOCOL_ERROR
    0x2: StatusCode.INTERNAL,  # INTERNAL_ERROR
    0x3: StatusCode.INTERNAL,  # FLOW_CONTROL_ERROR
    0x4: StatusCode.INTERNAL,  # SETTINGS_TIMEOUT
    0x5: StatusCode.INTERNAL,  # STREAM_CLOSED
    0x6: StatusCode.INTERNAL,  # FRAME_SIZE_ERROR
    0x7: StatusCode.UNAVAILABLE,  # REFUSED_STREAM
    0x8: StatusCode.CANCELLED,  # CANCEL
    0x9: StatusCode.INTERNAL,  # COMPRESSION_ERROR
    0xA: StatusCode.INTERNAL,  # CONNECT_ERROR
    0xB: StatusCode.RESOURCE_EXHAUSTED,  # ENHANCE_YOUR_CALM
    0xC: StatusCode.PERMISSION_DENIED,  # INADEQUATE_SECURITY
    0xD: StatusCode.INTERNAL,  # HTTP_1_1_REQUIRED
}


def header_list_size(fields: Iterable[Field]) -> int:
    """Counts a header list as SETTINGS_MAX_HEADER_LIST_SIZE does (RFC 9113 section 6.5.2).

    Args:
        fields: The fields.

    Returns:
        The octets of names and values, and 32 for each field.
    """
    return sum([len(name) + len(value) + 32 for name, value in fields])


def over_peer_limit(what: str, size: int, limit: float, peer: str) -> str:
    """Says that a header list was not sent because it is larger than the peer accepts.

    Args:
        what: What the list holds.
        size: Its size.
        limit: The peer's SETTINGS_MAX_HEADER_LIST_SIZE.
        peer: ``client`` or ``server``.

    Returns:
        A status message.
    """
    return (
        f"{what} of {size} bytes is over the limit of {limit:.0f} bytes that the {peer} accepts "
        "(SETTINGS_MAX_HEADER_LIST_SIZE; option max_header_list_size over there)"
    )


def shorten_message(message: str, size: int) -> str:
    """Cuts a status message so that its encoding fits.

    Args:
        message: The message.
        size: The octets that its percent-encoded form may have.

    Returns:
        The longest beginning of the message that fits.
    """
    encoded = encode_message(message)
    if len(encoded) <= size:
        return message
    kept = encoded[: max(size, 0)]
    # Not in the middle of an escape, nor of a character that takes several.
    escape = kept.rfind(b"%", len(kept) - 2)
    return decode_message(kept[:escape] if escape >= 0 else kept).rstrip("\ufffd")


def http_to_status(http_status: int) -> StatusCode:
    """Maps the ``:status`` of a response without ``grpc-status`` (gRPC: http-grpc-status-mapping).

    Args:
        http_status: The final HTTP status, 200 included.

    Returns:
        The status code that the call ends with.
    """
    return _HTTP_STATUSES.get(http_status, StatusCode.UNKNOWN)


def rst_to_status(error_code: int) -> StatusCode:
    """Maps the error code of an RST_STREAM that ends a call (gRPC: HTTP/2 transport mapping, "Errors").

    Args:
        error_code: The HTTP/2 error code.

    Returns:
        The status code that the call ends with.
    """
    return _RST_CODES.get(error_code, StatusCode.UNKNOWN)


#: Octets of a message, encoded, that are worth more to its reader than trailing metadata.
_LEAST_MESSAGE: Final = 128


def fit_status(
    make: Callable[..., tuple[Field, ...]],
    code: int,
    message: str,
    details: bytes,
    metadata: Sequence[Field],
    limit: float,
) -> tuple[Field, ...]:
    """Builds a header list with a status that is as complete as the client accepts.

    The status matters more than what explains it: a client that gets more than it accepts reads nothing. So first the
    details go, then the end of the message, and the trailing metadata where it leaves no room for a message.

    Args:
        make: :func:`trailer_fields` or :func:`trailers_only_fields`.
        code: The status code.
        message: The status message.
        details: The serialized ``google.rpc.Status``.
        metadata: The trailing metadata, encoded.
        limit: The client's SETTINGS_MAX_HEADER_LIST_SIZE.

    Returns:
        The fields.
    """
    for kept_details in (details, b""):
        fields = make(code, message, kept_details, metadata)
        if header_list_size(fields) <= limit:
            return fields
    room = int(limit) - header_list_size(make(code)) - len(b"grpc-message") - 32
    room_beside = room - header_list_size(metadata)
    if room_beside >= min(len(encode_message(message)), _LEAST_MESSAGE):
        return make(code, shorten_message(message, room_beside), b"", metadata)
    return make(code, shorten_message(message, room))


# ---------------------------------------------------------------------------------------------------------------------
# Building header lists

_STATUS_OK: Final[Field] = (b":status", b"200")


def _to_bytes(value: str | bytes) -> bytes:
    """Encodes the value of a field, if it is not encoded yet."""
    return value if isinstance(value, bytes) else value.encode("latin-1")


def _encoding_fields(encoding: str | bytes | None, accept_encoding: str | bytes | None) -> list[Field]:
    """Builds the fields on compression; ``identity`` needs no saying."""
    fields: list[Field] = []
    if encoding and _to_bytes(encoding) != b"identity":
        fields.append((b"grpc-encoding", _to_bytes(encoding)))
    if accept_encoding:
        fields.append((b"grpc-accept-encoding", _to_bytes(accept_encoding)))
    return fields


def request_template(
    path: str | bytes,
    authority: str | bytes,
    scheme: str | bytes,
    user_agent: str | bytes,
    content_type: str | bytes = _CONTENT_TYPE,
    encoding: str | bytes | None = None,
    accept_encoding: str | bytes | None = None,
) -> tuple[Field, ...]:
    """Builds the fields that are the same in all requests of one method.

    Args:
        path: The ``:path``.
        authority: The ``:authority``.
        scheme: The ``:scheme``.
        user_agent: The ``user-agent``.
        content_type: The ``content-type``.
        encoding: The ``grpc-encoding``; None, empty and ``identity`` send none.
        accept_encoding: The ``grpc-accept-encoding``; None and empty send none.

    Returns:
        The fields, in the order of the gRPC specification.
    """
    return (
        (b":method", b"POST"),
        (b":scheme", _to_bytes(scheme)),
        (b":path", _to_bytes(path)),
        (b":authority", _to_bytes(authority)),
        (b"te", b"trailers"),
        (b"content-type", _to_bytes(content_type)),
        (b"user-agent", _to_bytes(user_agent)),
        *_encoding_fields(encoding, accept_encoding),
    )


def content_type_of(subtype: str) -> str:
    """Builds the ``content-type`` for messages of a codec.

    Args:
        subtype: The codec's name. Protobuf needs no saying, and the empty name says nothing.

    Returns:
        The value.
    """
    return "application/grpc" if subtype in {"proto", ""} else f"application/grpc+{subtype}"


def response_fields(
    encoding: str | bytes | None = None,
    accept_encoding: str | bytes | None = None,
    content_type: str | bytes = _CONTENT_TYPE,
) -> tuple[Field, ...]:
    """Builds the fields that the head of a response begins with.

    Args:
        encoding: The ``grpc-encoding``; None, empty and ``identity`` send none.
        accept_encoding: The ``grpc-accept-encoding``; None and empty send none.
        content_type: The ``content-type``.

    Returns:
        The fields.
    """
    return (
        _STATUS_OK,
        (b"content-type", _to_bytes(content_type)),
        *_encoding_fields(encoding, accept_encoding),
    )


def trailer_fields(
    code: int, message: str = "", details: bytes = b"", metadata: Iterable[Field] = ()
) -> tuple[Field, ...]:
    """Builds the trailers that end a response.

    Args:
        code: The status code.
        message: The status message; empty sends none.
        details: The serialized ``google.rpc.Status``; empty sends none.
        metadata: The trailing metadata, encoded.

    Returns:
        The fields.
    """
    fields: list[Field] = [(b"grpc-status", b"%d" % code)]
    if message:
        fields.append((b"grpc-message", encode_message(message)))
    if details:
        fields.append((b"grpc-status-details-bin", b64encode(details).rstrip(b"=")))
    fields.extend(metadata)
    return tuple(fields)


def trailers_only_fields(
    code: int,
    message: str = "",
    details: bytes = b"",
    metadata: Iterable[Field] = (),
    *,
    http_status: int = 200,
    accept_encoding: str | bytes | None = None,
    content_type: str | bytes = _CONTENT_TYPE,
) -> tuple[Field, ...]:
    """Builds the only header list of a response that has no message: its head and its trailers in one.

    Args:
        code: The status code.
        message: The status message; empty sends none.
        details: The serialized ``google.rpc.Status``; empty sends none.
        metadata: The trailing metadata, encoded.
        http_status: The ``:status``.
        accept_encoding: The ``grpc-accept-encoding``, which must go with the refusal of an encoding.
        content_type: The ``content-type``.

    Returns:
        The fields.
    """
    return (
        (b":status", b"%d" % http_status),
        (b"content-type", _to_bytes(content_type)),
        *_encoding_fields(None, accept_encoding),
        *trailer_fields(code, message, details, metadata),
    )
