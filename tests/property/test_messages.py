"""Messages come out as they went in, however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from trio_grpc._transport.messages import (
    PREFIX_LENGTH,
    BadPrefix,
    CompressedBytes,
    MessageAssembler,
    MessageTooLarge,
    frame_message,
    prefix,
)

bounded = settings(max_examples=150, derandomize=True, deadline=None)

payloads = st.binary(max_size=40) | st.integers(0, 3000).map(lambda size: bytes(at % 256 for at in range(size)))
messages = st.lists(st.tuples(payloads, st.booleans()), max_size=12)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(at % (len(data) + 1) for at in cuts), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges)]


@bounded
@given(messages, st.lists(st.integers(0, 2**16), max_size=40), st.binary(max_size=9), st.binary(max_size=9))
def test_any_split_gives_the_same_messages(
    sent: list[tuple[bytes, bool]], cuts: list[int], before: bytes, after: bytes
) -> None:
    assembler = MessageAssembler(10_000)
    data = b"".join(frame_message(payload, compressed) for payload, compressed in sent)
    total = 0
    for piece in cut(data, cuts):
        count = len(assembler.messages)
        complete = assembler.feed(before + piece + after, len(before), len(before) + len(piece))
        assert complete == len(assembler.messages) - count
        total += len(piece)
        held = sum(PREFIX_LENGTH + len(message) for message in assembler.messages)
        assert assembler.mid_message == (total > held)
        if assembler._buffer is not None:
            assert assembler._buffer.__alloc__() <= max(65_536, 2 * total)
    received = [(bytes(message), isinstance(message, CompressedBytes)) for message in assembler.messages]
    assert received == sent
    assert not assembler.mid_message
    assert assembler.discard() == len(data)


@bounded
@given(messages, st.lists(st.integers(0, 2**16), max_size=20), st.integers(0, 2**32 - 1), st.integers(2, 255))
def test_a_fault_is_found_at_the_last_byte_of_its_prefix(
    sent: list[tuple[bytes, bool]], cuts: list[int], length: int, flag: int
) -> None:
    good = b"".join(frame_message(payload, compressed) for payload, compressed in sent)
    for bad, error in (
        (prefix(max(length, 10_001)), MessageTooLarge),
        (bytes([flag]) + prefix(length)[1:], BadPrefix),
    ):
        assembler = MessageAssembler(10_000)
        for piece in cut(good + bad[:-1], cuts):
            assembler.feed(piece, 0, len(piece))
        try:
            assembler.feed(bad[-1:] + b"rest", 0, 5)
        except error:
            pass
        else:
            raise AssertionError
        assert [bytes(message) for message in assembler.messages] == [payload for payload, _ in sent]
