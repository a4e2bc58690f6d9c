"""The header codec in long random conversations, with hpack as the oracle on the other end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import hpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trio_grpc._transport.header_codec import (
    Field,
    HeaderBlockError,
    HeaderDecoder,
    HeaderEncoder,
    HeaderListTooLarge,
    HeaderTemplate,
)
from trio_grpc._transport.headers import (
    Malformed,
    extend_request,
    extend_response,
    parse_request,
    parse_response,
    request_template,
    response_fields,
    trailer_fields,
)

Fields = tuple[Field, ...]

SECRETS = (b"authorization", b"x-secret")

# Few names and values, so that they come again; long ones, so that they push each other out of the table.
names = st.sampled_from(
    [b":path", b":status", b"te", b"user-agent", b"grpc-timeout", b"x-trace-id", b"n" * 130, *SECRETS]
)
values = st.one_of(
    st.sampled_from([b"", b"/", b"200", b"trailers", b"1S", b"v" * 60, b"w" * 126, b"x" * 127, b"y" * 900]),
    st.integers(0, 30).map(lambda number: b"%d" % number),
    st.binary(max_size=20),
)
field_lists = st.lists(st.tuples(names, values), max_size=8)
table_sizes = st.one_of(st.sampled_from([0, 31, 60, 100, 200, 1000, 4095, 4096, 65536]), st.integers(0, 5000))


def append(head: Fields, tail: Sequence[Field]) -> Fields:
    return head + tuple(tail)


def append_if_even(head: Fields, tail: Sequence[Field]) -> Fields | None:
    return append(head, tail) if len(tail) % 2 == 0 else None


extends = st.sampled_from([None, append, append_if_even])


def make_decoder(
    extend: Callable[[Fields, list[Field]], Fields | None] | None = append, max_list_size: int = 1 << 24
) -> HeaderDecoder[Fields]:
    return HeaderDecoder(tuple, max_list_size=max_list_size, extend=extend)


def make_oracle() -> hpack.Decoder:
    return hpack.Decoder(max_header_list_size=1 << 24)


def ask(oracle: hpack.Decoder, block: bytes) -> Fields:
    return tuple([(field[0], field[1]) for field in oracle.decode(block, raw=True)])


@settings(max_examples=300, deadline=None)
@given(
    cap=st.sampled_from([0, 100, 300, 4096]),
    templates=st.lists(field_lists, min_size=1, max_size=6),
    # A new table size, or a template and literals.
    steps=st.lists(table_sizes | st.tuples(st.integers(0, 5), field_lists | st.just([])), max_size=40),
    extend=extends,
)
def test_hpack_and_our_decoder_read_what_our_encoder_writes(
    cap: int,
    templates: list[list[Field]],
    steps: list[int | tuple[int, list[Field]]],
    extend: Callable[[Fields, list[Field]], Fields | None] | None,
) -> None:
    encoder = HeaderEncoder(cap, sensitive={b"x-secret"})
    oracle, decoder = make_oracle(), make_decoder(extend)
    made = [HeaderTemplate(fields) for fields in templates]
    for step in steps:
        if isinstance(step, int):
            # hpack is strict: the next block must tell of a table that got smaller than this.
            oracle.max_allowed_table_size = step
            encoder.set_max_table_size(step)
            continue
        template = made[step[0] % len(made)]
        expected = (*template.fields, *step[1])
        block = encoder.encode(template, step[1])
        decoded = oracle.decode(block, raw=True)
        assert tuple([(field[0], field[1]) for field in decoded]) == expected
        for field in decoded:
            # An empty value of a static name is an entry that everybody has.
            is_secret = field[0] in SECRETS and field != (b"authorization", b"")
            if is_secret or field[0] not in SECRETS:
                assert isinstance(field, hpack.NeverIndexedHeaderTuple) == is_secret
        assert decoder.decode(block) == expected
        assert list(encoder._positions) == list(reversed(oracle.header_table.dynamic_entries))
        assert encoder.max_table_size == oracle.header_table_size
        assert not {field[0] for field in encoder._positions} & set(SECRETS)


@settings(max_examples=300, deadline=None)
@given(
    # A new table size, or fields, whether to use Huffman, and how often to repeat them.
    steps=st.lists(st.integers(0, 4096) | st.tuples(field_lists, st.booleans(), st.integers(1, 3)), max_size=40),
    secret=st.sampled_from([b"", b"te", b"authorization"]),
    extend=extends,
)
def test_our_decoder_reads_what_hpack_writes(
    steps: list[int | tuple[list[Field], bool, int]],
    secret: bytes,
    extend: Callable[[Fields, list[Field]], Fields | None] | None,
) -> None:
    encoder, decoder = hpack.Encoder(), make_decoder(extend)
    for step in steps:
        if isinstance(step, int):
            # hpack forgets to announce a size that is set twice in a row.
            if step != encoder.header_table_size:
                encoder.header_table_size = step
            continue
        fields, huffman, times = step
        given_fields = [hpack.NeverIndexedHeaderTuple(*f) if f[0] == secret else hpack.HeaderTuple(*f) for f in fields]
        for _ in range(times):
            assert decoder.decode(encoder.encode(given_fields, huffman=huffman)) == tuple(fields)


@settings(max_examples=200, deadline=None)
@given(
    lists=st.lists(st.tuples(field_lists, st.booleans()), max_size=20),
    limit=st.integers(0, 1200),
    extend=extends,
)
def test_only_lists_above_the_limit_are_too_large(
    lists: list[tuple[list[Field], bool]],
    limit: int,
    extend: Callable[[Fields, list[Field]], Fields | None] | None,
) -> None:
    encoder, decoder = hpack.Encoder(), make_decoder(extend, limit)
    for fields, huffman in lists:
        size = sum(len(name) + len(value) + 32 for name, value in fields)
        block = encoder.encode(fields, huffman=huffman)
        if size <= limit:
            assert decoder.decode(block) == tuple(fields)
        else:
            with pytest.raises(HeaderListTooLarge) as caught:
                decoder.decode(block)
            assert (caught.value.size, caught.value.limit) == (size, limit)


octets = st.integers(0, 255)
# Mostly first octets of fields, lengths and indices that may be right.
likely_octets = st.sampled_from([0x00, 0x01, 0x02, 0x04, 0x0F, 0x10, 0x20, 0x3F, 0x40, 0x7E, 0x7F, 0x80, 0x81, 0x83])
any_octets = st.lists(octets | likely_octets | st.integers(0xBE, 0xFF), max_size=40).map(bytes)


@settings(max_examples=300, deadline=None)
@given(st.lists(any_octets, max_size=6), extends)
@example([b"\x00\x81\x1f\x00", b""], None)
def test_our_decoder_and_hpack_agree_on_any_bytes(
    blocks: list[bytes], extend: Callable[[Fields, list[Field]], Fields | None] | None
) -> None:
    decoder, oracle = make_decoder(extend), make_oracle()
    for block in blocks:
        for _ in range(2):
            try:
                expected = ask(oracle, block)
            except hpack.HPACKError:
                with pytest.raises(HeaderBlockError):
                    decoder.decode(block)
                return
            assert decoder.decode(block) == expected


@settings(max_examples=150, deadline=None)
@given(st.lists(field_lists, min_size=1, max_size=4), st.booleans(), st.data())
def test_our_decoder_and_hpack_agree_on_damaged_blocks(
    lists: list[list[Field]], huffman: bool, data: st.DataObject
) -> None:
    encoder, decoder, oracle = hpack.Encoder(), make_decoder(), make_oracle()
    for fields in lists:
        block = bytearray(encoder.encode(fields, huffman=huffman))
        if block and data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(block) - 1))
            block[at : at + data.draw(st.integers(0, 2))] = data.draw(any_octets)[:3]
        try:
            expected = ask(oracle, bytes(block))
        except hpack.HPACKError:
            with pytest.raises(HeaderBlockError):
                decoder.decode(bytes(block))
            return
        assert decoder.decode(bytes(block)) == expected


# The codec extends the records of the headers room. That must never give another record than parsing all of it.

REQUEST = request_template("/a.B/C", "localhost", "http", "grpc-python-trio/1", accept_encoding="gzip")
parts = st.one_of(
    st.sampled_from(
        [
            *REQUEST,
            *response_fields("gzip", "identity,gzip"),
            *trailer_fields(5, "not found", b"\x08\x05"),
            (b"grpc-timeout", b"1S"),
            (b"grpc-timeout", b"1"),
            (b":authority", b"elsewhere"),
            (b"host", b"localhost"),
            (b"content-length", b"5"),
            (b"connection", b"close"),
            (b"te", b"gzip"),
            (b"X-Upper", b""),
            (b"x-blank", b" "),
            (b"x-line", b"\n"),
            (b"", b""),
        ]
    ),
    st.tuples(st.sampled_from([b"x-a", b"x-b-bin", b"user-agent"]), st.binary(max_size=3)),
)
part_lists = st.lists(parts, max_size=5)
heads = st.one_of(
    part_lists,
    part_lists.map(lambda tail: [*REQUEST, *tail]),
    part_lists.map(lambda tail: [*response_fields(), *tail]),
    part_lists.map(lambda tail: [*trailer_fields(0), *tail]),
)


@settings(max_examples=300, deadline=None)
@given(heads, part_lists)
def test_extending_a_record_is_parsing_everything(head: list[Field], tail: list[Field]) -> None:
    request = extend_request(parse_request(head), tail)
    assert request is None or request == parse_request(head + tail)
    response = extend_response(parse_response(head), tail)
    assert response is None or response == parse_response(head + tail)


tails = st.lists(st.tuples(st.sampled_from([b"x-a", b"x-b-bin", b"user-agent"]), st.sampled_from([b"", b"a", b"\xff"])))


@given(tails, st.sampled_from([None, b"1S", b"99999999H"]))
def test_the_fields_that_change_from_call_to_call_extend_a_record(tail: list[Field], timeout: bytes | None) -> None:
    for fields in (REQUEST, response_fields(), trailer_fields(0)):
        if fields is REQUEST:
            with_timeout = tail if timeout is None else [*tail, (b"grpc-timeout", timeout)]
            record = extend_request(parse_request(fields), with_timeout)
            assert record == parse_request([*fields, *with_timeout])
        else:
            other = extend_response(parse_response(fields), tail)
            assert other == parse_response([*fields, *tail])


@given(st.lists(parts | st.tuples(st.binary(max_size=5), st.binary(max_size=5))))
def test_parsing_never_fails(fields: list[Field]) -> None:
    for record in (parse_request(fields), parse_response(fields)):
        assert hash(record) == hash(record)
        if isinstance(record, Malformed):
            assert record.reason.isprintable()
