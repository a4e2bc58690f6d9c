"""The header codec, case by case.  Long random conversations with hpack are in tests/property."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import hpack
import pytest
from hpack.struct import NeverIndexedHeaderTuple

from trio_grpc._transport import header_codec
from trio_grpc._transport.header_codec import (
    Field,
    HeaderBlockError,
    HeaderDecoder,
    HeaderEncoder,
    HeaderListTooLarge,
    HeaderTemplate,
)

POST, HTTP = (b":method", b"POST"), (b":scheme", b"http")
REQUEST: tuple[Field, ...] = (
    POST,
    HTTP,
    (b":path", b"/helloworld.Greeter/SayHello"),
    (b":authority", b"localhost:50051"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


class Oracle:
    """A peer's decoder, as hpack has it."""

    def __init__(self, max_table_size: int | None = None) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=1 << 24)
        if max_table_size is not None:
            self.allow(max_table_size)

    def allow(self, max_table_size: int) -> None:
        self._decoder.max_allowed_table_size = max_table_size

    @property
    def table(self) -> list[Field]:
        return list(self._decoder.header_table.dynamic_entries)

    @property
    def table_size(self) -> int:
        return self._decoder.header_table_size

    def decode(self, block: bytes) -> list[Field]:
        return [(field[0], field[1]) for field in self._decoder.decode(block, raw=True)]

    def decode_sensitive(self, block: bytes) -> list[bytes]:
        """The names of the fields that may never be indexed."""
        return [f[0] for f in self._decoder.decode(block, raw=True) if isinstance(f, NeverIndexedHeaderTuple)]


class Counted:
    """A parse function that counts, and the decoder that calls it."""

    def __init__(self, max_list_size: int = 1 << 16, max_table_size: int = 4096) -> None:
        self.calls = 0
        self.decoder = HeaderDecoder(self._parse, max_list_size=max_list_size, max_table_size=max_table_size)

    def _parse(self, fields: list[Field]) -> tuple[Field, ...]:
        self.calls += 1
        return tuple(fields)

    def decode(self, block: bytes) -> tuple[Field, ...]:
        return self.decoder.decode(block)


def make_decoder(max_list_size: int = 1 << 16, max_table_size: int = 4096) -> HeaderDecoder[tuple[Field, ...]]:
    return HeaderDecoder(tuple, max_list_size=max_list_size, max_table_size=max_table_size)


def literal(name: bytes, value: bytes, first: int = 0x00) -> bytes:
    """A literal with a new name; both strings shorter than 127."""
    return bytes((first, len(name))) + name + bytes((len(value),)) + value


# ---------------------------------------------------------------------------------------------------------------------
# Encoder


def test_encode_indexes_the_fields_of_a_template() -> None:
    encoder, oracle = HeaderEncoder(), Oracle()
    template = HeaderTemplate(REQUEST)
    first = encoder.encode(template)
    assert oracle.decode(first) == list(REQUEST)
    assert oracle.table == [REQUEST[5], REQUEST[4], REQUEST[3], REQUEST[2]]
    # Static :method POST and :scheme http; then the table, newest first, is content-type te :authority :path.
    second = encoder.encode(template)
    assert second == bytes((0x83, 0x86, 0x80 + 65, 0x80 + 64, 0x80 + 63, 0x80 + 62))
    assert oracle.decode(second) == list(REQUEST)
    assert encoder.encode(template) is second, "the steady state makes no new block"


def test_encode_shares_entries_between_templates() -> None:
    encoder, oracle = HeaderEncoder(), Oracle()
    one = HeaderTemplate(REQUEST)
    two = HeaderTemplate([(n, b"/other" if n == b":path" else v) for n, v in REQUEST])
    for template in (one, two, one, two, one):
        assert oracle.decode(encoder.encode(template)) == list(template.fields)
    assert len(oracle.table) == 5
    assert len(encoder.encode(one)) == len(encoder.encode(two)) == 6


def test_encode_of_equal_templates_is_equal() -> None:
    encoder = HeaderEncoder()
    one, two = HeaderTemplate(REQUEST), HeaderTemplate(REQUEST)
    assert one != two
    encoder.encode(one)
    assert encoder.encode(one) == encoder.encode(two) == encoder.encode(one)


def test_encode_of_nothing_is_empty() -> None:
    assert HeaderEncoder().encode(HeaderTemplate(())) == b""


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 254, 255, 256, 511, 512, 513, 16383, 16384, 20_000])
def test_encode_literals_of_any_length(length: int) -> None:
    encoder, oracle, decoder = HeaderEncoder(), Oracle(), make_decoder()
    template = HeaderTemplate(REQUEST)
    literals = [(b"x-" + b"n" * length, b"v" * length), (b"grpc-timeout", b"1S"), (b"user-agent", b"u" * length)]
    for _ in range(3):
        block = encoder.encode(template, literals)
        assert oracle.decode(block) == [*REQUEST, *literals]
        assert decoder.decode(block) == (*REQUEST, *literals)
    assert len(oracle.table) == 4, "literals never enter the table"


