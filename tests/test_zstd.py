"""The zstd format, with each library for it that is installed."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest

from trio_grpc import _zstd
from trio_grpc._compressors import CompressionError, DecompressedTooLarge
from trio_grpc._zstd import LIBRARIES, Zstd, find_library

MIB = 1024 * 1024
MAGIC = bytes.fromhex("28b52ffd")


def installed() -> list[str]:
    found = []
    for name, probe in LIBRARIES.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_zstd, "LIBRARIES", {name: probe})
            if find_library() is not None:
                found.append(name)
    return found


INSTALLED = installed()


@pytest.fixture(params=INSTALLED)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One library, and none of the others."""
    name: str = request.param
    monkeypatch.setattr(_zstd, "LIBRARIES", {name: LIBRARIES[name]})
    _zstd._library.cache_clear()
    yield name
    _zstd._library.cache_clear()


def frame(*blocks: tuple[int, bytes | int, bytes], content_size: int | None = None, magic: bytes = MAGIC) -> bytes:
    """A frame of blocks ``(type, size, bytes)``; without content size it has a window of 8 MiB."""
    if content_size is None:
        header = bytes((0, 13 << 3))
    else:
        header = bytes((0b1110_0000,)) + content_size.to_bytes(8, "little")
    data = magic + header
    for number, (kind, size, body) in enumerate(blocks):
        assert isinstance(size, int)
        last = number == len(blocks) - 1
        data += (size << 3 | kind << 1 | last).to_bytes(3, "little") + body
    return data


def raw(data: bytes) -> tuple[int, int, bytes]:
    return 0, len(data), data


def rle(octet: bytes, count: int) -> tuple[int, int, bytes]:
    return 1, count, octet


SKIPPABLE = bytes.fromhex("5a2a4d18") + (3).to_bytes(4, "little") + b"any"


@pytest.mark.parametrize("data", [b"", b"x", b"x" * 300, b"x" * 70_000, bytes(range(256)) * 1000, bytes(5 * MIB)])
def test_data_comes_back(library: str, data: bytes) -> None:
    compressed = Zstd().compress(data)
    assert Zstd().decompress(compressed, len(data)) == data
    assert Zstd().decompress(compressed, 2**70) == data
    if data:
        with pytest.raises(DecompressedTooLarge) as caught:
            Zstd().decompress(compressed, len(data) - 1)
        assert caught.value.max_size == len(data) - 1


def test_any_buffer_is_taken(library: str) -> None:
    for kind in (bytearray, memoryview):
        compressed = Zstd().compress(kind(b"abc"))  # type: ignore[arg-type]
        assert Zstd().decompress(kind(compressed), 3) == b"abc"  # type: ignore[arg-type]


@pytest.mark.parametrize("content_size", [None, 6])
def test_frames_of_every_kind_of_header(library: str, content_size: int | None) -> None:
    data = frame(raw(b"abc"), rle(b"d", 2), raw(b"e"), content_size=content_size)
    assert Zstd().decompress(data, 6) == b"abcdde"
    with pytest.raises(DecompressedTooLarge):
        Zstd().decompress(data, 5)


def test_several_frames_are_one_message(library: str) -> None:
    """RFC 8878, 3: their contents are concatenated, and skippable ones are left out."""
    parts = [Zstd().compress(b"one "), SKIPPABLE, frame(raw(b"two ")), SKIPPABLE, frame(raw(b"")), frame(raw(b"three"))]
    assert Zstd().decompress(b"".join(parts), 13) == b"one two three"
    with pytest.raises(DecompressedTooLarge):
        Zstd().decompress(b"".join(parts), 12)
    # The limit is for all together.
    with pytest.raises(DecompressedTooLarge):
        Zstd().decompress(Zstd().compress(bytes(600)) * 2, 1000)


def test_very_many_frames_cost_no_more_than_their_bytes(library: str) -> None:
    """Each rest copied would be some 40 GB here, and the watchdog would end it."""
    assert Zstd().decompress(frame(raw(b"")) * 20_000, 0) == b""
    assert Zstd().decompress(SKIPPABLE * 100_000, 0) == b""


@pytest.mark.parametrize(
    "data",
    [
        frame(raw(b"hello"), rle(b"x", 10)),
        frame(raw(b"hello"), rle(b"x", 10), content_size=15),
        frame(raw(b"hello")) + SKIPPABLE,
        frame(raw(b"hello")) + frame(raw(b"more")),
    ],
    ids=["window", "content size", "skippable", "two"],
)
def test_every_truncation_is_an_error(library: str, data: bytes) -> None:
    whole = {len(frame(raw(b"hello")))} if data.startswith(frame(raw(b"hello"))) else set()
    for length in set(range(len(data))) - whole:
        with pytest.raises(CompressionError, match="malformed zstd data: the data is truncated"):
            Zstd().decompress(data[:length], MIB)


