"""Metadata: keys, values, and header fields."""

from __future__ import annotations

import copy
import pickle
from types import MappingProxyType
from typing import Any

import pytest

from trio_grpc._metadata import Metadata, MetadataError, MetadataLike, MetadataValue, encode_metadata


class TestMultiMap:
    def test_it_is_made_from_pairs_mappings_and_itself(self) -> None:
        pairs: list[tuple[str, MetadataValue]] = [("a", "1"), ("b-bin", b"2")]
        source: MetadataLike
        for source in (pairs, tuple(pairs), iter(pairs), dict(pairs), MappingProxyType(dict(pairs))):
            assert list(Metadata(source)) == pairs
        assert Metadata(Metadata(pairs)) == pairs
        assert list(Metadata()) == []

    def test_keys_are_case_insensitive(self) -> None:
        metadata = Metadata({"X-Id": "1"})
        assert list(metadata) == [("x-id", "1")]
        assert metadata["x-ID"] == "1"
        assert metadata.get("X-iD") == "1"
        assert metadata.get_all("X-ID") == ("1",)
        assert "X-ID" in metadata

    def test_the_first_value_of_a_key_wins_and_order_is_kept(self) -> None:
        metadata = Metadata([("a", "1"), ("b", "2"), ("a", "3")])
        assert metadata["a"] == "1"
        assert metadata.get_all("a") == ("1", "3")
        assert metadata.keys() == ("a", "b")
        assert len(metadata) == 3
        assert list(metadata) == [("a", "1"), ("b", "2"), ("a", "3")]

    def test_a_missing_key(self) -> None:
        metadata = Metadata({"a": "1"})
        with pytest.raises(KeyError, match="Nope"):
            metadata["Nope"]
        with pytest.raises(KeyError, match="Nope"):
            metadata.delete_all("Nope")
        assert metadata.get("nope") is None
        assert metadata.get("nope", 7) == 7
        assert metadata.get_all("nope") == ()
        assert "nope" not in metadata
        assert 3 not in metadata

    def test_add_appends(self) -> None:
        metadata = Metadata({"a": "1"})
        metadata.add("A", "2")
        assert metadata == [("a", "1"), ("a", "2")]

    def test_set_all_replaces(self) -> None:
        metadata = Metadata([("a", "1"), ("b", "2"), ("a", "3")])
        metadata.set_all("A", iter(["4", "5"]))
        assert metadata == [("b", "2"), ("a", "4"), ("a", "5")]
        metadata.set_all("a", ())
        assert metadata == [("b", "2")]

    def test_set_all_changes_nothing_when_it_fails(self) -> None:
        metadata = Metadata({"a": "1"})
        with pytest.raises(ValueError, match="'a'"):
            metadata.set_all("a", ["2", "\n"])
        with pytest.raises(TypeError, match="iterable of values"):
            metadata.set_all("a", "2")
        with pytest.raises(ValueError, match="'te'"):
            metadata.set_all("te", [])
        assert metadata == [("a", "1")]

    def test_delete_all(self) -> None:
        metadata = Metadata([("a", "1"), ("b", "2"), ("a", "3")])
        metadata.delete_all("A")
        assert metadata == [("b", "2")]

    def test_equality(self) -> None:
        metadata = Metadata({"a": "1"})
        assert metadata == Metadata({"A": "1"})
        assert metadata == [("a", "1")]
        assert metadata == (("a", "1"),)
        assert metadata != [("a", "2")]
        assert metadata != {"a": "1"}
        assert metadata != 1

    def test_it_cannot_be_hashed(self) -> None:
        with pytest.raises(TypeError, match="unhashable"):
            hash(Metadata())

    def test_repr_can_be_read_back(self) -> None:
        metadata = Metadata([("a", "1"), ("b-bin", b"\x00")])
        assert repr(metadata) == "Metadata([('a', '1'), ('b-bin', b'\\x00')])"

    @pytest.mark.parametrize(
        "duplicate",
        [Metadata.copy, Metadata, copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))],
        ids=["copy()", "constructor", "copy.copy", "copy.deepcopy", "pickle"],
    )
    def test_copies_are_equal(self, duplicate: Any) -> None:
        metadata = Metadata([("a", "1"), ("b-bin", b"2")])
        assert duplicate(metadata) == metadata

    @pytest.mark.parametrize("duplicate", [Metadata.copy, Metadata, copy.deepcopy])
    def test_copies_are_independent(self, duplicate: Any) -> None:
        metadata = Metadata({"a": "1"})
        other = duplicate(metadata)
        other.add("b", "2")
        assert metadata == [("a", "1")]

    def test_dict_takes_the_first_values(self) -> None:
        # keys() and indexing are what dict() asks for.
        assert dict(Metadata([("a", "1"), ("a", "2")])) == {"a": "1"}