def test_encode_literals_after_a_remembered_block() -> None:
    encoder = HeaderEncoder()
    template = HeaderTemplate([(b":status", b"200")])
    encoder.encode(template)
    assert encoder.encode(template, [(b"grpc-timeout", b"99m")]) == b"\x88\x00\x0cgrpc-timeout\x0399m"


def test_encode_literals_take_any_sequence() -> None:
    encoder = HeaderEncoder()
    template = HeaderTemplate([(b":status", b"200")])
    fields: tuple[Field, ...] = ((b"a", b"b"),)
    assert encoder.encode(template, fields) == encoder.encode(template, list(fields)) == b"\x88\x00\x01a\x01b"


def test_encode_literals_with_the_index_of_a_static_name() -> None:
    # user-agent is 58, more than the four bits of the prefix hold; accept is 19; :path is 4.
    block = HeaderEncoder().encode(HeaderTemplate(()), [(b"user-agent", b"x"), (b"accept", b"y"), (b":path", b"/z")])
    assert block == b"\x0f\x2b\x01x" + b"\x0f\x04\x01y" + b"\x04\x02/z"


def test_encode_literals_with_the_index_of_a_dynamic_name() -> None:
    encoder, oracle = HeaderEncoder(), Oracle()
    ok = HeaderTemplate([(b"grpc-status", b"0")])
    other = HeaderTemplate([(b"x-other", b"1")])
    oracle.decode(encoder.encode(ok))
    assert encoder.encode(HeaderTemplate(()), [(b"grpc-status", b"5")]) == b"\x0f\x2f\x015"  # 62 = 15 + 47
    oracle.decode(encoder.encode(other))
    block = encoder.encode(HeaderTemplate(()), [(b"grpc-status", b"5")])
    assert block == b"\x0f\x30\x015", "a new entry moves the older ones"
    assert oracle.decode(block) == [(b"grpc-status", b"5")]


def test_encode_literals_forget_the_index_of_an_evicted_name() -> None:
    encoder, oracle = HeaderEncoder(max_table_size=100), Oracle()
    nothing = HeaderTemplate(())
    oracle.decode(encoder.encode(HeaderTemplate([(b"x-one", b"1" * 40)])))  # 77 octets
    assert encoder.encode(nothing, [(b"x-one", b"2")])[0] == 0x0F
    oracle.decode(encoder.encode(HeaderTemplate([(b"x-two", b"1" * 40)])))
    block = encoder.encode(nothing, [(b"x-one", b"2")])
    assert block == literal(b"x-one", b"2")
    assert oracle.decode(block) == [(b"x-one", b"2")]


def test_encode_keeps_the_newer_of_two_entries_with_one_name() -> None:
    encoder, oracle = HeaderEncoder(max_table_size=3 * 40), Oracle()
    for name, value in [(b"x-name", b"v1"), (b"x-name", b"v2"), (b"x-fill", b"v3"), (b"x-more", b"v4")]:
        assert oracle.decode(encoder.encode(HeaderTemplate([(name, value)]))) == [(name, value)]
    assert (b"x-name", b"v1") not in oracle.table
    block = encoder.encode(HeaderTemplate(()), [(b"x-name", b"v5")])
    assert block == b"\x0f\x31\x02v5"  # entry 64
    assert oracle.decode(block) == [(b"x-name", b"v5")]


@pytest.mark.parametrize("name", [b"authorization", b"cookie", b"set-cookie", b"proxy-authorization", b"x-api-key"])
@pytest.mark.parametrize("in_template", [False, True])
def test_encode_never_indexes_secrets(name: bytes, in_template: bool) -> None:
    encoder, oracle = HeaderEncoder(sensitive={b"x-api-key"}), Oracle()
    secret = (name, b"Bearer s3cret")
    fields: tuple[Field, ...] = (*REQUEST, secret) if in_template else REQUEST
    template = HeaderTemplate(fields)
    literals: Sequence[Field] = () if in_template else [secret]
    for _ in range(3):
        block = encoder.encode(template, literals)
        assert oracle.decode_sensitive(block) == [name]
        assert secret not in oracle.table
        assert oracle.decode(block) == [*REQUEST, secret]


def test_encode_indexes_what_is_no_secret() -> None:
    encoder, oracle = HeaderEncoder(), Oracle()
    assert oracle.decode_sensitive(encoder.encode(HeaderTemplate([(b"x-api-key", b"1")]), [(b"x-id", b"2")])) == []
    assert oracle.table == [(b"x-api-key", b"1")]


def test_encode_a_field_larger_than_the_table_as_a_literal() -> None:
    encoder, oracle = HeaderEncoder(), Oracle()
    small, exact, large = (b"x-s", b"1"), (b"x-e", b"e" * (4096 - 35)), (b"x-l", b"l" * (4096 - 34))
    encoded = encoder.encode(HeaderTemplate([small]))
    assert oracle.decode(encoded) == [small]
    template = HeaderTemplate([large])
    for _ in range(3):
        block = encoder.encode(template)
        assert block[0] == 0x00
        assert oracle.decode(block) == [large]
        assert oracle.table == [small], "the table is not emptied for nothing"
    assert oracle.decode(encoder.encode(HeaderTemplate([exact]))) == [exact]
    assert oracle.table == [exact], "one that fits exactly takes the whole table"


