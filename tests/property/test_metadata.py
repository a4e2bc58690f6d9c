"""Metadata means the same on both ends, whatever it is."""

from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from trio_grpc._metadata import Metadata, MetadataError, MetadataValue, encode_metadata

PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
KEY_CHARACTERS = "ABCXYZabcxyz0189_-."

# A prefix keeps the keys away from the reserved names.
keys = st.text(KEY_CHARACTERS, max_size=12).map(lambda rest: "x" + rest)
text_keys = keys.filter(lambda key: not key.lower().endswith("-bin"))
binary_keys = keys.map(lambda key: key + "-bin") | keys.map(lambda key: key + "-BIN")
texts = st.text(PRINTABLE, max_size=40).map(lambda text: text.strip(" "))
pairs: st.SearchStrategy[tuple[str, MetadataValue]] = st.one_of(
    st.tuples(text_keys, texts), st.tuples(binary_keys, st.binary(max_size=40))
)
field_names = st.text("abcxyz0189_-.!#$", min_size=1, max_size=12).map(str.encode)


@given(st.lists(pairs))
def test_the_peer_sees_what_was_set(source: list[tuple[str, MetadataValue]]) -> None:
    metadata = Metadata(source)
    expected = [(key.lower(), value) for key, value in source]
    assert metadata == expected
    assert Metadata.from_wire(metadata.to_wire()) == expected


@given(st.lists(pairs))
def test_the_quick_way_and_the_long_way_agree(source: list[tuple[str, MetadataValue]]) -> None:
    fields = Metadata(source).to_wire()
    assert encode_metadata(source) == fields
    assert encode_metadata(Metadata(source)) == fields
    assert encode_metadata(iter(source)) == fields


@given(st.lists(pairs))
def test_fields_are_legal_in_http2(source: list[tuple[str, MetadataValue]]) -> None:
    for name, value in encode_metadata(source):
        assert name == name.lower()
        assert value == value.strip(b" \t")
        assert all(0x20 <= byte <= 0x7E for byte in value)


@given(st.text(max_size=10), st.text(max_size=10) | st.binary(max_size=10))
def test_what_is_taken_is_legal_and_what_is_not_is_told(key: str, value: MetadataValue) -> None:
    try:
        ((name, sent),) = encode_metadata([(key, value)])
    except (ValueError, TypeError):
        return
    assert set(name) <= set(b"abcdefghijklmnopqrstuvwxyz0123456789_-.")
    assert name
    assert all(0x20 <= byte <= 0x7E for byte in sent)
    assert Metadata.from_wire([(name, sent)]) == [(key.lower(), value)]


@given(st.lists(st.binary(max_size=9), min_size=1), st.data())
def test_a_proxy_may_join_binary_values_and_pad_them(values: list[bytes], data: st.DataObject) -> None:
    parts = []
    for value in values:
        encoded = base64.b64encode(value)
        parts.append(encoded if data.draw(st.booleans()) else encoded.rstrip(b"="))
    joined = data.draw(st.sampled_from([b",", b", "])).join(parts)
    assert Metadata.from_wire([(b"x-bin", joined)]).get_all("x-bin") == tuple(values)


@given(st.lists(st.tuples(field_names, st.binary(max_size=30))))
def test_any_field_is_understood_or_refused_as_bad_base64(fields: list[tuple[bytes, bytes]]) -> None:
    try:
        metadata = Metadata.from_wire(fields)
    except MetadataError:
        assert any(name.endswith(b"-bin") for name, _ in fields)
        return
    texts = [(name, value) for name, value in fields if not name.endswith(b"-bin")]
    assert [field for field in metadata.to_wire() if not field[0].endswith(b"-bin")] == texts
    assert Metadata.from_wire(metadata.to_wire()) == metadata


@given(st.binary(max_size=12).filter(lambda value: b"," not in value))
def test_base64_that_is_taken_means_what_the_strict_decoder_says(value: bytes) -> None:
    try:
        decoded = Metadata.from_wire([(b"x-bin", value)])["x-bin"]
    except MetadataError:
        return
    assert decoded == base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
