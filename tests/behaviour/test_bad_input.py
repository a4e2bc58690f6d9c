"""A peer that breaks the rules: its call gets a clear status, and all others go on (RFC 9113, 5.4)."""

from __future__ import annotations

import itertools
import logging
import ssl
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing
import trustme
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.behaviour.scripted import (
    BIDI,
    CLIENT_STREAM,
    UNARY,
    Background,
    ScriptedServer,
    expect_call,
    expect_reply,
    expect_status,
    send_call,
    start_server,
)
from trio_grpc import Limits, StatusCode
from trio_grpc.testing import (
    DataFrame,
    ErrorCode,
    GoawayFrame,
    HeadersFrame,
    RstStreamFrame,
    ScriptedPeer,
)

pytestmark = pytest.mark.usefixtures("quiet_log")

# Frame types and flags, as numbers on the wire.
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, PRIORITY_FLAG = 1, 4, 8, 32

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", UNARY),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
MESSAGE = EchoRequest(text="hello", payload=b"x" * 100).SerializeToString()
REPLY = EchoReply(text="hello", payload=b"x" * 100)

Script = Callable[[ScriptedPeer], Awaitable[None]]


def uint32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def replaced(name: str, value: str | bytes | None) -> list[tuple[str, str | bytes]]:
    """The fields of a good request with one of them changed, or left out."""
    return [(one, value if one == name else old) for one, old in REQUEST if one != name or value is not None]


# ---------------------------------------------------------------------------------------------------------------------
# Not HTTP/2 at all