def test_encode_without_a_table() -> None:
    encoder, oracle = HeaderEncoder(max_table_size=0), Oracle()
    template = HeaderTemplate(REQUEST)
    block = encoder.encode(template)
    assert block[0] == 0x20, "the peer starts with 4096 octets and must be told"
    assert oracle.decode(block) == list(REQUEST)
    assert oracle.table == []
    again = encoder.encode(template)
    assert again == block[1:]
    assert encoder.encode(template) is again
    assert oracle.decode(again) == list(REQUEST)


def test_encode_more_templates_than_the_table_holds() -> None:
    encoder, oracle, decoder = HeaderEncoder(), Oracle(), make_decoder()
    templates = [HeaderTemplate([*REQUEST, (b"x-route", b"%050d" % i)]) for i in range(100)]
    for _ in range(3):
        for template in templates:
            block = encoder.encode(template, [(b"grpc-timeout", b"1S")])
            expected = [*template.fields, (b"grpc-timeout", b"1S")]
            assert oracle.decode(block) == expected
            assert decoder.decode(block) == tuple(expected)


def test_encode_a_template_that_evicts_its_own_entries() -> None:
    encoder, oracle = HeaderEncoder(max_table_size=200), Oracle()
    template = HeaderTemplate([(b"x-%d" % i, b"v" * 40) for i in range(10)] + [(b"x-0", b"v" * 40)])
    for _ in range(4):
        assert oracle.decode(encoder.encode(template)) == list(template.fields)


def test_encode_remembers_a_bounded_number_of_blocks_and_names() -> None:
    encoder = HeaderEncoder()
    steady = HeaderTemplate(REQUEST)
    for i in range(3000):
        encoder.encode(HeaderTemplate([(b":status", b"200")]), [(b"x-%d" % i, b"")])
        assert encoder.encode(steady, [(b"a", b"b")])[-4:] == b"\x01a\x01b"
    assert len(encoder._blocks) <= HeaderEncoder._MAX_BLOCKS
    assert len(encoder._prefixes) <= HeaderEncoder._MAX_PREFIXES


@pytest.mark.parametrize(
    ("sizes", "updates"),
    [
        ([4096], b""),
        ([65536], b""),
        ([65536, 4096], b""),
        ([0], b"\x20"),
        ([30], b"\x3e"),
        ([31], b"\x3f\x00"),
        ([100], b"\x3f\x45"),
        ([4095], b"\x3f\xe0\x1f"),
        ([0, 4096], b"\x20\x3f\xe1\x1f"),
        ([100, 50, 200], b"\x3f\x13\x3f\xa9\x01"),
        ([200, 100, 50], b"\x3f\x13"),
        ([50, 50, 50], b"\x3f\x13"),
        ([0, 65536], b"\x20\x3f\xe1\x1f"),
    ],
)
def test_encode_tells_the_peer_of_table_size_changes(sizes: list[int], updates: bytes) -> None:
    encoder, oracle = HeaderEncoder(), Oracle()
    template = HeaderTemplate([(b":status", b"200")])
    for _ in range(2):
        assert encoder.encode(template) == b"\x88"
    for size in sizes:
        encoder.set_max_table_size(size)
        oracle.allow(size)
    assert encoder.max_table_size == min(4096, sizes[-1])
    block = encoder.encode(template)
    assert block == updates + b"\x88"
    assert oracle.decode(block) == [(b":status", b"200")]
    assert oracle.table_size == encoder.max_table_size
    assert encoder.encode(template) == b"\x88", "told once"


def test_encode_size_changes_after_the_first_one() -> None:
    encoder, oracle = HeaderEncoder(), Oracle()
    template = HeaderTemplate(REQUEST)
    for size, updates in [
        (100, b"\x3f\x45"),
        (300, b"\x3f\x8d\x02"),
        (300, b""),
        (50, b"\x3f\x13"),
        (4096, b"\x3f\xe1\x1f"),
    ]:
        encoder.set_max_table_size(size)
        oracle.allow(size)
        block = encoder.encode(template)
        assert block.startswith(updates + b"\x83")
        assert oracle.decode(block) == list(REQUEST)
        assert oracle.decode(encoder.encode(template)) == list(REQUEST)


def test_encode_size_change_drops_remembered_blocks_even_if_nothing_is_evicted() -> None:
    encoder, oracle = HeaderEncoder(), Oracle()
    template = HeaderTemplate(REQUEST)
    for _ in range(2):
        oracle.decode(encoder.encode(template))
    encoder.set_max_table_size(2000)
    oracle.allow(2000)
    block = encoder.encode(template)
    assert block[:3] == b"\x3f\xb1\x0f"
    assert oracle.decode(block) == list(REQUEST)


def test_encode_shrinking_and_growing_evicts_in_between() -> None:
    encoder, oracle = HeaderEncoder(), Oracle()
    template = HeaderTemplate(REQUEST)
    for _ in range(2):
        oracle.decode(encoder.encode(template))
    encoder.set_max_table_size(0)
    encoder.set_max_table_size(4096)
    block = encoder.encode(template)
    assert oracle.decode(block) == list(REQUEST)
    assert len(oracle.table) == 4
    assert oracle.decode(encoder.encode(template)) == list(REQUEST)


