"""Compression as grpc's doc/compression.md has it, against scripted peers: who may send what, and what follows."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from echo_pb2 import EchoReply, EchoRequest

import trio_grpc
from tests.behaviour.scripted import (
    BIDI,
    CLIENT_STREAM,
    SERVER_STREAM,
    UNARY,
    Background,
    Echo,
    Endpoint,
    ScriptedServer,
    expect_reply,
    expect_status,
    start_server,
)
from trio_grpc import Compression, CompressionError, RpcError, StatusCode, _compression
from trio_grpc._compression import get_compressor, register_compressor
from trio_grpc._transport.messages import frame_message
from trio_grpc._zstd import find_library
from trio_grpc.testing import DataFrame, ErrorCode, HeadersFrame, RstStreamFrame, ScriptedPeer

REQUEST = EchoRequest(text="a text that compresses well " * 20)
REPLY = EchoReply(text=REQUEST.text)
MESSAGE = REQUEST.SerializeToString()

CODECS = [
    "gzip",
    "deflate",
    pytest.param("zstd", marks=pytest.mark.skipif(find_library() is None, reason="needs a library for zstd")),
]


def compress(name: str, data: bytes) -> bytes:
    compressor = get_compressor(name)
    assert compressor is not None
    return compressor.compress(data)


def decompress(name: str, data: bytes) -> bytes:
    compressor = get_compressor(name)
    assert compressor is not None
    return compressor.decompress(data, 2**20)


async def receive_flagged(peer: ScriptedPeer, stream_id: int) -> tuple[bool, bytes]:
    """The flag and the bytes of a message that comes in one DATA frame."""
    data = (await peer.expect(DataFrame, stream_id=stream_id)).data
    assert len(data) == 5 + int.from_bytes(data[1:5], "big")
    return bool(data[0]), data[5:]


# ---------------------------------------------------------------------------------------------------------------------
# A server, and what its clients send


@pytest.mark.parametrize("codec", CODECS)
async def test_requests_of_every_codec_are_read(codec: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY, [("grpc-encoding", codec)])
        await peer.send_message(1, compress(codec, MESSAGE), compressed=True, end_stream=True)
        await expect_reply(peer, 1, REPLY)


@pytest.mark.parametrize("encoding", ["br", "snappy", "GZIP", "x" * 100])
async def test_an_unsupported_request_encoding(encoding: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY, [("grpc-encoding", encoding)])
        await peer.send_message(1, MESSAGE, compressed=True, end_stream=True)
        headers = await peer.expect(HeadersFrame, stream_id=1, end_stream=True)
        assert headers["grpc-status"] == str(StatusCode.UNIMPLEMENTED.value)
        accepted = headers["grpc-accept-encoding"]
        assert accepted == _compression.accept_encoding()
        assert encoding not in accepted.split(",")
        assert headers["grpc-message"] == (
            f"request encoding {encoding!r} is not supported here; supported: {accepted}".replace("%", "%25")
        )
        await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.NO_ERROR)
        await endpoint.assert_serves(peer, 3)
        assert endpoint.servicer.started == 1


async def test_responses_say_what_is_accepted(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY)
        await peer.send_message(1, MESSAGE, end_stream=True)
        headers = await peer.expect(HeadersFrame, stream_id=1)
        assert headers["grpc-accept-encoding"] == _compression.accept_encoding()


@pytest.mark.parametrize("fields", [[], [("grpc-encoding", "identity")]], ids=["none", "identity"])
@pytest.mark.parametrize("path", [UNARY, CLIENT_STREAM])
async def test_a_flag_without_encoding(
    fields: list[tuple[str, str]], path: str, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, path, fields)
        await peer.send_message(1, compress("gzip", MESSAGE), compressed=True)
        assert "compressed flag, but no grpc-encoding" in await expect_status(peer, 1, StatusCode.INTERNAL)
        await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.NO_ERROR)
        await endpoint.assert_serves(peer, 3)


async def test_messages_without_flag_are_legal_under_every_encoding(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY, [("grpc-encoding", "gzip")])
        await peer.send_message(1, MESSAGE, end_stream=True)
        await expect_reply(peer, 1, REPLY)


@pytest.mark.parametrize("codec", CODECS)
async def test_mixed_flags_in_one_stream(codec: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM, [("grpc-encoding", codec)])
        for number, compressed in enumerate((True, False, False, True)):
            data = EchoRequest(payload=bytes((number,)) * 100).SerializeToString()
            await peer.send_message(1, compress(codec, data) if compressed else data, compressed=compressed)
        await peer.send_data(1, end_stream=True)
        payload = b"".join(bytes((number,)) * 100 for number in range(4))
        await expect_reply(peer, 1, EchoReply(payload=payload))


@pytest.mark.parametrize("codec", CODECS)
async def test_an_empty_message_compressed(codec: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY, [("grpc-encoding", codec)])
        await peer.send_message(1, compress(codec, b""), compressed=True, end_stream=True)
        await expect_reply(peer, 1, EchoReply())


#: An empty one, whose flag says that it is compressed, is no data of any codec.
BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda data: b"",
    "truncated": lambda data: data[:-3],
    "half": lambda data: data[: len(data) // 2],
    "garbage behind it": lambda data: data + b"garbage, and more of it",
    "not compressed": lambda data: MESSAGE,
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("fault", BROKEN)
async def test_broken_data_ends_its_call_alone(
    codec: str, fault: str, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, BIDI)
        await peer.send_request(3, UNARY, [("grpc-encoding", codec)])
        await peer.send_message(3, BROKEN[fault](compress(codec, MESSAGE)), compressed=True, end_stream=True)
        text = await expect_status(peer, 3, StatusCode.INTERNAL)
        assert text.startswith(f"failed to decompress a message with {codec}: malformed {codec} data: ")
        await peer.send_message(1, MESSAGE, end_stream=True)
        await expect_reply(peer, 1, REPLY)
        await endpoint.assert_nothing_left(connections=1)


@pytest.mark.parametrize("codec", ["gzip", "deflate"])
async def test_two_zlib_streams_are_no_message(codec: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    """As C-core, which stops at the end of the first one and refuses what is left."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY, [("grpc-encoding", codec)])
        await peer.send_message(1, compress(codec, MESSAGE) * 2, compressed=True, end_stream=True)
        assert "more data follows the end" in await expect_status(peer, 1, StatusCode.INTERNAL)


