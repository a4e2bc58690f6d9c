"""The zstd format (RFC 8878), with whichever library for it is installed.

Three are: Python's own ``compression.zstd`` (since 3.14), its backport, and ``zstandard``. None is imported before a
message needs it. None tells all that must be known either: ``zstandard`` reads a frame that was cut as a short one,
and to cut several frames apart with Python's own copies the rest for each of them. So the frames are walked here, from
header to header, and a library is given one whole frame at a time.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, Protocol

from trio_grpc._compressors import CompressionError, DecompressedTooLarge

__all__ = ["Zstd", "find_library"]

#: In order of preference, each with the module whose presence tells that it works: Python can be built without its own.
LIBRARIES = {"compression.zstd": "_zstd", "backports.zstd": "backports.zstd", "zstandard": "zstandard"}

_MAGIC = 0xFD2FB528
#: The lowest four bits are free (RFC 8878, 3.1.2).
_SKIPPABLE_MAGIC = 0x184D2A50
_RLE, _RESERVED = 1, 3
_DICTIONARY_ID_SIZES = (0, 1, 2, 4)
_CONTENT_SIZE_SIZES = (0, 2, 4, 8)

#: Windows that decoders of HTTP must have (8 MiB, RFC 9659), and the largest that zstd's own accept unasked.
_MIN_WINDOW_LOG, _MAX_WINDOW_LOG = 23, 27
#: Bytes that are made room for in the beginning; twice as much with each further step.
_FIRST_PIECE = 64 * 1024


def find_library() -> str | None:
    """Return the name of the library that would be used, None if there is none. Imports nothing."""
    for library, probe in LIBRARIES.items():
        try:
            if find_spec(probe) is not None:
                return library
        except ImportError:
            # It looks into the parent package, and there is none.
            continue
    return None


class Zstd:
    """The zstd format; needs a library."""

    name = "zstd"

    def compress(self, data: bytes, /) -> bytes:
        return _library().compress(data)

    def decompress(self, data: bytes, max_size: int, /) -> bytes:
        library = _library()
        # A frame that is one segment has a window of its whole content: what is within the limit must be readable.
        window_log = min(max((max_size - 1).bit_length() if max_size else 0, _MIN_WINDOW_LOG), _MAX_WINDOW_LOG)
        room = max_size + 1
        pieces: list[bytes] = []
        for frame, content_size in _frames(memoryview(data).cast("B")):
            if content_size is not None and content_size >= room:
                raise DecompressedTooLarge(max_size)
            try:
                # One byte more than allowed tells "exactly the limit" from "too large".
                piece = library.decompress(frame, min(room, sys.maxsize), window_log)
            except library.error as error:
                raise _malformed(str(error)) from error
            room -= len(piece)
            if not room:
                raise DecompressedTooLarge(max_size)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _malformed(problem: str) -> CompressionError:
    return CompressionError(f"malformed zstd data: {problem}")


def _frames(data: memoryview) -> Iterator[tuple[memoryview, int | None]]:
    """Cut data into frames, each with the content size that it announces; skippable ones are left out.

    Raises:
        CompressionError: the data is empty, ends inside a frame, or goes on with something else.
    """
    end = len(data)
    start = 0
    while start < end or not end:
        if end - start < 8:
            raise _malformed("the data is truncated")
        magic = _little_endian(data, start, 4)
        if magic & ~15 == _SKIPPABLE_MAGIC:
            start += 8 + _little_endian(data, start + 4, 4)
            if start > end:
                raise _malformed("the data is truncated")
            continue
        if magic != _MAGIC:
            raise _malformed("more data follows the end" if start else "it does not begin with a frame")
        stop, content_size = _frame_end(data, start)
        yield data[start:stop], content_size
        start = stop


def _frame_end(data: memoryview, start: int) -> tuple[int, int | None]:
    """Return where the frame that begins here ends, and the size of its content if it tells."""
    descriptor = data[start + 4]
    single_segment = descriptor >> 5 & 1
    at = start + 5 + (not single_segment) + _DICTIONARY_ID_SIZES[descriptor & 3]
    size_length = _CONTENT_SIZE_SIZES[descriptor >> 6] or single_segment
    content_size = _little_endian(data, at, size_length) + 256 * (size_length == 2) if size_length else None
    at += size_length
    last = False
    while not last:
        header = _little_endian(data, at, 3)
        last = bool(header & 1)
        kind = header >> 1 & 3
        if kind == _RESERVED:
            raise _malformed("a block is of an unknown type")
        at += 3 + (1 if kind == _RLE else header >> 3)
    at += 4 * (descriptor >> 2 & 1)
    if at > len(data):
        raise _malformed("the data is truncated")
    return at, content_size


def _little_endian(data: memoryview, at: int, length: int) -> int:
    if at + length > len(data):
        raise _malformed("the data is truncated")
    return int.from_bytes(data[at : at + length], "little")


class _Library(Protocol):
    """What is asked of a library."""

    error: type[Exception]

    def compress(self, data: bytes, /) -> bytes:
        """Return one frame."""

    def decompress(self, frame: memoryview, max_length: int, window_log: int, /) -> bytes:
        """Return the content of one frame, or its beginning."""


class _Pep784:
    """Python's own library, and its backport."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.error: type[Exception] = module.ZstdError

    def compress(self, data: bytes, /) -> bytes:
        frame: bytes = self._module.compress(data)
        return frame

    def decompress(self, frame: memoryview, max_length: int, window_log: int, /) -> bytes:
        options = {self._module.DecompressionParameter.window_log_max: window_log}
        content: bytes = self._module.ZstdDecompressor(options=options).decompress(frame, max_length)
        return content


class _Zstandard:
    """The ``zstandard`` package."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.error: type[Exception] = module.ZstdError
        # Costly to make, and not for two threads at a time.
        self._local = threading.local()

    def compress(self, data: bytes, /) -> bytes:
        compressor = getattr(self._local, "compressor", None)
        if compressor is None:
            compressor = self._local.compressor = self._module.ZstdCompressor()
        frame: bytes = compressor.compress(data)
        return frame

    def decompress(self, frame: memoryview, max_length: int, window_log: int, /) -> bytes:
        decompressors = self._local.__dict__.setdefault("decompressors", {})
        decompressor = decompressors.get(window_log)
        if decompressor is None:
            decompressor = decompressors[window_log] = self._module.ZstdDecompressor(max_window_size=1 << window_log)
        reader = decompressor.stream_reader(frame)
        pieces: list[bytes] = []
        size = _FIRST_PIECE
        while max_length:
            # It makes room for all that it is asked for, whatever comes.
            piece: bytes = reader.read(min(size, max_length))
            if not piece:
                break
            pieces.append(piece)
            max_length -= len(piece)
            size *= 2
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@functools.cache
def _library() -> _Library:
    name = find_library()
    if name is None:
        raise ModuleNotFoundError("zstd needs a library that is not installed: pip install 'trio-grpc[zstd]'")
    module = importlib.import_module(name)
    return _Zstandard(module) if name == "zstandard" else _Pep784(module)