def constructor(metadata: Any) -> Any:
    return Metadata(metadata)


def adder(metadata: Any) -> Any:
    ((key, value),) = metadata.items()
    Metadata().add(key, value)


@pytest.mark.parametrize("entry", [constructor, adder, encode_metadata])
class TestWhatApplicationsMaySet:
    @pytest.mark.parametrize("key", ["", " ", "a b", "a/b", "a\n", "ä", "a:b", "a,b", "\N{KELVIN SIGN}ey"])
    def test_malformed_keys_are_refused_by_name(self, entry: Any, key: str) -> None:
        with pytest.raises(ValueError) as caught:
            entry({key: "v"})
        assert repr(key) in str(caught.value)

    @pytest.mark.parametrize(
        "key",
        [
            ":path",
            ":anything",
            "grpc-timeout",
            "Grpc-Status",
            "grpc-message",
            "grpc-encoding",
            "grpc-accept-encoding",
            "grpc-status-details-bin",
            "grpc-what-may-come",
            "content-type",
            "content-length",
            "te",
            "user-agent",
            "host",
            "connection",
            "keep-alive",
            "proxy-connection",
            "transfer-encoding",
            "upgrade",
        ],
    )
    def test_reserved_keys_are_refused_by_name(self, entry: Any, key: str) -> None:
        with pytest.raises(ValueError, match="reserved") as caught:
            entry({key: b"v" if key.endswith("-bin") else "v"})
        assert repr(key) in str(caught.value)

    @pytest.mark.parametrize(
        "key",
        [
            "grpc-previous-rpc-attempts",
            "grpc-retry-pushback-ms",
            "grpc-trace-bin",
            "grpc-tags-bin",
            "grpcfoo",
            "authorization",
            "cookie",
            "x",
            "0",
            "-",
            "a.b_c-d",
            "UPPER",
        ],
    )
    def test_other_keys_are_taken(self, entry: Any, key: str) -> None:
        entry({key: b"v" if key.endswith("-bin") else "v"})

    @pytest.mark.parametrize("key", [b"a", 1, None])
    def test_keys_that_are_no_text(self, entry: Any, key: Any) -> None:
        with pytest.raises(TypeError, match="keys must be str"):
            entry({key: "v"})

    @pytest.mark.parametrize(
        ("key", "value"), [("a", b"v"), ("a", 1), ("a", None), ("a", ["v"]), ("a-bin", "v"), ("A-Bin", bytearray(1))]
    )
    def test_values_of_the_wrong_type(self, entry: Any, key: str, value: Any) -> None:
        with pytest.raises(TypeError, match=key.lower()):
            entry({key: value})

    @pytest.mark.parametrize("value", ["\n", "a\x00", "\x7f", "\x1f", "ä", "\u2028", " a", "a ", " ", "\t"])
    def test_text_that_cannot_be_sent(self, entry: Any, value: str) -> None:
        with pytest.raises(ValueError, match="'key'"):
            entry({"key": value})

    def test_errors_do_not_show_values(self, entry: Any) -> None:
        for value in ("s3cret\n", " s3cret", b"s3cret"):
            with pytest.raises((ValueError, TypeError)) as caught:
                entry({"authorization": value})
            assert "s3cret" not in str(caught.value)

    @pytest.mark.parametrize("value", ["", "a", "a b", "".join(map(chr, range(0x21, 0x7F)))])
    def test_text_that_can_be_sent(self, entry: Any, value: str) -> None:
        entry({"key": value})


@pytest.mark.parametrize("entry", [constructor, encode_metadata])
@pytest.mark.parametrize(
    "source", ["ab", b"ab", ("ab", "cd"), [("a",)], [("a", "b", "c")], [None], 7, ["ab"], {"ab", "cd"}]
)
def test_what_consists_of_no_pairs_is_refused(entry: Any, source: Any) -> None:
    with pytest.raises(TypeError, match=r"\(key, value\) pairs"):
        entry(source)