CLIENT_HELLO = bytes.fromhex("160301020001000 1fc0303".replace(" ", "")) + bytes(range(256)) + bytes(248)
STRANGERS = {
    "TLS": (CLIENT_HELLO, "peer sent a TLS handshake to a plaintext port"),
    "HTTP/1.1 GET": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "peer speaks HTTP/1.x"),
    "HTTP/1.1 POST": (b"POST /echo.Echo/Unary HTTP/1.1\r\nHost: localhost\r\n\r\n", "peer speaks HTTP/1.x"),
    "garbage": (bytes(64), "peer did not begin with the HTTP/2 client preface"),
    "one wrong octet at the end": (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r",
        "peer did not begin with the HTTP/2 client pre",
    ),
    "a frame before SETTINGS": (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 8, PING, 0, 0, 0, 0, 0)) + bytes(8),
        "peer did not begin with SETTINGS",
    ),
    "SETTINGS ACK before SETTINGS": (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, SETTINGS, 1, 0, 0, 0, 0)),
        "peer did not begin with SETTINGS",
    ),
}


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
@pytest.mark.parametrize("name", STRANGERS)
async def test_a_stranger_is_sent_away(
    name: str, sockets: bool, nursery: trio.Nursery, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    said, reason = STRANGERS[name]
    endpoint = await start_server(nursery, sockets=sockets)
    async with await endpoint.connect() as peer:
        await peer.send_raw(said)
        goaway = await peer.expect(GoawayFrame, last_stream_id=0, error_code=ErrorCode.PROTOCOL_ERROR)
        assert goaway.debug_data.decode().startswith(reason)
        await peer.expect_eof()
    assert reason in caplog.text
    await endpoint.assert_serves()
    await endpoint.assert_nothing_left()


async def test_a_stranger_that_trickles_is_sent_away(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.connect() as peer:
        await peer.send_raw(b"PRI * HTTP/")
        await trio.sleep(1)
        await peer.send_raw(b"1.1\r\n")
        await peer.expect(GoawayFrame, error_code=ErrorCode.PROTOCOL_ERROR)
        await peer.expect_eof()
    await endpoint.assert_serves()
    await endpoint.assert_nothing_left()


@pytest.mark.parametrize("said", [b"", b"PRI * HTTP/2.0\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0"])
async def test_a_silent_client_loses_its_place(said: bytes, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, handshake_timeout=7)
    async with await endpoint.connect() as peer:
        await peer.send_raw(said)
        began = trio.current_time()
        await peer.expect(GoawayFrame, error_code=ErrorCode.SETTINGS_TIMEOUT)
        await peer.expect_eof()
        assert trio.current_time() - began == pytest.approx(7, abs=1.1)
    await endpoint.assert_serves()
    await endpoint.assert_nothing_left()


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_a_client_that_hangs_up_at_once(sockets: bool, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, sockets=sockets)
    for _ in range(20):
        await (await endpoint.connect()).aclose()
    await endpoint.assert_serves()
    await endpoint.assert_nothing_left()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
            "peer speaks HTTP/1.x, not HTTP/2 with prior knowledge: it said b'HTTP/1.1 400 Bad Request'",
        ),
        (b"", "before it said a word, as servers do that want TLS or a certificate"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "peer answered with a TLS alert: it expects TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "peer did not begin with SETTINGS"),
        (bytes((0, 0, 8, PING, 0, 0, 0, 0, 0)) + bytes(8), "peer did not begin with SETTINGS"),
    ],
    ids=["HTTP/1.1", "nothing", "TLS alert", "SSH", "PING first"],
)
async def test_a_server_that_is_none(said: bytes, reason: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = ScriptedPeer.server(await scripted.listener.accept())
        await peer.send_raw(said)
        await peer.stream.send_eof()  # type: ignore[attr-defined]
        error = await call.error()
        assert error.code is StatusCode.UNAVAILABLE
        assert reason in error.message
        # The channel goes on trying; nobody answers any more.
        await scripted.listener.aclose()
        await trio.sleep(5)
        scripted.assert_nothing_left(connections=0)


@pytest.fixture(scope="module")
def server_context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    return context


@pytest.mark.parametrize(
    "said",
    [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), b"GET / HTTP/1.1\r\n\r\n", CLIENT_HELLO[:20], bytes(100)],
    ids=["silence", "HTTP/2", "HTTP/1.1", "half a hello", "garbage"],
)
@pytest.mark.parametrize("stays", [True, False], ids=["stays", "hangs up"])
async def test_a_stranger_at_a_tls_port(
    said: bytes, stays: bool, server_context: ssl.SSLContext, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    endpoint = await start_server(nursery, ssl_context=server_context, handshake_timeout=7)
    stream = await endpoint.listener.connect()
    if said:
        await stream.send_all(said)
    if not stays:
        await trio.aclose_forcefully(stream)
    await trio.sleep(10)
    await endpoint.assert_nothing_left()
    # Others get in.
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    async with trio_grpc.open_channel(
        endpoint.listener.connect, ssl_context=client, server_hostname="localhost"
    ) as channel:
        assert (await EchoStub(channel).Unary(EchoRequest(text="hello"))).text == "hello"
    await trio.aclose_forcefully(stream)


# ---------------------------------------------------------------------------------------------------------------------
# Malformed requests: stream errors (RFC 9113, 8.1.1)

MALFORMED: dict[str, list[tuple[str, str | bytes]]] = {
    "upper-case name": [*REQUEST, ("X-Trace", "1")],
    "blank in name": [*REQUEST, ("x trace", "1")],
    "colon in name": [*REQUEST, ("x:trace", "1")],
    "empty name": [*REQUEST, ("", "1")],
    "octet above 0x7F in name": [*REQUEST, (b"x\xff", "1")],
    "LF in value": [*REQUEST, ("x-trace", "1\n2")],
    "CR in value": [*REQUEST, ("x-trace", "1\r2")],
    "NUL in value": [*REQUEST, ("x-trace", "1\x002")],
    "value that begins with a blank": [*REQUEST, ("grpc-timeout", " 1S")],
    "value that ends with a tab": [*REQUEST, ("grpc-encoding", "gzip\t")],
    "connection": [*REQUEST, ("connection", "close")],
    "keep-alive": [*REQUEST, ("keep-alive", "1")],
    "proxy-connection": [*REQUEST, ("proxy-connection", "close")],
    "transfer-encoding": [*REQUEST, ("transfer-encoding", "chunked")],
    "upgrade": [*REQUEST, ("upgrade", "h2c")],
    "te: gzip": replaced("te", "gzip"),
    "no :method": replaced(":method", None),
    "no :path": replaced(":path", None),
    "empty :path": replaced(":path", ""),
    "no :scheme": replaced(":scheme", None),
    "pseudo-header field last": [*REQUEST[1:], REQUEST[0]],
    ":path twice": [REQUEST[2], *REQUEST],
    ":status": [(":status", "200"), *REQUEST],
    "unknown pseudo-header field": [(":protocol", "websocket"), *REQUEST],
    "host that is not :authority": [*REQUEST, ("host", "elsewhere")],
    "content-length that is no number": [*REQUEST, ("content-length", "many")],
    "no pseudo-header fields": REQUEST[4:],
    "no fields": [],
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_request_ends_alone(name: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, BIDI)
        async with peer.one_segment():
            await peer.send_headers(3, MALFORMED[name], end_stream=True)
            await peer.send_message(1, MESSAGE, end_stream=True)
        await peer.expect(RstStreamFrame, stream_id=3, error_code=ErrorCode.PROTOCOL_ERROR)
        await expect_reply(peer, 1, REPLY)
        await endpoint.assert_serves(peer, 5)
        await endpoint.assert_nothing_left(connections=1)
    assert endpoint.servicer.started == 2


REFUSED: dict[str, tuple[list[tuple[str, str | bytes]], str, StatusCode, str]] = {
    "GET": (replaced(":method", "GET"), "405", StatusCode.INTERNAL, "method is 'GET', not 'POST'"),
    "CONNECT": (
        [(":method", "CONNECT"), (":authority", "localhost")],
        "405",
        StatusCode.INTERNAL,
        "method is 'CONNECT', not 'POST'",
    ),
    "two hosts": ([*REQUEST, ("host", "a"), ("host", "b")], "400", StatusCode.INTERNAL, "more than one :auth"),
    "no content-type": (replaced("content-type", None), "415", StatusCode.INVALID_ARGUMENT, "content-type is missing"),
    "text/html": (replaced("content-type", "text/html"), "415", StatusCode.INVALID_ARGUMENT, "content-type is 'text"),
    "application/grpcfoo": (
        replaced("content-type", "application/grpcfoo"),
        "415",
        StatusCode.INVALID_ARGUMENT,
        "content-type is 'application/grpcfoo', not 'application/grpc'",
    ),
    "unknown method": (
        replaced(":path", "/echo.Echo/Nope"),
        "200",
        StatusCode.UNIMPLEMENTED,
        "method /echo.Echo/Nope is not implemented here",
    ),
    "unknown service": (
        replaced(":path", "/Nope/Unary"),
        "200",
        StatusCode.UNIMPLEMENTED,
        "method /Nope/Unary is not implemented here",
    ),
    "one slash": (replaced(":path", "/x"), "200", StatusCode.UNIMPLEMENTED, "malformed method name '/x'"),
    "two slashes": (replaced(":path", "//"), "200", StatusCode.UNIMPLEMENTED, "method // is not implemented here"),
    "asterisk": (replaced(":path", "*"), "200", StatusCode.UNIMPLEMENTED, "malformed method name '*'"),
    "unknown encoding": (
        [*REQUEST, ("grpc-encoding", "snappy")],
        "200",
        StatusCode.UNIMPLEMENTED,
        "request encoding 'snappy' is not supported",
    ),
}


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "open"])
@pytest.mark.parametrize("name", REFUSED)
async def test_a_request_that_no_handler_may_see(
    name: str, ended: bool, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    fields, http_status, code, message = REFUSED[name]
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_headers(1, fields, end_stream=ended)
        stranger = http_status in ("405", "415")
        if stranger and not ended:
            # What is not gRPC is answered after its end, as HTTP clients expect.
            await peer.send_message(1, MESSAGE, end_stream=True)
        headers = await peer.expect(HeadersFrame, stream_id=1, end_stream=not stranger)
        assert headers[":status"] == http_status
        assert headers["grpc-status"] == str(code.value)
        assert headers["grpc-message"].startswith(message)
        if stranger:
            assert headers["content-type"].startswith("text/plain")
            body = await peer.expect(DataFrame, stream_id=1)
            assert body.data.decode().startswith(message)
            await expect_status(peer, 1, code)
        elif not ended:
            # RFC 9113, 8.1: stop the upload without spoiling the response.
            await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.NO_ERROR)
            await peer.send_message(1, MESSAGE, end_stream=True)
        await endpoint.assert_serves(peer, 3)
        await endpoint.assert_nothing_left(connections=1)
    assert endpoint.servicer.started == 1


