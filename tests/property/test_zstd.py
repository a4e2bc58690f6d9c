"""zstd: whatever the bytes, the result is within its limit or one of the two errors comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_grpc._compressors import CompressionError, DecompressedTooLarge
from trio_grpc._zstd import Zstd, find_library

pytestmark = pytest.mark.skipif(find_library() is None, reason="needs a library for zstd")

LIMIT = 1000
MAGICS = (bytes.fromhex("28b52ffd"), bytes.fromhex("5a2a4d18"), b"")


def read(data: bytes) -> bytes | None:
    try:
        result = Zstd().decompress(data, LIMIT)
    except (CompressionError, DecompressedTooLarge):
        return None
    assert len(result) <= LIMIT
    return result


@given(st.lists(st.tuples(st.sampled_from(MAGICS), st.binary(max_size=40)), max_size=4))
def test_arbitrary_bytes(parts: list[tuple[bytes, bytes]]) -> None:
    read(b"".join(magic + body for magic, body in parts))


@given(st.binary(max_size=2 * LIMIT), st.integers(min_value=0), st.integers(0, 255))
def test_data_that_was_damaged(content: bytes, place: int, octet: int) -> None:
    data = bytearray(Zstd().compress(content))
    data[place % len(data)] = octet
    read(bytes(data))


@given(st.lists(st.binary(max_size=LIMIT), min_size=1, max_size=5))
def test_contents_of_several_frames(contents: list[bytes]) -> None:
    whole = b"".join(contents)
    result = read(b"".join(Zstd().compress(content) for content in contents))
    assert result == (whole if len(whole) <= LIMIT else None)