def test_encode_a_larger_cap_is_used_only_when_the_peer_allows_it() -> None:
    encoder, oracle = HeaderEncoder(max_table_size=8192), Oracle()
    template = HeaderTemplate([(b":status", b"200")])
    assert encoder.encode(template) == b"\x88"
    encoder.set_max_table_size(16384)
    oracle.allow(16384)
    assert oracle.decode(encoder.encode(template)) == [(b":status", b"200")]
    assert oracle.table_size == 8192


def test_template_shows_its_fields() -> None:
    assert repr(HeaderTemplate([(b"a", b"b")])) == "HeaderTemplate(((b'a', b'b'),))"


# ---------------------------------------------------------------------------------------------------------------------
# What blocks mean to the decoder

# RFC 7541 appendix C. Each is a conversation under one table; some under one of 256 octets.
SIZE_256 = "3fe101"
RFC_REQUESTS = [
    [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")],
    [
        (b":method", b"GET"),
        (b":scheme", b"http"),
        (b":path", b"/"),
        (b":authority", b"www.example.com"),
        (b"cache-control", b"no-cache"),
    ],
    [
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":path", b"/index.html"),
        (b":authority", b"www.example.com"),
        (b"custom-key", b"custom-value"),
    ],
]
RFC_RESPONSES = [
    [
        (b":status", b"302"),
        (b"cache-control", b"private"),
        (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT"),
        (b"location", b"https://www.example.com"),
    ],
    [
        (b":status", b"307"),
        (b"cache-control", b"private"),
        (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT"),
        (b"location", b"https://www.example.com"),
    ],
    [
        (b":status", b"200"),
        (b"cache-control", b"private"),
        (b"date", b"Mon, 21 Oct 2013 20:13:22 GMT"),
        (b"location", b"https://www.example.com"),
        (b"content-encoding", b"gzip"),
        (b"set-cookie", b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
    ],
]


@pytest.mark.parametrize(
    ("first", "blocks", "lists"),
    [
        pytest.param(
            "",
            [
                "828684410f7777772e6578616d706c652e636f6d",
                "828684be58086e6f2d6361636865",
                "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
            ],
            RFC_REQUESTS,
            id="C.3",
        ),
        pytest.param(
            "",
            [
                "828684418cf1e3c2e5f23a6ba0ab90f4ff",
                "828684be5886a8eb10649cbf",
                "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
            ],
            RFC_REQUESTS,
            id="C.4",
        ),
        pytest.param(
            SIZE_256,
            [
                (
                    "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d546e1768"
                    "747470733a2f2f7777772e6578616d706c652e636f6d"
                ),
                "4803333037c1c0bf",
                (
                    "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153"
                    "444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e"
                    "3d31"
                ),
            ],
            RFC_RESPONSES,
            id="C.5",
        ),
        pytest.param(
            SIZE_256,
            [
                (
                    "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8"
                    "e9ae82ae43d3"
                ),
                "4883640effc1c0bf",
                (
                    "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b"
                    "3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007"
                ),
            ],
            RFC_RESPONSES,
            id="C.6",
        ),
    ],
)
def test_decode_the_examples_of_the_rfc(first: str, blocks: list[str], lists: list[list[Field]]) -> None:
    decoder = make_decoder()
    for number, (block, fields) in enumerate(zip(blocks, lists, strict=True)):
        raw = bytes.fromhex(block)
        assert decoder.decode(bytes.fromhex(first) + raw if number == 0 else raw) == tuple(fields)


@pytest.mark.parametrize(
    ("block", "fields"),
    [
        pytest.param(b"", (), id="nothing"),
        pytest.param(b"\x83", ((b":method", b"POST"),), id="first indexed"),
        pytest.param(b"\xbd", ((b"www-authenticate", b""),), id="last static"),
        pytest.param(b"\x81\x83", ((b":authority", b""), (b":method", b"POST")), id="run of indexed"),
        pytest.param(literal(b"a", b"b"), ((b"a", b"b"),), id="literal"),
        pytest.param(literal(b"a", b"b", 0x10), ((b"a", b"b"),), id="never indexed literal"),
        pytest.param(literal(b"a", b"b", 0x40), ((b"a", b"b"),), id="indexed literal"),
        pytest.param(literal(b"", b""), ((b"", b""),), id="empty strings"),
        pytest.param(b"\x04\x02/x", ((b":path", b"/x"),), id="name of one octet"),
        pytest.param(b"\x0f\x2b\x01x", ((b"user-agent", b"x"),), id="name of two octets"),
        pytest.param(b"\x1f\x08\x01x", ((b"authorization", b"x"),), id="never indexed, name of two octets"),
        pytest.param(b"\x0f\x80\x00\x01x", ((b"accept-charset", b"x"),), id="padded integer"),
        pytest.param(b"\x0f\x80\x80\x80\x80\x00\x01x", ((b"accept-charset", b"x"),), id="most padded integer"),
        pytest.param(b"\x7a\x01x", ((b"user-agent", b"x"),), id="indexed literal, static name"),
        pytest.param(b"\x04\x80", ((b":path", b""),), id="empty Huffman string"),
        pytest.param(b"\x04\x7f\x00" + b"x" * 127, ((b":path", b"x" * 127),), id="string of 127"),
        pytest.param(b"\x83" + literal(b"a", b"b") + b"\x86", None, id="indexed after a literal"),
        pytest.param(b"\x20\x3f\xe1\x1f\x83", ((b":method", b"POST"),), id="two size updates"),
    ],
)
def test_decode(block: bytes, fields: tuple[Field, ...] | None) -> None:
    if fields is None:
        fields = ((b":method", b"POST"), (b"a", b"b"), (b":scheme", b"http"))
    assert make_decoder().decode(block) == fields
    assert tuple(Oracle().decode(block)) == fields


def test_decode_an_index_of_two_octets() -> None:
    decoder, oracle = make_decoder(), Oracle()
    for i in range(100):
        block = literal(b"%d" % i, b"", 0x40)
        assert decoder.decode(block) == tuple(oracle.decode(block))
    for block in (b"\xfe", b"\xff\x00", b"\xff\x01", b"\xff\x22"):
        assert decoder.decode(block) == tuple(oracle.decode(block))
        assert decoder.decode(b"\x83" + block) == tuple(oracle.decode(b"\x83" + block))
    assert decoder.decode(b"\xff\x22") == ((b"0", b""),)
    with pytest.raises(HeaderBlockError):
        decoder.decode(b"\xff\x23")
    # The name alone: 63 is the first index beyond the six bits, 15 the first beyond the four.
    assert decoder.decode(b"\x0f\x30\x01x") == ((b"98", b"x"),)
    assert decoder.decode(b"\x7f\x00\x01x") == ((b"98", b"x"),)


def test_decode_all_octets_in_huffman() -> None:
    encoder, decoder = hpack.Encoder(), make_decoder()
    for value in [bytes([octet]) for octet in range(256)] + [bytes(range(256)), bytes(range(255, -1, -1))]:
        block = encoder.encode([(b"x-any", value)], huffman=True)
        assert decoder.decode(block)[0] == (b"x-any", value)


def test_decode_a_name_of_an_entry_that_its_own_insertion_evicts() -> None:
    decoder, oracle = make_decoder(), Oracle()
    for block in (b"\x3f\x21" + literal(b"x-name", b"1" * 20, 0x40), b"\x7e\x18" + b"2" * 24, b"\xbe"):
        assert decoder.decode(block) == tuple(oracle.decode(block))
    assert decoder.decode(b"\xbe") == ((b"x-name", b"2" * 24),)


def test_decode_an_entry_larger_than_the_table_empties_it() -> None:
    decoder = make_decoder()
    decoder.decode(b"\x3f\x21" + literal(b"a", b"b", 0x40))
    assert decoder.decode(b"\xbe") == ((b"a", b"b"),)
    assert decoder.decode(literal(b"a", b"c" * 64, 0x40)) == ((b"a", b"c" * 64),)
    with pytest.raises(HeaderBlockError):
        decoder.decode(b"\xbe")


def test_decode_never_pops_static_entries() -> None:
    decoder = make_decoder()
    decoder.decode(b"\x20" + literal(b"a", b"b", 0x40))
    decoder.decode(literal(b"a", b"b", 0x40))
    assert decoder.decode(b"\xbd") == ((b"www-authenticate", b""),)


def huffman(bits: str) -> bytes:
    """A value literal for :path with the given bits as its Huffman-coded string."""
    data = bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))
    return b"\x04" + bytes((0x80 | len(data),)) + data


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b"\x80", id="index 0"),
        pytest.param(b"\x83\x80", id="index 0 after a run"),
        pytest.param(b"\xbe", id="index beyond an empty table"),
        pytest.param(b"\x83\xbe", id="index beyond an empty table after a run"),
        pytest.param(b"\xfe", id="largest index of one octet"),
        pytest.param(b"\xff\x00", id="index of two octets"),
        pytest.param(b"\xff\xff\xff\xff\x07", id="huge index"),
        pytest.param(b"\xff\xff\xff\xff\xff\x7f", id="largest index that is read"),
        pytest.param(b"\xff\x80\x80\x80\x80\x80\x00", id="endless integer"),
        pytest.param(b"\xff" + b"\x80" * 10_000, id="very endless integer"),
        pytest.param(b"\xff" + b"\xff" * 10_000 + b"\x7f", id="astronomic integer"),
        pytest.param(b"\x3f\x80\x80\x80\x80\x80\x00", id="size update with too much padding"),
        pytest.param(b"\xff", id="truncated index"),
        pytest.param(b"\x00", id="nothing after the first octet"),
        pytest.param(b"\x00\x01", id="no name"),
        pytest.param(b"\x00\x01a", id="no value"),
        pytest.param(b"\x00\x01a\x01", id="no value octet"),
        pytest.param(b"\x00\x05a\x01b", id="name too long"),
        pytest.param(b"\x00\x01a\x02b", id="value too long"),
        pytest.param(b"\x00\x01a\x7f\x00b", id="long value too long"),
        pytest.param(b"\x00\x7f\x00a\x01b", id="long name too long"),
        pytest.param(b"\x00\x81", id="no Huffman octet"),
        pytest.param(b"\x00\x01a\x7f\xff\xff\xff\xff\x7f", id="value of 34 gigabytes"),
        pytest.param(b"\x0f\x2f\x01b", id="name index beyond an empty table"),
        pytest.param(b"\x7e\x01b", id="indexed literal, name index beyond an empty table"),
        pytest.param(b"\x1f\x2f\x01b", id="never indexed, name index beyond an empty table"),
        pytest.param(b"\x83\x20", id="size update after a field"),
        pytest.param(literal(b"a", b"b") + b"\x20", id="size update after a literal"),
        pytest.param(b"\x3f\xe2\x1f", id="size update to 4097"),
        pytest.param(b"\x3f", id="truncated size update"),
        pytest.param(huffman("00011111" * 2 + "11111111"), id="Huffman padding of more than seven bits"),
        pytest.param(huffman("00011000"), id="Huffman padding of zeros"),
        pytest.param(huffman("1" * 32), id="Huffman end of string"),
        pytest.param(huffman("11111111"), id="Huffman padding only"),
    ],
)
def test_decode_refuses(block: bytes) -> None:
    with pytest.raises(HeaderBlockError):
        make_decoder().decode(block)
    with pytest.raises(hpack.HPACKError):
        Oracle().decode(block)