async def test_a_long_request_that_is_not_grpc_is_answered_before_its_end(
    nursery: trio.Nursery, autojump_clock: Any
) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_headers(1, replaced("content-type", "text/html"))
        await peer.send_data(1, bytes(16_384))
        await peer.send_data(1, b"1")
        headers = await peer.expect(HeadersFrame, stream_id=1)
        assert headers[":status"] == "415"
        await peer.expect(DataFrame, stream_id=1)
        await expect_status(peer, 1, StatusCode.INVALID_ARGUMENT)
        await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.NO_ERROR)
        await peer.send_data(1, bytes(1000), end_stream=True)
        await endpoint.assert_serves(peer, 3)
        await endpoint.assert_nothing_left(connections=1)


async def test_the_refusal_of_an_encoding_says_which_are_accepted(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_headers(1, [*REQUEST, ("grpc-encoding", "snappy")], end_stream=True)
        headers = await peer.expect(HeadersFrame, stream_id=1, end_stream=True)
        assert "gzip" in headers["grpc-accept-encoding"].split(",")


BAD_TIMEOUTS = ["", "S", "1", "-1S", "+1S", "1 S", "1s", "1h", "123456789S", "1.5S", "1SS", "0x1S", "\u00b2S"]


@pytest.mark.parametrize("timeout", BAD_TIMEOUTS)
async def test_a_bad_grpc_timeout(timeout: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_headers(1, [*REQUEST, ("grpc-timeout", timeout)], end_stream=True)
        headers = await peer.expect(HeadersFrame, stream_id=1, end_stream=True)
        assert (headers[":status"], headers["grpc-status"]) == ("400", str(StatusCode.INTERNAL.value))
        assert headers["grpc-message"].startswith("malformed grpc-timeout")
        await endpoint.assert_serves(peer, 3)
        await endpoint.assert_nothing_left(connections=1)
    assert endpoint.servicer.started == 1


@pytest.mark.parametrize("timeout", ["8S", "100m", "99999999H", "99999999M", "00000001S", "5000000u", "99999999n"])
async def test_a_good_grpc_timeout(timeout: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY, [("grpc-timeout", timeout)])
        await peer.send_message(1, MESSAGE, end_stream=True)
        await expect_reply(peer, 1, REPLY)


@pytest.mark.parametrize("timeout", ["0n", "0S", "1n"])
async def test_a_deadline_that_is_over_on_arrival(timeout: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM, [("grpc-timeout", timeout)])
        assert "deadline exceeded" in await expect_status(peer, 1, StatusCode.DEADLINE_EXCEEDED)
        await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.NO_ERROR)
        await endpoint.assert_serves(peer, 3)
        await endpoint.assert_nothing_left(connections=1)


@pytest.mark.parametrize("te", ["trailers", "Trailers", None])
async def test_te_is_tolerated(te: str | None, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_headers(1, replaced("te", te))
        await peer.send_message(1, MESSAGE, end_stream=True)
        await expect_reply(peer, 1, REPLY)


@pytest.mark.parametrize(
    "content_type",
    [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc;charset=utf-8",
        "Application/GRPC",
        "application/grpc ; a=b",
    ],
)
async def test_variants_of_the_content_type(content_type: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_headers(1, replaced("content-type", content_type))
        await peer.send_message(1, MESSAGE, end_stream=True)
        await expect_reply(peer, 1, REPLY)


async def test_metadata_that_is_valid_http_is_no_error(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """PROTOCOL-HTTP2: a server must not fail for values that gRPC would not send."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_headers(
            1,
            [
                *REQUEST,
                ("x-latin", b"\xe9\xff"),
                ("x-tab", "a\tb"),
                ("x-empty", ""),
                ("x!#$", "1"),
                ("x-blank", " 1\t"),
            ],
        )
        await peer.send_message(1, MESSAGE, end_stream=True)
        await expect_reply(peer, 1, REPLY)


async def test_a_header_bomb(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """A few KiB of HPACK that stand for hundreds of megabytes; only its call fails, and the table stays right."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, BIDI)
        # One entry of 4,000 octets for the table, then 65,000 references to it.
        entry = b"\x40\x01x\x7f\xa1\x1e" + b"v" * 4000
        tracemalloc.start()
        async with peer.one_segment():
            await peer.send_frame(HEADERS, 0, 3, peer.encode_headers(REQUEST) + entry)
            for _ in range(5):
                await peer.send_frame(CONTINUATION, 0, 3, b"\xbe" * 13_000)
            await peer.send_frame(CONTINUATION, END_HEADERS, 3)
        assert "bytes is over the limit of 16384" in await expect_status(peer, 3, StatusCode.RESOURCE_EXHAUSTED)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2_000_000
        await peer.expect(RstStreamFrame, stream_id=3, error_code=ErrorCode.NO_ERROR)
        await peer.send_frame(HEADERS, END_HEADERS, 5, peer.encode_headers(REQUEST) + b"\xbe")
        await peer.send_message(5, MESSAGE, end_stream=True)
        await expect_reply(peer, 5, REPLY)
        await peer.send_message(1, MESSAGE, end_stream=True)
        await expect_reply(peer, 1, REPLY)
        await endpoint.assert_nothing_left(connections=1)


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "open"])
async def test_metadata_over_the_limit_ends_its_call_only(
    ended: bool, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    endpoint = await start_server(nursery, limits=Limits(adaptive_window=False, max_header_list_size=2000))
    async with await endpoint.client() as peer:
        await peer.send_request(1, BIDI)
        await peer.send_request(3, UNARY, [("x-big", "v" * 100_000)], end_stream=ended)
        message = await expect_status(peer, 3, StatusCode.RESOURCE_EXHAUSTED)
        assert "is over the limit of 2000 bytes (option max_header_list_size)" in message
        if not ended:
            await peer.expect(RstStreamFrame, stream_id=3, error_code=ErrorCode.NO_ERROR)
        await peer.send_message(1, MESSAGE, end_stream=True)
        await expect_reply(peer, 1, REPLY)
        await endpoint.assert_nothing_left(connections=1)


# ---------------------------------------------------------------------------------------------------------------------
# Broken rules on a stream that is open: stream errors


async def padded_priority(peer: ScriptedPeer) -> None:
    await peer.send_frame(PRIORITY, 0, 3, bytes(4))


STREAM_FAULTS: dict[str, tuple[Script, ErrorCode]] = {
    "WINDOW_UPDATE of 0": (lambda peer: peer.send_window_update(3, 0), ErrorCode.PROTOCOL_ERROR),
    "window over 2**31-1": (lambda peer: peer.send_window_update(3, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
    "PRIORITY of 4 bytes": (padded_priority, ErrorCode.FRAME_SIZE_ERROR),
    "DATA over SETTINGS_MAX_FRAME_SIZE": (lambda peer: peer.send_data(3, bytes(16_385)), ErrorCode.FRAME_SIZE_ERROR),
    "trailers without END_STREAM": (lambda peer: peer.send_headers(3, [("x", "1")]), ErrorCode.PROTOCOL_ERROR),
    "second request headers": (
        lambda peer: peer.send_headers(3, REQUEST, end_stream=True),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "malformed trailers": (
        lambda peer: peer.send_headers(3, [("X", "1")], end_stream=True),
        ErrorCode.PROTOCOL_ERROR,
    ),
}


@pytest.mark.parametrize("name", STREAM_FAULTS)
async def test_a_fault_of_one_stream_ends_it_alone(name: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    script, error_code = STREAM_FAULTS[name]
    endpoint = await start_server(nursery, limits=Limits(adaptive_window=False, max_frame_size=16_384))
    async with await endpoint.client() as peer:
        async with peer.one_segment():
            await peer.send_request(1, BIDI)
            await peer.send_request(3, CLIENT_STREAM)
        await trio.sleep(1)
        async with peer.one_segment():
            await script(peer)
            await peer.send_message(1, MESSAGE, end_stream=True)
        await peer.expect(RstStreamFrame, stream_id=3, error_code=error_code)
        await expect_reply(peer, 1, REPLY)
        await endpoint.assert_serves(peer, 5)
        await endpoint.assert_nothing_left(connections=1)
    assert endpoint.servicer.cancelled == 1


@pytest.mark.parametrize("script", ["DATA", "HEADERS"])
async def test_frames_after_end_stream_end_the_stream(script: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY)
        await peer.send_message(1, EchoRequest(text="wait").SerializeToString(), end_stream=True)
        await trio.sleep(1)
        if script == "DATA":
            await peer.send_data(1, b"more")
        else:
            await peer.send_headers(1, [("x", "1")], end_stream=True)
        await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.STREAM_CLOSED)
        await endpoint.assert_serves(peer, 3)
        await endpoint.assert_nothing_left(connections=1)
    assert endpoint.servicer.cancelled == 1


# ---------------------------------------------------------------------------------------------------------------------
# Bad messages

BAD_MESSAGES: dict[str, tuple[bytes, bool, StatusCode, str]] = {
    "flag 2": (b"\x02\0\0\0\0", False, StatusCode.INTERNAL, "compressed flag 2, which is neither 0 nor 1"),
    "flag 60": (b"<html>", False, StatusCode.INTERNAL, "compressed flag 60, which is neither 0 nor 1"),
    "4 GiB": (
        b"\0\xff\xff\xff\xff",
        False,
        StatusCode.RESOURCE_EXHAUSTED,
        "message of 4294967295 bytes is over the limit of 4194304 bytes (option max_receive_message_length)",
    ),
    "one byte over": (
        b"\0" + uint32(4 * 2**20 + 1),
        False,
        StatusCode.RESOURCE_EXHAUSTED,
        "message of 4194305 bytes is over the limit of 4194304 bytes (option max_receive_message_length)",
    ),
    "flag 1 without encoding": (b"\x01\0\0\0\0", False, StatusCode.INTERNAL, "no grpc-encoding was announced"),
    "no message at all": (b"", True, StatusCode.INTERNAL, "without a request message"),
    "end in the prefix": (b"\0\0", True, StatusCode.INTERNAL, "request ended in the middle of a message"),
    "end in the message": (b"\0\0\0\0\x05abc", True, StatusCode.INTERNAL, "request ended in the middle of a message"),
    "not protobuf": (b"\0\0\0\0\x03\xff\xff\xff", True, StatusCode.INTERNAL, "failed to parse the request as EchoReq"),
    "two for a unary method": (bytes(10), True, StatusCode.INTERNAL, "called with more than one request message"),
}


@pytest.mark.parametrize("trickle", [False, True], ids=["at once", "octet by octet"])
@pytest.mark.parametrize("name", BAD_MESSAGES)
async def test_a_bad_message_ends_its_call(
    name: str, trickle: bool, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    data, ended, code, text = BAD_MESSAGES[name]
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, BIDI)
        await peer.send_request(3, UNARY)
        if trickle and data:
            async with peer.one_segment():
                for octet in data[:-1]:
                    await peer.send_data(3, bytes((octet,)))
                await peer.send_data(3, data[-1:], end_stream=ended)
        else:
            await peer.send_data(3, data, end_stream=ended)
        assert text in await expect_status(peer, 3, code)
        if not ended:
            await peer.expect(RstStreamFrame, stream_id=3, error_code=ErrorCode.NO_ERROR)
        await peer.send_message(1, MESSAGE, end_stream=True)
        await expect_reply(peer, 1, REPLY)
        await endpoint.assert_serves(peer, 5)
        await endpoint.assert_nothing_left(connections=1)


async def test_a_bad_message_behind_good_ones(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """The handler of a streaming call is cancelled, and the status of the transport stands."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, BIDI)
        await peer.send_message(1, MESSAGE)
        await peer.expect(HeadersFrame, stream_id=1)
        assert EchoReply.FromString(await peer.receive_message(1)) == REPLY
        await peer.send_data(1, b"\x02\0\0\0\0")
        assert "neither 0 nor 1" in await expect_status(peer, 1, StatusCode.INTERNAL)
        await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.NO_ERROR)
        # What crossed the reset is dropped without a word.
        await peer.send_message(1, MESSAGE, end_stream=True)
        await endpoint.assert_serves(peer, 3)
        await endpoint.assert_nothing_left(connections=1)
    assert endpoint.servicer.cancelled == 1


@pytest.mark.parametrize(
    ("length", "sent", "ended", "true"),
    [
        ("10", 5, True, False),
        ("3", 5, True, False),
        ("3", 5, False, False),
        ("0", 5, False, False),
        ("5, 5", 5, True, True),
        ("5", 5, True, True),
    ],
)
async def test_a_content_length_must_be_true(
    length: str, sent: int, ended: bool, true: bool, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    """RFC 9113, 8.1.1: a request is malformed if its content-length is not the sum of its DATA."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM, [("content-length", length)])
        await peer.send_data(1, bytes(sent), end_stream=ended)
        if true:
            await expect_reply(peer, 1, EchoReply())
        else:
            await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.PROTOCOL_ERROR)
        await endpoint.assert_serves(peer, 3)
        await endpoint.assert_nothing_left(connections=1)


async def test_a_content_length_without_data(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM, [("content-length", "5")], end_stream=True)
        await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.PROTOCOL_ERROR)
        await peer.send_request(3, CLIENT_STREAM, [("content-length", "0")], end_stream=True)
        await expect_reply(peer, 3, EchoReply())
        await endpoint.assert_nothing_left(connections=1)


# ---------------------------------------------------------------------------------------------------------------------
# Connection errors: GOAWAY says what was processed, and the server goes on


async def interrupted_block(peer: ScriptedPeer) -> None:
    await peer.send_frame(HEADERS, 0, 5, peer.encode_headers(REQUEST)[:10])
    await peer.send_ping()


async def block_of_another_stream(peer: ScriptedPeer) -> None:
    await peer.send_frame(HEADERS, 0, 5, peer.encode_headers(REQUEST)[:10])
    await peer.send_frame(CONTINUATION, END_HEADERS, 7, b"")


async def data_in_a_block(peer: ScriptedPeer) -> None:
    await peer.send_frame(HEADERS, 0, 5, peer.encode_headers(REQUEST)[:10])
    await peer.send_data(3, b"")


async def unknown_frame_in_a_block(peer: ScriptedPeer) -> None:
    await peer.send_frame(HEADERS, 0, 5, peer.encode_headers(REQUEST)[:10])
    await peer.send_frame(0xEE, 0, 0)


async def endless_block(peer: ScriptedPeer) -> None:
    await peer.send_frame(HEADERS, 0, 5, b"")
    for _ in range(100):
        await peer.send_frame(CONTINUATION, 0, 5, b"")


async def huge_block(peer: ScriptedPeer) -> None:
    await peer.send_frame(HEADERS, 0, 5, b"")
    for _ in range(20):
        await peer.send_frame(CONTINUATION, 0, 5, bytes(16_384))


async def many_settings(peer: ScriptedPeer) -> None:
    await peer.send_frame(SETTINGS, 0, 0, (b"\x99\x99" + bytes(4)) * 1000)


def frame(frame_type: int, flags: int, stream_id: int, payload: bytes = b"") -> Script:
    return lambda peer: peer.send_frame(frame_type, flags, stream_id, payload)


def setting(identifier: int, value: int) -> bytes:
    return identifier.to_bytes(2, "big") + uint32(value)


CONNECTION_FAULTS: dict[str, tuple[Script, ErrorCode]] = {
    "DATA on an idle stream": (frame(DATA, 0, 5, b"x"), ErrorCode.PROTOCOL_ERROR),
    "empty DATA on an idle stream": (frame(DATA, END_STREAM, 5), ErrorCode.PROTOCOL_ERROR),
    "RST_STREAM on an idle stream": (frame(RST_STREAM, 0, 5, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "WINDOW_UPDATE on an idle stream": (frame(WINDOW_UPDATE, 0, 5, uint32(1)), ErrorCode.PROTOCOL_ERROR),
    "RST_STREAM on a stream of ours": (frame(RST_STREAM, 0, 2, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "an even stream id": (lambda peer: peer.send_headers(6, REQUEST), ErrorCode.PROTOCOL_ERROR),
    "HEADERS on stream 0": (lambda peer: peer.send_headers(0, REQUEST), ErrorCode.PROTOCOL_ERROR),
    "DATA on stream 0": (frame(DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    "RST_STREAM on stream 0": (frame(RST_STREAM, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "PRIORITY on stream 0": (frame(PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
    "CONTINUATION on stream 0": (frame(CONTINUATION, END_HEADERS, 0), ErrorCode.PROTOCOL_ERROR),
    "SETTINGS on a stream": (frame(SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "PING on a stream": (frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "GOAWAY on a stream": (frame(GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "PUSH_PROMISE": (frame(PUSH_PROMISE, END_HEADERS, 1, uint32(2)), ErrorCode.PROTOCOL_ERROR),
    "HEADERS over the frame size": (frame(HEADERS, END_HEADERS, 5, bytes(270_000)), ErrorCode.FRAME_SIZE_ERROR),
    "unknown frame over the frame size": (frame(0xEE, 0, 0, bytes(270_000)), ErrorCode.FRAME_SIZE_ERROR),
    "RST_STREAM of 3 bytes": (frame(RST_STREAM, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of 5 bytes": (frame(WINDOW_UPDATE, 0, 1, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
    "PING of 7 bytes": (frame(PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    "GOAWAY of 7 bytes": (frame(GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    "SETTINGS of 7 bytes": (frame(SETTINGS, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    "SETTINGS ACK with a payload": (frame(SETTINGS, 1, 0, setting(4, 1)), ErrorCode.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of 0 on the connection": (frame(WINDOW_UPDATE, 0, 0, uint32(0)), ErrorCode.PROTOCOL_ERROR),
    "connection window over 2**31-1": (frame(WINDOW_UPDATE, 0, 0, uint32(2**31 - 1)), ErrorCode.FLOW_CONTROL_ERROR),
    "ENABLE_PUSH 2": (frame(SETTINGS, 0, 0, setting(2, 2)), ErrorCode.PROTOCOL_ERROR),
    "INITIAL_WINDOW_SIZE 2**31": (frame(SETTINGS, 0, 0, setting(4, 2**31)), ErrorCode.FLOW_CONTROL_ERROR),
    "MAX_FRAME_SIZE 16383": (frame(SETTINGS, 0, 0, setting(5, 16_383)), ErrorCode.PROTOCOL_ERROR),
    "MAX_FRAME_SIZE 2**24": (frame(SETTINGS, 0, 0, setting(5, 2**24)), ErrorCode.PROTOCOL_ERROR),
    "1000 settings": (many_settings, ErrorCode.ENHANCE_YOUR_CALM),
    "padding without a length": (frame(DATA, PADDED, 3), ErrorCode.FRAME_SIZE_ERROR),
    "padding as long as the frame": (frame(DATA, PADDED, 3, b"\x05abcd"), ErrorCode.PROTOCOL_ERROR),
    "HEADERS padding without a length": (frame(HEADERS, END_HEADERS | PADDED, 5), ErrorCode.FRAME_SIZE_ERROR),
    "HEADERS padding longer than the frame": (
        frame(HEADERS, END_HEADERS | PADDED, 5, b"\x05\x83\x83"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "HEADERS too short for its priority": (
        frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 5, bytes(4)),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "CONTINUATION without HEADERS": (frame(CONTINUATION, END_HEADERS, 1), ErrorCode.PROTOCOL_ERROR),
    "PING inside a header block": (interrupted_block, ErrorCode.PROTOCOL_ERROR),
    "DATA inside a header block": (data_in_a_block, ErrorCode.PROTOCOL_ERROR),
    "unknown frame inside a header block": (unknown_frame_in_a_block, ErrorCode.PROTOCOL_ERROR),
    "CONTINUATION of another stream": (block_of_another_stream, ErrorCode.PROTOCOL_ERROR),
    "endless CONTINUATION": (endless_block, ErrorCode.ENHANCE_YOUR_CALM),
    "huge header block": (huge_block, ErrorCode.ENHANCE_YOUR_CALM),
    "HPACK index that is not there": (frame(HEADERS, END_HEADERS, 5, b"\xff\x7f"), ErrorCode.COMPRESSION_ERROR),
    "HPACK index 0": (frame(HEADERS, END_HEADERS, 5, b"\x80"), ErrorCode.COMPRESSION_ERROR),
    "truncated HPACK": (frame(HEADERS, END_HEADERS, 5, b"\x00\x05abc"), ErrorCode.COMPRESSION_ERROR),
    "HPACK table over our limit": (frame(HEADERS, END_HEADERS, 5, b"\x3f\xe2\x1f"), ErrorCode.COMPRESSION_ERROR),
    "bad HPACK on a stream that has ended": (
        frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x80"),
        ErrorCode.COMPRESSION_ERROR,
    ),
}


@pytest.mark.parametrize("name", CONNECTION_FAULTS)
async def test_a_fault_of_the_connection(
    name: str, nursery: trio.Nursery, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    script, error_code = CONNECTION_FAULTS[name]
    endpoint = await start_server(nursery)
    async with await endpoint.client() as other, await endpoint.client() as peer:
        await endpoint.assert_serves(peer, 1)
        await peer.send_request(3, CLIENT_STREAM)
        await other.send_request(1, BIDI)
        await trio.sleep(1)
        async with peer.one_segment():
            await script(peer)
        goaway = await peer.expect(GoawayFrame, last_stream_id=3, error_code=error_code)
        assert goaway.debug_data, "GOAWAY should say why"
        assert goaway.debug_data.decode() in caplog.text
        await peer.expect_eof()
        # Another connection's call goes on.
        await other.send_message(1, MESSAGE, end_stream=True)
        await expect_reply(other, 1, REPLY)
        await endpoint.assert_nothing_left(connections=1)
    assert endpoint.servicer.cancelled == 1
    await endpoint.assert_serves()
    await endpoint.assert_nothing_left()


async def test_a_stream_window_raised_over_its_maximum_by_settings(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """RFC 9113, 6.9.2: connection error FLOW_CONTROL_ERROR."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM)
        await peer.send_window_update(1, 2**31 - 1 - 65_535)
        await peer.send_settings({4: 65_536})
        await peer.expect(GoawayFrame, error_code=ErrorCode.FLOW_CONTROL_ERROR)
        await peer.expect_eof()
    await endpoint.assert_nothing_left()


async def test_good_frames_before_a_bad_one_are_served(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Also in one segment: what was processed must be in GOAWAY's last-stream-id, or peers run calls twice."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        async with peer.one_segment():
            await peer.send_request(1, UNARY)
            await peer.send_message(1, MESSAGE, end_stream=True)
            await peer.send_request(3, UNARY)
            await peer.send_frame(PING, 0, 0, bytes(7))
        await peer.expect(GoawayFrame, last_stream_id=3, error_code=ErrorCode.FRAME_SIZE_ERROR)
        await peer.expect_eof()
    await endpoint.assert_nothing_left()


# ---------------------------------------------------------------------------------------------------------------------
# What looks strange and is legal

IGNORED: dict[str, Script] = {
    "unknown frame": frame(0xEE, 0xFF, 0, b"?"),
    "unknown frame on an idle stream": frame(0xEE, 0xFF, 99, b"?"),
    "ALTSVC": frame(0xA, 0, 0, b"\0\x01ah2=:1"),
    "PRIORITY on an idle stream": frame(PRIORITY, 0, 99, bytes(5)),
    "PRIORITY on an even stream": frame(PRIORITY, 0, 4, bytes(5)),
    "unknown setting": lambda peer: peer.send_settings({0x9999: 1, 0x0A0A: 2**32 - 1}),
    "empty SETTINGS": lambda peer: peer.send_settings({}),
    "SETTINGS ACK too many": lambda peer: peer.send_settings_ack(),
    "PING ACK too many": lambda peer: peer.send_ping(ack=True),
    "RST_STREAM of a stream that has ended": lambda peer: peer.send_rst_stream(1, ErrorCode.CANCEL),
    "WINDOW_UPDATE of a stream that has ended": lambda peer: peer.send_window_update(1, 1),
    "reserved bit in the stream id": lambda peer: peer.send_window_update(0x80000003, 1),
    "reserved bit in WINDOW_UPDATE": frame(WINDOW_UPDATE, 0, 0, uint32(0x80000001)),
    "undefined flags": frame(WINDOW_UPDATE, 0xFF, 0, uint32(1)),
    "GOAWAY of the client": lambda peer: peer.send_goaway(0, ErrorCode.NO_ERROR, b"bye"),
}


@pytest.mark.parametrize("name", IGNORED)
async def test_what_is_to_be_ignored(name: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await endpoint.assert_serves(peer, 1)
        async with peer.one_segment():
            await peer.send_request(3, BIDI)
            await IGNORED[name](peer)
            await peer.send_data(3, b"\0\0")
            await IGNORED[name](peer)
            await peer.send_data(3, b"\0\0\0", end_stream=True)
            await IGNORED[name](peer)
        await expect_reply(peer, 3, EchoReply())
        await endpoint.assert_nothing_left(connections=1)


async def test_a_stream_cannot_depend_on_itself(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """RFC 7540, 5.3.1, which h2spec asks for; the rest of priorities is ignored (RFC 9113, 5.3.2)."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        payload = uint32(1) + b"\xff" + peer.encode_headers(REQUEST)
        await peer.send_frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 1, payload)
        await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.PROTOCOL_ERROR)
        await peer.send_request(3, BIDI)
        await peer.send_frame(PRIORITY, 0, 3, uint32(3) + b"\0")
        await peer.expect(RstStreamFrame, stream_id=3, error_code=ErrorCode.PROTOCOL_ERROR)
        await endpoint.assert_serves(peer, 5)
        await endpoint.assert_nothing_left(connections=1)


async def test_priority_and_padding_of_headers_are_ignored(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """RFC 9113, 5.3.2: priority is deprecated."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        payload = b"\x07" + uint32(0x80000003) + b"\xff" + peer.encode_headers(REQUEST) + bytes(7)
        async with peer.one_segment():
            await peer.send_frame(HEADERS, END_HEADERS | PADDED | PRIORITY_FLAG, 1, payload)
            await peer.send_message(1, MESSAGE, end_stream=True)
        await expect_reply(peer, 1, REPLY)


async def test_continuation_frames_of_any_size(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        block = peer.encode_headers([*REQUEST, ("x-long", "v" * 5000)])
        for number, cuts in enumerate(([1], [10, 10, 10], [0], [5], [200, 4000])):
            stream_id = 2 * number + 1
            edges = [0, *cuts, len(block)]
            pieces = [block[start:stop] for start, stop in itertools.pairwise(edges)]
            async with peer.one_segment():
                await peer.send_frame(HEADERS, 0, stream_id, pieces[0])
                for piece in pieces[1:-1]:
                    await peer.send_frame(CONTINUATION, 0, stream_id, piece)
                await peer.send_frame(CONTINUATION, END_HEADERS, stream_id, pieces[-1])
                await peer.send_message(stream_id, MESSAGE, end_stream=True)
            await expect_reply(peer, stream_id, REPLY)


async def test_silence_inside_a_header_block(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM)
        began = trio.current_time()
        await peer.send_frame(HEADERS, 0, 3, peer.encode_headers(REQUEST)[:5])
        await trio.sleep(15)
        assert endpoint.server.statistics().handlers == 1
        await endpoint.assert_serves()
        # A little more does not win it time.
        await peer.send_frame(CONTINUATION, 0, 3, b"")
        goaway = await peer.expect(GoawayFrame, error_code=ErrorCode.ENHANCE_YOUR_CALM)
        assert b"was not finished within 20 s" in goaway.debug_data
        assert trio.current_time() - began == pytest.approx(20)
        await peer.expect_eof()
    await endpoint.assert_nothing_left()


async def test_a_block_that_is_finished_late_and_the_silence_after_it(
    nursery: trio.Nursery, autojump_clock: Any
) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        for stream_id in (1, 3):
            block = peer.encode_headers(REQUEST)
            await peer.send_frame(HEADERS, 0, stream_id, block[:5])
            await trio.sleep(15)
            await peer.send_frame(CONTINUATION, 0, stream_id, block[5:])
            await trio.sleep(4)
            await peer.send_frame(CONTINUATION, END_HEADERS, stream_id)
            await trio.sleep(15)
            await peer.send_message(stream_id, MESSAGE, end_stream=True)
            await expect_reply(peer, stream_id, REPLY)
        await endpoint.assert_nothing_left(connections=1)


async def test_a_drain_does_not_wait_for_a_header_block(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM)
        await peer.send_frame(HEADERS, 0, 3, peer.encode_headers(REQUEST)[:5])
        drain = Background(nursery, endpoint.server.drain, 3)
        await peer.expect(GoawayFrame)
        await drain.result()
    await endpoint.assert_nothing_left()


async def test_request_trailers_end_a_request(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_request(1, CLIENT_STREAM)
        await peer.send_message(1, EchoRequest(payload=b"abc").SerializeToString())
        await peer.send_headers(1, [("x-checksum", "1")], end_stream=True)
        await expect_reply(peer, 1, EchoReply(payload=b"abc"))
        await endpoint.assert_nothing_left(connections=1)


async def test_data_of_a_stream_that_its_peer_ended_is_answered(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """RFC 9113, 5.1, "closed": the peer said itself that no more would come."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await endpoint.assert_serves(peer, 1)
        await peer.send_data(1, bytes(1000))
        await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.STREAM_CLOSED)
        await endpoint.assert_serves(peer, 3)
        await endpoint.assert_nothing_left(connections=1)


async def test_data_of_a_stream_that_we_ended_is_credited_in_silence(
    nursery: trio.Nursery, autojump_clock: Any
) -> None:
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_headers(1, replaced(":path", "/echo.Echo/Nope"))
        await expect_status(peer, 1, StatusCode.UNIMPLEMENTED)
        await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.NO_ERROR)
        # More than the connection window of 1 MiB.
        for _ in range(100):
            await peer.send_data(1, bytes(16_384))
            await trio.sleep(0.01)
        await endpoint.assert_serves(peer, 3)
        await endpoint.assert_nothing_left(connections=1)


async def test_headers_of_a_closed_stream_keep_the_tables_right(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """RFC 9113, 4.3: header blocks that nobody wants are decoded all the same."""
    endpoint = await start_server(nursery)
    async with await endpoint.client() as peer:
        await peer.send_headers(1, replaced(":path", "/echo.Echo/Nope"))
        await expect_status(peer, 1, StatusCode.UNIMPLEMENTED)
        await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.NO_ERROR)
        # Literal with incremental indexing: enters the table as entry 62.
        await peer.send_frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x40\x06x-late\x01v")
        async with peer.one_segment():
            await peer.send_frame(HEADERS, END_HEADERS, 3, peer.encode_headers(REQUEST) + b"\xbe")
            await peer.send_message(3, MESSAGE, end_stream=True)
        await expect_reply(peer, 3, REPLY)


# ---------------------------------------------------------------------------------------------------------------------
# A peer that vanishes, and a byte stream in pieces


async def recorded(script: Callable[[ScriptedPeer], Awaitable[None]], make: Callable[[trio.abc.Stream], Any]) -> bytes:
    """The bytes that a scripted peer sends."""
    near, far = trio.testing.memory_stream_pair()
    await script(make(near))
    await near.send_eof()
    data = b""
    async for piece in far:
        data += piece
    return data


async def client_script(peer: ScriptedPeer) -> None:
    """A client that makes three calls, with all kinds of frames."""
    await peer.send_preface({3: 100})
    await peer.send_settings_ack()
    await peer.send_window_update(0, 1000)
    await peer.send_headers(1, REQUEST, fragments=3)
    await peer.send_data(1, b"\0\0\0", padding=5)
    await peer.send_ping(b"12345678")
    await peer.send_data(1, b"\0\0", padding=0)
    await peer.send_frame(0xEE, 0, 1, b"unknown")
    await peer.send_data(1, end_stream=True, padding=3)
    await send_call(peer, 3, EchoRequest(text="second"))
    await peer.send_request(5, CLIENT_STREAM)
    await peer.send_message(5, EchoRequest(payload=b"a" * 20).SerializeToString())
    await peer.send_message(5, EchoRequest(payload=b"b").SerializeToString())
    await peer.send_headers(5, [("x", "1")], end_stream=True)


async def expect_answers(peer: ScriptedPeer) -> None:
    """The three answers to `client_script`, in any order."""
    codes = {}
    payloads: dict[int, bytes] = {}
    while len(codes) < 3:
        received = await peer.receive_frame()
        if isinstance(received, DataFrame):
            payloads[received.stream_id] = payloads.get(received.stream_id, b"") + received.data
        elif isinstance(received, HeadersFrame) and received.end_stream:
            codes[received.stream_id] = received["grpc-status"]
        else:
            # A unary handler may have answered before the end of its request came.
            assert not isinstance(received, (RstStreamFrame, GoawayFrame)) or received == RstStreamFrame(1, 0), received
    assert codes == {1: "0", 3: "0", 5: "0"}
    assert EchoReply.FromString(payloads[1][5:]) == EchoReply()
    assert EchoReply.FromString(payloads[3][5:]) == EchoReply(text="second")
    assert EchoReply.FromString(payloads[5][5:]) == EchoReply(payload=b"a" * 20 + b"b")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 9, 10, 64])
async def test_a_byte_stream_in_small_pieces(size: int, nursery: trio.Nursery, autojump_clock: Any) -> None:
    script = await recorded(client_script, ScriptedPeer.client)
    endpoint = await start_server(nursery)
    async with await endpoint.connect() as peer:
        for start in range(0, len(script), size):
            await peer.send_raw(script[start : start + size])
            await trio.testing.wait_all_tasks_blocked()
        await expect_answers(peer)
        await endpoint.assert_nothing_left(connections=1)


async def test_a_byte_stream_cut_in_two_anywhere(nursery: trio.Nursery, autojump_clock: Any) -> None:
    script = await recorded(client_script, ScriptedPeer.client)
    endpoint = await start_server(nursery)
    for cut in range(len(script)):
        async with await endpoint.connect() as peer:
            await peer.send_raw(script[:cut])
            await trio.testing.wait_all_tasks_blocked()
            await peer.send_raw(script[cut:])
            await expect_answers(peer)
    await endpoint.assert_nothing_left()


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_a_client_that_vanishes_anywhere(
    sockets: bool, nursery: trio.Nursery, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    script = await recorded(client_script, ScriptedPeer.client)
    endpoint = await start_server(nursery, sockets=sockets)
    for cut in range(0, len(script), 5 if sockets else 1):
        async with await endpoint.connect() as peer:
            await peer.send_raw(script[:cut])
            if cut % 2:
                await trio.testing.wait_all_tasks_blocked()
    await endpoint.assert_nothing_left()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    await endpoint.assert_serves()


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_a_client_that_vanishes_cancels_its_handlers(
    sockets: bool, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    endpoint = await start_server(nursery, sockets=sockets)
    async with await endpoint.client() as peer:
        for stream_id in range(1, 21, 2):
            await send_call(peer, stream_id, EchoRequest(text="wait"))
        await trio.sleep(1)
        assert endpoint.server.statistics().handlers == 10
    await endpoint.assert_nothing_left()
    assert endpoint.servicer.cancelled == 10


async def server_script(peer: ScriptedPeer) -> None:
    """A server that answers one call, with all kinds of frames."""
    await peer.send_headers(1, [(":status", "103"), ("link", "x")])
    await peer.send_response(1, [("x-initial", "1")])
    message = EchoReply(text="answer").SerializeToString()
    data = b"\0" + uint32(len(message)) + message
    await peer.send_data(1, data[:3], padding=9)
    await peer.send_ping(b"12345678")
    await peer.send_data(1)
    await peer.send_data(1, data[3:])
    await peer.send_headers(1, [("grpc-status", "0"), ("x-trailing", "2")], end_stream=True, fragments=2)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 9, 10, 64])
async def test_an_answer_in_small_pieces(size: int, nursery: trio.Nursery, autojump_clock: Any) -> None:
    script = await recorded(server_script, ScriptedPeer.server)
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        for start in range(0, len(script), size):
            await peer.send_raw(script[start : start + size])
            await trio.testing.wait_all_tasks_blocked()
        assert (await call.result()).text == "answer"
        scripted.assert_nothing_left()


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_a_server_that_vanishes_anywhere(sockets: bool, nursery: trio.Nursery, autojump_clock: Any) -> None:
    script = await recorded(server_script, ScriptedPeer.server)
    async with ScriptedServer(sockets=sockets) as scripted:
        for cut in range(len(script)):
            call = Background(nursery, scripted.stub.Unary, EchoRequest())
            async with await scripted.accept() as peer:
                await expect_call(peer, 1)
                # Long enough for the channel to trust the peer and dial it again at once.
                await trio.sleep(2)
                await peer.send_raw(script[:cut])
            error = await call.error()
            assert error.code is StatusCode.UNAVAILABLE
            assert error.message.startswith("connection ")
            assert error.__cause__ is not None
            await trio.sleep(1)
            scripted.assert_nothing_left(connections=0)


@pytest.mark.parametrize("said", [b"", b"\0", b"\0\0\6\4", b"\0\0\6\4\0\0\0\0\0\0\3"])
async def test_a_server_that_vanishes_in_the_handshake(said: bytes, nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        async with ScriptedPeer.server(await scripted.listener.accept()) as peer:
            await peer.send_raw(said)
        error = await call.error()
        assert error.code is StatusCode.UNAVAILABLE
        assert error.message.startswith("failed to connect to ")
        scripted.assert_nothing_left(connections=0)


async def test_a_server_that_never_speaks(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        with_deadline = Background(nursery, scripted.stub.Unary, EchoRequest(), timeout=3, wait_for_ready=True)
        async with ScriptedPeer.server(await scripted.listener.accept()):
            assert (await with_deadline.error()).code is StatusCode.DEADLINE_EXCEEDED
            assert trio.current_time() == pytest.approx(3)
            error = await call.error()
            assert error.code is StatusCode.UNAVAILABLE
            assert "no " in error.message
            assert trio.current_time() == pytest.approx(20, abs=1)
            await scripted.listener.aclose()
            await trio.sleep(5)
            scripted.assert_nothing_left(connections=0)
