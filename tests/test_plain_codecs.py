"""Codecs beside protobuf's: bytes, functions and JSON, alone and in calls."""

from __future__ import annotations

import functools
import json
from typing import Any, ClassVar

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub
from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import ListValue, Value
from google.protobuf.wrappers_pb2 import BoolValue

from tests.behaviour.scripted import ScriptedServer
from tests.echo_service import Echo
from trio_grpc import (
    BytesCodec,
    Cardinality,
    Codec,
    FunctionCodec,
    JsonCodec,
    Method,
    ProtobufCodec,
    RpcError,
    Servicer,
    ServicerContext,
    StatusCode,
    UnaryUnaryMethod,
    open_channel,
    serve,
)
from trio_grpc.testing import DataFrame, HeadersFrame, MemoryListener, ScriptedPeer, open_channel_pair

Clock = trio.testing.MockClock


@pytest.mark.parametrize("codec", [BytesCodec(), FunctionCodec(), JsonCodec(), ProtobufCodec()])
def test_they_are_codecs(codec: Codec) -> None:
    assert isinstance(codec, Codec)


class TestBytes:
    def test_bytes_stay_what_they_are(self) -> None:
        encode, decode = BytesCodec().encoder(bytes), BytesCodec().decoder(bytes)
        data = b"\x00\xff"
        assert encode(data) is data
        assert encode(bytearray(data)) == encode(memoryview(data)) == data
        assert type(encode(bytearray(data))) is bytes
        assert decode(data) == data

    @pytest.mark.parametrize("message", ["text", None, 5, [1], EchoRequest()])
    def test_anything_else_is_refused(self, message: Any) -> None:
        with pytest.raises(TypeError, match=f"must be bytes, bytearray or memoryview, not {type(message).__name__}"):
            BytesCodec().encoder(bytes)(message)


class TestFunctions:
    def test_they_are_called(self) -> None:
        codec = FunctionCodec(str.encode, bytes.decode, name="text")
        assert codec.name == "text"
        assert codec.encoder(object)("x") == b"x"
        assert codec.decoder(object)(b"x") == "x"

    def test_what_gives_no_bytes_is_refused(self) -> None:
        with pytest.raises(TypeError, match="must be bytes, bytearray or memoryview, not str"):
            FunctionCodec(str).encoder(object)(5)  # type: ignore[arg-type]

    def test_wrong_arguments(self) -> None:
        with pytest.raises(TypeError, match="decode must be a function or None, not str"):
            FunctionCodec(None, "x")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="name must be str, not int"):
            FunctionCodec(name=5)  # type: ignore[arg-type]