def test_decode_every_truncation_is_an_error_or_a_shorter_list() -> None:
    encoder = hpack.Encoder()
    fields = [*REQUEST, (b"x-long", b"v" * 200), (b"grpc-timeout", b"99999u")]
    block = encoder.encode(fields, huffman=True) + encoder.encode(fields, huffman=False)
    whole = make_decoder().decode(block)
    lists = 0
    for end in range(len(block)):
        try:
            part = make_decoder().decode(block[:end])
        except HeaderBlockError:
            continue
        lists += 1
        assert part == whole[: len(part)]
    assert lists == len(whole)  # after each field but the last, and at the start


@pytest.mark.parametrize(
    ("max_table_size", "size", "is_allowed"),
    [(4096, 4096, True), (4096, 4097, False), (0, 0, True), (0, 1, False), (8192, 8192, True), (8192, 8193, False)],
)
def test_decode_limits_the_table_size(max_table_size: int, size: int, is_allowed: bool) -> None:
    peer = hpack.Encoder()
    peer.header_table_size = size
    block = peer.encode([(b":method", b"POST")])
    decoder = make_decoder(max_table_size=max_table_size)
    if is_allowed:
        assert decoder.decode(block) == ((b":method", b"POST"),)
    else:
        with pytest.raises(HeaderBlockError, match=f"{size} is above the limit of {max_table_size}"):
            decoder.decode(block)


