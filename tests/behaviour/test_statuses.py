"""The words of a status on their way, against scripted peers: its message, and its details."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration

from tests.behaviour.scripted import UNARY, Background, Echo, ScriptedServer, start_server
from trio_grpc import Limits, RpcError, StatusCode
from trio_grpc._codec import decode_status_details, encode_status_details
from trio_grpc.testing import HeadersFrame

pytestmark = pytest.mark.usefixtures("quiet_log")

LARGE = Limits(adaptive_window=False, max_header_list_size=100_000)

#: What is said, and how it looks on the wire: UTF-8, then percent-encoding of all that is not printable ASCII and of
#: the percent sign (PROTOCOL-HTTP2, "Status-Message").
MESSAGES = {
    "plain text ~!": b"plain text ~!",
    "100% \u2713\n\t\x00": b"100%25 %E2%9C%93%0A%09%00",
    "%41 is not A": b"%2541 is not A",
    "\x7f\x80": b"%7F%C2%80",
    "x" * 10_240: b"x" * 10_240,
    "\u2713" * 3000: b"%E2%9C%93" * 3000,
}


class Failing(Echo):
    """Fails with the status that it was made with."""

    def __init__(self, error: RpcError, *, after_reply: bool = False) -> None:
        super().__init__()
        self.error = error
        self.after_reply = after_reply

    async def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
        if self.after_reply:
            await context.send_initial_metadata()
        raise self.error


async def trailers_of(nursery: trio.Nursery, error: RpcError, after_reply: bool) -> HeadersFrame:
    """The trailers that a server sends for an error."""
    endpoint = await start_server(nursery, servicer=Failing(error, after_reply=after_reply), limits=LARGE)
    async with await endpoint.client() as peer:
        await peer.send_request(1, UNARY)
        await peer.send_message(1, b"", end_stream=True)
        if after_reply:
            await peer.expect(HeadersFrame, stream_id=1, end_stream=False)
        trailers = await peer.expect(HeadersFrame, stream_id=1, end_stream=True)
        assert trailers["grpc-status"] == str(error.code.value)
        return trailers


async def error_of(nursery: trio.Nursery, fields: list[tuple[str | bytes, str | bytes]], only: bool) -> RpcError:
    """The error that a client sees for trailers."""
    async with ScriptedServer(limits=LARGE) as scripted:
        call = Background(nursery, scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await peer.expect(HeadersFrame, stream_id=1)
        if only:
            head = [(":status", "200"), ("content-type", "application/grpc")]
            await peer.send_headers(1, [*head, *fields], end_stream=True)
        else:
            await peer.send_response(1)
            await peer.send_headers(1, fields, end_stream=True)
        return await call.error()


in_trailers_and_alone = pytest.mark.parametrize("only", [False, True], ids=["trailers", "Trailers-Only"])


@in_trailers_and_alone
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: ascii(message)[:20])
async def test_messages_make_the_round_trip(
    message: str, only: bool, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    trailers = await trailers_of(nursery, RpcError(StatusCode.ABORTED, message), not only)
    ((_, value),) = [field for field in trailers.fields if field[0] == b"grpc-message"]
    assert value == MESSAGES[message]
    error = await error_of(nursery, [("grpc-status", "10"), ("grpc-message", value)], only)
    assert (error.code, error.message) == (StatusCode.ABORTED, message)


@in_trailers_and_alone
async def test_an_empty_message_is_left_out(only: bool, nursery: trio.Nursery, autojump_clock: Any) -> None:
    trailers = await trailers_of(nursery, RpcError(StatusCode.ABORTED), not only)
    assert trailers.get("grpc-message") is None
    error = await error_of(nursery, [("grpc-status", "10")], only)
    assert (error.code, error.message) == (StatusCode.ABORTED, "")


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        (b"%", "%"),
        (b"%4", "%4"),
        (b"%zz", "%zz"),
        (b"%41%", "A%"),
        (b"%FF", "\ufffd"),
        (b"%e2%9c%93", "\u2713"),
        ("raw \u2713".encode(), "raw \u2713"),
        (b"\xff", "\ufffd"),
    ],
)
async def test_reading_a_message_never_fails(
    wire: bytes, message: str, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    error = await error_of(nursery, [("grpc-status", "10"), ("grpc-message", wire)], False)
    assert (error.code, error.message) == (StatusCode.ABORTED, message)


# ---------------------------------------------------------------------------------------------------------------------
# Details: a google.rpc.Status in base64

DETAILS = [EchoRequest(text="what"), Duration(seconds=5), AnyMessage(type_url="x.test/some.Unknown", value=b"\xff\0")]


@in_trailers_and_alone
async def test_details_go_out_as_a_status_in_base64_without_padding(
    only: bool, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    trailers = await trailers_of(nursery, RpcError(StatusCode.ABORTED, "why", details=DETAILS), not only)
    value = trailers["grpc-status-details-bin"]
    assert "=" not in value
    data = base64.b64decode(value + "=" * (-len(value) % 4))
    assert data == encode_status_details(10, "why", DETAILS)
    assert decode_status_details(data) == tuple(DETAILS)


@in_trailers_and_alone
@pytest.mark.parametrize("padded", [False, True])
async def test_details_come_in(only: bool, padded: bool, nursery: trio.Nursery, autojump_clock: Any) -> None:
    details = [*DETAILS, EchoRequest()]
    value = base64.b64encode(encode_status_details(10, "why!", details))
    assert value.endswith(b"=")
    fields = [("grpc-status", "10"), ("grpc-status-details-bin", value if padded else value.rstrip(b"="))]
    error = await error_of(nursery, [*fields, ("grpc-message", "why")], only)
    assert (error.code, error.message) == (StatusCode.ABORTED, "why")
    assert error.details == tuple(details)
    # A type that this program does not know stays as it came.
    unknown = error.details[2]
    assert isinstance(unknown, AnyMessage)
    assert (unknown.type_url, unknown.value) == ("x.test/some.Unknown", b"\xff\0")


async def test_unknown_details_can_be_passed_on(nursery: trio.Nursery, autojump_clock: Any) -> None:
    value = base64.b64encode(encode_status_details(10, "", DETAILS))
    error = await error_of(nursery, [("grpc-status", "10"), ("grpc-status-details-bin", value)], False)
    again = RpcError(error.code, error.message, details=error.details)
    trailers = await trailers_of(nursery, again, after_reply=True)
    assert trailers["grpc-status-details-bin"].encode() == value.rstrip(b"=")


@pytest.mark.parametrize(
    "value",
    ["*", "Y", "", base64.b64encode(b"\x0a\xff").decode(), base64.b64encode(b"not a message").decode()],
    ids=["no base64", "cut base64", "empty", "cut status", "no status"],
)
async def test_unreadable_details_do_not_hide_the_status(
    value: str, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    fields = [("grpc-status", "10"), ("grpc-message", "why"), ("grpc-status-details-bin", value), ("x-also", "this")]
    error = await error_of(nursery, [*fields], False)
    assert (error.code, error.message, error.details) == (StatusCode.ABORTED, "why", ())
    assert error.trailing_metadata == [("x-also", "this")]


async def test_a_detail_of_a_known_type_that_cannot_be_read_stays_opaque(
    nursery: trio.Nursery, autojump_clock: Any
) -> None:
    broken = AnyMessage(type_url="type.googleapis.com/google.protobuf.Duration", value=b"\xff")
    value = base64.b64encode(encode_status_details(10, "", [broken, Duration(seconds=1)]))
    error = await error_of(nursery, [("grpc-status", "10"), ("grpc-status-details-bin", value)], False)
    assert error.details == (broken, Duration(seconds=1))


async def test_details_that_say_another_code_than_the_status(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """The status of the trailers is the status."""
    value = base64.b64encode(encode_status_details(5, "other", [Duration(seconds=1)]))
    fields = [("grpc-status", "10"), ("grpc-message", "why"), ("grpc-status-details-bin", value)]
    error = await error_of(nursery, [*fields], False)
    assert (error.code, error.message, error.details) == (StatusCode.ABORTED, "why", (Duration(seconds=1),))