@pytest.mark.skipif(find_library() is None, reason="needs a library for zstd")
async def test_two_zstd_frames_are_one_message(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY, [("grpc-encoding", "zstd")])
        data = compress("zstd", MESSAGE[:100]) + compress("zstd", MESSAGE[100:])
        await peer.send_message(1, data, compressed=True, end_stream=True)
        await expect_reply(peer, 1, REPLY)


@pytest.mark.parametrize("codec", CODECS)
async def test_the_limit_is_for_what_comes_out(codec: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    limit = len(MESSAGE)
    limits = trio_grpc.Limits(adaptive_window=False, max_receive_message_length=limit)
    endpoint = await start_server(nursery, limits=limits)
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY, [("grpc-encoding", codec)])
        await peer.send_message(1, compress(codec, MESSAGE), compressed=True, end_stream=True)
        await expect_reply(peer, 1, REPLY)
        await peer.send_request(3, UNARY, [("grpc-encoding", codec)])
        await peer.send_message(3, compress(codec, MESSAGE + b"\0"), compressed=True, end_stream=True)
        assert await expect_status(peer, 3, StatusCode.RESOURCE_EXHAUSTED) == (
            f"message is over the limit of {limit} bytes after decompression (option max_receive_message_length)"
        )


# ---------------------------------------------------------------------------------------------------------------------
# A server, and what it may send


class Compressing(Echo):
    """Wants its replies compressed, and those of one stream but for every other one."""

    def __init__(self, compression: Compression | None) -> None:
        super().__init__()
        self.compression = compression

    async def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
        if self.compression is not None:
            context.set_compression(self.compression)
        return await super().Unary(request, context)

    async def ServerStream(self, request: EchoRequest, context: Any) -> None:  # type: ignore[override]
        if self.compression is not None:
            context.set_compression(self.compression)
        for number in range(4):
            await context.send(EchoReply(text=request.text), compress=number % 2 == 0)


async def unary_answer(endpoint: Endpoint, accepted: list[str]) -> tuple[str | None, bool, bytes]:
    """The encoding, flag and bytes of a reply to a client with these lists of accepted encodings."""
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY, [("grpc-accept-encoding", names) for names in accepted])
        await peer.send_message(1, MESSAGE, end_stream=True)
        headers = await peer.expect(HeadersFrame, stream_id=1)
        flag, data = await receive_flagged(peer, 1)
        await expect_status(peer, 1, StatusCode.OK)
        return headers.get("grpc-encoding"), flag, data