def test_decode_with_a_smaller_table_before_the_peer_knows() -> None:
    # RFC 9113 section 6.5.3: until it acknowledges our SETTINGS, the peer goes by the default.
    peer, decoder = hpack.Encoder(), make_decoder(max_table_size=0)
    for _ in range(2):
        assert decoder.decode(peer.encode(REQUEST)) == REQUEST
    peer.header_table_size = 0
    for _ in range(2):
        assert decoder.decode(peer.encode(REQUEST)) == REQUEST


# ---------------------------------------------------------------------------------------------------------------------
# Header lists that are too large for the decoder


def list_size(fields: Sequence[Field]) -> int:
    return sum(len(name) + len(value) + 32 for name, value in fields)


@pytest.mark.parametrize("huffman", [False, True])
@pytest.mark.parametrize("fields", [REQUEST, REQUEST[:2], REQUEST[2:3], ()], ids=["all", "indexed", "literal", "none"])
def test_decode_a_list_of_exactly_the_limit(fields: tuple[Field, ...], huffman: bool) -> None:
    decoder = make_decoder(list_size(fields))
    peer = hpack.Encoder()
    for _ in range(3):
        assert decoder.decode(peer.encode(fields, huffman=huffman)) == fields


@pytest.mark.parametrize("huffman", [False, True])
@pytest.mark.parametrize("fields", [REQUEST, REQUEST[:2], REQUEST[2:3]], ids=["all", "indexed", "literal"])
def test_decode_a_list_one_above_the_limit(fields: tuple[Field, ...], huffman: bool) -> None:
    size = list_size(fields)
    decoder = make_decoder(size - 1)
    peer = hpack.Encoder()
    for _ in range(3):
        with pytest.raises(HeaderListTooLarge) as caught:
            decoder.decode(peer.encode(fields, huffman=huffman))
        assert (caught.value.size, caught.value.limit) == (size, size - 1)
        assert str(caught.value) == f"header list of {size} bytes is larger than the limit of {size - 1} bytes"
        # A head of indexed fields is always under the limit here, unless it is all there is.
        short = fields[:-1]
        assert decoder.decode(peer.encode(short, huffman=huffman)) == short


def test_decode_keeps_the_table_right_through_a_list_that_is_too_large() -> None:
    decoder, peer = make_decoder(300), hpack.Encoder()
    with pytest.raises(HeaderListTooLarge):
        decoder.decode(peer.encode([(b"x-%d" % i, b"v" * 50) for i in range(20)]))
    for i in range(20):
        field = (b"x-%d" % i, b"v" * 50)
        block = peer.encode([field])
        assert len(block) == 1
        assert decoder.decode(block) == (field,)


