"""A call that may be sent more than once: what stands for its stream until it is known which attempt's that is.

A call is *committed* to an attempt when its response headers come, when it ends for good, or when more was sent than
may be kept (gRFC A6). Until then `Attempts` keeps what is sent, so that another attempt can send it again. From then on
the call is what a call of one attempt is, and nothing is left of this.

Attempts one after the other need no task: the first is opened by the caller, and only when one has failed is a task
started, which makes the next. All else is told by the streams themselves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import inf
from typing import Protocol

import trio
from trio.lowlevel import Abort, RaiseCancelT, Task, checkpoint, current_task, wait_task_rescheduled

from trio_grpc._attempt import acquire_connection, outcome_error, with_timeout
from trio_grpc._balancing.policy import PickInfo
from trio_grpc._channel import Channel
from trio_grpc._message_coding import Source
from trio_grpc._observing import Attempt, Observation
from trio_grpc._retry import AttemptRules, Retries, Transparency, with_previous
from trio_grpc._status import RpcError, StatusCode
from trio_grpc._tls_info import TlsInfo
from trio_grpc._transport.control_buffer import WRITE_QUOTA
from trio_grpc._transport.frames import ErrorCode
from trio_grpc._transport.header_codec import Field, HeaderTemplate
from trio_grpc._transport.headers import ResponseHeaders
from trio_grpc._transport.messages import PREFIX_LENGTH, Message, MessageAssembler
from trio_grpc._transport.stream import Answer, Outcome, Stream
from trio_grpc._transport.waking import wake


class CallStream(Answer, Source, Protocol):
    """What a call wants of its stream; `Stream` says what it means."""

    on_ended: Callable[[], None] | None

    @property
    def left_table(self) -> bool: ...
    @property
    def end_stream(self) -> bool: ...
    @property
    def assembler(self) -> MessageAssembler: ...

    async def send_message(self, data: bytes, compressed: bool = False) -> bool: ...
    def done_sending(self) -> None: ...
    async def receive(self) -> Message | None: ...
    async def wait_outcome(self, *, cancels: bool = False) -> None: ...
    async def wait_head(self) -> None: ...
    def end(self, outcome: Outcome) -> None: ...
    def cancel(self, reason: str, error_code: int = ErrorCode.CANCEL) -> None: ...
    def reset(self, error_code: int) -> None: ...
    def discard_incoming(self) -> None: ...


class Request:
    """What all attempts of a call have in common.

    Attributes:
        channel: carries them.
        path: of the method.
        head: the header fields that all calls of the method share.
        fields: the call's own.
        deadline: for all attempts together; inf for none.
        wait_for_ready: wait through failed attempts to connect.
        message_limit: bytes of the largest response, None for the limit of the channel.
        single_reply: the method has one response.
        observation: of the call, None where nobody observes it.
    """

    __slots__ = (
        "channel",
        "deadline",
        "fields",
        "head",
        "message_limit",
        "observation",
        "path",
        "single_reply",
        "wait_for_ready",
    )

    def __init__(
        self,
        channel: Channel,
        path: str,
        head: HeaderTemplate,
        fields: Sequence[Field],
        *,
        deadline: float,
        wait_for_ready: bool | None,
        message_limit: int | None,
        single_reply: bool,
        observation: Observation | None,
    ) -> None:
        self.channel = channel
        self.path = path
        self.head = head
        self.fields = fields
        self.deadline = deadline
        self.wait_for_ready = wait_for_ready
        self.message_limit = message_limit
        self.single_reply = single_reply
        self.observation = observation

    async def open(self, previous: int, kept: Callable[[], bool]) -> Stream | None:
        """Open the stream of an attempt after ``previous`` others. Nothing is announced yet.

        Args:
            previous: attempts before it.
            kept: asked when there is a connection: whether it is still wanted.

        Returns:
            The stream, None where it is not.

        Raises:
            RpcError: UNAVAILABLE, there is no connection.
            trio.ClosedResourceError: the channel is closed.
        """
        fields = self.fields if not previous else with_previous(self.fields, previous)
        attempt: Attempt | None = None
        if self.observation is not None:
            attempt = self.observation.begin(previous)
            fields = attempt._with_metadata(fields)
        info = PickInfo(self.path, fields)
        ready = attempt is not None and self.channel._connection_nowait() is not None
        try:
            connection = await acquire_connection(self.channel, info, self.wait_for_ready)
        except RpcError as error:
            if attempt is not None:
                attempt._end(error.code)
            raise
        if not kept():
            if attempt is not None:
                attempt._end(StatusCode.CANCELLED)
            info._drop()
            connection.table.give_back()
            return None
        if self.deadline < inf:
            fields = with_timeout(fields, self.deadline, trio.current_time())
        stream = connection.open_stream(self.head, fields, self.message_limit)
        stream.single_reply = self.single_reply
        info._watch(stream)
        if attempt is not None:
            attempt._connect(stream, delayed=not ready)
        return stream


class Attempts:
    """Stands for the stream of a call until that is known: attempts one after the other.

    Args:
        request: what all attempts send first.
        first: the request of a method that takes one, None for a stream of them.
        retries: what follows failed attempts; None for transparent retries alone.
        on_settled: called once with the stream that this stands for, when it is known.

    Attributes:
        request: what all attempts send first.
        live: the stream of the attempt under way; None between two attempts.
        settled: whether that is the call's own, for good.
        last: what an attempt has failed with, for messages; empty where none has.
        on_ended: called once when the call has its status.
        end_stream: no more messages come from the caller.
    """

    __slots__ = (
        "_begun",
        "_fresh",
        "_on_settled",
        "_outcome",
        "_receiver",
        "_retries",
        "_scope",
        "_sender",
        "_sent",
        "_settled_event",
        "_size",
        "_transparency",
        "end_stream",
        "last",
        "live",
        "on_ended",
        "request",
        "settled",
    )

    def __init__(
        self,
        request: Request,
        first: tuple[bytes, bool] | None,
        retries: Retries | None,
        on_settled: Callable[[Stream], None] | None = None,
    ) -> None:
        self.live: Stream | None = None
        self.settled: bool = False
        self.last: str = ""
        self.on_ended: Callable[[], None] | None = None
        self.end_stream: bool = first is not None
        self.request: Request = request
        self._retries = retries
        self._on_settled = on_settled
        self._transparency = Transparency()
        self._sent: list[tuple[bytes, bool]] = [] if first is None else [first]
        #: Bytes of a stream of requests in ``_sent``, which are bounded. A single request is the call's in any case.
        self._size = 0
        #: Nothing was announced on the live stream since it was opened.
        self._fresh = True
        #: Where there is no stream to have one.
        self._outcome: Outcome | None = None
        self._scope: trio.CancelScope | None = None
        self._receiver: Task | None = None
        self._sender: Task | None = None
        self._begun: trio.Event | None = None
        self._settled_event: trio.Event | None = None

    # -- the attempts

    async def open(self) -> None:
        """Make attempts until one has a stream. Cancelled meanwhile, the call is over.

        Raises:
            RpcError: there is no connection, and no further attempt.
            trio.ClosedResourceError: the channel is closed.
        """
        try:
            await self._open_first()
            if self.live is None and self._outcome is None:
                self._begun = trio.Event()
                await self._begun.wait()
        except BaseException:
            self.cancel("call cancelled by its caller")
            raise
        if self._outcome is not None:
            raise outcome_error(self._outcome, self, self.request.deadline)

    async def _open_first(self) -> None:
        try:
            await self._begin()
        except RpcError as error:
            delay = self._delay_after(unavailable(error), None)
            if delay is None:
                raise
            self._begin_later(delay)

    def _is_open(self) -> bool:
        return not self.settled and self._outcome is None

    async def _begin(self) -> None:
        """Open the next attempt, and send what was sent before."""
        stream = await self.request.open(0 if self._retries is None else self._retries.previous, self._is_open)
        if stream is None:
            return
        self._replay(stream)
        self.live = stream
        stream.on_head = self._on_head
        stream.on_ended = self._on_end
        self._wake()
        self._announce(stream)

    def _replay(self, stream: Stream) -> None:
        for data, compressed in self._sent:
            stream.queue_message(data, compressed)
        stream.end_stream = self.end_stream

    def _announce(self, stream: Stream) -> None:
        if stream.outcome is not None and stream.on_ended is not None:
            # The server would not take such headers.
            stream.on_ended()
        if stream.end_stream:
            stream.announce_alone()
        else:
            # A request mostly follows, and leaves with it.
            self._fresh = True
            stream.announce()

    def _begin_later(self, delay: float) -> None:
        self._scope = self._start(self._begin_again, delay)

    def _start(self, function: Callable[..., Awaitable[None]], *args: object) -> trio.CancelScope:
        channel = self.request.channel
        return channel._services.start_soon(self._run, function, args, name=f"attempt of {self.request.path}")

    async def _begin_again(self, delay: float) -> None:
        while True:
            if delay:
                await self.request.channel._sleep(delay)
            try:
                await self._begin()
                return
            except RpcError as error:
                outcome = unavailable(error)
            if not self._is_open():
                # It was given up while it failed.
                return
            next_delay = self._delay_after(outcome, None)
            if next_delay is None:
                self._finish(outcome)
                return
            delay = next_delay

    async def _run(self, function: Callable[..., Awaitable[None]], args: tuple[object, ...]) -> None:
        """A task of ours: whatever becomes of it, the call is told."""
        try:
            await function(*args)
        except trio.ClosedResourceError as closed:
            self._finish(Outcome(StatusCode.CANCELLED, str(closed), closed_locally=True))
        except trio.Cancelled:
            # By the call, which knows, or by the end of the channel.
            self._finish(Outcome(StatusCode.CANCELLED, "channel closed", closed_locally=True))
            raise
        except Exception as error:
            # A picker is the user's own.
            self._finish(Outcome(StatusCode.UNKNOWN, f"{type(error).__name__}: {error}", cause=error))

    # -- what becomes of them

    def _on_head(self) -> None:
        """Response headers have come: of a response, or of a failure that is told at once."""
        stream = self.live
        assert stream is not None
        if stream.head_record is not None and stream.head_record.is_initial:
            self._settle(stream)

    def _on_end(self) -> None:
        stream = self.live
        assert stream is not None
        outcome = stream.outcome
        assert outcome is not None
        delay = self._delay_after(outcome, stream)
        if delay is None:
            self._settle(stream)
            return
        self.live = None
        stream.on_head = stream.on_ended = None
        self._begin_later(delay)

    def _delay_after(self, outcome: Outcome, stream: Stream | None) -> float | None:
        """Return the seconds until the attempt after one that has ended; None where there is none."""
        if self._is_over(outcome):
            return None
        if outcome.unprocessed and stream is not None and self._transparency.allows(bool(stream.stream_id)):
            return 0.0
        self.last = described(outcome)
        retries = self._retries
        if retries is None:
            return None
        if outcome.code is StatusCode.OK:
            retries.succeeded()
            return None
        return retries.next_delay(outcome.code, outcome.fields)

    def _is_over(self, outcome: Outcome) -> bool:
        """Whether it is this side that wants no more attempts."""
        request = self.request
        return outcome.closed_locally or request.channel.closed or trio.current_time() >= request.deadline

    def _settle(self, stream: Stream) -> None:
        """The call is committed to this attempt."""
        self.settled = True
        self.live = stream
        stream.on_head = None
        stream.on_ended = self.on_ended
        rules = self._rules
        if rules is not None and stream.outcome is None:
            # Nothing follows, but what it ends with counts for the throttle.
            stream.on_outcome = partial(_count_end, rules, stream.on_outcome)
        self._stop()
        on_settled, self._on_settled = self._on_settled, None
        if on_settled is not None:
            on_settled(stream)
        if stream.outcome is not None and self.on_ended is not None:
            self.on_ended()

    @property
    def _rules(self) -> AttemptRules | None:
        return self._retries

    def _finish(self, outcome: Outcome) -> None:
        """The call ends, and there is no stream to which it could be committed."""
        if self._is_open():
            self._outcome = outcome
            self._stop()
            self._on_settled = None
            if self.on_ended is not None:
                self.on_ended()

    def _stop(self) -> None:
        """No more attempts; nothing is kept any more."""
        self._sent = []
        self.request.channel._retry_bytes -= self._size
        self._size = 0
        if self._scope is not None:
            self._scope.cancel()
            self._scope = None
        if self._settled_event is not None:
            self._settled_event.set()
        self._wake()

    def _keep(self, data: bytes, compressed: bool) -> bool:
        """Keep a message for attempts to come; False where there is no room."""
        channel = self.request.channel
        # Prefixes count too: empty messages are not for nothing.
        size = PREFIX_LENGTH + len(data)
        limits = channel.limits
        if self._size + size > limits.retry_buffer_size or channel._retry_bytes + size > limits.total_retry_buffer_size:
            return False
        self._size += size
        channel._retry_bytes += size
        self._sent.append((data, compressed))
        return True

    # -- what a call sees

    @property
    def outcome(self) -> Outcome | None:
        return self.live.outcome if self.settled and self.live is not None else self._outcome

    @property
    def head_record(self) -> ResponseHeaders | None:
        return self.live.head_record if self.settled and self.live is not None else None

    @property
    def peer(self) -> str:
        return "" if self.live is None else self.live.peer

    @property
    def tls(self) -> TlsInfo | None:
        return None if self.live is None else self.live.tls

    @property
    def left_table(self) -> bool:
        return self.live is None or self.live.left_table

    @property
    def message_compressed(self) -> bool:
        return self.settled and self._committed.message_compressed

    @message_compressed.setter
    def message_compressed(self, value: bool) -> None:
        self._committed.message_compressed = value

    @property
    def assembler(self) -> MessageAssembler:
        return self._committed.assembler

    @property
    def peer_encoding(self) -> str:
        return self._committed.peer_encoding

    @property
    def _committed(self) -> Stream:
        assert self.live is not None
        return self.live

    # -- sending

    async def send_message(self, data: bytes, compressed: bool = False) -> bool:
        """See `Stream.send_message`."""
        while True:
            stream = self.live
            if stream is None:
                await checkpoint()
                if not self._is_open() or self.end_stream:
                    return False
                if self.live is None and not self._keep(data, compressed):
                    # The next attempt is the last one that it can be sent with.
                    await self._wait_sender()
                    continue
                if self.live is None:
                    return True
                continue
            if self.settled:
                return await stream.send_message(data, compressed)
            if stream.pending_bytes >= WRITE_QUOTA:
                await stream.wait_write_quota()
                stream.start_turn()
            else:
                await stream.take_turn()
            if stream is not self.live or self.settled:
                continue
            if self.end_stream:
                return False
            if not self._keep(data, compressed):
                self._settle(stream)
                continue
            stream.queue_message(data, compressed)
            if self._fresh:
                self._fresh = False
                stream.announce_alone()
            else:
                stream.announce()
            return True

    def done_sending(self) -> None:
        """See `Stream.done_sending`."""
        self.end_stream = True
        if self.live is not None:
            self.live.done_sending()

    # -- receiving

    async def receive(self) -> Message | None:
        """See `Stream.receive`."""
        while True:
            stream = self.live
            if stream is None:
                if self._outcome is not None:
                    await checkpoint()
                    return None
                await self._wait_receiver()
                continue
            message = await stream.receive()
            if message is not None or (self.settled and stream is self.live):
                return message

    async def wait_outcome(self, *, cancels: bool = False) -> None:
        """See `Stream.wait_outcome`."""
        try:
            while self.outcome is None:
                if self.live is None:
                    await self._wait_receiver()
                else:
                    await self.live.wait_outcome()
        except BaseException:
            # Also Ctrl-C.
            if cancels:
                self.cancel("call cancelled by its caller")
            raise

    async def wait_head(self) -> None:
        """See `Stream.wait_head`."""
        if self._is_open():
            if self._settled_event is None:
                self._settled_event = trio.Event()
            await self._settled_event.wait()
            if self.settled:
                # What was sent may have committed the call, before anything came.
                await self._committed.wait_head()
        else:
            await checkpoint()

    # -- ends

    def end(self, outcome: Outcome) -> None:
        """See `Stream.end`."""
        if self._is_open():
            self._give_up()
        if self.live is not None:
            self.live.end(outcome)
            return
        if self.last and not outcome.closed_locally:
            outcome = Outcome(outcome.code, f"{outcome.message}; the last attempt ended with {self.last}")
        self._finish(outcome)

    def _give_up(self) -> None:
        """No attempt will be the call's; if there is one under way, it tells how the call ends."""
        if self.live is not None:
            self._settle(self.live)

    def cancel(self, reason: str, error_code: int = ErrorCode.CANCEL) -> None:
        """See `Stream.cancel`."""
        if self._is_open():
            self._give_up()
        if self.live is not None:
            self.live.cancel(reason, error_code)
        else:
            self._finish(Outcome(StatusCode.CANCELLED, reason, closed_locally=True))

    def reset(self, error_code: int) -> None:
        """See `Stream.reset`."""
        if self.live is not None:
            self.live.reset(error_code)

    def discard_incoming(self) -> None:
        """See `Stream.discard_incoming`."""
        if self.live is not None:
            self.live.discard_incoming()

    # -- waiting where there is no stream to wait at

    async def _wait_receiver(self) -> None:
        if self._receiver is not None:
            raise trio.BusyResourceError("another task is already receiving on this call")
        self._receiver = current_task()
        await wait_task_rescheduled(self._abort_receiver)

    def _abort_receiver(self, _: RaiseCancelT) -> Abort:
        self._receiver = None
        return Abort.SUCCEEDED

    async def _wait_sender(self) -> None:
        if self._sender is not None:
            raise trio.BusyResourceError("another task is already sending on this call")
        self._sender = current_task()
        await wait_task_rescheduled(self._abort_sender)

    def _abort_sender(self, _: RaiseCancelT) -> Abort:
        self._sender = None
        return Abort.SUCCEEDED

    def _wake(self) -> None:
        """Something has changed for those who wait here."""
        for task in (self._receiver, self._sender):
            if task is not None:
                wake(task)
        self._receiver = self._sender = None
        if self._begun is not None:
            self._begun.set()


def unavailable(error: RpcError) -> Outcome:
    """Return how an attempt ends for which there was no connection."""
    return Outcome(error.code, error.message, cause=error.__cause__)


def described(outcome: Outcome) -> str:
    return f"{outcome.code.name}: {outcome.message}" if outcome.message else outcome.code.name


def _count_end(rules: AttemptRules, told_before: Callable[[Outcome], None] | None, outcome: Outcome) -> None:
    if told_before is not None:
        told_before(outcome)
    if not outcome.closed_locally:
        rules.ended(outcome.code, outcome.fields)
