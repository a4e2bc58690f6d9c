"""Header lists and what they mean to gRPC."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_grpc._status import StatusCode
from trio_grpc._transport.headers import (
    Field,
    Malformed,
    Refusal,
    RequestHeaders,
    RequestTrailers,
    ResponseHeaders,
    decode_message,
    decode_timeout,
    encode_message,
    encode_timeout,
    extend_request,
    extend_response,
    fit_status,
    header_list_size,
    http_to_status,
    is_grpc_content_type,
    parse_request,
    parse_response,
    request_template,
    response_fields,
    rst_to_status,
    shorten_message,
    trailer_fields,
    trailers_only_fields,
)

# ---------------------------------------------------------------------------------------------------------------------
# grpc-timeout


@pytest.mark.parametrize(
    ("seconds", "value"),
    [
        (-math.inf, b"0n"),
        (-1.0, b"0n"),
        (0.0, b"0n"),
        (-0.0, b"0n"),
        (5e-324, b"1n"),
        (1e-10, b"1n"),
        (1e-9, b"1n"),
        (1.1e-9, b"2n"),
        (0.001, b"1000000n"),
        (0.05, b"50000000n"),
        (0.1, b"100000u"),
        (1, b"1000000u"),
        (1.0000001, b"1000001u"),
        (0.09989999999999999, b"99900000n"),
        (99.89999999999999, b"99900000u"),
        (100.0, b"100000m"),
        (99_999.999, b"99999999m"),
        (99_999.9991, b"100000S"),
        (1e6, b"1000000S"),
        (99_999_999.0, b"99999999S"),
        (99_999_999.5, b"1666667M"),
        (1e8, b"1666667M"),
        (99_999_999 * 60.0, b"99999999M"),
        (99_999_999 * 60.0 + 1, b"1666667H"),
        (1e10, b"2777778H"),
        (99_999_999 * 3600.0, b"99999999H"),
        (1e12, b"99999999H"),
        (1e300, b"99999999H"),
    ],
)
def test_encode_timeout(seconds: float, value: bytes) -> None:
    assert encode_timeout(seconds) == value


@pytest.mark.parametrize("seconds", [math.inf, math.nan])
def test_encode_timeout_refuses(seconds: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        encode_timeout(seconds)


@given(st.floats(0, 99_999_999 * 3600.0, exclude_min=True))
def test_timeouts_are_rounded_up_and_only_a_little(seconds: float) -> None:
    value = encode_timeout(seconds)
    assert 2 <= len(value) <= 9
    decoded = decode_timeout(value)
    unit = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "S": 1.0, "M": 60.0, "H": 3600.0}[value.decode()[-1]]
    slack = 4 * math.ulp(seconds)  # of the float arithmetic
    assert seconds - slack <= decoded <= seconds + unit + slack
    # The unit is the finest that fits, or near it: four significant digits at least, but for the finest unit.
    assert unit == 1e-9 or unit <= seconds / 1000


@given(st.integers(0, 99_999_999), st.sampled_from("numSMH"))
def test_timeouts_of_the_wire_survive(digits: int, unit: str) -> None:
    seconds = decode_timeout(f"{digits}{unit}".encode())
    assert decode_timeout(encode_timeout(seconds)) == pytest.approx(seconds, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"0n", 0.0),
        (b"1n", 1e-9),
        (b"123u", 123e-6),
        (b"100m", 0.1),
        (b"8S", 8.0),
        (b"3M", 180.0),
        (b"2H", 7200.0),
        (b"00000001S", 1.0),
        (b"99999999u", 99.999999),
        (b"99999999H", 359_999_996_400.0),
    ],
)
def test_decode_timeout(value: bytes, seconds: float) -> None:
    assert decode_timeout(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"S",
        b"1",
        b"8",
        b"123456789S",
        b"000000001S",
        b"-1S",
        b"+1S",
        b"1 S",
        b" 1S",
        b"1S ",
        b"1s",
        b"1h",
        b"1.5S",
        b"1e3S",
        b"1_0S",
        b"0x1S",
        b"\xd9\xa1S",
        b"1\xb5",
        b"1SS",
        b"S1",
        b"1S, 1S",
        b"9" * 100_000 + b"S",
    ],
)
def test_decode_timeout_refuses(value: bytes) -> None:
    with pytest.raises(ValueError, match="malformed grpc-timeout") as caught:
        decode_timeout(value)
    assert len(str(caught.value)) < 300


# ---------------------------------------------------------------------------------------------------------------------
# grpc-message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", b""),
        ("plain text, with punctuation: ~!@#$^&*()", b"plain text, with punctuation: ~!@#$^&*()"),
        ("100%", b"100%25"),
        ("%41", b"%2541"),
        ("\t\n\r\x00\x7f", b"%09%0A%0D%00%7F"),
        ("✓", b"%E2%9C%93"),
        ("100% ✓\n\t\x00", b"100%25 %E2%9C%93%0A%09%00"),
        ("\N{PILE OF POO}", b"%F0%9F%92%A9"),
        (" ", b"%20"),
        ("  ", b"%20%20"),
        ("   ", b"%20 %20"),
        (" a b ", b"%20a b%20"),
        ("a b", b"a b"),
        (" ü ", b"%20%C3%BC%20"),
        ("\ud800!", b"?!"),
    ],
)
def test_encode_message(text: str, value: bytes) -> None:
    assert encode_message(text) == value
    if "\ud800" not in text:
        assert decode_message(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"%", "%"),
        (b"%%", "%%"),
        (b"%4", "%4"),
        (b"%zz", "%zz"),
        (b"%4g", "%4g"),
        (b"%g4", "%g4"),
        (b"%+1", "%+1"),
        (b"% 1", "% 1"),
        (b"%41", "A"),
        (b"%2541", "%41"),
        (b"%%41", "%A"),
        (b"%e2%9C%93", "✓"),
        (b"a%20b", "a b"),
        (b"%FF", "\ufffd"),
        (b"\xff", "\ufffd"),
        (b"%E2%9C", "\ufffd"),
        ("schön ✓".encode(), "schön ✓"),
        (b"\xe2%9C%93", "✓"),
        (b"x%0Ay%", "x\ny%"),
    ],
)
def test_decode_message(value: bytes, text: str) -> None:
    assert decode_message(value) == text


@given(st.text())
def test_messages_survive_and_are_legal_in_http(text: str) -> None:
    value = encode_message(text)
    assert decode_message(value) == text
    assert all(0x20 <= octet <= 0x7E for octet in value)
    assert value == value.strip(b" ")


@given(st.binary())
def test_decode_message_never_fails(value: bytes) -> None:
    assert isinstance(decode_message(value), str)


@pytest.mark.parametrize("unit", ["x", "✓", "% ", "\n"])
def test_long_messages_survive(unit: str) -> None:
    text = "." + unit * 100_000 + "."
    assert decode_message(encode_message(text)) == text


# ---------------------------------------------------------------------------------------------------------------------
# Requests

REQUEST: tuple[Field, ...] = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/pkg.Service/Method"),
    (b":authority", b"example.com:50051"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


def request(*more: Field, **changed: bytes | None) -> list[Field]:
    """The fields of a good request, with some changed or (None) left out, and some more."""
    changes = {key.replace("_", "-").encode(): value for key, value in changed.items()}
    fields: list[Field] = []
    for name, value in REQUEST:
        change = changes.pop(name.lstrip(b":"), value)
        if change is not None:
            fields.append((name, change))
    assert not changes
    return [*fields, *more]


def parse_good(fields: list[Field]) -> RequestHeaders:
    record = parse_request(fields)
    assert isinstance(record, RequestHeaders), record
    return record


def refusal_of(fields: list[Field]) -> Refusal:
    record = parse_good(fields)
    assert record.refusal is not None
    return record.refusal


def test_parse_request() -> None:
    assert parse_request(request()) == RequestHeaders(
        path="/pkg.Service/Method",
        authority="example.com:50051",
        timeout=None,
        encoding="identity",
        accept_encoding=(),
        fields=(),
        content_length=None,
        refusal=None,
    )


def test_parse_request_with_everything() -> None:
    metadata: list[Field] = [
        (b"user-agent", b"grpc-go/1.60.0"),
        (b"x-b", b"2"),
        (b"x-a", b"1"),
        (b"x-bytes-bin", b"AAE"),
        (b"x-b", b"\xff obs-text \x80"),
        (b"x-empty", b""),
        (b"grpc-previous-rpc-attempts", b"1"),
        (b"grpc-trace-bin", b"AAAA"),
        (b"authorization", b"Bearer x"),
        (b"cookie", b"a=b"),
        (b"!#$%&'*+-.^_`|~09az", b"any token"),
    ]
    reserved: list[Field] = [
        (b"grpc-timeout", b"100m"),
        (b"grpc-encoding", b"gzip"),
        (b"grpc-accept-encoding", b"identity,deflate, gzip ,,"),
        (b"grpc-message-type", b"pkg.Request"),
        (b"content-length", b"42"),
        (b"host", b"EXAMPLE.com:50051"),
        (b"grpc-status", b"0"),
        (b"grpc-message", b"no"),
        (b"grpc-status-details-bin", b"AA"),
    ]
    mixed = [field for pair in zip(metadata, [*reserved, *reserved[:2]], strict=True) for field in pair]
    for fields in ([*metadata, *reserved], [*reserved, *metadata], mixed):
        assert parse_request(request(*fields)) == RequestHeaders(
            path="/pkg.Service/Method",
            authority="example.com:50051",
            timeout=0.1,
            encoding="gzip",
            accept_encoding=("identity", "deflate", "gzip"),
            fields=tuple(metadata),
            content_length=42,
            refusal=None,
        )


def test_parse_request_does_not_change_its_input() -> None:
    fields = request((b"x-a", b"1"))
    before = list(fields)
    parse_request(fields)
    assert fields == before


def test_parse_request_takes_pseudo_headers_in_any_order() -> None:
    assert parse_request([*reversed(REQUEST[:4]), *REQUEST[4:]]) == parse_request(request())


@pytest.mark.parametrize(
    ("fields", "authority"),
    [
        (request(), "example.com:50051"),
        (request(authority=None), ""),
        (request((b"host", b"other"), authority=None), "other"),
        (request((b"host", b"Example.COM:50051")), "example.com:50051"),
        (request(authority=b""), ""),
        (request(authority=b"b\xfccher"), "b\xfccher"),
    ],
)
def test_parse_request_finds_the_authority(fields: list[Field], authority: str) -> None:
    record = parse_good(fields)
    assert record.authority == authority
    assert record.refusal is None
    assert record.fields == ()


def test_parse_request_tolerates_a_missing_te() -> None:
    assert parse_request(request(te=None)) == parse_request(request())
    assert parse_request(request(te=b"Trailers")) == parse_request(request())
    assert parse_request(request((b"te", b"trailers"))) == parse_request(request())


@pytest.mark.parametrize(
    "value",
    [
        b"application/grpc",
        b"application/grpc+proto",
        b"application/grpc+json",
        b"application/grpc;charset=utf-8",
        b"application/grpc ; charset=utf-8",
        b"application/grpc;",
        b"Application/GRPC",
        b"APPLICATION/GRPC+PROTO",
    ],
)
def test_content_types_of_grpc(value: bytes) -> None:
    record = parse_good(request(content_type=value))
    assert attrs.asdict(record) | attrs.asdict(parse_good(request())) == attrs.asdict(record)
    assert is_grpc_content_type(value)
    assert is_grpc_content_type(value.decode())


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (b"application/grpc", b"application/grpc"),
        (b"application/grpc+proto", b"application/grpc"),
        (b"application/grpc+json", b"application/grpc+json"),
        (b"application/grpc+json; charset=utf-8", b"application/grpc"),
        (b"application/grpc;a=b+c", b"application/grpc"),
        (b"application/grpc+" + b"x" * 110, b"application/grpc+" + b"x" * 110),
        (b"application/grpc+" + b"x" * 111, b"application/grpc"),
        (b"text/html+xml", b"application/grpc"),
    ],
)
def test_which_content_type_an_answer_has(asked: bytes, answered: bytes) -> None:
    record = parse_request(request(content_type=asked))
    assert isinstance(record, RequestHeaders)
    assert record.content_type == answered


def test_a_request_with_a_subtype_is_not_extended() -> None:
    """Its record has a field more, which the quick way does not know."""
    record = parse_request(request(content_type=b"application/grpc+json"))
    assert isinstance(record, RequestHeaders)
    assert extend_request(record, [(b"x-a", b"1")]) is None


@pytest.mark.parametrize(
    "value",
    [
        b"application/grpcfoo",
        b"application/grpc-web",
        b"application/grpc-web+proto",
        b"application/grpc/x",
        b"application/grp",
        b"application/json",
        b"text/html",
        b"xapplication/grpc",
        b"application/grpc, application/grpc",
        b"",
        b"\xff",
    ],
)
def test_content_types_of_others(value: bytes) -> None:
    refusal = refusal_of(request(content_type=value))
    assert (refusal.http_status, refusal.code) == (415, StatusCode.INVALID_ARGUMENT)
    assert repr(value)[1:] in refusal.message
    assert not is_grpc_content_type(value)
    assert not is_grpc_content_type(value.decode("latin-1"))


def test_content_type_may_be_any_text() -> None:
    assert not is_grpc_content_type("application/\N{SNOWMAN}")


def test_parse_request_refuses_a_missing_content_type() -> None:
    refusal = refusal_of(request(content_type=None))
    assert refusal == Refusal(415, StatusCode.INVALID_ARGUMENT, "content-type is missing, not 'application/grpc'")


@pytest.mark.parametrize("method", [b"GET", b"PUT", b"OPTIONS", b"post", b"POST ,"])
def test_parse_request_refuses_other_methods(method: bytes) -> None:
    refusal = refusal_of(request(method=method))
    assert refusal == Refusal(405, StatusCode.INTERNAL, f"method is {method.decode()!r}, not 'POST'")
    # The method tells more than what a request with another one lacks.
    assert refusal_of(request(method=method, content_type=None)) == refusal
    assert refusal_of(request(method=method, path=b"/")) == refusal


def test_parse_request_refuses_connect_which_has_no_path() -> None:
    record = parse_good(request(method=b"CONNECT", scheme=None, path=None))
    assert record.path == ""
    assert record.refusal == Refusal(405, StatusCode.INTERNAL, "method is 'CONNECT', not 'POST'")


@pytest.mark.parametrize("path", [b"/", b"/x", b"x", b"pkg.Service/Method", b"*", b"x/y/z", b"\xff"])
def test_parse_request_refuses_paths_without_two_slashes(path: bytes) -> None:
    record = parse_good(request(path=path))
    assert record.path == path.decode("latin-1")
    assert record.refusal is not None
    assert (record.refusal.http_status, record.refusal.code) == (200, StatusCode.UNIMPLEMENTED)
    assert repr(record.path) in record.refusal.message


def test_parse_request_keeps_the_message_about_a_long_path_short() -> None:
    assert len(refusal_of(request(path=b"x" * 10_000)).message) < 400


@pytest.mark.parametrize("path", [b"//", b"/a/", b"/pkg.Service/Method", b"/a/b/c", b"//b", b"/\xff/\xfe"])
def test_parse_request_leaves_paths_with_two_slashes_to_the_server(path: bytes) -> None:
    record = parse_good(request(path=path))
    assert record.path == path.decode("latin-1")
    assert record.refusal is None


@pytest.mark.parametrize("value", [b"", b"S", b"1", b"123456789S", b"-1S", b"1 S", b"1s"])
def test_parse_request_refuses_a_malformed_timeout(value: bytes) -> None:
    record = parse_good(request((b"grpc-timeout", value)))
    assert record.timeout is None
    assert record.refusal == Refusal(400, StatusCode.INTERNAL, f"malformed grpc-timeout {value.decode()!r}")


@pytest.mark.parametrize(
    "fields",
    [
        request((b"host", b"a"), (b"host", b"a"), authority=None),
        request((b"host", b"a"), (b"host", b"b"), authority=None),
        request((b"host", b"a"), (b"host", b"b"), (b"host", b"a"), authority=None),
        request((b"host", b"example.com:50051"), (b"host", b"example.com:50051")),
        [(b":authority", b"example.com:50051"), *request()],
        [(b":authority", b"a"), (b":authority", b"b"), *request((b"host", b"c"))],
    ],
)
def test_parse_request_refuses_more_than_one_authority(fields: list[Field]) -> None:
    record = parse_good(fields)
    assert record.authority == ""
    assert record.refusal == Refusal(400, StatusCode.INTERNAL, "more than one :authority or host")


@pytest.mark.parametrize(
    ("more", "timeout", "encoding", "accept_encoding", "is_refused"),
    [
        ([(b"grpc-timeout", b"1S")] * 2, 1.0, "identity", (), False),
        ([(b"grpc-timeout", b"1S"), (b"grpc-timeout", b"2S")], None, "identity", (), True),
        ([(b"content-type", b"application/grpc")], None, "identity", (), False),
        ([(b"content-type", b"text/html")], None, "identity", (), True),
        ([(b"grpc-encoding", b"gzip"), (b"grpc-encoding", b"deflate")], None, "gzip, deflate", (), False),
        (
            [(b"grpc-accept-encoding", b"gzip"), (b"grpc-accept-encoding", b"deflate")],
            None,
            "identity",
            ("gzip", "deflate"),
            False,
        ),
    ],
)
def test_parse_request_combines_repeated_fields(
    more: list[Field], timeout: float | None, encoding: str, accept_encoding: tuple[str, ...], is_refused: bool
) -> None:
    record = parse_good(request(*more))
    assert (record.timeout, record.encoding, record.accept_encoding) == (timeout, encoding, accept_encoding)
    assert (record.refusal is not None) == is_refused


@pytest.mark.parametrize("value", [b"", b" "[:0]])
def test_parse_request_takes_an_empty_encoding_for_none(value: bytes) -> None:
    record = parse_good(request((b"grpc-encoding", value), (b"grpc-accept-encoding", value)))
    assert (record.encoding, record.accept_encoding) == ("identity", ())


@pytest.mark.parametrize(
    ("values", "length"),
    [
        ([b"0"], 0),
        ([b"42"], 42),
        ([b"042"], 42),
        ([b"9" * 19], 10**19 - 1),
        ([b"42", b"42"], 42),
        ([b"42, 42"], 42),
        ([b"42,42", b"42"], 42),
        ([b""], None),
        ([b","], None),
        ([b"42,"], None),
        ([b"42", b"43"], None),
        ([b"42, 43"], None),
        ([b"42", b"042"], None),
        ([b"-1"], None),
        ([b"+1"], None),
        ([b"1.0"], None),
        ([b"1_0"], None),
        ([b"0x10"], None),
        ([b"ten"], None),
        ([b"\xb2"], None),
        ([b"9" * 20], None),
        ([b"9" * 100_000], None),
    ],
)
def test_content_length(values: list[bytes], length: int | None) -> None:
    fields: list[Field] = [(b"content-length", value) for value in values]
    records = [
        parse_request(request(*fields)),
        parse_response([(b":status", b"200"), *fields]),
    ]
    for record in records:
        if length is None:
            assert isinstance(record, Malformed)
            assert record.reason.startswith("content-length is ")
            assert len(record.reason) < 300
        else:
            assert isinstance(record, RequestHeaders | ResponseHeaders)
            assert record.content_length == length
            assert record.fields == ()


def test_parse_request_without_pseudo_headers_is_trailers() -> None:
    assert parse_request([]) == RequestTrailers(())
    fields: list[Field] = [(b"x-a", b"1"), (b"x-a", b"2")]
    assert parse_request([*fields, (b"grpc-status", b"0")]) == RequestTrailers(tuple(fields))


# ---------------------------------------------------------------------------------------------------------------------
# What RFC 9113 forbids in all header lists

STATUS: Field = (b":status", b"200")
BAD_FIELDS = [
    pytest.param((b"X-Upper", b"1"), "not a lower-case token", id="upper-case name"),
    pytest.param((b"x-\xc3\xa4", b"1"), "not a lower-case token", id="name beyond ASCII"),
    pytest.param((b"x y", b"1"), "not a lower-case token", id="space in a name"),
    pytest.param((b"x\ty", b"1"), "not a lower-case token", id="tab in a name"),
    pytest.param((b"x\0", b"1"), "not a lower-case token", id="NUL in a name"),
    pytest.param((b"x\n", b"1"), "not a lower-case token", id="LF in a name"),
    pytest.param((b"x\x7f", b"1"), "not a lower-case token", id="DEL in a name"),
    pytest.param((b"x:y", b"1"), "not a lower-case token", id="colon in a name"),
    pytest.param((b"x(", b"1"), "not a lower-case token", id="delimiter in a name"),
    pytest.param((b"", b"1"), "not a lower-case token", id="empty name"),
    pytest.param((b"x-a", b"a\0b"), "value of field 'x-a'", id="NUL in a value"),
    pytest.param((b"x-a", b"a\rb"), "value of field 'x-a'", id="CR in a value"),
    pytest.param((b"x-a", b"a\nb"), "value of field 'x-a'", id="LF in a value"),
    pytest.param((b"x-a", b"\n"), "value of field 'x-a'", id="LF as a value"),
    pytest.param((b"grpc-encoding", b" a"), "value of field 'grpc-encoding'", id="space before a value"),
    pytest.param((b"grpc-encoding", b"a "), "value of field 'grpc-encoding'", id="space after a value"),
    pytest.param((b"grpc-encoding", b"\ta"), "value of field 'grpc-encoding'", id="tab before a value"),
    pytest.param((b"grpc-encoding", b"a\t"), "value of field 'grpc-encoding'", id="tab after a value"),
    pytest.param((b"grpc-encoding", b" "), "value of field 'grpc-encoding'", id="space as a value"),
    pytest.param(
        (b"grpc-encoding", b"a" + b" " * 50_000), "value of field 'grpc-encoding'", id="many spaces after a value"
    ),
    pytest.param((b"grpc-message", b"a\nb"), "value of field 'grpc-message'", id="LF in a message"),
    pytest.param((b"grpc-accept-encoding", b"gzip\r"), "value of field 'grpc-accept-encoding'", id="CR in a list"),
    pytest.param((b"connection", b"keep-alive"), "connection-specific", id="connection"),
    pytest.param((b"keep-alive", b"5"), "connection-specific", id="keep-alive"),
    pytest.param((b"proxy-connection", b"close"), "connection-specific", id="proxy-connection"),
    pytest.param((b"transfer-encoding", b"chunked"), "connection-specific", id="transfer-encoding"),
    pytest.param((b"upgrade", b"h2c"), "connection-specific", id="upgrade"),
    pytest.param((b"te", b"gzip"), "te is ", id="te: gzip"),
    pytest.param((b"te", b"trailers, deflate"), "te is ", id="te: list"),
    pytest.param((b"te", b""), "te is ", id="te: empty"),
    pytest.param((b":path", b"/late/path"), "after regular fields", id="pseudo-header after regular fields"),
    pytest.param((b":status", b"200"), "after regular fields", id="status after regular fields"),
    pytest.param((b":late", b"1"), "unknown pseudo-header", id="unknown pseudo-header"),
    pytest.param((b":", b"1"), "unknown pseudo-header", id="pseudo-header without a name"),
    pytest.param((b":Path", b"1"), "unknown pseudo-header", id="upper-case pseudo-header"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD_FIELDS)
@pytest.mark.parametrize("start", [(b"x-first", b"1"), (b"grpc-encoding", b"gzip")])
def test_a_bad_field_makes_any_header_list_malformed(bad: Field, reason: str, start: Field) -> None:
    ends: list[list[Field]] = [[], [(b"x-last", b"a b")]]
    for end in ends:
        records = [
            parse_request(request(start, bad, *end)),
            parse_request([start, bad, *end]),
            parse_response([STATUS, start, bad, *end]),
            parse_response([start, bad, *end]),
        ]
        for record in records:
            assert isinstance(record, Malformed)
            assert reason in record.reason
            assert record.reason.isprintable()
            assert len(record.reason) < 300


@pytest.mark.parametrize("name", [name for name, _ in REQUEST[:4]] + [b":status"])
@pytest.mark.parametrize("value", [b"a\nb", b" a", b"a ", b"\0", b"\r"])
def test_a_bad_pseudo_header_value_is_malformed(name: bytes, value: bytes) -> None:
    fields = [(n, value if n == name else v) for n, v in (STATUS, *REQUEST)]
    for record in (parse_request(fields), parse_response(fields)):
        assert isinstance(record, Malformed)
        assert record.reason.startswith(f"value of field {name.decode()!r}")


@pytest.mark.parametrize("value", [b" a", b"a ", b"\ta", b"a \t", b" a  b ", b" ", b"a" + b" " * 50_000])
def test_blanks_at_the_ends_of_metadata_are_stripped(value: bytes) -> None:
    # C-core sends them, and gRPC's PROTOCOL-HTTP2 says that they may be stripped.
    stripped = (b"x-a", value.strip(b" \t"))
    assert parse_good(request((b"x-a", value))).fields == (stripped,)
    for record in (parse_response([STATUS, (b"x-a", value)]), parse_response([(b"x-a", value)])):
        assert isinstance(record, ResponseHeaders)
        assert record.fields == (stripped,)


def test_blanks_at_the_ends_of_a_message_are_kept() -> None:
    record = parse_response([(b"grpc-status", b"5"), (b"grpc-message", b" no such thing: ")])
    assert isinstance(record, ResponseHeaders)
    assert record.message == " no such thing: "


@pytest.mark.parametrize(
    "value", [b"", b"a", b"a b", b"a\tb", b"a  \t b", b"\x01\x1f\x7f", bytes(range(0x80, 0x100)), b"a" * 50_000]
)
def test_other_values_are_tolerated(value: bytes) -> None:
    field = (b"x-a", value)
    assert parse_good(request(field)).fields == (field,)
    record = parse_response([STATUS, field])
    assert isinstance(record, ResponseHeaders)
    assert record.fields == (field,)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param(request(method=None), "request without :method", id="no method"),
        pytest.param(request(method=b""), "request without :method", id="empty method"),
        pytest.param(request(scheme=None), "request without :scheme", id="no scheme"),
        pytest.param(request(scheme=b""), "request without :scheme", id="empty scheme"),
        pytest.param(request(path=None), "request without :path", id="no path"),
        pytest.param([(b":authority", b"a")], "request without :method", id="authority only"),
        pytest.param([*REQUEST[:1], *request()], "repeated pseudo-header field ':method'", id="two methods"),
        pytest.param([*REQUEST[1:2], *request()], "repeated pseudo-header field ':scheme'", id="two schemes"),
        pytest.param([*REQUEST[2:3], *request()], "repeated pseudo-header field ':path'", id="two paths"),
        pytest.param([STATUS, *request()], "in a request", id="status"),
        pytest.param([(b":protocol", b"websocket"), *request()], "unknown pseudo-header", id="protocol"),
        pytest.param([REQUEST[4], *request(te=None)], "after regular fields", id="te first"),
        pytest.param([(b"x-a", b"1"), *request()], "after regular fields", id="metadata first"),
        pytest.param(request((b"host", b"elsewhere")), "is not the :authority", id="other host"),
        pytest.param(request((b"host", b"example.com")), "is not the :authority", id="host without the port"),
        pytest.param(request((b"host", b"")), "is not the :authority", id="empty host"),
    ],
)
def test_malformed_requests(fields: list[Field], reason: str) -> None:
    record = parse_request(fields)
    assert isinstance(record, Malformed)
    assert reason in record.reason


def test_malformed_comes_before_refused() -> None:
    bad = (b"x-a", b"\n")
    for fields in (request(bad, method=b"GET"), request(bad, content_type=b"text/html"), request(bad, path=b"/")):
        assert isinstance(parse_request(fields), Malformed)


# ---------------------------------------------------------------------------------------------------------------------
# Responses


def parse_answer(fields: list[Field]) -> ResponseHeaders:
    record = parse_response(fields)
    assert isinstance(record, ResponseHeaders), record
    return record


NO_RESPONSE = ResponseHeaders(
    http_status=None,
    content_type=None,
    encoding="identity",
    accept_encoding=(),
    grpc_status=None,
    message="",
    status_details=b"",
    fields=(),
    content_length=None,
)


def test_parse_response_head() -> None:
    fields: list[Field] = [
        STATUS,
        (b"content-type", b"application/grpc+proto"),
        (b"x-a", b"1"),
        (b"grpc-encoding", b"gzip"),
        (b"server", b"envoy"),
        (b"grpc-accept-encoding", b"gzip, identity"),
        (b"content-length", b"7"),
        (b"x-a", b"2"),
        (b"grpc-retry-pushback-ms", b"5"),
    ]
    assert parse_response(fields) == attrs.evolve(
        NO_RESPONSE,
        http_status=200,
        content_type="application/grpc+proto",
        encoding="gzip",
        accept_encoding=("gzip", "identity"),
        fields=((b"x-a", b"1"), (b"server", b"envoy"), (b"x-a", b"2"), (b"grpc-retry-pushback-ms", b"5")),
        content_length=7,
    )


def test_parse_response_trailers() -> None:
    fields: list[Field] = [
        (b"grpc-status", b"5"),
        (b"x-a-bin", b"AAE"),
        (b"grpc-message", b"not%20found"),
        (b"grpc-status-details-bin", b"CAU"),
    ]
    assert parse_response(fields) == attrs.evolve(
        NO_RESPONSE,
        grpc_status=5,
        message="not found",
        status_details=b"\x08\x05",
        fields=((b"x-a-bin", b"AAE"),),
    )


def test_parse_response_of_nothing_is_trailers_without_a_status() -> None:
    assert parse_response([]) == NO_RESPONSE


@pytest.mark.parametrize("value", [b"100", b"103", b"199", b"200", b"404", b"502", b"599", b"999"])
def test_parse_response_reads_the_http_status(value: bytes) -> None:
    assert parse_response([(b":status", value)]) == attrs.evolve(NO_RESPONSE, http_status=int(value))


def test_parse_response_of_a_web_server() -> None:
    record = parse_answer([(b":status", b"502"), (b"content-type", b"text/html; charset=utf-8"), (b"server", b"nginx")])
    assert (record.http_status, record.content_type, record.grpc_status) == (502, "text/html; charset=utf-8", None)


def test_parse_response_keeps_a_message_without_a_status() -> None:
    record = parse_answer([STATUS, (b"grpc-message", b"odd")])
    assert (record.grpc_status, record.message) == (None, "odd")


@pytest.mark.parametrize(
    "fields",
    [
        [(b":status", b"")],
        [(b":status", b"20")],
        [(b":status", b"2000")],
        [(b":status", b"000")],
        [(b":status", b"099")],
        [(b":status", b"101")],
        [(b":status", b"2x0")],
        [(b":status", b"+20")],
        [(b":status", b"2.0")],
        [(b":status", b"\xb2\xb2\xb2")],
        [STATUS, STATUS],
        [STATUS, (b":path", b"/")],
        [(b":path", b"/")],
        [(b":authority", b"a"), (b":authority", b"a")],
        [(b"x-a", b"1"), STATUS],
        [(b"grpc-status", b"0"), STATUS],
    ],
)
def test_malformed_responses(fields: list[Field]) -> None:
    assert isinstance(parse_response(fields), Malformed)


@pytest.mark.parametrize("code", range(17))
def test_parse_response_reads_all_status_codes(code: int) -> None:
    record = parse_answer([(b"grpc-status", b"%d" % code)])
    assert (record.grpc_status, record.message) == (code, "")
    assert StatusCode(code) == code


@pytest.mark.parametrize(
    ("value", "message", "status", "text"),
    [
        (b"00", b"", 0, ""),
        (b"05", b"x", 5, "x"),
        (b"17", b"", 2, "unknown grpc-status 17"),
        (b"99", b"bad%20day", 2, "unknown grpc-status 99: bad day"),
        (b"9" * 5000, b"", 2, f"unknown grpc-status {'9' * 64}"),
        (b"0" * 5000, b"", 0, ""),
        (b"", b"", 2, "malformed grpc-status ''"),
        (b"-1", b"x", 2, "malformed grpc-status '-1': x"),
        (b"+5", b"", 2, "malformed grpc-status '+5'"),
        (b"5.0", b"", 2, "malformed grpc-status '5.0'"),
        (b"1_0", b"", 2, "malformed grpc-status '1_0'"),
        (b"OK", b"", 2, "malformed grpc-status 'OK'"),
        (b"\xb2", b"", 2, "malformed grpc-status '\\xb2'"),
    ],
)
def test_parse_response_takes_other_statuses_for_unknown(value: bytes, message: bytes, status: int, text: str) -> None:
    record = parse_answer([(b"grpc-status", value), (b"grpc-message", message)])
    assert (record.grpc_status, record.message) == (status, text)


def test_parse_response_takes_contradicting_statuses_for_unknown() -> None:
    record = parse_answer([(b"grpc-status", b"0"), (b"grpc-status", b"5")])
    assert (record.grpc_status, record.message) == (2, "malformed grpc-status '0, 5'")
    assert parse_answer([(b"grpc-status", b"5"), (b"grpc-status", b"5")]).grpc_status == 5


@pytest.mark.parametrize(
    ("value", "details"),
    [
        (b"", b""),
        (b"YQ", b"a"),
        (b"YQ==", b"a"),
        (b"YWI", b"ab"),
        (b"YWI=", b"ab"),
        (b"YWJj", b"abc"),
        (b"YQ,YWI", b"a"),
        (b"YQ , YWI", b"a"),
        (b"+/+/", b"\xfb\xff\xbf"),
        (b"*", b""),
        (b"Y", b""),
        (b"YWJjZ", b""),
        (b"YQ=", b"a"),
        (b"YW Jj", b""),
        (b"Y\xffQ", b""),
        (b"=", b""),
    ],
)
def test_parse_response_reads_the_details(value: bytes, details: bytes) -> None:
    record = parse_answer([(b"grpc-status", b"5"), (b"grpc-status-details-bin", value)])
    assert (record.grpc_status, record.status_details) == (5, details)


# ---------------------------------------------------------------------------------------------------------------------
# Records


@pytest.mark.parametrize(
    "record",
    [
        parse_request(request((b"x-a", b"1"))),
        parse_request(request(method=b"GET")),
        refusal_of(request(method=b"GET")),
        parse_request([(b"x-a", b"1")]),
        parse_request(request(te=b"gzip")),
        parse_response([STATUS, (b"x-a", b"1")]),
    ],
    ids=lambda record: type(record).__name__,
)
def test_records_cannot_be_changed(record: Any) -> None:
    assert hash(record) == hash(attrs.evolve(record))
    for attribute in attrs.fields(type(record)):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(record, attribute.name, None)
        assert not isinstance(getattr(record, attribute.name), list | dict | set | bytearray)
    with pytest.raises(AttributeError):
        record.other = None


def test_extend_request_with_what_changes_from_call_to_call() -> None:
    head = parse_request(request((b"user-agent", b"u")))
    tail: list[Field] = [(b"grpc-timeout", b"1S"), (b"x-a", b"1"), (b"x-a", b"\xff")]
    extended = extend_request(head, tail)
    assert extended is not None
    assert extended == parse_request(request((b"user-agent", b"u"), *tail))
    assert (extended.timeout, len(extended.fields)) == (1.0, 3)
    assert parse_request(request((b"user-agent", b"u"))) == head, "the head is as it was"


@pytest.mark.parametrize(
    "field",
    [
        (b"grpc-timeout", b"1"),
        (b"content-length", b"1"),
        (b"grpc-encoding", b"gzip"),
        (b"te", b"gzip"),
        (b"host", b"elsewhere"),
        (b":path", b"/a/b"),
        (b"connection", b"close"),
        (b"X-Upper", b""),
        (b"x-a", b" "),
        (b"x-a", b"a\n"),
        (b"", b""),
        (b":x", b""),
    ],
)
def test_extending_declines_all_else(field: Field) -> None:
    good = (b"x-good", b"1")
    for tail in ([field], [good, field], [field, good]):
        assert extend_request(parse_request(request()), tail) is None
        assert extend_response(parse_response([STATUS]), tail) is None


def test_extend_request_declines_a_second_timeout() -> None:
    timeout = (b"grpc-timeout", b"1S")
    assert extend_request(parse_request(request()), [timeout, timeout]) is None
    assert extend_request(parse_request(request(timeout)), [timeout]) is None


def test_extending_declines_heads_that_are_not_good() -> None:
    tail = [(b"x-a", b"1")]
    for head in (request(method=b"GET"), [(b"x-b", b"1")], request(te=b"gzip"), request()[:2]):
        assert extend_request(parse_request(head), tail) is None
    assert extend_response(parse_response([(b":status", b"")]), tail) is None


def test_extend_response() -> None:
    tail = [(b"x-a", b"1"), (b"x-b-bin", b"AA")]
    for head in ([STATUS, (b"x-b-bin", b"AQ")], [(b"grpc-status", b"5"), (b"grpc-message", b"no")]):
        assert extend_response(parse_response(head), tail) == parse_response([*head, *tail])
    # A timeout means nothing in a response.
    assert extend_response(parse_response([STATUS]), [(b"grpc-timeout", b"1S")]) is None


# ---------------------------------------------------------------------------------------------------------------------
# Errors of HTTP


@pytest.mark.parametrize(
    ("http_status", "code"),
    [
        (200, StatusCode.UNKNOWN),
        (204, StatusCode.UNKNOWN),
        (302, StatusCode.UNKNOWN),
        (400, StatusCode.INTERNAL),
        (401, StatusCode.UNAUTHENTICATED),
        (403, StatusCode.PERMISSION_DENIED),
        (404, StatusCode.UNIMPLEMENTED),
        (405, StatusCode.UNKNOWN),
        (415, StatusCode.UNKNOWN),
        (429, StatusCode.UNAVAILABLE),
        (431, StatusCode.INTERNAL),
        (500, StatusCode.UNKNOWN),
        (502, StatusCode.UNAVAILABLE),
        (503, StatusCode.UNAVAILABLE),
        (504, StatusCode.UNAVAILABLE),
        (999, StatusCode.UNKNOWN),
    ],
)
def test_http_to_status(http_status: int, code: StatusCode) -> None:
    assert http_to_status(http_status) is code


@pytest.mark.parametrize(
    ("error_code", "code"),
    [
        (0x0, StatusCode.INTERNAL),
        (0x1, StatusCode.INTERNAL),
        (0x2, StatusCode.INTERNAL),
        (0x3, StatusCode.INTERNAL),
        (0x4, StatusCode.INTERNAL),
        (0x5, StatusCode.INTERNAL),
        (0x6, StatusCode.INTERNAL),
        (0x7, StatusCode.UNAVAILABLE),
        (0x8, StatusCode.CANCELLED),
        (0x9, StatusCode.INTERNAL),
        (0xA, StatusCode.INTERNAL),
        (0xB, StatusCode.RESOURCE_EXHAUSTED),
        (0xC, StatusCode.PERMISSION_DENIED),
        (0xD, StatusCode.INTERNAL),
        (0xE, StatusCode.UNKNOWN),
        (0xFFFFFFFF, StatusCode.UNKNOWN),
    ],
)
def test_rst_to_status(error_code: int, code: StatusCode) -> None:
    assert rst_to_status(error_code) is code


# ---------------------------------------------------------------------------------------------------------------------
# Building header lists


def test_request_template() -> None:
    fields = request_template("/a.B/C", "host:1", "https", "agent/1", encoding="gzip", accept_encoding="identity,gzip")
    assert fields == (
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":path", b"/a.B/C"),
        (b":authority", b"host:1"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"agent/1"),
        (b"grpc-encoding", b"gzip"),
        (b"grpc-accept-encoding", b"identity,gzip"),
    )


@pytest.mark.parametrize("encoding", [None, "", b"", "identity", b"identity"])
@pytest.mark.parametrize("accept_encoding", [None, "", b""])
def test_templates_leave_out_what_says_nothing(
    encoding: str | bytes | None, accept_encoding: str | bytes | None
) -> None:
    fields = request_template(b"/a/b", b"h", b"http", b"u", b"application/grpc+proto", encoding, accept_encoding)
    assert [name for name, _ in fields][4:] == [b"te", b"content-type", b"user-agent"]
    assert fields[5] == (b"content-type", b"application/grpc+proto")
    assert response_fields(encoding, accept_encoding) == (STATUS, (b"content-type", b"application/grpc"))


def test_response_fields() -> None:
    assert response_fields("gzip", b"gzip,deflate") == (
        STATUS,
        (b"content-type", b"application/grpc"),
        (b"grpc-encoding", b"gzip"),
        (b"grpc-accept-encoding", b"gzip,deflate"),
    )


def test_trailer_fields() -> None:
    assert trailer_fields(0) == ((b"grpc-status", b"0"),)
    assert trailer_fields(StatusCode.NOT_FOUND, "no ✓", b"\x08\x05", [(b"x-a", b"1")]) == (
        (b"grpc-status", b"5"),
        (b"grpc-message", b"no %E2%9C%93"),
        (b"grpc-status-details-bin", b"CAU"),
        (b"x-a", b"1"),
    )


def test_trailers_only_fields() -> None:
    assert trailers_only_fields(12, "no", b"", iter([(b"x-a", b"1")])) == (
        STATUS,
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"12"),
        (b"grpc-message", b"no"),
        (b"x-a", b"1"),
    )
    assert trailers_only_fields(12, http_status=415, accept_encoding="gzip") == (
        (b":status", b"415"),
        (b"content-type", b"application/grpc"),
        (b"grpc-accept-encoding", b"gzip"),
        (b"grpc-status", b"12"),
    )


@given(st.integers(0, 16), st.text(), st.binary(max_size=20))
def test_the_client_reads_what_the_server_builds(code: int, message: str, details: bytes) -> None:
    metadata: list[Field] = [(b"x-a-bin", base64.b64encode(details)), (b"x-a-bin", b"")]
    trailers = attrs.evolve(
        NO_RESPONSE, grpc_status=code, message=message, status_details=details, fields=tuple(metadata)
    )
    assert parse_response(trailer_fields(code, message, details, metadata)) == trailers
    assert parse_response(trailers_only_fields(code, message, details, metadata)) == attrs.evolve(
        trailers, http_status=200, content_type="application/grpc"
    )


def test_the_server_reads_what_the_client_builds() -> None:
    fields = request_template("/a.B/C", "host:1", "https", "agent/1", encoding="gzip", accept_encoding="identity,gzip")
    assert parse_request(fields) == RequestHeaders(
        path="/a.B/C",
        authority="host:1",
        timeout=None,
        encoding="gzip",
        accept_encoding=("identity", "gzip"),
        fields=((b"user-agent", b"agent/1"),),
        content_length=None,
        refusal=None,
    )
    assert parse_response(response_fields("gzip", "gzip")) == attrs.evolve(
        NO_RESPONSE, http_status=200, content_type="application/grpc", encoding="gzip", accept_encoding=("gzip",)
    )


@pytest.mark.parametrize(
    ("message", "size", "kept"),
    [
        ("plain", 5, "plain"),
        ("plain", 4, "plai"),
        ("plain", 0, ""),
        ("plain", -40, ""),
        ("a%b", 3, "a"),  # %25 is cut
        ("a%b", 4, "a%"),
        ("a%b", 5, "a%b"),
        ("é!", 6, "é"),
        ("é!", 5, ""),  # %C3%A9 is two octets of one character
        ("x€", 9, "x"),
    ],
)
def test_shorten_message(message: str, size: int, kept: str) -> None:
    assert shorten_message(message, size) == kept
    assert len(encode_message(kept)) <= max(size, 0)


def test_header_list_size_counts_as_rfc_9113_says() -> None:
    assert header_list_size([]) == 0
    assert header_list_size([(b"a", b"bc"), (b"", b"")]) == 35 + 32


@pytest.mark.parametrize("make", [trailer_fields, trailers_only_fields])
@pytest.mark.parametrize("length", [0, 5, 50, 500])
@pytest.mark.parametrize("details", [b"", b"d" * 60])
@pytest.mark.parametrize("metadata", [(), ((b"x-long", b"v" * 300),)])
def test_a_status_fits_wherever_it_can(
    make: Callable[..., tuple[Field, ...]], length: int, details: bytes, metadata: tuple[Field, ...]
) -> None:
    message = "m" * length
    least = header_list_size(make(5))
    whole = make(5, message, details, metadata)
    for limit in range(header_list_size(whole) + 3):
        fields = fit_status(make, 5, message, details, metadata, limit)
        kept = dict(fields)
        assert kept[b"grpc-status"] == b"5"
        assert header_list_size(fields) <= max(limit, least)
        assert message.startswith(kept.get(b"grpc-message", b"").decode())
        if limit >= header_list_size(whole):
            assert fields == whole
        elif limit >= header_list_size(make(5, message, b"", metadata)):
            assert fields == make(5, message, b"", metadata)
        elif limit >= header_list_size(make(5, message)):
            # Whatever else goes, a message that can be kept whole in part is.
            assert len(kept.get(b"grpc-message", b"")) >= min(length, 128)
        else:
            assert b"x-long" not in kept or len(kept[b"grpc-message"]) >= min(length, 128)
    assert fit_status(make, 5, message, details, metadata, math.inf) == whole