class TestEncoding:
    def test_nothing_gives_no_fields(self) -> None:
        nothing: MetadataLike | None
        for nothing in (None, (), [], {}, Metadata(), iter(())):
            assert encode_metadata(nothing) == []

    def test_each_answer_is_a_list_of_its_own(self) -> None:
        assert encode_metadata(None) is not encode_metadata(None)

    def test_all_forms_give_the_same_fields(self) -> None:
        source: MetadataLike
        pairs: list[tuple[str, MetadataValue]] = [("X-Id", "1"), ("b-bin", b"\xff\x00"), ("c", "")]
        fields = [(b"x-id", b"1"), (b"b-bin", b"/wA"), (b"c", b"")]
        for source in (pairs, tuple(pairs), iter(pairs), dict(pairs), MappingProxyType(dict(pairs)), Metadata(pairs)):
            assert encode_metadata(source) == fields
        assert Metadata(pairs).to_wire() == fields

    @pytest.mark.parametrize("length", range(6))
    def test_base64_is_unpadded(self, length: int) -> None:
        value = bytes(range(250, 250 + length))
        ((_, encoded),) = encode_metadata({"a-bin": value})
        assert not encoded.endswith(b"=")
        assert Metadata.from_wire([(b"a-bin", encoded)])["a-bin"] == value

    def test_metadata_of_a_peer_can_be_sent_on_without_what_is_reserved(self) -> None:
        received = Metadata.from_wire(
            [(b"user-agent", b"x"), (b"grpc-foo", b"y"), (b"a", b"caf\xe9"), (b"b-bin", b"YQ==")]
        )
        assert encode_metadata(received) == [(b"a", b"caf\xe9"), (b"b-bin", b"YQ")]
        assert received.to_wire()[0] == (b"user-agent", b"x")


class TestReceiving:
    def test_what_applications_may_not_set_is_shown_to_them(self) -> None:
        assert Metadata.from_wire([(b"user-agent", b"grpc-go/1")])["user-agent"] == "grpc-go/1"

    @pytest.mark.parametrize("value", [b"", b"caf\xe9", b"\xff\xfe", "✓".encode(), b"a\tb"])
    def test_values_that_grpc_does_not_allow_are_tolerated(self, value: bytes) -> None:
        metadata = Metadata.from_wire([(b"a", value)])
        assert isinstance(metadata["a"], str)
        assert metadata.to_wire() == [(b"a", value)]

    def test_names_that_grpc_does_not_allow_are_tolerated(self) -> None:
        assert Metadata.from_wire([(b"a!#~", b"1")])["a!#~"] == "1"

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (b"", (b"",)),
            (b"YQ==", (b"a",)),
            (b"YQ", (b"a",)),
            (b"YWI=", (b"ab",)),
            (b"YWI", (b"ab",)),
            (b"YWJj", (b"abc",)),
            (b"+/+/", (b"\xfb\xff\xbf",)),
            (b"YQ,Yg==", (b"a", b"b")),
            (b"YQ==,Yg", (b"a", b"b")),
            (b"YQ, Yg", (b"a", b"b")),
            (b"YQ \t,\tYg", (b"a", b"b")),
            (b",YQ", (b"", b"a")),
            (b",", (b"", b"")),
        ],
    )
    def test_binary_values(self, value: bytes, expected: tuple[bytes, ...]) -> None:
        assert Metadata.from_wire([(b"a-bin", value)]).get_all("a-bin") == expected

    @pytest.mark.parametrize(
        "value",
        [
            b"*",
            b"Y",
            b"YQ=",
            b"YQ===",
            b"YWI==",
            b"YWJj=",
            b"YWJj====",
            b"=",
            b"==",
            b"Y=Q=",
            b"YQ==YQ==",
            b"YQ\n",
            b"Y Q=",
            b"-_-_",
            b"YQ,*",
            b"\xff\xff\xff\xff",
            b"YWJjY",
        ],
    )
    def test_bad_base64_is_told_by_key(self, value: bytes) -> None:
        with pytest.raises(MetadataError, match="'x-bin'"):
            Metadata.from_wire([(b"x-bin", value)])

    def test_order_and_repetition_are_kept(self) -> None:
        fields = [(b"a-bin", b"YQ,Yg"), (b"b", b"1"), (b"a-bin", b"Yw"), (b"b", b"2,3")]
        assert Metadata.from_wire(fields) == [
            ("a-bin", b"a"),
            ("a-bin", b"b"),
            ("b", "1"),
            ("a-bin", b"c"),
            ("b", "2,3"),
        ]


def test_bytes_in_a_text_value_are_told_where_they_belong() -> None:
    with pytest.raises(TypeError, match=r"must be str, not bytes.*a key that ends in '-bin'"):
        Metadata({"key": b"value"})
