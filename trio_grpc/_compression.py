"""Compression of single messages: the algorithms and the registry of them.

A compressor knows bytes and a size limit, nothing else. Which one a call uses, and what follows when a peer
breaks the rules, is decided by those who own the call.
"""

from __future__ import annotations

import enum
import re
import sys
import zlib
from typing import Protocol

__all__ = [
    "Compression",
    "CompressionError",
    "Compressor",
    "DecompressedTooLarge",
    "accept_encoding",
    "compression_name",
    "get_compressor",
    "register_compressor",
]

_NAME = re.compile(r"[0-9a-z_.\-]+")


class CompressionError(Exception):
    """Bytes are not what the compressor's format allows."""


class DecompressedTooLarge(Exception):  # it says what happened
    """A message would be longer than its limit once decompressed.

    Not a `CompressionError`: the data may be perfectly valid, and the status differs.

    Attributes:
        max_size: The limit in bytes.
    """

    def __init__(self, max_size: int) -> None:
        super().__init__(max_size)
        self.max_size = max_size

    def __str__(self) -> str:
        return f"decompressed message is larger than {self.max_size} bytes"


class Compression(enum.Enum):
    """The compression algorithms that are built in; the value of each is its name on the wire."""

    NONE = "identity"
    """No compression."""
    GZIP = "gzip"
    """The gzip format (RFC 1952)."""
    DEFLATE = "deflate"
    """Deflate in the zlib format (RFC 1950), as HTTP means it."""


class Compressor(Protocol):
    """A compression algorithm for messages."""

    @property
    def name(self) -> str:
        """The name on the wire, such as ``gzip``."""

    def compress(self, data: bytes, /) -> bytes:
        """Compress one message."""

    def decompress(self, data: bytes, max_size: int, /) -> bytes:
        """Decompress one message.

        Args:
            data: The compressed message.
            max_size: The most bytes the result may have. An implementation never produces more than one byte
                beyond.

        Returns:
            The message.

        Raises:
            DecompressedTooLarge: The result would be larger than ``max_size``.
            CompressionError: ``data`` is malformed.
        """


class _Identity:
    """No compression, under its wire name."""

    name = Compression.NONE.value

    def compress(self, data: bytes, /) -> bytes:
        return data

    def decompress(self, data: bytes, max_size: int, /) -> bytes:
        if len(data) > max_size:
            raise DecompressedTooLarge(max_size)
        return data


class _Zlib:
    """One of zlib's formats, chosen by ``wbits``."""

    def __init__(self, name: str, wbits: int) -> None:
        self.name = name
        self._wbits = wbits

    def compress(self, data: bytes, /) -> bytes:
        compressor = zlib.compressobj(wbits=self._wbits)
        return compressor.compress(data) + compressor.flush()

    def decompress(self, data: bytes, max_size: int, /) -> bytes:
        decompressor = zlib.decompressobj(self._wbits)
        try:
            # One byte more than allowed tells "exactly the limit" from "too large": a bomb is never inflated. (zlib
            # takes no number above sys.maxsize, and reads 0 as "no limit".)
            result = decompressor.decompress(data, min(max_size, sys.maxsize - 1) + 1)
        except zlib.error as error:
            raise CompressionError(f"malformed {self.name} data: {error}") from error
        if len(result) > max_size:
            raise DecompressedTooLarge(max_size)
        if not decompressor.eof:
            raise CompressionError(f"malformed {self.name} data: the data is truncated")
        if decompressor.unused_data:
            # A gzip file may go on with another member; a gRPC message never does, and counting empty members
            # would be work without bound.
            raise CompressionError(f"malformed {self.name} data: more data follows the end")
        return result


_compressors: dict[str, Compressor] = {
    compressor.name: compressor
    for compressor in (
        _Identity(),
        _Zlib(Compression.DEFLATE.value, zlib.MAX_WBITS),
        _Zlib(Compression.GZIP.value, zlib.MAX_WBITS | 16),
    )
}


def get_compressor(name: str, /) -> Compressor | None:
    """Return the compressor with this wire name, or None if there is none."""
    return _compressors.get(name)


def register_compressor(compressor: Compressor, /) -> None:
    """Make a compressor known to every channel and server opened from now on.

    A compressor with the name of an earlier one takes its place.

    Args:
        compressor: The compressor.

    Raises:
        ValueError: Its name is malformed, or is ``identity``.
    """
    name = compressor.name
    if not _NAME.fullmatch(name):
        raise ValueError(f"compressor name must be made of lower-case letters, digits, '_', '-' and '.', got {name!r}")
    if name == Compression.NONE.value:
        raise ValueError("compressor name 'identity' means no compression and cannot be replaced")
    _compressors[name] = compressor


def accept_encoding() -> str:
    """Return the names of all compressors as ``grpc-accept-encoding`` lists them."""
    return ",".join(_compressors)


def compression_name(compression: Compression | str, /) -> str:
    """Return the wire name for the value of a ``compression=`` option.

    Args:
        compression: A built-in algorithm, or the name of a registered one.

    Returns:
        The name.

    Raises:
        ValueError: There is no such compressor.
        TypeError: It is neither.
    """
    if isinstance(compression, Compression):
        return str(compression.value)
    if not isinstance(compression, str):
        raise TypeError(f"compression must be a Compression or str, not {type(compression).__name__}")
    if compression not in _compressors:
        raise ValueError(f"compression {compression!r} is not registered; known: {', '.join(_compressors)}")
    return compression