def test_every_truncation_of_compressed_blocks_is_an_error(library: str) -> None:
    data = Zstd().compress(bytes(range(256)) * 3 + b"tail" * 100)
    for length in range(len(data)):
        with pytest.raises(CompressionError, match="malformed zstd data"):
            Zstd().decompress(data[:length], MIB)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"garbage, and more of it", "does not begin with a frame"),
        (frame(raw(b"hello")) + b"trailing garbage", "more data follows the end"),
        (frame(raw(b"hello")) + b"x", "truncated"),
        (SKIPPABLE + b"x" * 8, "more data follows the end"),
        (frame((3, 1, b"x")), "a block is of an unknown type"),
        (frame((2, 5, b"\xff" * 5)), "malformed zstd data"),
        (frame(raw(b"hello"), content_size=9), "malformed zstd data"),
        (frame(raw(b"hello"), content_size=2), "malformed zstd data"),
    ],
)
def test_malformed_data(library: str, data: bytes, problem: str) -> None:
    with pytest.raises(CompressionError, match=problem):
        Zstd().decompress(data, MIB)


def test_a_wrong_checksum(library: str) -> None:
    body = frame(raw(b"hello"))
    data = body[:4] + bytes((body[4] | 4,)) + body[5:] + b"abcd"
    with pytest.raises(CompressionError, match="malformed zstd data"):
        Zstd().decompress(data, MIB)


def test_a_frame_that_needs_a_dictionary(library: str) -> None:
    body = frame((2, 5, b"\xff" * 5))
    data = body[:4] + bytes((body[4] | 1,)) + body[5:6] + b"\x07" + body[6:]
    with pytest.raises(CompressionError, match="malformed zstd data"):
        Zstd().decompress(data, MIB)


def test_windows_are_limited(library: str) -> None:
    """8 MiB as RFC 9659 has it, or what the limit needs."""
    window = 8 * MIB * 2
    data = MAGIC + bytes((0, 14 << 3)) + b"\x01\0\0"  # 2 ** (10 + 14) = 16 MiB
    with pytest.raises(CompressionError, match="malformed zstd data"):
        Zstd().decompress(data, MIB)
    assert Zstd().decompress(data, window) == b""


BOMBS = {
    "announced": lambda: frame(*[rle(b"x", 128 * 1024)] * 8000, content_size=8000 * 128 * 1024),
    "not announced": lambda: frame(*[rle(b"x", 128 * 1024)] * 8000),
    "announced wrongly": lambda: frame(*[rle(b"x", 128 * 1024)] * 8000, content_size=10),
    "frames": lambda: frame(rle(b"x", 128 * 1024)) * 8000,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_not_inflated(library: str, bomb: str) -> None:
    data = BOMBS[bomb]()
    assert len(data) < MIB
    Zstd().decompress(Zstd().compress(b"x"), MIB)
    expected: Any = CompressionError if bomb == "announced wrongly" else DecompressedTooLarge
    tracemalloc.start()
    try:
        with pytest.raises((expected, DecompressedTooLarge)):
            Zstd().decompress(data, MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


def test_threads_have_compressors_of_their_own(library: str) -> None:
    failures: list[BaseException] = []

    def work(octet: int) -> None:
        data = bytes((octet,)) * 20_000 + bytes(range(256)) * 100
        try:
            for _ in range(30):
                assert Zstd().decompress(Zstd().compress(data), len(data)) == data
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=work, args=(octet,)) for octet in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_libraries_read_each_others_frames() -> None:
    made: list[bytes] = []
    for name in INSTALLED:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_zstd, "LIBRARIES", {name: LIBRARIES[name]})
            _zstd._library.cache_clear()
            made.append(Zstd().compress(b"x" * 1000))
            assert all(Zstd().decompress(data, 1000) == b"x" * 1000 for data in made)
    _zstd._library.cache_clear()


def test_without_any_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_zstd, "LIBRARIES", {"zstandard": "no_such_module", "backports.zstd": "no_such_package.zstd"})
    _zstd._library.cache_clear()
    assert find_library() is None
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'trio-grpc\[zstd\]'"):
        Zstd().compress(b"x")
    _zstd._library.cache_clear()


def test_no_library_is_imported_before_a_message_needs_it() -> None:
    script = (
        "import sys, trio_grpc\n"
        "from trio_grpc._compression import accept_encoding, get_compressor\n"
        "zstd = get_compressor('zstd')\n"
        "assert (zstd is not None) == ('zstd' in accept_encoding())\n"
        "assert not {'zstandard', 'backports.zstd', 'compression.zstd'} & set(sys.modules)\n"
        "if zstd is not None:\n"
        "    assert zstd.decompress(zstd.compress(b'x'), 1) == b'x'\n"
        "    assert {'zstandard', 'backports.zstd', 'compression.zstd'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
