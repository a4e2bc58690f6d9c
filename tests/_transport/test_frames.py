"""The frames that this library writes by hand, with hyperframe as the oracle."""

from __future__ import annotations

import hyperframe.frame
import pytest

from trio_grpc._transport import frames
from trio_grpc._transport.frames import ConnectionFault, ErrorCode, error_name


def parse(data: bytes) -> list[hyperframe.frame.Frame]:
    parsed = []
    while data:
        frame, length = hyperframe.frame.Frame.parse_frame_header(memoryview(data)[:9], strict=True)
        frame.parse_body(memoryview(data)[9 : 9 + length])
        assert len(data) >= 9 + length
        data = data[9 + length :]
        parsed.append(frame)
    return parsed


def test_the_preface_is_the_one_of_rfc_9113() -> None:
    assert bytes.fromhex("505249202a20485454502f322e300d0a0d0a534d0d0a0d0a") == frames.PREFACE


@pytest.mark.parametrize("length", [0, 1, 255, 256, 65_535, 65_536, 2**24 - 1])
def test_the_length_has_24_bits(length: int) -> None:
    data = frames.frame(frames.DATA, frames.END_STREAM, 2**31 - 1, bytes(length))
    assert len(data) == frames.FRAME_HEADER_LENGTH + length
    high, low, frame_type, flags, stream_id = frames.FRAME_HEADER.unpack_from(data)
    assert (high << 8 | low, frame_type, flags, stream_id) == (length, frames.DATA, frames.END_STREAM, 2**31 - 1)
    [parsed] = parse(data)
    assert (parsed.stream_id, parsed.body_len, parsed.flags) == (2**31 - 1, length, {"END_STREAM"})


@pytest.mark.parametrize("flags", [0, frames.END_STREAM])
@pytest.mark.parametrize("length", [0, 1, 99, 100, 101, 199, 200, 201, 1000])
def test_a_header_block_is_cut_to_the_frame_size(length: int, flags: int) -> None:
    block = bytes(number % 256 for number in range(length))
    parsed = parse(frames.header_block_frames(block, flags, 3, 100))
    assert b"".join(frame.data for frame in parsed) == block
    assert all(frame.body_len <= 100 for frame in parsed)
    assert len(parsed) == max(1, -(-length // 100))
    first, *others = parsed
    assert isinstance(first, hyperframe.frame.HeadersFrame)
    assert all(isinstance(frame, hyperframe.frame.ContinuationFrame) for frame in others)
    assert {frame.stream_id for frame in parsed} == {3}
    # END_STREAM stands on the first, END_HEADERS on the last and no other.
    assert ("END_STREAM" in first.flags) == bool(flags)
    assert ["END_HEADERS" in frame.flags for frame in parsed] == [False] * len(others) + [True]


def test_rst_stream() -> None:
    [parsed] = parse(frames.rst_stream(5, ErrorCode.CANCEL))
    assert isinstance(parsed, hyperframe.frame.RstStreamFrame)
    assert (parsed.stream_id, parsed.error_code) == (5, 8)


@pytest.mark.parametrize("increment", [1, 2**31 - 1])
def test_window_update(increment: int) -> None:
    [parsed] = parse(frames.window_update(0, increment))
    assert isinstance(parsed, hyperframe.frame.WindowUpdateFrame)
    assert (parsed.stream_id, parsed.window_increment) == (0, increment)


@pytest.mark.parametrize("debug_data", [b"", b"graceful_stop"])
def test_goaway(debug_data: bytes) -> None:
    [parsed] = parse(frames.goaway(2**31 - 1, ErrorCode.ENHANCE_YOUR_CALM, debug_data))
    assert isinstance(parsed, hyperframe.frame.GoAwayFrame)
    assert (parsed.last_stream_id, parsed.error_code, parsed.additional_data) == (2**31 - 1, 11, debug_data)


@pytest.mark.parametrize("number", [0, 1, 0x01020304, 2**32 - 1])
def test_read_uint32(number: int) -> None:
    assert frames.read_uint32(b"??" + number.to_bytes(4, "big") + b"!", 2) == number


def test_error_names() -> None:
    assert error_name(0) == "NO_ERROR"
    assert error_name(13) == "HTTP_1_1_REQUIRED"
    assert error_name(14) == "0xe"
    assert [code.name for code in ErrorCode] == [name.name for name in hyperframe_error_codes()]


def hyperframe_error_codes() -> list[ErrorCode]:
    import h2.errors

    return list(h2.errors.ErrorCodes)  # type: ignore[arg-type]


def test_a_connection_fault_tells_its_code_and_reason() -> None:
    fault = ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
    assert (fault.error_code, fault.reason, str(fault)) == (1, "DATA on stream 0", "DATA on stream 0")
