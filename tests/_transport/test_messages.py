"""Messages out of DATA payloads."""

from __future__ import annotations

import struct

import pytest

from trio_grpc._transport.messages import (
    PREFIX_LENGTH,
    BadPrefix,
    CompressedBytes,
    MeasuredAssembler,
    MessageAssembler,
    MessageError,
    MessageTooLarge,
    NoMoreMessages,
    TooManyMessages,
    WrongLength,
    frame_message,
    prefix,
)


def feed(assembler: MessageAssembler, *payloads: bytes) -> list[int]:
    return [assembler.feed(payload, 0, len(payload)) for payload in payloads]


def test_the_prefix_is_a_flag_and_a_length() -> None:
    assert prefix(0) == b"\0\0\0\0\0"
    assert prefix(258) == b"\0\0\0\x01\x02"
    assert prefix(2**32 - 1, True) == b"\x01\xff\xff\xff\xff"
    assert frame_message(b"abc") == prefix(3) + b"abc"
    assert frame_message(b"abc", True) == prefix(3, True) + b"abc"


def test_a_message_in_one_payload() -> None:
    assembler = MessageAssembler(100)
    assert feed(assembler, frame_message(b"hello")) == [1]
    assert list(assembler.messages) == [b"hello"]
    assert not assembler.mid_message


def test_only_the_bytes_between_start_and_end_count() -> None:
    assembler = MessageAssembler(100)
    data = b"frame header" + frame_message(b"hello") + b"next frame"
    assert assembler.feed(data, 12, 12 + 5 + 5)
    assert list(assembler.messages) == [b"hello"]
    assert not assembler.feed(data, 12, 12)


def test_several_messages_and_a_beginning_in_one_payload() -> None:
    assembler = MessageAssembler(100)
    assert feed(assembler, frame_message(b"a") + frame_message(b"") + frame_message(b"bcd")[:7]) == [2]
    assert list(assembler.messages) == [b"a", b""]
    assert (assembler.missing, assembler.mid_message) == (1, True)
    assert feed(assembler, b"d" + frame_message(b"e")) == [2]
    assert list(assembler.messages) == [b"a", b"", b"bcd", b"e"]


def test_byte_by_byte() -> None:
    assembler = MessageAssembler(100)
    data = frame_message(b"ab") + frame_message(b"") + frame_message(b"c")
    complete = feed(assembler, *(data[at : at + 1] for at in range(len(data))))
    assert complete == [0] * 6 + [1] + [0] * 4 + [1] + [0] * 5 + [1]
    assert list(assembler.messages) == [b"ab", b"", b"c"]


def test_a_cut_prefix_is_in_the_middle_of_a_message() -> None:
    assembler = MessageAssembler(100)
    feed(assembler, b"\0\0")
    assert (assembler.missing, assembler.mid_message) == (0, True)


@pytest.mark.parametrize("cut", [0, 3, 5, 7])
def test_the_compressed_flag_stays_with_its_message(cut: int) -> None:
    assembler = MessageAssembler(100)
    data = frame_message(b"zip", True)
    feed(assembler, data[:cut], data[cut:] + frame_message(b"plain"))
    zipped, plain = assembler.messages
    assert isinstance(zipped, CompressedBytes)
    assert zipped == b"zip"
    assert not isinstance(plain, CompressedBytes)
    assert plain == b"plain"


@pytest.mark.parametrize("flag", [2, 60, 255])
def test_any_other_flag_is_not_grpc(flag: int) -> None:
    assembler = MessageAssembler(100)
    with pytest.raises(BadPrefix, match=f"flag {flag},"):
        feed(assembler, bytes([flag]) + b"html>")


def test_a_bad_flag_is_found_also_in_a_cut_prefix() -> None:
    assembler = MessageAssembler(100)
    with pytest.raises(BadPrefix):
        feed(assembler, b"\x02", b"\0\0\0\0")


def test_the_limit_is_judged_at_the_prefix() -> None:
    assembler = MessageAssembler(100)
    assert feed(assembler, frame_message(b"x" * 100)) == [1]
    with pytest.raises(
        MessageTooLarge, match=r"101 bytes is over the limit of 100 bytes .*max_receive_message_length"
    ) as e:
        feed(assembler, prefix(101))
    assert (e.value.length, e.value.limit) == (101, 100)
    assert issubclass(MessageTooLarge, MessageError)
    assert issubclass(BadPrefix, MessageError)
    assert issubclass(TooManyMessages, MessageError)


