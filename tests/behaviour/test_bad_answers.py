"""A server that breaks the rules, or is no gRPC server: its call gets a clear status, and all others go on."""

from __future__ import annotations

import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest

from tests.behaviour.scripted import (
    SERVER_STREAM,
    Background,
    ScriptedServer,
    expect_call,
    send_reply,
)
from trio_grpc import Limits, RpcError, StatusCode
from trio_grpc._transport.allocator import settle_allocator
from trio_grpc.testing import ErrorCode, GoawayFrame, RstStreamFrame, ScriptedPeer

pytestmark = pytest.mark.usefixtures("quiet_log")

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED = 1, 4, 8

OK = [(":status", "200"), ("content-type", "application/grpc")]
REPLY = EchoReply(text="hello")
MESSAGE = b"\0\0\0\0\7" + REPLY.SerializeToString()
assert len(MESSAGE) == 12

Script = Callable[[ScriptedPeer], Awaitable[None]]


def page(status: str, content_type: str | None, *more: tuple[str, str]) -> Script:
    """An answer of some proxy."""

    async def script(peer: ScriptedPeer) -> None:
        fields = [(":status", status), *([] if content_type is None else [("content-type", content_type)]), *more]
        await peer.send_headers(3, fields)
        await peer.send_data(3, b"<html><h1>Oops</h1>\n" + b"." * 1000)
        await peer.send_data(3, b"</html>", end_stream=True)

    return script


def bare(status: str, *more: tuple[str, str]) -> Script:
    return lambda peer: peer.send_headers(3, [(":status", status), *more], end_stream=True)


SNIPPET = ": '<html><h1>Oops</h1>\\n" + "." * 180 + "'"


def html(status: int) -> str:
    return f"peer answered with HTTP status {status} and content-type 'text/html'{SNIPPET}"


FOREIGN: dict[str, tuple[Script, StatusCode, str]] = {
    "400": (page("400", "text/html"), StatusCode.INTERNAL, html(400)),
    "401": (page("401", "text/html"), StatusCode.UNAUTHENTICATED, html(401)),
    "403": (page("403", "text/html"), StatusCode.PERMISSION_DENIED, html(403)),
    "404": (page("404", "text/html"), StatusCode.UNIMPLEMENTED, html(404)),
    "429": (page("429", "text/html"), StatusCode.UNAVAILABLE, html(429)),
    "431": (page("431", "text/html"), StatusCode.INTERNAL, html(431)),
    "500": (page("500", "text/html"), StatusCode.UNKNOWN, html(500)),
    "502": (page("502", "text/html"), StatusCode.UNAVAILABLE, html(502)),
    "503": (page("503", "text/html"), StatusCode.UNAVAILABLE, html(503)),
    "504": (page("504", "text/html"), StatusCode.UNAVAILABLE, html(504)),
    "302": (page("302", "text/html", ("location", "/login")), StatusCode.UNKNOWN, html(302)),
    "200 text/html": (page("200", "text/html"), StatusCode.UNKNOWN, html(200)),
    "200 without content-type": (
        page("200", None),
        StatusCode.UNKNOWN,
        f"peer answered with HTTP status 200 and content-type None{SNIPPET}",
    ),
    "200 application/grpcfoo": (
        page("200", "application/grpcfoo"),
        StatusCode.UNKNOWN,
        f"peer answered with HTTP status 200 and content-type 'application/grpcfoo'{SNIPPET}",
    ),
    "503 application/grpc": (
        page("503", "application/grpc"),
        StatusCode.UNAVAILABLE,
        f"peer answered with HTTP status 503 and content-type 'application/grpc'{SNIPPET}",
    ),
    "503 without a body": (
        bare("503"),
        StatusCode.UNAVAILABLE,
        "peer answered with HTTP status 503 and content-type None",
    ),
    "503 with grpc-status": (
        bare("503", ("grpc-status", "7"), ("grpc-message", "no")),
        StatusCode.PERMISSION_DENIED,
        "no",
    ),
    "503 with grpc-status and a body": (
        page("503", "text/html", ("grpc-status", "7"), ("grpc-message", "no")),
        StatusCode.PERMISSION_DENIED,
        "no",
    ),
}


