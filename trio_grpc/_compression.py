"""Which compressors there are: the names of the built-in ones, and the registry of all."""

from __future__ import annotations

import enum
import functools
import re
import zlib

from trio_grpc._compressors import CompressionError as CompressionError
from trio_grpc._compressors import Compressor as Compressor
from trio_grpc._compressors import DecompressedTooLarge as DecompressedTooLarge
from trio_grpc._compressors import Identity, Zlib
from trio_grpc._zstd import Zstd, find_library

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


class Compression(enum.Enum):
    """The compression algorithms that are built in; the value of each is its name on the wire."""

    NONE = "identity"
    """No compression."""
    GZIP = "gzip"
    """The gzip format (RFC 1952)."""
    DEFLATE = "deflate"
    """Deflate in the zlib format (RFC 1950), as HTTP means it."""
    ZSTD = "zstd"
    """The zstd format (RFC 8878). Needs Python 3.14 or one of the packages ``zstandard`` and ``backports.zstd``, as
    ``pip install 'trio-grpc[zstd]'`` brings one; offered to peers where it is there."""


_compressors: dict[str, Compressor] = {
    compressor.name: compressor
    for compressor in (
        Identity(),
        Zlib(Compression.DEFLATE.value, zlib.MAX_WBITS),
        Zlib(Compression.GZIP.value, zlib.MAX_WBITS | 16),
    )
}


def get_compressor(name: str, /) -> Compressor | None:
    """Return the compressor with this wire name, or None if there is none."""
    compressor = _compressors.get(name)
    return _zstd() if compressor is None and name == Compression.ZSTD.value else compressor


def _zstd() -> Compressor | None:
    """Add zstd to the compressors if a library for it is there: looked for when first asked, not at import."""
    if _has_zstd():
        return _compressors.setdefault(Compression.ZSTD.value, Zstd())
    return None


@functools.cache
def _has_zstd() -> bool:
    return find_library() is not None


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
    _zstd()
    return ",".join(_compressors)


def _kind_of(value: object) -> str:
    # With its module: grpcio has a class that is called as ours.
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


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
        name = str(compression.value)
    elif isinstance(compression, str):
        name = compression
    else:
        raise TypeError(f"compression must be a trio_grpc.Compression or str, not {_kind_of(compression)}")
    if name not in _compressors and get_compressor(name) is None:
        if name == Compression.ZSTD.value:
            raise ValueError("compression 'zstd' needs a package: pip install 'trio-grpc[zstd]'")
        raise ValueError(f"compression {name!r} is not registered; known: {', '.join(_compressors)}")
    return name