def test_decode_a_bomb_in_little_memory() -> None:
    # 64 KiB that stand for 267 MB of fields.
    counted = Counted(max_list_size=16384)
    filler = b"\x40\x01a\x7f\xd0\x1e" + b"x" * 4047
    assert counted.decode(filler) == ((b"a", b"x" * 4047),)
    for bomb in (b"\xbe" * 65536, b"\x83" + b"\xbe" * 65536, literal(b"b", b"c") + b"\xbe" * 65536):
        tracemalloc.start()
        try:
            with pytest.raises(HeaderListTooLarge) as caught:
                counted.decode(bomb)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert caught.value.size > 267_000_000
        assert peak < 100_000 + len(bomb)
    assert counted.calls == 1
    assert counted.decode(b"\xbe") == ((b"a", b"x" * 4047),)


# ---------------------------------------------------------------------------------------------------------------------
# What the decoder remembers


def test_decode_remembers_a_block_of_indexed_fields() -> None:
    counted = Counted()
    first = counted.decode(b"\x83\x86")
    assert counted.decode(bytes(bytearray(b"\x83\x86"))) is first
    assert counted.calls == 1


def test_decode_remembers_a_block_with_literals_at_second_sight() -> None:
    counted = Counted()
    block = b"\x83" + literal(b"a", b"b")
    assert counted.decode(block) == counted.decode(block) == ((b":method", b"POST"), (b"a", b"b"))
    assert counted.calls == 2
    assert counted.decode(block) is counted.decode(block)
    assert counted.calls == 2


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(literal(b"x", b"2", 0x40), id="insertion"),
        pytest.param(b"\x3f\x0f" + literal(b"x", b"2", 0x40), id="insertion that evicts"),
        pytest.param(b"\x83" + literal(b"x", b"2", 0x40), id="insertion after a run"),
    ],
)
@pytest.mark.parametrize("block", [b"\xbe", b"\x83\xbe", b"\xbe" + literal(b"a", b"b"), b"\x0f\x2f\x01v"])
def test_decode_never_gives_a_record_of_another_table(change: bytes, block: bytes) -> None:
    # The number of entries may be the same before and after: it tells nothing.
    counted, oracle = Counted(), Oracle()
    for each in (b"\x3f\x0f" + literal(b"x", b"1", 0x40), block, block, block, change, block, block, block):
        assert counted.decode(each) == tuple(oracle.decode(each))


def test_decode_forgets_at_a_size_update() -> None:
    counted = Counted()
    counted.decode(literal(b"x", b"1", 0x40))
    assert counted.decode(b"\xbe") == ((b"x", b"1"),)
    assert counted.decode(b"\x20\x83") == ((b":method", b"POST"),)
    with pytest.raises(HeaderBlockError):
        counted.decode(b"\xbe")


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b"\x3f\xe1\x1f\x83", id="size update"),
        pytest.param(literal(b"a", b"b", 0x40), id="insertion"),
        pytest.param(literal(b"a", b"b", 0x10), id="never indexed"),
        pytest.param(b"\x83" + literal(b"a", b"b", 0x10) + b"\x86", id="never indexed among others"),
        pytest.param(b"\x1f\x08\x01x", id="never indexed, static name"),
        pytest.param(b"\x83" * 1025, id="long, indexed"),
        pytest.param(b"\x83" + literal(b"a", b"b") + b"\x83" * 1020, id="long, literal"),
    ],
)
def test_decode_does_not_remember(block: bytes) -> None:
    counted = Counted()
    records = [counted.decode(block) for _ in range(5)]
    assert counted.calls == 5
    assert len(set(records)) == 1


def test_decode_does_not_remember_secrets() -> None:
    decoder = make_decoder()
    peer = hpack.Encoder()
    secret = hpack.NeverIndexedHeaderTuple(b"authorization", b"Bearer s3cret")
    for _ in range(4):
        block = peer.encode([secret], huffman=True)
        assert decoder.decode(block) == ((b"authorization", b"Bearer s3cret"),)
    assert not decoder._records
    assert b"Bearer s3cret" not in decoder._strings.values()


