"""Metadata: the key-value pairs that travel beside an RPC.

This room knows the rules of gRPC metadata (allowed keys and values, binary ``-bin`` values, reserved names)
and how a pair looks as an HTTP/2 header field. Status, timeouts and every other header that gRPC itself owns
live elsewhere; nothing here knows a stream, a call or protobuf.
"""

from __future__ import annotations

import binascii
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar, overload

__all__ = ["Metadata", "MetadataError", "MetadataLike", "MetadataValue", "encode_metadata", "readable_metadata"]

DefaultT = TypeVar("DefaultT")

MetadataValue: TypeAlias = str | bytes
# A Sequence for the checkers' sake (any iterable will do): beside an Iterable, mypy misjudges a literal mapping.
MetadataLike: TypeAlias = "Metadata | Mapping[str, MetadataValue] | Sequence[tuple[str, MetadataValue]]"

_KEY = re.compile(r"[0-9a-z_.\-]+")
_BASE64_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

# What gRPC or HTTP/2 owns: the library writes these itself, or HTTP/2 forbids them (RFC 9113, section 8.2.2).
_RESERVED = frozenset(
    {
        "connection",
        "content-length",
        "content-type",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)

# Names below "grpc-" that applications are meant to see and set: the two of gRFC A6 (retries), which the
# protocol deliberately leaves to metadata, and the two that trace propagators carry.
_OPEN_GRPC_NAMES = frozenset(
    {"grpc-previous-rpc-attempts", "grpc-retry-pushback-ms", "grpc-tags-bin", "grpc-trace-bin"}
)


class MetadataError(ValueError):
    """Metadata received from the peer breaks the rules of gRPC: a ``-bin`` value that is no base64, say."""


class Metadata:
    """An ordered multi-map of metadata, in the manner of ``grpc.aio.Metadata``.

    Keys are case-insensitive and kept in lower case. A key that ends in ``-bin`` has `bytes` values, any
    other key has `str` values made of printable ASCII. One key may have several values; the order of all
    pairs is kept.

    Iterating yields ``(key, value)`` pairs and `len` counts pairs, while indexing and ``in`` take a key.

    Args:
        source: A mapping, an iterable of pairs, or another `Metadata` to start from.

    Raises:
        ValueError: A key is malformed or reserved, or a value cannot be sent.
        TypeError: A value has the wrong type for its key.
    """

    __slots__ = ("_pairs",)

    _pairs: list[tuple[str, MetadataValue]]

    def __init__(self, source: MetadataLike = (), /) -> None:
        if isinstance(source, Metadata):
            self._pairs = source._pairs.copy()
        else:
            self._pairs = [_check_pair(key, value) for key, value in _iterate_pairs(source)]

    @classmethod
    def from_wire(cls, fields: Iterable[tuple[bytes, bytes]], /) -> Metadata:
        """Build metadata from the header fields of a peer.

        What HTTP allows but gRPC does not is tolerated, as the protocol asks: such values are decoded as
        Latin-1, which never fails and is undone exactly by `to_wire`.

        Args:
            fields: Names and values of the header fields, without the ones that gRPC itself owns.

        Returns:
            The metadata. Binary values that the peer (or a proxy) joined with commas are separate values
            again.

        Raises:
            MetadataError: A ``-bin`` field is not valid base64.
        """
        pairs: list[tuple[str, MetadataValue]] = []
        for name, value in fields:
            key, binary = _received_key(name)
            if not binary:
                pairs.append((key, value.decode("latin-1")))
            elif b"," in value:
                # The split must come first: each part may carry its own padding.
                pairs.extend([(key, _decode_binary(key, part.strip(b" \t"))) for part in value.split(b",")])
            else:
                pairs.append((key, _decode_binary(key, value)))
        metadata = cls.__new__(cls)
        metadata._pairs = pairs
        return metadata

    def to_wire(self) -> list[tuple[bytes, bytes]]:
        """Return all pairs as header fields, binary values as base64 without padding."""
        return [
            (
                _sent_name(key)[0],
                value.encode("latin-1") if isinstance(value, str) else _encode_binary(value),
            )
            for key, value in self._pairs
        ]

    def __getitem__(self, key: str, /) -> MetadataValue:
        """Return the first value of ``key``.

        Raises:
            KeyError: There is none.
        """
        wanted = key.lower()
        for name, value in self._pairs:
            if name == wanted:
                return value
        raise KeyError(key)

    @overload
    def get(self, key: str, /) -> MetadataValue | None: ...
    @overload
    def get(self, key: str, default: DefaultT, /) -> MetadataValue | DefaultT: ...
    def get(self, key: str, default: object = None, /) -> object:
        """Return the first value of ``key``, or ``default`` if there is none.

        Args:
            key: lower or upper case, which makes no difference.
            default: what to return where there is no such key.
        """
        wanted = key.lower()
        for name, value in self._pairs:
            if name == wanted:
                return value
        return default

    def get_all(self, key: str, /) -> tuple[MetadataValue, ...]:
        """Return every value of ``key``, in order; an empty tuple if there is none."""
        wanted = key.lower()
        return tuple([value for name, value in self._pairs if name == wanted])

    def add(self, key: str, value: MetadataValue, /) -> None:
        """Append one pair.

        Args:
            key: lower or upper case, which makes no difference; one that ends in ``-bin`` takes bytes.
            value: ASCII text, or bytes.

        Raises:
            ValueError: The key is malformed or reserved, or the value cannot be sent.
            TypeError: The value has the wrong type for the key.
        """
        self._pairs.append(_check_pair(key, value))

    def set_all(self, key: str, values: Iterable[MetadataValue], /) -> None:
        """Replace every value of ``key`` by ``values``; the new pairs go to the end.

        Nothing changes if one of the values is refused.

        Args:
            key: as in `add`.
            values: the new ones, in order; none deletes the key.

        Raises:
            ValueError: The key is malformed or reserved, or a value cannot be sent.
            TypeError: A value has the wrong type for the key, or ``values`` is itself one value.
        """
        if isinstance(values, (str, bytes)):
            raise TypeError(f"metadata {key!r}: set_all takes an iterable of values, not one {type(values).__name__}")
        name = _checked_key(key)[0]
        new = [_check_pair(key, value) for value in values]
        self._pairs = [pair for pair in self._pairs if pair[0] != name] + new

    def delete_all(self, key: str, /) -> None:
        """Remove every value of ``key``.

        Raises:
            KeyError: There is none.
        """
        wanted = key.lower()
        rest = [pair for pair in self._pairs if pair[0] != wanted]
        if len(rest) == len(self._pairs):
            raise KeyError(key)
        self._pairs = rest

    def keys(self) -> tuple[str, ...]:
        """Return each key once, in the order of first appearance."""
        return tuple(dict(self._pairs))

    def copy(self) -> Metadata:
        """Return an independent copy."""
        return Metadata(self)

    def __contains__(self, key: object, /) -> bool:
        if not isinstance(key, str):
            return False
        wanted = key.lower()
        return any(name == wanted for name, _ in self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[tuple[str, MetadataValue]]:
        return iter(self._pairs)

    def __eq__(self, other: object, /) -> bool:
        if isinstance(other, Metadata):
            return self._pairs == other._pairs
        if isinstance(other, (list, tuple)):
            return self._pairs == list(other)
        return NotImplemented

    # Mutable and compared by value.
    __hash__: ClassVar[None]  # type: ignore[assignment]
    __hash__ = None  # noqa: PIE794 # declared above, because its base has it as a method

    def __repr__(self) -> str:
        return f"Metadata({self._pairs!r})"


def readable_metadata(fields: Iterable[tuple[bytes, bytes]], /) -> Metadata:
    """Return what can be read of the header fields of a peer.

    Bad base64 in one field must not hide a status from the application, nor what explains it.
    """
    fields = tuple(fields)
    try:
        return Metadata.from_wire(fields)
    except MetadataError:
        return Metadata.from_wire([field for field in fields if _is_readable(field)])


def _is_readable(field: tuple[bytes, bytes]) -> bool:
    try:
        Metadata.from_wire((field,))
    except MetadataError:
        return False
    return True


def encode_metadata(metadata: MetadataLike | None, /) -> list[tuple[bytes, bytes]]:
    """Check what an application gave as metadata and turn it into header fields, in one pass.

    A `Metadata` object that came from a peer may be sent on as it is: what is reserved in it (``user-agent``,
    say) is left out instead of being refused, as the application did not put it there.

    Args:
        metadata: A mapping, an iterable of pairs, a `Metadata`, or None.

    Returns:
        A new list of header fields.

    Raises:
        ValueError: A key is malformed or reserved, or a value cannot be sent.
        TypeError: A value has the wrong type for its key.
    """
    if not metadata:
        return []
    return _encode(metadata)


def _encode(metadata: MetadataLike) -> list[tuple[bytes, bytes]]:
    fields: list[tuple[bytes, bytes]] = []
    if isinstance(metadata, Metadata):
        for key, value in metadata._pairs:
            name, reserved = _sent_name(key)
            if not reserved:
                fields.append((name, value.encode("latin-1") if isinstance(value, str) else _encode_binary(value)))
        return fields
    for key, value in _iterate_pairs(metadata):
        key, name, binary = _checked_key(key)
        if isinstance(value, str) and not binary:
            # For ASCII "printable" is exactly 0x20 to 0x7E; these two run at C speed.
            if not (value.isascii() and value.isprintable() and value.strip(" ") == value):
                raise _bad_text(key, value)
            fields.append((name, value.encode("ascii")))
        elif isinstance(value, bytes) and binary:
            fields.append((name, _encode_binary(value)))
        else:
            raise _bad_type(key, value)
    return fields


def _iterate_pairs(source: object) -> Iterable[tuple[Any, Any]]:
    """Return the pairs of whatever an application may give as metadata."""
    # Lists and dicts first: asking an abstract base class is several times slower.
    if not isinstance(source, (list, tuple)):
        if isinstance(source, (dict, Mapping)):
            return source.items()
        if isinstance(source, (str, bytes)) or not isinstance(source, Iterable):
            raise TypeError(
                f"metadata must be a mapping or an iterable of (key, value) pairs, not {type(source).__name__}"
            )
        source = list(source)
    for pair in source:
        # One pair in place of a list of pairs is the usual slip, and a string of two characters would unpack.
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"metadata must consist of (key, value) pairs, one of its items is {type(pair).__name__}")
    return source


def _check_pair(key: str, value: MetadataValue) -> tuple[str, MetadataValue]:
    """Return the pair with its key in lower case, or raise if an application may not set it."""
    key, _, binary = _checked_key(key)
    if isinstance(value, str) and not binary:
        if not (value.isascii() and value.isprintable() and value.strip(" ") == value):
            raise _bad_text(key, value)
    elif not (isinstance(value, bytes) and binary):
        raise _bad_type(key, value)
    return key, value


# The same few keys come with every call, so each is examined once. The caches are small because a peer can
# choose keys.
@functools.lru_cache(maxsize=256)
def _checked_key(key: str) -> tuple[str, bytes, bool]:
    """Return the key in lower case, as bytes, and whether its values are binary; raise if not allowed."""
    if not isinstance(key, str):
        raise TypeError(f"metadata keys must be str, not {type(key).__name__}: {key!r}")
    lower = key.lower()
    if lower.startswith(":") or _is_reserved(lower):
        raise ValueError(f"metadata key {key!r} is reserved for gRPC and HTTP/2")
    # Tested after lower(), which maps some letters outside ASCII (the Kelvin sign) into it.
    if not (key.isascii() and _KEY.fullmatch(lower)):
        raise ValueError(f"metadata key {key!r} is malformed: only letters, digits, '_', '-' and '.' are allowed")
    return lower, lower.encode("ascii"), lower.endswith("-bin")


@functools.lru_cache(maxsize=256)
def _received_key(name: bytes) -> tuple[str, bool]:
    """Return a received field name as a key, and whether its values are binary."""
    key = name.lower().decode("latin-1")
    return key, key.endswith("-bin")


@functools.lru_cache(maxsize=256)
def _sent_name(key: str) -> tuple[bytes, bool]:
    """Return the field name of a key that is already in a `Metadata`, and whether the key is reserved."""
    return key.encode("latin-1"), _is_reserved(key)


def _is_reserved(key: str) -> bool:
    return key in _RESERVED or (key.startswith("grpc-") and key not in _OPEN_GRPC_NAMES)


def _encode_binary(value: bytes) -> bytes:
    return binascii.b2a_base64(value, newline=False).rstrip(b"=")


def _decode_binary(key: str, value: bytes) -> bytes:
    """Decode base64, padded or not, without the leniency of `binascii`, which skips what it does not know."""
    body = value.rstrip(b"=")
    missing = -len(body) % 4
    padding = len(value) - len(body)
    # One character more than a multiple of 4 is never base64; padding is either right or absent.
    if missing == 3 or padding not in (0, missing) or body.translate(None, _BASE64_ALPHABET):
        raise MetadataError(f"metadata {key!r}: value is not valid base64")
    return binascii.a2b_base64(body + b"=="[:missing])


# Neither error shows the value: it may be a token.
def _bad_text(key: str, value: str) -> ValueError:
    if value.isascii() and value.isprintable():
        return ValueError(f"metadata {key!r}: value must not begin or end with a space")
    return ValueError(f"metadata {key!r}: value must be printable ASCII; a key that ends in '-bin' takes any bytes")


def _bad_type(key: str, value: object) -> TypeError:
    expected = "bytes, as its key ends in '-bin'" if key.endswith("-bin") else "str"
    hint = " (bytes need a key that ends in '-bin')" if expected == "str" and isinstance(value, bytes) else ""
    return TypeError(f"metadata {key!r}: value must be {expected}, not {type(value).__name__}{hint}")