HOW = {
    "handler": (lambda name: Compressing(Compression(name)), lambda name: {}),
    "server": (lambda name: Echo(), lambda name: {"compression": name}),
    "server, by its enum": (lambda name: Echo(), lambda name: {"compression": Compression(name)}),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("accepted", [["identity,{}"], ["{}"], ["br , {}"], ["identity", "br,{}"], ["{},identity"]])
async def test_a_client_that_offers_a_codec_gets_it(
    how: str, codec: str, accepted: list[str], nursery: trio.Nursery, autojump_clock: Any
) -> None:
    make, options = HOW[how]
    endpoint = await start_server(nursery, servicer=make(codec), **options(codec))
    encoding, flag, data = await unary_answer(endpoint, [names.format(codec) for names in accepted])
    assert (encoding, flag) == (codec, True)
    assert EchoReply.FromString(decompress(codec, data)) == REPLY


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("accepted", [[], ["identity"], ["br,x{}"], ["{}x"], [""]])
async def test_nothing_is_compressed_for_a_client_that_did_not_offer_it(
    how: str, codec: str, accepted: list[str], nursery: trio.Nursery, autojump_clock: Any
) -> None:
    make, options = HOW[how]
    endpoint = await start_server(nursery, servicer=make(codec), **options(codec))
    encoding, flag, data = await unary_answer(endpoint, [names.format(codec) for names in accepted])
    assert encoding in (None, "identity")
    assert (flag, EchoReply.FromString(data)) == (False, REPLY)


async def test_a_compressed_request_asks_for_nothing(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, compression="gzip")
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY, [("grpc-encoding", "gzip")])
        await peer.send_message(1, compress("gzip", MESSAGE), compressed=True, end_stream=True)
        assert (await peer.expect(HeadersFrame, stream_id=1)).get("grpc-encoding") in (None, "identity")
        assert await receive_flagged(peer, 1) == (False, REPLY.SerializeToString())


async def test_a_handler_overrides_what_the_server_was_told(nursery: trio.Nursery, autojump_clock: Any) -> None:
    plain = await start_server(nursery, servicer=Compressing(Compression.NONE), compression="gzip")
    assert (await unary_answer(plain, ["gzip,deflate"]))[1:] == (False, REPLY.SerializeToString())
    other = await start_server(nursery, servicer=Compressing(Compression.DEFLATE), compression="gzip")
    encoding, flag, data = await unary_answer(other, ["gzip,deflate"])
    assert (encoding, flag, zlib.decompress(data)) == ("deflate", True, REPLY.SerializeToString())


