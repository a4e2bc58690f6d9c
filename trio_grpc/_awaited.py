"""One awaited unary call: its attempts one after the other, inline in the caller's task.

Nothing is started for it but, with a timeout, an entry in the heap of timers. So a call that succeeds at once costs the
same whether it may be retried or not.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

import trio
from trio.lowlevel import checkpoint

from trio_grpc._attempt import acquire_connection, call_error, deadline_error, outcome_error, with_timeout
from trio_grpc._attempts import Attempts, described
from trio_grpc._balancing.policy import PickInfo
from trio_grpc._balancing.service_config import UNRESOLVED
from trio_grpc._call import CallFactory, expire
from trio_grpc._channel import Channel
from trio_grpc._observing import Attempt
from trio_grpc._options import check_timeout
from trio_grpc._retry import Retries, Transparency, with_previous
from trio_grpc._status import RpcError, StatusCode
from trio_grpc._transport.connection import Connection
from trio_grpc._transport.header_codec import Field
from trio_grpc._transport.stream import Outcome, Stream
from trio_grpc._transport.timers import call_at

#: An attribute of an enum is dear to look up.
_OK = StatusCode.OK

#: `run_unary` or `run_configured`.
RunUnary = Callable[..., Coroutine[Any, Any, Stream]]


async def run_unary(
    factory: CallFactory[Any, Any],
    data: bytes,
    compressed: bool,
    encoding: str,
    fields: list[Field] | tuple[Field, ...],
    wait_for_ready: bool | None,
    timeout: float | None = None,
    expires: float | None = None,
    retries: Retries | None = None,
    message_limit: int | None = None,
) -> Stream:
    """Make a unary call.

    Args:
        factory: of the method.
        data: the request.
        compressed: whether it is.
        encoding: of the call.
        fields: its metadata.
        wait_for_ready: wait through failed attempts to connect.
        timeout: seconds for all attempts.
        expires: when they are over; None where they begin now.
        retries: what follows failed attempts; None for transparent retries alone.
        message_limit: bytes of the largest reply, None for the limit of the channel.

    Returns:
        A stream that has ended with OK.
    """
    channel = factory.channel
    head = factory.head if encoding == factory.default_encoding else factory.head_for(encoding)
    if expires is None:
        expires = inf if timeout is None else trio.current_time() + check_timeout(timeout)
    observation = factory.observation
    attempt: Attempt | None = None
    transparency: Transparency | None = None
    last = ""
    sent_fields = fields
    while True:
        if observation is not None:
            previous = 0 if retries is None else retries.previous
            attempt = observation.begin(previous)
            sent_fields = attempt._with_metadata(with_previous(fields, previous) if previous else fields)
        connection = channel._connection_nowait()
        info: PickInfo | None = None
        if connection is None or not connection.table.acquire_nowait():
            info = PickInfo(factory.method.path, sent_fields)
            try:
                connection = await _acquire(channel, info, wait_for_ready, expires, timeout, last)
            except RpcError as error:
                if attempt is not None:
                    attempt._end(error.code)
                delay = None
                if retries is not None and error.code is StatusCode.UNAVAILABLE:
                    delay = retries.next_delay(error.code, ())
                if retries is None or delay is None:
                    raise
                last = str(error)
                await _pause(channel, delay, expires, timeout, last)
                sent_fields = with_previous(fields, retries.previous)
                continue
        deadline = min(trio.current_effective_deadline(), expires)
        now = 0.0
        literals = sent_fields
        if deadline < inf:
            now = trio.current_time()
            literals = with_timeout(sent_fields, deadline, now)
        stream = connection.open_stream(head, literals, message_limit)
        if info is not None:
            info._watch(stream)
        if attempt is not None:
            attempt._connect(stream, info is not None)
        stream.queue_message(data, compressed)
        stream.end_stream = True
        stream.single_reply = True
        if deadline == inf:
            stream.announce_alone()
            await stream.wait_outcome(cancels=True)
        else:
            await _wait_in_time(stream, now, deadline, expires, timeout)
        outcome = stream.outcome
        assert outcome is not None
        if outcome.code is _OK:
            if retries is not None:
                retries.succeeded()
            return stream
        if channel.closed:
            raise trio.ClosedResourceError("channel closed")
        if outcome.unprocessed and not _is_committed(stream):
            transparency = transparency or Transparency()
            if transparency.allows(bool(stream.stream_id)):
                continue
        delay = None if retries is None else _delay_after(retries, outcome, stream, deadline)
        if retries is None or delay is None:
            if not stream.stream_id:
                # It may have ended without waiting for anything.
                await checkpoint()
            # Not kept in a variable: the error's traceback has this frame in it.
            raise outcome_error(outcome, stream, deadline)
        last = described(outcome)
        await _pause(channel, delay, expires, timeout, last)
        sent_fields = with_previous(fields, retries.previous)


async def run_configured(
    factory: CallFactory[Any, Any],
    data: bytes,
    compressed: bool,
    encoding: str,
    fields: list[Field] | tuple[Field, ...],
    wait_for_ready: bool | None,
    timeout: float | None = None,
    expires: float | None = None,
) -> Stream:
    """Make a unary call of a channel that has a service config; see `run_unary`."""
    began = trio.current_time()
    if expires is None:
        expires = inf if timeout is None else began + check_timeout(timeout)
    if factory.channel._service_config is UNRESOLVED:
        factory = await factory.resolved(wait_for_ready, max(0.0, expires - began), len(data))
    wait_for_ready = factory.choose_wait_for_ready(wait_for_ready)
    shortest = factory.choose_timeout(None)
    if shortest is not None and began + shortest < expires:
        timeout, expires = shortest, began + shortest
    if factory.hedges(len(data)) is not None:
        deadline = min(trio.current_effective_deadline(), expires)
        request = factory.request(encoding, fields, deadline, wait_for_ready)
        return await _run_hedged(factory.attempts(request, (data, compressed)), expires, timeout)
    return await run_unary(
        factory,
        data,
        compressed,
        encoding,
        fields,
        wait_for_ready,
        timeout,
        expires,
        factory.retries(len(data)),
        factory.receive_limit,
    )


async def _run_hedged(attempts: Attempts, expires: float, timeout: float | None) -> Stream:
    """Make a unary call of several attempts at a time."""
    channel, deadline = attempts.request.channel, attempts.request.deadline
    await checkpoint()
    with trio.CancelScope(deadline=expires) as scope:
        await attempts.open()
        await attempts.wait_outcome(cancels=True)
    if scope.cancelled_caught:
        raise _time_is_over(channel, timeout, attempts.last)
    outcome = attempts.outcome
    assert outcome is not None
    if outcome.code is _OK:
        assert attempts.live is not None
        return attempts.live
    if channel.closed:
        raise trio.ClosedResourceError("channel closed")
    raise outcome_error(outcome, attempts, deadline)


def _is_committed(stream: Stream) -> bool:
    """Whether the caller may be told the initial metadata of this attempt, and so of no other."""
    return stream.head_record is not None and stream.head_record.is_initial


def _delay_after(retries: Retries, outcome: Outcome, stream: Stream, deadline: float) -> float | None:
    """Return the seconds until the attempt after one that has failed; None where there is none."""
    if outcome.closed_locally or trio.current_time() >= deadline:
        return None
    if _is_committed(stream):
        retries.ended(outcome.code, outcome.fields)
        return None
    return retries.next_delay(outcome.code, outcome.fields)


async def _pause(channel: Channel, delay: float, expires: float, timeout: float | None, last: str) -> None:
    """Wait between two attempts; ``last`` is what the first of them ended with."""
    if timeout is None:
        await channel._sleep(delay)
        return
    with trio.CancelScope(deadline=expires):
        await channel._sleep(delay)
        return
    raise _time_is_over(channel, timeout, last)


async def _wait_in_time(stream: Stream, now: float, deadline: float, expires: float, timeout: float | None) -> None:
    """Send a call that has a deadline, and wait for its end or its ``timeout``'s."""
    if expires <= now:
        expire(stream, timeout_text(timeout))
    if deadline > now:
        stream.announce_alone()
    else:
        # Its time is over, and it is told so below: nothing of this call shall leave.
        stream.announce()
    if timeout is None:
        await stream.wait_outcome(cancels=True)
        return
    timer = call_at(expires, lambda: expire(stream, timeout_text(timeout)))
    try:
        await stream.wait_outcome(cancels=True)
    finally:
        timer.cancel()


async def _acquire(
    channel: Channel, info: PickInfo, wait_for_ready: bool | None, expires: float, timeout: float | None, last: str
) -> Connection:
    """Return a connection and a slot in its stream table, for a call that has to wait for one."""
    if timeout is None:
        return await acquire_connection(channel, info, wait_for_ready)
    with trio.CancelScope(deadline=expires):
        return await acquire_connection(channel, info, wait_for_ready)
    raise _time_is_over(channel, timeout, last, begun=False)


def _time_is_over(channel: Channel, timeout: float | None, last: str, *, begun: bool = True) -> RpcError:
    """Return the error for a call whose time was over; ``last`` is what an attempt has ended with, if any has.

    See `deadline_error`, too.
    """
    text = timeout_text(timeout)
    if last:
        return call_error(StatusCode.DEADLINE_EXCEEDED, f"{text}; the last attempt ended with {last}")
    return deadline_error(channel, text, begun=begun)


def timeout_text(timeout: float | None) -> str:
    """Return what is said of a call whose timeout is over."""
    return f"deadline of {timeout:g} s exceeded"
