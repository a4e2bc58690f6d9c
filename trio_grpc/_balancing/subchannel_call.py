"""A streaming call that the channel makes for itself on one connection, and begins again for as long as that lasts.

Channels watch in this way what a backend says about itself: its health (gRFC A17), its load (A51). Messages are raw
bytes. The call is no sign that somebody uses the channel: it does not keep it from going IDLE.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import trio

from trio_grpc._balancing.backoff import Backoff
from trio_grpc._message_coding import decompress
from trio_grpc._status import RpcError, StatusCode
from trio_grpc._transport.connection import Connection, ConnectionLost
from trio_grpc._transport.header_codec import HeaderTemplate
from trio_grpc._transport.messages import CompressedBytes, Message
from trio_grpc._transport.stream import BackgroundStream, Outcome, Stream

#: Calls in a row that may end within the first backoff although each had brought an answer, before the next one has to
#: wait. A17 has no such bound; with it, a server that answers and hangs up costs no loop as quick as the network.
_SHORT_LIVES = 3
#: Bytes of one response. What backends say of themselves is short, and read field by field, which takes time.
_LONGEST_MESSAGE = 65_536

__all__ = ["call_once", "keep_calling"]


async def keep_calling(
    connection: Connection,
    head: HeaderTemplate,
    request: bytes,
    *,
    backoff: Backoff,
    on_start: Callable[[], None],
    on_message: Callable[[bytes | bytearray], None],
    on_end: Callable[[Outcome], None],
    uniform: Callable[[float, float], float] = random.uniform,
) -> None:
    """Keep a call with one request and many responses up; return when it can not be, as the connection takes no more.

    A call that ends is begun again: at once when it had brought an answer, otherwise after a backoff. After
    UNIMPLEMENTED nothing is begun again, whatever it had brought. To end it, cancel it. The functions must not wait or
    raise.

    Args:
        connection: where; it may be ending.
        head: the request head.
        request: the only request.
        backoff: the waits between calls.
        on_start: called when a call begins.
        on_message: called with each response.
        on_end: called when a call has ended, with how; not when that was the end of the connection.
        uniform: the source of the jitter.
    """
    failures = short_lives = 0
    while True:
        try:
            await connection.table.acquire_background()
        except (ConnectionLost, trio.ClosedResourceError):
            # Whoever watches the connection learns of it from the connection.
            return
        began = trio.current_time()
        on_start()
        answers = 0

        def take(message: bytes | bytearray) -> None:
            nonlocal answers
            answers += 1
            on_message(message)

        outcome = await call_once(connection, head, request, take)
        if connection.table.refusal is not None:
            return
        on_end(outcome)
        if outcome.code is StatusCode.UNIMPLEMENTED:
            return
        if not answers:
            failures += 1
        else:
            short_lives = short_lives + 1 if trio.current_time() - began < backoff.base else 0
            failures = max(short_lives - _SHORT_LIVES, 0)
        if failures:
            await trio.sleep(backoff.delay(failures, uniform))


async def call_once(
    connection: Connection, head: HeaderTemplate, request: bytes, on_message: Callable[[bytes | bytearray], None]
) -> Outcome:
    """Make one call in a background slot that the caller has acquired; return how it ended.

    Cancelling it resets the stream.

    Args:
        connection: where.
        head: the request head.
        request: the only request.
        on_message: called with each response.
    """
    limit = min(connection.limits.receive_limit, _LONGEST_MESSAGE)
    stream = connection.open_stream(head, (), limit, kind=BackgroundStream)
    stream.queue_message(request)
    stream.end_stream = True
    stream.announce_alone()
    try:
        while (message := await stream.receive()) is not None:
            on_message(_plain(message, stream, limit))
        await stream.wait_outcome()
    except RpcError as error:
        stream.end(Outcome(error.code, error.message))
    finally:
        if stream.outcome is None or not stream.left_table:
            stream.cancel("no longer needed")
    outcome = stream.outcome
    assert outcome is not None
    return outcome


def _plain(message: Message, stream: Stream, limit: int) -> bytes | bytearray:
    if isinstance(message, CompressedBytes):
        return decompress(message, stream.peer_encoding, limit, RpcError)
    return message
