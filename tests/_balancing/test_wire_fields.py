"""Protobuf messages, read field by field: as protobuf itself writes them."""

from __future__ import annotations

import pytest
from google.protobuf import struct_pb2, timestamp_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from trio_grpc._balancing.wire_fields import FIXED32, FIXED64, LENGTH_DELIMITED, VARINT, text_field, wire_fields


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 2**31 - 1))
def test_numbers(seconds: int, nanos: int) -> None:
    # Negative ones are in two's complement.
    fields = list(wire_fields(timestamp_pb2.Timestamp(seconds=seconds, nanos=nanos).SerializeToString()))
    assert fields == ([(1, VARINT, seconds % 2**64)] if seconds else []) + [(2, VARINT, nanos)]


@given(st.text())
def test_texts_both_ways(text: str) -> None:
    data = wrappers_pb2.StringValue(value=text).SerializeToString()
    assert text_field(1, text) == data
    assert list(wire_fields(bytearray(data))) == ([(1, LENGTH_DELIMITED, text.encode())] if text else [])


def test_fixed_sizes_and_messages_in_messages() -> None:
    value = struct_pb2.Value(number_value=1.5)
    ((number, wire_type, data),) = wire_fields(value.SerializeToString())
    assert (number, wire_type, data) == (2, FIXED64, b"\0\0\0\0\0\0\xf8\x3f")
    assert list(wire_fields(wrappers_pb2.FloatValue(value=1).SerializeToString())) == [(1, FIXED32, b"\0\0\x80\x3f")]
    outer = struct_pb2.Value(list_value=struct_pb2.ListValue(values=[value])).SerializeToString()
    ((_, _, inner),) = wire_fields(outer)
    assert isinstance(inner, bytes)
    assert list(wire_fields(inner)) == [(1, LENGTH_DELIMITED, value.SerializeToString())]


def test_text_fields_with_large_numbers() -> None:
    assert list(wire_fields(text_field(2**29 - 1, "x" * 300))) == [(2**29 - 1, LENGTH_DELIMITED, b"x" * 300)]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x80", "a number does not end"),
        (b"\x08", "a number does not end"),
        (b"\x08" + b"\x80" * 10 + b"\x01", "a number does not end"),
        (b"\x0a\x05abcd", "field 1 ends after the message"),
        (b"\x0d\0\0\0", "field 1 ends after the message"),
        (b"\x0b\x0c", "field 1 has the wire type 3"),
        (b"\x0f", "field 1 has the wire type 7"),
        (b"\x00\x01", "the number 0"),
    ],
)
def test_what_is_no_message(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        list(wire_fields(data))