async def test_interceptors_override_it_too(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async def choose(context: trio_grpc.ServicerContext[Any], proceed: Any) -> None:
        context.set_compression("deflate")
        await proceed()

    async def look_on(context: trio_grpc.ServicerContext[Any], proceed: Any) -> None:
        await proceed()

    for interceptor, codec in ((look_on, "gzip"), (choose, "deflate")):
        endpoint = await start_server(nursery, compression="gzip", interceptors=[interceptor])
        encoding, flag, data = await unary_answer(endpoint, ["gzip,deflate"])
        assert (encoding, flag) == (codec, True)
        assert EchoReply.FromString(decompress(codec, data)) == REPLY


@pytest.mark.parametrize("how", ["handler", "server"])
async def test_single_messages_may_be_left_out(how: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    own, default = (Compression.GZIP, None) if how == "handler" else (None, Compression.GZIP)
    endpoint = await start_server(nursery, servicer=Compressing(own), compression=default)
    async with await endpoint.client() as peer:
        await peer.send_request(1, SERVER_STREAM, [("grpc-accept-encoding", "gzip")])
        await peer.send_message(1, MESSAGE, end_stream=True)
        assert (await peer.expect(HeadersFrame, stream_id=1))["grpc-encoding"] == "gzip"
        received = b""
        while True:
            frame = await peer.receive_frame()
            if isinstance(frame, HeadersFrame):
                break
            if isinstance(frame, DataFrame):
                received += frame.data
    flags = []
    while received:
        length = int.from_bytes(received[1:5], "big")
        body = received[5 : 5 + length]
        flags.append(received[0])
        assert (gzip.decompress(body) if received[0] else body) == REPLY.SerializeToString()
        received = received[5 + length :]
    assert flags == [1, 0, 1, 0]


async def test_a_failed_call_is_not_harmed_by_compression(nursery: trio.Nursery, autojump_clock: Any) -> None:
    class Failing(Echo):
        async def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
            raise RpcError(StatusCode.NOT_FOUND, "nothing here")

    endpoint = await start_server(nursery, servicer=Failing(), compression="gzip")
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY, [("grpc-accept-encoding", "gzip")])
        await peer.send_message(1, MESSAGE, end_stream=True)
        assert await expect_status(peer, 1, StatusCode.NOT_FOUND) == "nothing here"


@pytest.mark.parametrize(("compression", "error"), [("br", ValueError), (3, TypeError), ("GZIP", ValueError)])
async def test_a_wrong_compression_of_the_server_is_refused(compression: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="compression"):
        await trio_grpc.serve([], "127.0.0.1:0", compression=compression)


# ---------------------------------------------------------------------------------------------------------------------
# A client, and what servers send

Script = Callable[[ScriptedPeer], Awaitable[None]]


async def call(
    nursery: trio.Nursery, script: Script, *, limits: trio_grpc.Limits | None = None, **options: Any
) -> EchoReply:
    """One unary call to a server that follows a script once it has seen the request headers."""
    limits = limits or trio_grpc.Limits(adaptive_window=False)
    async with ScriptedServer(limits=limits) as server:
        calling = Background(nursery, server.stub.Unary, REQUEST, **options)
        async with await server.accept() as peer:
            await script(peer)
            return await calling.result()


def answer(encoding: str | None, *messages: tuple[bytes, bool]) -> Script:
    async def script(peer: ScriptedPeer) -> None:
        await peer.expect(HeadersFrame, stream_id=1)
        await peer.send_response(1, [] if encoding is None else [("grpc-encoding", encoding)])
        for data, compressed in messages:
            await peer.send_message(1, data, compressed=compressed)
        await peer.send_trailers(1)

    return script


async def error_of(nursery: trio.Nursery, script: Script, **options: Any) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await call(nursery, script, **options)
    return caught.value


@pytest.mark.parametrize("codec", CODECS)
async def test_responses_of_every_codec_are_read(codec: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    reply = compress(codec, REPLY.SerializeToString())
    assert await call(nursery, answer(codec, (reply, True))) == REPLY


async def test_a_response_of_an_unsupported_encoding(nursery: trio.Nursery, autojump_clock: Any) -> None:
    error = await error_of(nursery, answer("br", (b"abc", True)))
    assert error.code is StatusCode.INTERNAL
    supported = _compression.accept_encoding()
    assert error.message == f"message is compressed with 'br', which is not supported here; supported: {supported}"


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity", None])
async def test_responses_without_flag_are_legal_under_every_encoding(
    encoding: str | None, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    assert await call(nursery, answer(encoding, (REPLY.SerializeToString(), False))) == REPLY


@pytest.mark.parametrize("encoding", ["identity", None])
async def test_a_flagged_response_without_encoding(
    encoding: str | None, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    error = await error_of(nursery, answer(encoding, (gzip.compress(b""), True)))
    assert error.code is StatusCode.INTERNAL
    assert error.message == "message has the compressed flag, but no grpc-encoding was announced"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("fault", BROKEN)
async def test_a_broken_response(codec: str, fault: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    error = await error_of(nursery, answer(codec, (BROKEN[fault](compress(codec, MESSAGE)), True)))
    assert error.code is StatusCode.INTERNAL
    assert error.message.startswith(f"failed to decompress a message with {codec}: malformed {codec} data: ")
    cause = error.__cause__
    assert isinstance(cause, CompressionError)


@pytest.mark.parametrize("codec", CODECS)
async def test_a_response_over_the_limit(codec: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    data = REPLY.SerializeToString()
    exact = trio_grpc.Limits(adaptive_window=False, max_receive_message_length=len(data))
    assert await call(nursery, answer(codec, (compress(codec, data), True)), limits=exact) == REPLY
    error = await error_of(nursery, answer(codec, (compress(codec, data + b"\0"), True)), limits=exact)
    assert error.code is StatusCode.RESOURCE_EXHAUSTED
    assert "after decompression (option max_receive_message_length)" in error.message


async def test_mixed_flags_of_responses(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as server:

        async def texts() -> list[str]:
            async with server.stub.ServerStream(EchoRequest()) as replies:
                return [reply.text async for reply in replies]

        calling = Background(nursery, texts)
        async with await server.accept() as peer:
            await peer.expect(HeadersFrame, stream_id=1)
            await peer.send_response(1, [("grpc-encoding", "gzip")])
            data = EchoReply(text="x").SerializeToString()
            async with peer.one_segment():
                for compressed in (True, False, True):
                    await peer.send_message(1, gzip.compress(data) if compressed else data, compressed=compressed)
                await peer.send_message(1, gzip.compress(b""), compressed=True)
                await peer.send_trailers(1)
            assert await calling.result() == ["x", "x", "x", ""]


# ---------------------------------------------------------------------------------------------------------------------
# A client, and what it sends


@pytest.mark.parametrize("codec", CODECS)
async def test_requests_are_compressed_when_asked(codec: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    async def script(peer: ScriptedPeer) -> None:
        headers = await peer.expect(HeadersFrame, stream_id=1)
        assert headers["grpc-encoding"] == codec
        assert headers["grpc-accept-encoding"] == _compression.accept_encoding()
        flag, data = await receive_flagged(peer, 1)
        assert flag
        assert decompress(codec, data) == MESSAGE
        await peer.send_response(1)
        await peer.send_message(1, REPLY.SerializeToString())
        await peer.send_trailers(1)

    assert await call(nursery, script, compression=codec) == REPLY
    assert await call(nursery, script, compression=Compression(codec)) == REPLY


async def test_nothing_is_compressed_unless_asked(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async def script(peer: ScriptedPeer) -> None:
        headers = await peer.expect(HeadersFrame, stream_id=1)
        assert headers.get("grpc-encoding") in (None, "identity")
        assert await receive_flagged(peer, 1) == (False, MESSAGE)
        await peer.send_response(1)
        await peer.send_message(1, REPLY.SerializeToString())
        await peer.send_trailers(1)

    assert await call(nursery, script) == REPLY


async def test_the_refusal_of_a_server_is_an_error_like_any_other(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async def script(peer: ScriptedPeer) -> None:
        await peer.expect(HeadersFrame, stream_id=1)
        fields = [(":status", "200"), ("content-type", "application/grpc")]
        fields += [("grpc-status", "12"), ("grpc-message", "no gzip"), ("grpc-accept-encoding", "identity")]
        await peer.send_headers(1, fields, end_stream=True)

    error = await error_of(nursery, script, compression="gzip")
    assert (error.code, error.message) == (StatusCode.UNIMPLEMENTED, "no gzip")


# ---------------------------------------------------------------------------------------------------------------------
# Registered compressors


class Reversing:
    name = "x-reverse"

    def compress(self, data: bytes, /) -> bytes:
        return data[::-1]

    def decompress(self, data: bytes, max_size: int, /) -> bytes:
        if bytes(data).startswith(b"!"):
            raise KeyError("a fault of its own")
        return bytes(data)[::-1]


@pytest.fixture
def reversing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compression, "_compressors", _compression._compressors.copy())
    monkeypatch.setattr("trio_grpc._servicer._HEADS", {})
    register_compressor(Reversing())


@pytest.mark.usefixtures("reversing")
async def test_a_registered_codec_both_ways(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, compression="x-reverse")
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY, [("grpc-encoding", "x-reverse"), ("grpc-accept-encoding", "x-reverse")])
        await peer.send_data(1, frame_message(MESSAGE[::-1], True), end_stream=True)
        headers = await peer.expect(HeadersFrame, stream_id=1)
        assert headers["grpc-encoding"] == "x-reverse"
        assert headers["grpc-accept-encoding"].endswith(",x-reverse")
        assert await receive_flagged(peer, 1) == (True, REPLY.SerializeToString()[::-1])


@pytest.mark.usefixtures("reversing", "quiet_log")
async def test_a_codec_that_fails_is_an_error_of_the_call(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY, [("grpc-encoding", "x-reverse")])
        await peer.send_message(1, b"!", compressed=True, end_stream=True)
        text = await expect_status(peer, 1, StatusCode.INTERNAL)
        assert text == "failed to decompress a message with x-reverse: 'a fault of its own'"
    error = await error_of(nursery, answer("x-reverse", (b"!", True)))
    assert error.code is StatusCode.INTERNAL