class TestJson:
    def test_a_message_comes_back(self) -> None:
        codec = JsonCodec()
        message = EchoRequest(payload=b"\x00\xff", count=-1, text="✓")
        data = codec.encoder(EchoRequest)(message)
        assert json.loads(data) == {"payload": "AP8=", "count": -1, "text": "✓"}
        assert "✓".encode() in data
        assert b"\n" not in data
        assert codec.decoder(EchoRequest)(data) == message

    def test_plain_values(self) -> None:
        codec = JsonCodec()
        value = {"list": [1, 2.5, None, True], "text": "✓"}
        assert codec.decoder(dict)(codec.encoder(dict)(value)) == value
        assert codec.encoder(object)([1, 2]) == b"[1,2]"
        with pytest.raises(ValueError, match="JSON"):
            codec.encoder(object)(float("nan"))
        with pytest.raises(TypeError, match="not JSON serializable"):
            codec.encoder(object)(b"bytes")

    @pytest.mark.parametrize("data", [b"NaN", b'{"a": NaN}', b"[Infinity]", b"-Infinity"])
    def test_numbers_that_json_does_not_have_are_not_read_either(self, data: bytes) -> None:
        with pytest.raises(ValueError, match=r"^(NaN|-?Infinity) is no JSON$"):
            JsonCodec().decoder(object)(data)

    def test_values_are_utf_8(self) -> None:
        decode = JsonCodec().decoder(object)
        assert decode("\ufeff{}".encode()) == {}
        with pytest.raises(UnicodeDecodeError):
            decode('"ä"'.encode("utf-16"))

    @pytest.mark.parametrize("data", [b"", b" ", b"[]", b"null", b"5", b'"x"'])
    def test_a_message_is_an_object(self, data: bytes) -> None:
        with pytest.raises(ValueError, match=r"^that is no JSON object$"):
            JsonCodec().decoder(EchoRequest)(data)
        assert JsonCodec().decoder(EchoRequest)(b' \n{"count": 1}') == EchoRequest(count=1)

    def test_some_of_protobufs_own_messages_are_no_objects(self) -> None:
        codec = JsonCodec()
        for message, data in (
            (Duration(seconds=5), b'"5s"'),
            (BoolValue(value=True), b"true"),
            (ListValue(values=[Value(null_value=0)]), b"[null]"),  # type: ignore[arg-type]
        ):
            assert codec.encoder(type(message))(message) == data
            assert codec.decoder(type(message))(data) == message

    def test_unknown_fields(self) -> None:
        data = b'{"text": "x", "more": 1}'
        with pytest.raises(json_format.ParseError, match="more"):
            JsonCodec().decoder(EchoRequest)(data)
        assert JsonCodec(ignore_unknown_fields=True).decoder(EchoRequest)(data) == EchoRequest(text="x")

    def test_names_of_fields(self) -> None:
        from google.protobuf.descriptor_pb2 import FileOptions

        message = FileOptions(java_package="x")
        assert json.loads(JsonCodec().encoder(FileOptions)(message)) == {"javaPackage": "x"}
        keeping = JsonCodec(preserving_proto_field_name=True)
        assert json.loads(keeping.encoder(FileOptions)(message)) == {"java_package": "x"}
        for data in b'{"javaPackage": "x"}', b'{"java_package": "x"}':
            assert keeping.decoder(FileOptions)(data) == message

    def test_a_message_of_another_type(self) -> None:
        with pytest.raises(TypeError, match=r"expected a message of type echo.EchoRequest, got EchoReply"):
            JsonCodec().encoder(EchoRequest)(EchoReply())

    def test_wrong_arguments(self) -> None:
        with pytest.raises(TypeError, match="ignore_unknown_fields must be bool, not int"):
            JsonCodec(ignore_unknown_fields=1)  # type: ignore[arg-type]


