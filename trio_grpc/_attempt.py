"""One attempt of a call: the way to its connection, what its request says of its deadline, and what its end means.

A call that succeeds at once is one attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import trio
from trio.lowlevel import checkpoint

from trio_grpc._balancing.policy import PickInfo
from trio_grpc._balancing.subchannel import ConnectFailed
from trio_grpc._channel import Channel
from trio_grpc._codec import decode_status_details
from trio_grpc._metadata import readable_metadata
from trio_grpc._status import RpcError, StatusCode
from trio_grpc._transport.connection import Connection, ConnectionLost
from trio_grpc._transport.header_codec import Field
from trio_grpc._transport.headers import encode_timeout
from trio_grpc._transport.stream import Answer, Outcome

DEADLINE_EXCEEDED = "deadline exceeded"


def call_error(code: StatusCode, message: str) -> RpcError:
    """Return an error that a call of ours ends with; see `RpcError.received` for what it means to a handler."""
    error = RpcError(code, message)
    error.received = True
    return error


def deadline_error(channel: Channel, text: str, *, begun: bool = True) -> RpcError:
    """Return the error for a call whose time was over, with what it may have waited for.

    Args:
        channel: of the call.
        text: says that its time was over.
        begun: it may have had its stream already.
    """
    reason = channel._unready_reason()
    if reason:
        text = f"{text}; not connected: {reason}"
    elif not begun and (reason := channel._full_reason()):
        text = f"{text}; no free stream: {reason}"
    return call_error(StatusCode.DEADLINE_EXCEEDED, text)


def outcome_error(outcome: Outcome, stream: Answer, deadline: float = inf) -> BaseException:
    """Return the exception for the outcome of a stream that did not end well."""
    if outcome.closed_locally:
        return trio.ClosedResourceError(outcome.message)
    code, message = outcome.code, outcome.message
    if code is StatusCode.CANCELLED and deadline < inf and trio.current_time() >= deadline:
        # PROTOCOL-HTTP2, "Client Cancellation": the server's timer was a little faster than ours.
        code, message = StatusCode.DEADLINE_EXCEEDED, DEADLINE_EXCEEDED
    if code is StatusCode.OK:
        code, message = StatusCode.INTERNAL, "call ended with status OK but without a reply"
    head = stream.head_record
    error = RpcError(
        code,
        message,
        details=decode_status_details(outcome.details) if outcome.details else (),
        initial_metadata=readable_metadata(head.fields) if head is not None and head.grpc_status is None else None,
        trailing_metadata=readable_metadata(outcome.fields),
    )
    error.__cause__ = outcome.cause
    error.received = True
    error._peer = stream.peer
    return error


async def acquire_connection(channel: Channel, info: PickInfo, wait_for_ready: bool | None) -> Connection:
    """Return a connection together with a slot in its stream table.

    Args:
        channel: knows connections.
        info: for the picker; it is to watch the stream that is opened.
        wait_for_ready: wait through failed attempts to connect.

    Raises:
        RpcError: UNAVAILABLE, there is no connection.
        trio.ClosedResourceError: the channel is closed.
    """
    try:
        while True:
            connection = channel._pick_nowait(info)
            if connection is None or connection.draining:
                try:
                    connection = await channel._wait_connection(info, bool(wait_for_ready))
                except ConnectFailed as failed:
                    # It may not have waited for anything, and a caller in a loop must let others run: us as well.
                    await checkpoint()
                    raise call_error(StatusCode.UNAVAILABLE, str(failed)) from failed.__cause__
            if connection.table.acquire_nowait():
                return connection
            try:
                return await connection.acquire()
            except (ConnectionLost, trio.ClosedResourceError):
                # The connection went away while we stood in line. Nothing was sent, so another one may serve.
                if channel.closed:
                    raise trio.ClosedResourceError("channel closed") from None
    except BaseException:
        info._drop()
        raise


def with_timeout(fields: Iterable[Field], deadline: float, now: float) -> list[Field]:
    """Return the header fields of a request that has a deadline: gRPC sends what is left of it (PROTOCOL-HTTP2)."""
    return [(b"grpc-timeout", encode_timeout(deadline - now)), *fields]
