"""The protobuf codec, and the details of a status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import echo_pb2
import pytest
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2
from google.protobuf.message import DecodeError, Message

from trio_grpc._codec import Codec, ProtobufCodec, decode_status_details, encode_status_details

codec = ProtobufCodec()
encode = codec.encoder(echo_pb2.EchoRequest)
decode = codec.decoder(echo_pb2.EchoRequest)


class TestMessages:
    def test_it_is_a_codec(self) -> None:
        anything: Codec = codec
        assert anything.name == "proto"

    def test_a_message_comes_back(self) -> None:
        message = echo_pb2.EchoRequest(payload=b"\x00\xff", count=-1, text="✓")
        data = encode(message)
        assert type(data) is bytes
        assert data == message.SerializeToString()
        assert decode(data) == message

    def test_an_empty_message_is_no_bytes(self) -> None:
        assert encode(echo_pb2.EchoRequest()) == b""
        assert decode(b"") == echo_pb2.EchoRequest()

    @pytest.mark.parametrize("size", [1, 100_000])
    def test_a_message_shares_no_memory_with_the_buffer_it_came_from(self, size: int) -> None:
        message = echo_pb2.EchoRequest(payload=b"p" * size, text="t" * size)
        # An unknown field must be copied as well.
        source = bytearray(encode(message) + encode_unknown(b"u" * size))
        for buffer in (source, memoryview(source)):
            before = bytes(source)
            decoded = decode(buffer)
            source[:] = bytes(len(source))
            assert decoded.payload == b"p" * size
            assert decoded.text == "t" * size
            assert encode(decoded).endswith(b"u" * size)
            source[:] = before
        del buffer
        # And nothing holds on to it: a bytearray in use by others refuses to be resized.
        source.clear()

    def test_a_slice_of_a_buffer_is_decoded(self) -> None:
        data = encode(echo_pb2.EchoRequest(text="x"))
        assert decode(memoryview(b"12345" + data + b"67")[5:-2]).text == "x"

    @pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"\x1a\x01\xff"], ids=["tag", "short", "utf-8"])
    def test_bytes_that_are_no_message(self, data: bytes) -> None:
        with pytest.raises((DecodeError, UnicodeDecodeError)):  # protobuf in pure Python raises the second
            decode(data)

    @pytest.mark.parametrize(
        ("message", "actual"),
        [
            # Protobuf itself would serialize this one and let the peer misread it.
            (echo_pb2.EchoReply(text="x"), "echo.EchoReply"),
            (wrappers_pb2.StringValue(value="x"), "google.protobuf.StringValue"),
            (None, "NoneType"),
            (b"bytes", "bytes"),
            (echo_pb2.EchoRequest, "MessageMeta"),
        ],
    )
    def test_a_message_of_another_type_is_refused_with_both_names(self, message: Any, actual: str) -> None:
        with pytest.raises(TypeError) as caught:
            encode(message)
        text = str(caught.value)
        assert text.startswith("expected a message of type echo.EchoRequest, got ")
        if actual != "MessageMeta":  # its name differs between the implementations of protobuf
            assert text.endswith(actual)

    def test_a_message_from_another_pool_is_refused(self) -> None:
        pool: Any = descriptor_pool.DescriptorPool()
        pool.AddSerializedFile(echo_pb2.DESCRIPTOR.serialized_pb)
        foreign = message_factory.GetMessageClass(pool.FindMessageTypeByName("echo.EchoRequest"))
        with pytest.raises(TypeError, match="another class for the same name"):
            encode(foreign())  # type: ignore[arg-type]

    @pytest.mark.parametrize("ask", [codec.encoder, codec.decoder])
    @pytest.mark.parametrize("message_type", [bytes, None, echo_pb2.EchoRequest()])
    def test_a_type_that_protobuf_does_not_know_is_refused(self, ask: Callable[..., Any], message_type: Any) -> None:
        with pytest.raises(TypeError, match="protobuf message class"):
            ask(message_type)


def encode_unknown(value: bytes) -> bytes:
    """Return field 100 of some other message."""
    pool: Any = descriptor_pool.DescriptorPool()
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="other.proto", package="other", syntax="proto3")
    file.message_type.add(name="Other").field.add(
        name="value", number=100, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL
    )
    pool.AddSerializedFile(file.SerializeToString())
    other = message_factory.GetMessageClass(pool.FindMessageTypeByName("other.Other"))
    return other(value=value).SerializeToString()


def the_only_any(details: tuple[Message, ...]) -> tuple[str, bytes]:
    """Return what is in the only detail, an Any."""
    # Compared by its fields: protobuf in pure Python compares two Anys by unpacking them, which these do not survive.
    (detail,) = details
    assert isinstance(detail, any_pb2.Any)
    return detail.type_url, detail.value


class TestStatusDetails:
    def test_known_details_come_back_as_themselves(self) -> None:
        details = (echo_pb2.EchoReply(text="a"), wrappers_pb2.Int32Value(value=3))
        decoded = decode_status_details(encode_status_details(5, "text", details))
        assert decoded == details
        assert [type(detail) for detail in decoded] == [echo_pb2.EchoReply, wrappers_pb2.Int32Value]

    def test_no_details(self) -> None:
        assert decode_status_details(encode_status_details(5, "text", ())) == ()
        assert decode_status_details(b"") == ()

    def test_the_bytes_are_a_google_rpc_status(self) -> None:
        assert encode_status_details(5, "né", [wrappers_pb2.BoolValue(value=True)]) == (
            b"\x08\x05"  # code
            b"\x12\x03n\xc3\xa9"  # message
            b"\x1a\x33"  # details: an Any
            b"\x0a\x2dtype.googleapis.com/google.protobuf.BoolValue"
            b"\x12\x02\x08\x01"
        )

    def test_the_bytes_are_deterministic(self) -> None:
        arguments = (5, "x", [echo_pb2.EchoReply(text="a")])
        assert encode_status_details(*arguments) == encode_status_details(*arguments)

    def test_a_detail_of_unknown_type_stays_packed_and_can_be_sent_on(self) -> None:
        packed = any_pb2.Any(type_url="type.googleapis.com/nobody.Knows", value=b"\x01\x02")
        decoded = decode_status_details(encode_status_details(5, "x", [packed]))
        assert the_only_any(decoded) == ("type.googleapis.com/nobody.Knows", b"\x01\x02")
        again = decode_status_details(encode_status_details(5, "x", decoded))
        assert the_only_any(again) == ("type.googleapis.com/nobody.Knows", b"\x01\x02")

    def test_an_any_that_is_given_is_not_packed_twice(self) -> None:
        packed = any_pb2.Any()
        packed.Pack(echo_pb2.EchoReply(text="a"))
        assert decode_status_details(encode_status_details(5, "x", [packed])) == (echo_pb2.EchoReply(text="a"),)

    def test_a_detail_that_does_not_parse_stays_packed(self) -> None:
        broken = any_pb2.Any(type_url="type.googleapis.com/echo.EchoReply", value=b"\xff")
        decoded = decode_status_details(encode_status_details(5, "x", [broken]))
        assert the_only_any(decoded) == ("type.googleapis.com/echo.EchoReply", b"\xff")

    @pytest.mark.parametrize("type_url", ["", "/", "a/", "echo", "\x00", "a/b/echo.Nope", "x/echo.EchoReply.text"])
    def test_odd_type_urls(self, type_url: str) -> None:
        odd = any_pb2.Any(type_url=type_url, value=b"")
        assert the_only_any(decode_status_details(encode_status_details(5, "x", [odd]))) == (type_url, b"")

    @pytest.mark.parametrize("data", [b"\xff", b"\x1a\x05", b"\x12\x01\xff", b"\x1a\x02\xff\xff"])
    def test_bytes_that_are_no_status_give_no_details(self, data: bytes) -> None:
        assert decode_status_details(data) == ()

    def test_a_text_that_is_no_unicode_does_not_hide_the_error(self) -> None:
        detail = echo_pb2.EchoReply(text="a")
        assert decode_status_details(encode_status_details(5, "\ud800", [detail])) == (detail,)

    def test_what_is_no_message_is_refused(self) -> None:
        with pytest.raises(TypeError, match="not str"):
            encode_status_details(5, "x", ["text"])  # type: ignore[list-item]

    def test_the_default_pool_stays_free_for_the_common_protos(self) -> None:
        encode_status_details(5, "x", ())
        with pytest.raises(KeyError):
            any_pb2.DESCRIPTOR.pool.FindMessageTypeByName("google.rpc.Status")