async def run_script(
    nursery: trio.Nursery,
    script: Script,
    *,
    method: str = "Unary",
    request: Any = None,
    limits: Limits | None = None,
    silent: bool = False,
) -> RpcError | EchoReply:
    """Let the script answer a call on stream 3, beside one on stream 1 that must go on; return how it ended."""
    options = {} if limits is None else {"limits": limits}
    async with ScriptedServer(**options) as scripted:
        beside = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        call = Background(nursery, getattr(scripted.stub, method), EchoRequest() if request is None else request)
        await expect_call(peer, 3, f"/echo.Echo/{method}")
        async with peer.one_segment():
            await script(peer)
        try:
            result: RpcError | EchoReply = await call.result()
        except RpcError as error:
            result = error
        if silent:
            await peer.expect_silence()
        await send_reply(peer, 1, EchoReply(text="fine"))
        assert (await beside.result()).text == "fine"
        await trio.testing.wait_all_tasks_blocked()
        scripted.assert_nothing_left()
        return result


@pytest.mark.parametrize("name", FOREIGN)
async def test_an_answer_that_is_not_grpc(name: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    script, code, message = FOREIGN[name]
    error = await run_script(nursery, script)
    assert isinstance(error, RpcError)
    assert (error.code, error.message) == (code, message)


@pytest.mark.parametrize("status", ["100", "103", "199"])
async def test_interim_answers_are_skipped(status: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        await peer.send_headers(1, [(":status", status), ("link", "</style.css>")])
        await peer.send_headers(1, [(":status", status)])
        await send_reply(peer, 1, REPLY)
        assert await call.result() == REPLY


async def headers_twice(peer: ScriptedPeer) -> None:
    await peer.send_headers(3, OK)
    await peer.send_headers(3, OK)


async def data_first(peer: ScriptedPeer) -> None:
    await peer.send_data(3, MESSAGE)


async def data_after_trailers(peer: ScriptedPeer) -> None:
    await peer.send_headers(3, OK)
    await peer.send_trailers(3, end_stream=False)
    await peer.send_data(3, MESSAGE)


async def trailers_twice(peer: ScriptedPeer) -> None:
    await peer.send_headers(3, OK)
    await peer.send_trailers(3, end_stream=False)
    await peer.send_trailers(3)


async def headers_behind_trailers(peer: ScriptedPeer) -> None:
    await peer.send_headers(3, OK)
    await peer.send_trailers(3, end_stream=False)
    await peer.send_headers(3, OK, end_stream=True)


def headers(*fields: tuple[str | bytes, str], end_stream: bool = False) -> Script:
    return lambda peer: peer.send_headers(3, fields, end_stream=end_stream)


MALFORMED: dict[str, tuple[Script, str]] = {
    "no :status": (headers(("content-type", "application/grpc")), "trailers out of place"),
    "no fields": (headers(), "trailers out of place"),
    "trailers first": (headers(("grpc-status", "0"), end_stream=True), "trailers out of place"),
    "upper-case name": (headers(*OK, ("X-Trace", "1")), "malformed response headers: field name 'X-Trace'"),
    "LF in value": (headers(*OK, ("x-trace", "1\n2")), "malformed response headers: value of field 'x-trace'"),
    "connection": (headers(*OK, ("connection", "close")), "malformed response headers: connection-specific field"),
    ":path": (headers(*OK[:1], (":path", "/"), *OK[1:]), "malformed response headers: pseudo-header field ':path'"),
    ":status last": (headers(*OK[::-1]), "malformed response headers: pseudo-header field ':status' after"),
    ":status twice": (headers(*OK[:1], *OK), "malformed response headers: repeated pseudo-header field"),
    ":status of words": (headers((":status", "fine")), "malformed response headers: :status is 'fine'"),
    ":status 101": (headers((":status", "101")), "malformed response headers: :status is '101'"),
    "interim at the end": (headers((":status", "103"), end_stream=True), "response ended with interim HTTP status 103"),
    "headers twice": (headers_twice, "second response headers"),
    "DATA first": (data_first, "DATA outside a response"),
    "DATA after trailers": (data_after_trailers, "DATA outside a response"),
    "trailers twice": (trailers_twice, "trailers out of place"),
    "headers behind trailers": (headers_behind_trailers, "second response headers"),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_answer_ends_its_call(name: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    script, message = MALFORMED[name]
    error = await run_script(nursery, script)
    assert isinstance(error, RpcError)
    assert error.code is StatusCode.INTERNAL
    assert error.message.startswith(message)


@pytest.mark.parametrize("empty", [1, 3])
async def test_trailers_may_wait_for_an_empty_data_frame(
    empty: int, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    """Some proxies send END_STREAM so."""

    async def script(peer: ScriptedPeer) -> None:
        await peer.send_headers(3, OK)
        await peer.send_data(3, MESSAGE)
        await peer.send_trailers(3, end_stream=False)
        for number in range(empty):
            await peer.send_data(3, end_stream=number == empty - 1)

    assert await run_script(nursery, script, silent=True) == REPLY


@pytest.mark.parametrize("end", ["DATA", "empty DATA", "HEADERS"])
async def test_an_answer_without_a_status(end: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    async def script(peer: ScriptedPeer) -> None:
        await peer.send_headers(3, OK, end_stream=end == "HEADERS")
        if end != "HEADERS":
            await peer.send_data(3, MESSAGE, end_stream=end == "DATA")
        if end == "empty DATA":
            await peer.send_data(3, end_stream=True)

    error = await run_script(nursery, script, silent=True)
    assert isinstance(error, RpcError)
    assert (error.code, error.message) == (StatusCode.UNKNOWN, "response ended without grpc-status")


@pytest.mark.parametrize(
    ("status", "message", "code", "text"),
    [
        ("5", "not%20here", StatusCode.NOT_FOUND, "not here"),
        ("16", "", StatusCode.UNAUTHENTICATED, ""),
        ("13", "100%25 %E2%9C%93 %zz %", StatusCode.INTERNAL, "100% \u2713 %zz %"),
        ("17", "new", StatusCode.UNKNOWN, "unknown grpc-status 17: new"),
        ("-1", "", StatusCode.UNKNOWN, "malformed grpc-status '-1'"),
        ("", "", StatusCode.UNKNOWN, "malformed grpc-status ''"),
        ("OK", "", StatusCode.UNKNOWN, "malformed grpc-status 'OK'"),
        ("007", "", StatusCode.PERMISSION_DENIED, ""),
        ("9" * 5000, "", StatusCode.UNKNOWN, "unknown grpc-status " + "9" * 64),
    ],
)
@pytest.mark.parametrize("only", [True, False], ids=["Trailers-Only", "trailers"])
async def test_the_status_of_the_trailers(
    status: str, message: str, code: StatusCode, text: str, only: bool, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    async def script(peer: ScriptedPeer) -> None:
        fields = [("grpc-status", status), ("grpc-message", message), ("x-trailing", "1")]
        if only:
            await peer.send_headers(3, [*OK, *fields], end_stream=True)
        else:
            await peer.send_headers(3, OK)
            await peer.send_headers(3, fields, end_stream=True)

    error = await run_script(nursery, script, silent=True)
    assert isinstance(error, RpcError)
    assert (error.code, error.message) == (code, text)
    assert error.trailing_metadata == [("x-trailing", "1")]
    assert error.initial_metadata == []


@pytest.mark.parametrize(
    "content_type", ["application/grpc", "application/grpc+proto", "application/grpc;a=b", "Application/GRPC+x"]
)
async def test_variants_of_the_content_type(content_type: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    async def script(peer: ScriptedPeer) -> None:
        await peer.send_headers(3, [(":status", "200"), ("content-type", content_type)])
        await peer.send_data(3, MESSAGE)
        await peer.send_trailers(3)

    assert await run_script(nursery, script, silent=True) == REPLY


@pytest.mark.parametrize(
    ("length", "text"),
    [
        ("12", None),
        ("13", "response ended 1 bytes short of its content-length"),
        ("11", "more bytes came than the content-length announced"),
        ("0", "more bytes came than the content-length announced"),
        ("x", "malformed response headers: content-length is 'x'"),
    ],
)
async def test_a_content_length_must_be_true(
    length: str, text: str | None, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    async def script(peer: ScriptedPeer) -> None:
        await peer.send_headers(3, [*OK, ("content-length", length)])
        await peer.send_data(3, MESSAGE)
        await peer.send_trailers(3)

    result = await run_script(nursery, script)
    if text is None:
        assert result == REPLY
    else:
        assert isinstance(result, RpcError)
        assert (result.code, result.message) == (StatusCode.INTERNAL, text)


async def test_trailers_only_with_content_length_0(nursery: trio.Nursery, autojump_clock: Any) -> None:
    fields = [*OK, ("content-length", "0"), ("grpc-status", "5"), ("grpc-message", "gone")]
    error = await run_script(nursery, headers(*fields, end_stream=True), silent=True)
    assert isinstance(error, RpcError)
    assert (error.code, error.message) == (StatusCode.NOT_FOUND, "gone")


# ---------------------------------------------------------------------------------------------------------------------
# Bad messages

BAD_MESSAGES: dict[str, tuple[bytes, bool, StatusCode, str]] = {
    "flag 2": (
        b"\x02\0\0\0\0",
        False,
        StatusCode.INTERNAL,
        "message prefix has compressed flag 2, which is neither 0 nor 1",
    ),
    "4 GiB": (
        b"\0\xff\xff\xff\xff",
        False,
        StatusCode.RESOURCE_EXHAUSTED,
        "received message of 4294967295 bytes is over the limit of 4194304 bytes (option max_receive_message_length)",
    ),
    "one byte over": (
        b"\0\0\x40\0\x01",
        False,
        StatusCode.RESOURCE_EXHAUSTED,
        "received message of 4194305 bytes is over the limit of 4194304 bytes (option max_receive_message_length)",
    ),
    "flag 1 without encoding": (
        b"\x01\0\0\0\0",
        True,
        StatusCode.INTERNAL,
        "message has the compressed flag, but no grpc-encoding was announced",
    ),
    "end in the prefix": (b"\0\0", True, StatusCode.INTERNAL, "response ended in the middle of a message"),
    "end in the message": (b"\0\0\0\0\x05abc", True, StatusCode.INTERNAL, "response ended in the middle of a message"),
    "not protobuf": (
        b"\0\0\0\0\x03\xff\xff\xff",
        True,
        StatusCode.INTERNAL,
        "failed to parse the response as EchoReply",
    ),
    "two messages": (
        MESSAGE + MESSAGE,
        False,
        StatusCode.INTERNAL,
        "more than one message came for a method that has one",
    ),
    "no message": (b"", True, StatusCode.INTERNAL, "/echo.Echo/Unary replied with 0 messages instead of one"),
}


@pytest.mark.parametrize("trickle", [False, True], ids=["at once", "octet by octet"])
@pytest.mark.parametrize("name", BAD_MESSAGES)
async def test_a_bad_message_ends_its_call(
    name: str, trickle: bool, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    data, ended, code, text = BAD_MESSAGES[name]

    async def script(peer: ScriptedPeer) -> None:
        await peer.send_headers(3, OK)
        size = 1 if trickle else len(data) or 1
        for start in range(0, len(data), size):
            await peer.send_data(3, data[start : start + size])
        if ended:
            await peer.send_trailers(3)

    error = await run_script(nursery, script)
    assert isinstance(error, RpcError)
    assert error.code is code
    assert error.message.startswith(text)


async def test_a_failing_status_explains_a_message_that_is_cut_off(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async def script(peer: ScriptedPeer) -> None:
        await peer.send_headers(3, OK)
        await peer.send_data(3, MESSAGE[:7])
        await peer.send_trailers(3, StatusCode.DATA_LOSS, "disk failed")

    error = await run_script(nursery, script, silent=True)
    assert isinstance(error, RpcError)
    assert (error.code, error.message) == (StatusCode.DATA_LOSS, "disk failed")


async def test_a_prefix_alone_allocates_nothing(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Also where the limit would allow it."""
    limits = Limits(adaptive_window=False, max_receive_message_length=None)
    async with ScriptedServer(limits=limits) as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest(), timeout=5)
        peer = await scripted.accept()
        await expect_call(peer, 1)
        await peer.send_headers(1, OK)
        settle_allocator()
        tracemalloc.start()
        await peer.send_data(1, b"\0\xff\xff\xff\xff" + bytes(1000))
        await trio.sleep(1)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 300_000
        assert (await call.error()).code is StatusCode.DEADLINE_EXCEEDED


async def test_metadata_over_the_limit_ends_its_call_only(nursery: trio.Nursery, autojump_clock: Any) -> None:
    error = await run_script(
        nursery,
        headers(*OK, ("x-big", "v" * 100_000)),
        limits=Limits(adaptive_window=False, max_header_list_size=2000),
    )
    assert isinstance(error, RpcError)
    assert error.code is StatusCode.RESOURCE_EXHAUSTED
    assert "is over the limit of 2000 bytes (option max_header_list_size)" in error.message


async def test_trailers_over_the_limit(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async def script(peer: ScriptedPeer) -> None:
        await peer.send_headers(3, OK)
        await peer.send_data(3, MESSAGE)
        await peer.send_headers(3, [("grpc-status", "0"), ("x-big", "v" * 100_000)], end_stream=True)

    error = await run_script(nursery, script, limits=Limits(adaptive_window=False, max_header_list_size=2000))
    assert isinstance(error, RpcError)
    assert error.code is StatusCode.RESOURCE_EXHAUSTED


async def test_a_bad_message_in_a_stream_of_good_ones(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.ServerStream(EchoRequest()) as call:
            peer = await accepted.result()
            await expect_call(peer, 1, SERVER_STREAM)
            await peer.send_headers(1, OK)
            await peer.send_data(1, MESSAGE)
            assert await call.receive() == REPLY
            await peer.send_data(1, b"\x02\0\0\0\0")
            with pytest.raises(RpcError, match="INTERNAL: message prefix has compressed flag 2"):
                await call.receive()
            await peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.CANCEL)
            # What crosses the reset is dropped in silence.
            await peer.send_data(1, MESSAGE)
            await peer.send_trailers(1)
            await peer.expect_silence()
        scripted.assert_nothing_left()


# ---------------------------------------------------------------------------------------------------------------------
# Broken rules

STREAM_FAULTS: dict[str, tuple[Script, ErrorCode, str]] = {
    "WINDOW_UPDATE of 0": (
        lambda peer: peer.send_window_update(3, 0),
        ErrorCode.PROTOCOL_ERROR,
        "WINDOW_UPDATE of 0",
    ),
    "window over 2**31-1": (
        lambda peer: peer.send_window_update(3, 2**31 - 1),
        ErrorCode.FLOW_CONTROL_ERROR,
        "stream window over 2**31-1",
    ),
    "PRIORITY of 4 bytes": (
        lambda peer: peer.send_frame(PRIORITY, 0, 3, bytes(4)),
        ErrorCode.FRAME_SIZE_ERROR,
        "PRIORITY is not 5 bytes long",
    ),
    "DATA over SETTINGS_MAX_FRAME_SIZE": (
        lambda peer: peer.send_data(3, bytes(262_145)),
        ErrorCode.FRAME_SIZE_ERROR,
        "DATA frame of 262145 bytes is over SETTINGS_MAX_FRAME_SIZE 262144",
    ),
}


@pytest.mark.parametrize("name", STREAM_FAULTS)
async def test_a_fault_of_one_stream_ends_its_call(name: str, nursery: trio.Nursery, autojump_clock: Any) -> None:
    script, error_code, text = STREAM_FAULTS[name]
    async with ScriptedServer() as scripted:
        beside = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        await expect_call(peer, 3)
        await script(peer)
        error = await call.error()
        assert (error.code, error.message) == (StatusCode.INTERNAL, text)
        await peer.expect(RstStreamFrame, stream_id=3, error_code=error_code)
        await send_reply(peer, 1, EchoReply(text="fine"))
        assert (await beside.result()).text == "fine"
        scripted.assert_nothing_left()


def frame(frame_type: int, flags: int, stream_id: int, payload: bytes = b"") -> Script:
    return lambda peer: peer.send_frame(frame_type, flags, stream_id, payload)


CONNECTION_FAULTS: dict[str, tuple[Script, ErrorCode, str]] = {
    "PUSH_PROMISE": (
        frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2"),
        ErrorCode.PROTOCOL_ERROR,
        "PUSH_PROMISE is not allowed here",
    ),
    "HEADERS on a stream of its own": (
        lambda peer: peer.send_headers(2, OK),
        ErrorCode.PROTOCOL_ERROR,
        "HEADERS on idle stream 2",
    ),
    "HEADERS on an idle stream": (
        lambda peer: peer.send_headers(5, OK),
        ErrorCode.PROTOCOL_ERROR,
        "HEADERS on idle stream 5",
    ),
    "DATA on an idle stream": (frame(DATA, 0, 5, b"x"), ErrorCode.PROTOCOL_ERROR, "DATA on idle stream 5"),
    "RST_STREAM on an idle stream": (
        frame(RST_STREAM, 0, 5, bytes(4)),
        ErrorCode.PROTOCOL_ERROR,
        "RST_STREAM on idle stream 5",
    ),
    "WINDOW_UPDATE on an idle stream": (
        frame(WINDOW_UPDATE, 0, 5, b"\0\0\0\1"),
        ErrorCode.PROTOCOL_ERROR,
        "WINDOW_UPDATE on idle stream 5",
    ),
    "ENABLE_PUSH": (lambda peer: peer.send_settings({2: 1}), ErrorCode.PROTOCOL_ERROR, ""),
    "INITIAL_WINDOW_SIZE 2**31": (
        lambda peer: peer.send_settings({4: 2**31}),
        ErrorCode.FLOW_CONTROL_ERROR,
        "",
    ),
    "bad HPACK": (frame(HEADERS, END_HEADERS, 1, b"\x80"), ErrorCode.COMPRESSION_ERROR, "header block"),
    "PING of 7 bytes": (
        frame(PING, 0, 0, bytes(7)),
        ErrorCode.FRAME_SIZE_ERROR,
        "PING is 7 bytes long instead of 8",
    ),
    "frame over the size": (
        frame(HEADERS, END_HEADERS, 1, bytes(270_000)),
        ErrorCode.FRAME_SIZE_ERROR,
        "frame of 270000 bytes is over SETTINGS_MAX_FRAME_SIZE 262144",
    ),
}


@pytest.mark.parametrize("name", CONNECTION_FAULTS)
async def test_a_fault_of_the_connection_ends_all_calls_on_it(
    name: str, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    script, error_code, text = CONNECTION_FAULTS[name]
    async with ScriptedServer() as scripted:
        calls = [Background(nursery, scripted.stub.Unary, EchoRequest()) for _ in range(2)]
        peer = await scripted.accept()
        await expect_call(peer, 1)
        await expect_call(peer, 3)
        await script(peer)
        for call in calls:
            error = await call.error()
            assert error.code is StatusCode.UNAVAILABLE
            assert error.message.startswith(f"connection to MemoryListener.connect failed: {text}")
            assert error.__cause__ is not None
        await peer.expect(GoawayFrame, last_stream_id=0, error_code=error_code)
        await peer.expect_eof()
        await trio.testing.wait_all_tasks_blocked()
        scripted.assert_nothing_left(connections=0)
        # The next call makes a new connection.
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        await send_reply(peer, 1, REPLY)
        assert await call.result() == REPLY


async def test_what_is_to_be_ignored_between_data_frames(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async def script(peer: ScriptedPeer) -> None:
        await peer.send_headers(3, OK)
        for octet in MESSAGE:
            await peer.send_frame(0xEE, 0xFF, 3, b"?")
            await peer.send_frame(PRIORITY, 0, 3, b"\x80\0\0\1\xff")
            await peer.send_frame(PRIORITY, 0, 99, bytes(5))
            await peer.send_frame(0xA, 0, 0, b"\0\0h2")
            await peer.send_settings({0x9999: 1})
            await peer.send_data(3, bytes((octet,)), padding=octet)
        await peer.send_trailers(3)

    assert await run_script(nursery, script, silent=True) == REPLY