def test_messages_before_a_bad_prefix_are_kept() -> None:
    assembler = MessageAssembler(100)
    with pytest.raises(MessageError):
        feed(assembler, frame_message(b"good") + b"\x07\0\0\0\0")
    assert list(assembler.messages) == [b"good"]


def test_a_prefix_alone_allocates_nothing() -> None:
    assembler = MessageAssembler(2**32 - 1)
    feed(assembler, prefix(2**32 - 1))
    assert assembler.missing == 2**32 - 1
    buffer = assembler._buffer
    assert buffer is not None
    assert buffer.__alloc__() < 100


def test_memory_is_bounded_by_what_arrived() -> None:
    assembler = MessageAssembler(2**32 - 1)
    feed(assembler, prefix(2**32 - 1))
    received = 0
    for size in (1, 1000, 16_384, 65_536, 1, 262_144):
        for _ in range(10):
            feed(assembler, bytes(size))
            received += size
            buffer = assembler._buffer
            assert buffer is not None
            assert buffer.__alloc__() <= max(65_536, 2 * received)


def test_a_message_owns_its_bytes() -> None:
    """A payload is a position in what was read: a small message must not keep 256 KiB alive."""
    assembler = MessageAssembler(100)
    read = bytearray(frame_message(b"small") + bytes(1000))
    assembler.feed(bytes(read), 0, 10)
    message = assembler.messages.popleft()
    assert isinstance(message, (bytes, bytearray))
    assert len(message) == 5


def test_discarding_forgets_everything_and_counts_it() -> None:
    assembler = MessageAssembler(100)
    feed(assembler, frame_message(b"abc") + frame_message(b"defghi")[:8])
    assert assembler.discard() == 5 + 3 + 5 + 3
    assert not assembler.messages
    assert not assembler.mid_message
    feed(assembler, b"\0\0")
    assert assembler.discard() == 2
    assert feed(assembler, frame_message(b"new")) == [1]
    assert list(assembler.messages) == [b"new"]


def test_the_prefix_length_is_what_struct_says() -> None:
    assert struct.calcsize(">BL") == PREFIX_LENGTH == 5


def test_an_announced_length_must_be_reached_and_not_exceeded() -> None:
    data = frame_message(b"abc")
    assembler = MeasuredAssembler(MessageAssembler(100), 2 * len(data))
    assert feed(assembler, data) == [1]
    # Between two messages, and still in the middle.
    assert assembler.mid_message
    assert assembler.short
    assert feed(assembler, data) == [1]
    assert not assembler.mid_message
    with pytest.raises(WrongLength):
        feed(assembler, b"\0")
    assert list(assembler.messages) == [b"abc", b"abc"]


def test_after_the_only_message_no_byte_is_wanted() -> None:
    plain = MessageAssembler(100)
    assert plain.feed(frame_message(b"only"), 0, 9)
    plain.messages.popleft()
    assembler = NoMoreMessages(plain)
    assert not assembler.mid_message
    assert not assembler.feed(b"", 0, 0)
    assert not assembler.feed(b"xyz", 2, 2)
    with pytest.raises(TooManyMessages):
        assembler.feed(b"xyz", 2, 3)
    assert not assembler.messages


@pytest.mark.parametrize("begun", [b"\0", b"\0\0\0\0\1", b"\0\0\0\0\2x"], ids=["flag", "prefix", "message"])
def test_another_message_may_have_begun_already(begun: bytes) -> None:
    plain = MessageAssembler(100)
    plain.feed(frame_message(b"only") + begun, 0, 9 + len(begun))
    with pytest.raises(TooManyMessages):
        NoMoreMessages(plain)


def test_an_announced_length_still_counts_after_the_only_message() -> None:
    measured = MeasuredAssembler(MessageAssembler(100), 10)
    measured.feed(frame_message(b"only"), 0, 9)
    assembler = NoMoreMessages(measured)
    assert assembler.mid_message
    assert assembler.short
    assert assembler.place == "1 bytes short of its content-length"
