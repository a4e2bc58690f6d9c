"""Compression of messages."""

from __future__ import annotations

import gzip
import sys
import tracemalloc
import zlib

import pytest

from trio_grpc import _compression
from trio_grpc._compression import (
    Compression,
    CompressionError,
    Compressor,
    DecompressedTooLarge,
    accept_encoding,
    compression_name,
    get_compressor,
    register_compressor,
)
from trio_grpc._zstd import find_library

MIB = 1024 * 1024


def compressor_of(name: str) -> Compressor:
    compressor = get_compressor(name)
    assert compressor is not None
    assert compressor.name == name
    return compressor


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test register compressors and forget them."""
    monkeypatch.setattr(_compression, "_compressors", _compression._compressors.copy())


with_zstd = pytest.mark.skipif(find_library() is None, reason="needs a library for zstd")


@pytest.mark.parametrize("name", ["identity", "gzip", "deflate", pytest.param("zstd", marks=with_zstd)])
class TestEveryBuiltIn:
    @pytest.mark.parametrize("data", [b"", b"x", b"x" * 100_000, bytes(range(256)) * 100])
    def test_data_comes_back(self, name: str, data: bytes) -> None:
        compressor = compressor_of(name)
        compressed = compressor.compress(data)
        assert compressor.decompress(compressed, len(data)) == data
        assert compressor.decompress(compressed, MIB) == data
        assert compressor.decompress(compressed, sys.maxsize) == data
        assert compressor.decompress(compressed, 2**70) == data

    def test_exactly_the_limit_passes_and_one_byte_more_does_not(self, name: str) -> None:
        compressor = compressor_of(name)
        compressed = compressor.compress(b"x" * 1000)
        assert len(compressor.decompress(compressed, 1000)) == 1000
        with pytest.raises(DecompressedTooLarge, match="larger than 999 bytes") as caught:
            compressor.decompress(compressed, 999)
        assert caught.value.max_size == 999

    def test_a_limit_of_nothing(self, name: str) -> None:
        compressor = compressor_of(name)
        assert compressor.decompress(compressor.compress(b""), 0) == b""
        with pytest.raises(DecompressedTooLarge):
            compressor.decompress(compressor.compress(b"x"), 0)

    def test_any_buffer_is_taken(self, name: str) -> None:
        compressor = compressor_of(name)
        for buffer in (bytearray(b"abc"), memoryview(b"abc")):
            compressed = compressor.compress(buffer)  # type: ignore[arg-type]
            assert compressor.decompress(memoryview(compressed), 10) == b"abc"  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gzip", "deflate"])
class TestZlibFormats:
    def test_it_compresses(self, name: str) -> None:
        assert len(compressor_of(name).compress(b"x" * 100_000)) < 1000

    def test_every_truncation_is_an_error(self, name: str) -> None:
        compressor = compressor_of(name)
        compressed = compressor.compress(bytes(range(200)))
        for length in range(len(compressed)):
            with pytest.raises(CompressionError, match=f"malformed {name}"):
                compressor.decompress(compressed[:length], MIB)

    @pytest.mark.parametrize("data", [b"no", b"\x00" * 50, b"\x78\x9c\xff\xff", b"\x1f\x8b\x08\x00\xff"])
    def test_garbage_is_an_error(self, name: str, data: bytes) -> None:
        with pytest.raises(CompressionError, match=f"malformed {name}"):
            compressor_of(name).decompress(data, MIB)

    def test_a_wrong_checksum_is_an_error(self, name: str) -> None:
        compressor = compressor_of(name)
        compressed = bytearray(compressor.compress(b"hello"))
        # gzip ends with a checksum and a length, zlib with a checksum.
        compressed[-8 if name == "gzip" else -4] ^= 1
        with pytest.raises(CompressionError):
            compressor.decompress(bytes(compressed), MIB)

    def test_data_after_the_end_is_an_error(self, name: str) -> None:
        compressor = compressor_of(name)
        compressed = compressor.compress(b"hello")
        for more in (b"x", compressed):
            with pytest.raises(CompressionError, match="more data follows"):
                compressor.decompress(compressed + more, MIB)

    def test_a_preset_dictionary_is_an_error(self, name: str) -> None:
        packer = zlib.compressobj(zdict=b"hello")
        data = packer.compress(b"hello") + packer.flush()
        with pytest.raises(CompressionError):
            compressor_of(name).decompress(data, MIB)

    def test_a_bomb_is_not_inflated(self, name: str) -> None:
        compressor = compressor_of(name)
        bomb = compressor.compress(bytes(64 * MIB))
        tracemalloc.start()
        try:
            with pytest.raises(DecompressedTooLarge):
                compressor.decompress(bomb, MIB)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 4 * MIB


def test_the_formats_are_those_of_http() -> None:
    assert gzip.decompress(compressor_of("gzip").compress(b"hello")) == b"hello"
    assert zlib.decompress(compressor_of("deflate").compress(b"hello")) == b"hello"
    assert compressor_of("gzip").decompress(gzip.compress(b"hello"), 5) == b"hello"
    assert compressor_of("deflate").decompress(zlib.compress(b"hello"), 5) == b"hello"


def test_the_two_errors_do_not_catch_each_other() -> None:
    assert not issubclass(DecompressedTooLarge, CompressionError)
    assert not issubclass(CompressionError, DecompressedTooLarge)


class Reverse:
    name = "x-reverse"

    def compress(self, data: bytes, /) -> bytes:
        return data[::-1]

    def decompress(self, data: bytes, max_size: int, /) -> bytes:
        return data[::-1]


@pytest.mark.usefixtures("registry")
class TestWhatIsBuiltIn:
    def test_zstd_is_offered_where_a_library_for_it_is_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_compression, "_has_zstd", lambda: True)
        assert accept_encoding() == "identity,deflate,gzip,zstd"
        assert compressor_of("zstd") is compressor_of("zstd")
        assert compression_name(Compression.ZSTD) == compression_name("zstd") == "zstd"

    def test_zstd_is_not_offered_where_there_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_compression, "_has_zstd", lambda: False)
        _compression._compressors.pop("zstd", None)
        assert accept_encoding() == "identity,deflate,gzip"
        assert get_compressor("zstd") is None
        for spelling in (Compression.ZSTD, "zstd"):
            with pytest.raises(ValueError, match=r"'zstd' needs a package: pip install 'trio-grpc\[zstd\]'"):
                compression_name(spelling)
        # One's own is as good.
        register_compressor(Named("zstd"))
        assert accept_encoding() == "identity,deflate,gzip,zstd"
        assert compression_name(Compression.ZSTD) == "zstd"

    def test_a_registered_zstd_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_compression, "_has_zstd", lambda: True)
        _compression._compressors.pop("zstd", None)
        compressor = Named("zstd")
        register_compressor(compressor)
        assert accept_encoding() == "identity,deflate,gzip,zstd"
        assert get_compressor("zstd") is compressor

    def test_others_are_unknown(self) -> None:
        assert get_compressor("nope") is None


class Named(Reverse):
    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.usefixtures("registry")
class TestRegistering:
    @pytest.fixture(autouse=True)
    def no_zstd(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_compression, "_has_zstd", lambda: False)
        _compression._compressors.pop("zstd", None)

    def test_a_registered_compressor_is_found_and_offered(self) -> None:
        compressor = Reverse()
        register_compressor(compressor)
        assert get_compressor("x-reverse") is compressor
        assert accept_encoding() == "identity,deflate,gzip,x-reverse"
        assert compression_name("x-reverse") == "x-reverse"

    def test_a_later_one_takes_the_place_of_an_earlier_one(self) -> None:
        compressor = Reverse()
        compressor.name = "gzip"
        register_compressor(compressor)
        assert get_compressor("gzip") is compressor
        assert accept_encoding() == "identity,deflate,gzip"

    @pytest.mark.parametrize("name", ["", "a b", "a,b", "GZIP", "ä", "identity"])
    def test_bad_names_are_refused(self, name: str) -> None:
        compressor = Reverse()
        compressor.name = name
        with pytest.raises(ValueError, match="compressor name"):
            register_compressor(compressor)


class TestOption:
    def test_both_forms_are_taken(self) -> None:
        assert compression_name(Compression.NONE) == "identity"
        assert compression_name(Compression.GZIP) == "gzip"
        assert compression_name(Compression.DEFLATE) == "deflate"
        assert compression_name("gzip") == "gzip"

    def test_an_unknown_name_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(ValueError, match="'br' is not registered; known: identity, deflate, gzip"):
            compression_name("br")

    def test_another_type_is_refused(self) -> None:
        with pytest.raises(TypeError, match="not bool"):
            compression_name(True)  # type: ignore[arg-type]