def test_decode_remembers_a_bounded_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder: HeaderDecoder[tuple[Field, ...]] = HeaderDecoder(
        tuple, max_list_size=1 << 16, extend=lambda head, tail: head + tuple(tail)
    )
    expected: dict[bytes, list[Field]] = {}
    for i in range(600):
        head = bytes((0x81 + i % 50, 0x81 + i % 51))
        expected[head] = Oracle().decode(head)
        expected[head + literal(b"a", b"%d" % i)] = [*expected[head], (b"a", b"%d" % i)]
    for _ in range(2):
        for block, fields in expected.items():
            assert decoder.decode(block) == decoder.decode(block) == tuple(fields)
            assert len(decoder._records) <= HeaderDecoder._MAX_RECORDS
            assert len(decoder._heads) <= HeaderDecoder._MAX_HEADS
            assert len(decoder._bases) <= HeaderDecoder._MAX_HEADS
            assert len(decoder._seen) <= HeaderDecoder._MAX_SEEN
    monkeypatch.setattr(header_codec, "_MAX_HUFFMAN_STEPS", 50)
    peer = hpack.Encoder()
    for i in range(600):
        field = (b"x-huffman", b"%r" % bytes((i % 256, i // 256)))
        assert decoder.decode(peer.encode([field], huffman=True)) == (field,)
        assert len(decoder._strings) <= HeaderDecoder._MAX_STRINGS
    assert len(header_codec._HUFFMAN_STEPS) <= 50


# ---------------------------------------------------------------------------------------------------------------------
# Records that the decoder extends


class Extending:
    """A decoder whose record tells how it was made."""

    def __init__(self) -> None:
        self.parsed: list[list[Field]] = []
        self.extended: list[tuple[tuple[Field, ...], list[Field]]] = []
        self.decline = False
        self.decoder: HeaderDecoder[tuple[Field, ...]] = HeaderDecoder(
            self._parse, max_list_size=1 << 16, extend=self._extend
        )

    def _parse(self, fields: list[Field]) -> tuple[Field, ...]:
        self.parsed.append(fields)
        return tuple(fields)

    def _extend(self, head: tuple[Field, ...], tail: list[Field]) -> tuple[Field, ...] | None:
        self.extended.append((head, tail))
        return None if self.decline else head + tuple(tail)


def test_decode_parses_a_head_once_and_extends_it() -> None:
    it = Extending()
    for i in range(5):
        field = (b"a", b"%d" % i)
        assert it.decoder.decode(b"\x83\x86" + literal(*field)) == (POST, HTTP, field)
    assert it.parsed == [[POST, HTTP]]
    assert it.extended == [((POST, HTTP), [(b"a", b"%d" % i)]) for i in range(5)]


def test_decode_parses_everything_when_extending_is_declined() -> None:
    it = Extending()
    it.decline = True
    for i in range(3):
        field = (b"a", b"%d" % i)
        assert it.decoder.decode(b"\x83\x86" + literal(*field)) == (POST, HTTP, field)
    assert it.parsed == [[POST, HTTP]] + [[POST, HTTP, (b"a", b"%d" % i)] for i in range(3)]


def test_decode_does_not_extend_without_a_head_or_a_tail() -> None:
    it = Extending()
    assert it.decoder.decode(literal(b"a", b"b") + b"\x83") == ((b"a", b"b"), POST)
    assert it.decoder.decode(b"\x83\x86") == (POST, HTTP)
    assert not it.extended


def test_decode_with_heads_of_different_lengths() -> None:
    it = Extending()
    for i in range(3):
        for head, fields in ((b"\x83\x86", (POST, HTTP)), (b"\x83", (POST,)), (b"\x83\x86\x86", (POST, HTTP, HTTP))):
            field = (b"a", b"%d" % i)
            assert it.decoder.decode(head + literal(*field)) == (*fields, field)


def test_decode_forgets_a_head_whose_own_block_changes_the_table() -> None:
    it = Extending()
    it.decoder.decode(literal(b"x", b"1", 0x40))
    assert it.decoder.decode(b"\xbe" + literal(b"x", b"2", 0x40)) == ((b"x", b"1"), (b"x", b"2"))
    assert it.decoder.decode(b"\xbe" + literal(b"a", b"b")) == ((b"x", b"2"), (b"a", b"b"))


def test_decode_forgets_heads_when_the_table_changes() -> None:
    it = Extending()
    for i in range(4):
        it.decoder.decode(literal(b"x", b"%d" % i, 0x40))
        for _ in range(2):
            assert it.decoder.decode(b"\xbe" + literal(b"a", b"b")) == ((b"x", b"%d" % i), (b"a", b"b"))
            assert it.decoder.decode(b"\xbe" + literal(b"a", b"c")) == ((b"x", b"%d" % i), (b"a", b"c"))


def test_decode_extends_under_a_table_that_every_block_changes() -> None:
    # As a peer does that puts each timeout into its table.
    it, peer = Extending(), hpack.Encoder()
    it.decoder.decode(peer.encode(REQUEST))
    it.parsed.clear()
    it.extended.clear()
    for i in range(20):
        fields = (*REQUEST, (b"grpc-timeout", b"%du" % (9999 - i)))
        assert it.decoder.decode(peer.encode(fields)) == fields
    assert it.parsed == [list(REQUEST)]
    assert len(it.extended) == 20


def test_decode_measures_extended_lists_too() -> None:
    limit = list_size([POST, HTTP, (b"a", b"b")])
    decoder: HeaderDecoder[tuple[Field, ...]] = HeaderDecoder(
        tuple, max_list_size=limit, extend=lambda head, tail: head + tuple(tail)
    )
    for _ in range(3):
        assert decoder.decode(b"\x83\x86" + literal(b"a", b"b")) == (POST, HTTP, (b"a", b"b"))
        with pytest.raises(HeaderListTooLarge):
            decoder.decode(b"\x83\x86" + literal(b"a", b"bc"))
        with pytest.raises(HeaderListTooLarge):
            decoder.decode(b"\x83\x86\x86" + literal(b"a", b"b"))


def test_a_template_knows_the_size_of_its_list() -> None:
    assert HeaderTemplate(()).list_size == 0
    assert HeaderTemplate([(b"a", b"bc"), (b"", b"")]).list_size == 35 + 32
