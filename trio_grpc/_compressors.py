"""What a compressor of messages is, and those that Python's own library brings.

A compressor knows bytes and a size limit, nothing else. Which one a call uses, and what follows when a peer
breaks the rules, is decided by those who own the call.
"""

from __future__ import annotations

import sys
import zlib
from typing import Protocol

__all__ = ["CompressionError", "Compressor", "DecompressedTooLarge", "Identity", "Zlib"]


class CompressionError(Exception):
    """Bytes are not what the compressor's format allows. Compressors raise it; calls end with INTERNAL."""


class DecompressedTooLarge(Exception):  # it says what happened
    """A message would be longer than its limit once decompressed.

    Compressors raise it; calls end with RESOURCE_EXHAUSTED. Not a `CompressionError`: the data may be perfectly valid,
    and the status differs.

    Attributes:
        max_size: The limit in bytes.
    """

    def __init__(self, max_size: int) -> None:
        super().__init__(max_size)
        self.max_size = max_size

    def __str__(self) -> str:
        return f"decompressed message is larger than {self.max_size} bytes"


class Compressor(Protocol):
    """A compression algorithm for messages, to be given to `register_compressor`."""

    @property
    def name(self) -> str:
        """The name on the wire, such as ``gzip``."""

    def compress(self, data: bytes, /) -> bytes:
        """Return one message compressed.

        Args:
            data: The message; it is not changed.
        """

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


class Identity:
    """No compression, under its wire name."""

    name = "identity"

    def compress(self, data: bytes, /) -> bytes:
        return data

    def decompress(self, data: bytes, max_size: int, /) -> bytes:
        if len(data) > max_size:
            raise DecompressedTooLarge(max_size)
        return data


class Zlib:
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