class TestCalls:
    async def test_a_whole_channel_in_json(self, autojump_clock: Clock) -> None:
        async with open_channel_pair(Echo(), codec=JsonCodec()) as (channel, _):
            echo = EchoStub(channel)
            assert await echo.Unary(EchoRequest(text="✓")) == EchoReply(text="✓")
            async with echo.ServerStream(EchoRequest(count=2)) as stream:
                assert [reply.count async for reply in stream] == [0, 1]

    async def test_what_is_no_json_is_an_internal_error(self, autojump_clock: Clock) -> None:
        async with open_channel_pair(Echo(), codec=JsonCodec()) as (channel, _):
            call = channel.unary_unary("/echo.Echo/Unary")
            for data in b"{", b'{"count": "many"}', b'{"more": 1}', b"\xff":
                with pytest.raises(RpcError, match="failed to parse the request as EchoRequest") as info:
                    await call(data)
                assert info.value.code is StatusCode.INTERNAL

    async def test_a_method_has_a_codec_of_its_own(self, autojump_clock: Clock) -> None:
        method = Method[Any, Any].at("/mixed.Mixed/Plain", Cardinality.UNARY_UNARY, codec=JsonCodec())

        class Mixed(Servicer):
            __trio_grpc_methods__: ClassVar = {"plain": method}

            async def plain(self, request: Any, context: ServicerContext[Any], /) -> Any:
                return {"keys": sorted(request)}

        async with open_channel_pair(Mixed(), Echo()) as (channel, _):
            assert await UnaryUnaryMethod(channel, method)({"b": 1, "a": 2}) == {"keys": ["a", "b"]}
            assert (await EchoStub(channel).Unary(EchoRequest(text="x"))).text == "x"

    @pytest.mark.parametrize(
        ("codec", "content_type"),
        [
            (None, "application/grpc"),
            (BytesCodec(), "application/grpc"),
            (FunctionCodec(), "application/grpc"),
            (FunctionCodec(name="text"), "application/grpc+text"),
            (JsonCodec(), "application/grpc+json"),
        ],
    )
    async def test_the_content_type_names_the_codec(
        self, codec: Codec | None, content_type: str, autojump_clock: Clock, nursery: trio.Nursery
    ) -> None:
        """That of the method, not that of the channel."""
        request = EchoRequest() if codec is None else b"" if codec.name != "json" else {}
        kind = EchoRequest if codec is None else object
        async with ScriptedServer() as scripted:
            method = Method[Any, Any].at("/a.B/C", Cardinality.UNARY_UNARY, kind, kind, codec=codec)
            nursery.start_soon(UnaryUnaryMethod(scripted.channel, method), request)
            peer = await scripted.accept()
            assert (await peer.expect(HeadersFrame, stream_id=1))["content-type"] == content_type
            nursery.cancel_scope.cancel()

    @pytest.mark.parametrize(
        ("codec", "content_type"),
        [
            (None, "application/grpc"),
            (BytesCodec(), "application/grpc"),
            (FunctionCodec(name="text"), "application/grpc+text"),
            (JsonCodec(), "application/grpc+json"),
        ],
    )
    @pytest.mark.parametrize("compression", ["identity", "gzip"])
    async def test_the_server_names_its_codec(
        self, codec: Codec | None, content_type: str, compression: str, autojump_clock: Clock, nursery: trio.Nursery
    ) -> None:
        """connect-go and grpclib take no answer of another content type than that which they have asked with."""
        kind: Any = EchoRequest if codec is None else object
        methods = {
            name: Method[Any, Any].at(f"/a.B/{name}", Cardinality.UNARY_UNARY, kind, kind, codec=codec)
            for name in ("reply", "fail", "tell")
        }

        class Answering(Servicer):
            __trio_grpc_methods__ = methods

            async def reply(self, request: Any, context: ServicerContext[Any], /) -> Any:
                return request

            async def fail(self, request: Any, context: ServicerContext[Any], /) -> Any:
                await context.abort(StatusCode.NOT_FOUND, "gone", details=[EchoRequest()])

            async def tell(self, request: Any, context: ServicerContext[Any], /) -> Any:
                await context.send_initial_metadata([("key", "value")])
                return request

        listener = MemoryListener()
        await nursery.start(functools.partial(serve, compression=compression), [Answering()], listener)
        request = b"{}" if codec is not None and codec.name == "json" else b""
        fields = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost")]
        more = [("content-type", content_type), ("grpc-accept-encoding", "gzip")]
        async with ScriptedPeer.client(await listener.connect()) as peer:
            await peer.handshake()
            for stream_id, name in (1, "reply"), (3, "fail"), (5, "tell"), (7, "missing"):
                await peer.send_headers(stream_id, [*fields, (":path", f"/a.B/{name}"), ("te", "trailers"), *more])
                await peer.send_message(stream_id, request, end_stream=True)
                head = await peer.expect(HeadersFrame, stream_id=stream_id)
                assert head["content-type"] == content_type
                assert head.get("grpc-encoding") == ("gzip" if compression == "gzip" and not head.end_stream else None)
                if not head.end_stream:
                    await peer.expect(DataFrame, stream_id=stream_id)
                    await peer.expect(HeadersFrame, stream_id=stream_id)
        nursery.cancel_scope.cancel()

    @pytest.mark.parametrize("name", ["a b", "json; charset=utf-8", "x\r\ny", "ä", "a/b"])
    async def test_a_name_that_is_no_part_of_a_content_type(self, name: str) -> None:
        codec = FunctionCodec(name=name)
        with pytest.raises(ValueError, match="goes into the content type"):
            Method[Any, Any].at("/a.B/C", Cardinality.UNARY_UNARY, codec=codec)
        with pytest.raises(ValueError, match="goes into the content type"):
            open_channel("localhost:1", codec=codec)
        with pytest.raises(ValueError, match="goes into the content type"):
            await serve([Echo()], MemoryListener(), codec=codec)

    def test_a_name_that_is_no_text(self) -> None:
        class Nameless:
            name = None

            def encoder(self, message_type: type[Any], /) -> Any: ...
            def decoder(self, message_type: type[Any], /) -> Any: ...

        with pytest.raises(TypeError, match="the name of a codec must be str, not NoneType"):
            Method[Any, Any].at("/a.B/C", Cardinality.UNARY_UNARY, codec=Nameless())  # type: ignore[arg-type]

    def test_what_is_no_codec(self) -> None:
        with pytest.raises(TypeError, match="codec must have a name, an encoder and a decoder"):
            Method[Any, Any].at("/a.B/C", Cardinality.UNARY_UNARY, codec=5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="codec must have"):
            Method[Any, Any].at("/a.B/C", Cardinality.UNARY_UNARY, codec=JsonCodec)  # type: ignore[arg-type]
