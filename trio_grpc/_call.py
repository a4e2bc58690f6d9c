"""One RPC as the client application sees it: the call objects, and what the end of a stream means for their user.

A call object is an async context manager over send and receive operations in the manner of trio's channels. Entering
it queues the request headers and returns; leaving it cancels what is unfinished. It owns no task of its own: a timeout
of the call runs as a service of the channel.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from math import inf
from types import TracebackType
from typing import Any, Generic, TypeVar

import trio
from trio.lowlevel import checkpoint

from trio_grpc._attempt import (
    DEADLINE_EXCEEDED,
    call_error,
    deadline_error,
    outcome_error,
)
from trio_grpc._attempts import Attempts, CallStream, Request
from trio_grpc._balancing.service_config import UNRESOLVED, MethodConfig
from trio_grpc._channel import Channel
from trio_grpc._compression import Compression, compression_name
from trio_grpc._deadline import rpc_deadline
from trio_grpc._hedging import HedgedAttempts
from trio_grpc._message_coding import MessageCoder
from trio_grpc._metadata import Metadata, MetadataLike, encode_metadata, readable_metadata
from trio_grpc._method import Method
from trio_grpc._options import check_kind, check_timeout
from trio_grpc._retry import Hedges, Retries
from trio_grpc._status import RpcError, StatusCode
from trio_grpc._tls_info import TlsInfo
from trio_grpc._transport.frames import ErrorCode
from trio_grpc._transport.header_codec import Field, HeaderTemplate
from trio_grpc._transport.stream import Outcome, Stream
from trio_grpc._transport.timers import Timer, call_at

#: An attribute of an enum is dear to look up.
_OK = StatusCode.OK

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

CallT = TypeVar("CallT", bound="Call[Any, Any]")
StreamingCallT = TypeVar("StreamingCallT", bound="_ReceivesMany[Any, Any]")


class CallFactory(MessageCoder[RequestT, ResponseT]):
    """What all calls of one method on one channel share.

    Attributes:
        channel: carries the calls.
        method: what they call.
        default_encoding: wire name of the channel's own compression.
        head: the request head for that.
        config: what the channel's service config says of the method; None where there is no service config.
    """

    __slots__ = ("_codec_name", "_configured", "channel", "config", "default_encoding", "head", "method")

    def __init__(self, channel: Channel, method: Method[RequestT, ResponseT]) -> None:
        codec = method.codec or channel.codec
        super().__init__(
            codec,
            channel.limits,
            sent_type=method.request_type,
            received_type=method.response_type,
            received_word="response",
            make_error=call_error,
        )
        self.channel: Channel = channel
        self.method: Method[RequestT, ResponseT] = method
        self._codec_name = codec.name
        self.default_encoding: str = channel._default_encoding
        self.head: HeaderTemplate = self.head_for(self.default_encoding)
        self.config: MethodConfig | None = None
        self._configured: CallFactory[RequestT, ResponseT] | None = None

    def configured(self) -> CallFactory[RequestT, ResponseT]:
        """Return the factory for calls that begin now: this one, or one that does what the service config says."""
        service_config = self.channel._service_config
        if service_config is None or service_config is UNRESOLVED or self.config is not None:
            return self
        config = service_config.method_config(self.method.path)
        factory = self._configured
        if factory is None or factory.config is not config:
            factory = self._configured = self._obeying(config)
        return factory

    async def resolved(
        self, wait_for_ready: bool | None, timeout: float | None, size: int
    ) -> CallFactory[RequestT, ResponseT]:
        """Wait for what the resolver says of calls, as gRPC does; return the factory for a call that has waited for it.

        Where the resolver fails, or takes longer than the call's timeout, the call will find out for itself.

        Args:
            wait_for_ready: of the call.
            timeout: of the call.
            size: bytes of its request; 0 where that is sent later.

        Raises:
            RpcError: RESOURCE_EXHAUSTED, the request is larger than is permitted now.
        """
        with trio.move_on_after(inf if timeout is None else timeout):
            await self.channel._wait_resolved(bool(wait_for_ready))
        service_config = self.channel._service_config
        if service_config is None or service_config is UNRESOLVED:
            return self
        factory = self._obeying(service_config.method_config(self.method.path))
        factory.check_size(size)
        return factory

    def _obeying(self, config: MethodConfig) -> CallFactory[RequestT, ResponseT]:
        factory = copy(self)
        factory._configured = None
        factory.config = config
        factory.lower_limits(config.max_request_message_bytes, config.max_response_message_bytes)
        return factory

    def choose_timeout(self, timeout: float | None) -> float | None:
        """Return the timeout of a call: its own, or the method's where that is shorter."""
        if timeout is not None:
            check_timeout(timeout)
        if self.config is None or self.config.timeout is None:
            return timeout
        return self.config.timeout if timeout is None else min(timeout, self.config.timeout)

    def choose_wait_for_ready(self, wait_for_ready: bool | None) -> bool:
        """Return whether a call waits for a connection: what it says itself, or else its method's config."""
        if wait_for_ready is None and self.config is not None:
            wait_for_ready = self.config.wait_for_ready
        return bool(wait_for_ready)

    def request(self, encoding: str, fields: Sequence[Field], deadline: float, wait_for_ready: bool | None) -> Request:
        """Return what all attempts of a call have in common."""
        return Request(
            self.channel,
            self.method.path,
            self.head_for(encoding),
            fields,
            deadline=deadline,
            wait_for_ready=wait_for_ready,
            message_limit=None if self.config is None else self.receive_limit,
            single_reply=not self.method.cardinality.server_streaming,
            observation=self.observation,
        )

    def retries(self, size: int) -> Retries | None:
        """Return what may follow a failed attempt of a call, None where no service config says anything of it.

        Args:
            size: bytes of its request; more than may be kept are not sent again.
        """
        throttle = self.channel._retry_throttle
        policy = self.config.retry_policy if self.config is not None and self._may_repeat(size) else None
        return None if policy is None and throttle is None else Retries(policy, throttle, random.uniform)

    def hedges(self, size: int) -> Hedges | None:
        """Return which attempts a call has at a time, None where that is one.

        Args:
            size: bytes of its request; more than may be kept are not sent again.
        """
        policy = self.config.hedging_policy if self.config is not None and self._may_repeat(size) else None
        return None if policy is None else Hedges(policy, self.channel._retry_throttle)

    def _may_repeat(self, size: int) -> bool:
        return self.channel._retries and size <= self.channel.limits.retry_buffer_size

    def attempts(
        self, request: Request, first: tuple[bytes, bool] | None, on_settled: Callable[[Stream], None] | None = None
    ) -> Attempts:
        """Return what stands for the stream of a call until that is known."""
        size = 0 if first is None else len(first[0])
        hedges = None if self.config is None else self.hedges(size)
        if hedges is not None:
            if self.observation is not None:
                self.observation.hedged = True
            return HedgedAttempts(request, first, hedges, on_settled)
        return Attempts(request, first, self.retries(size), on_settled)

    def head_for(self, encoding: str) -> HeaderTemplate:
        """Return the request head for an encoding."""
        return self.channel._request_head(self.method.path, encoding, self._codec_name)

    def choose_encoding(self, compression: Compression | str | None) -> str:
        """Return the wire name of the encoding for one call.

        Raises:
            TypeError: it is neither a `Compression` nor a name.
            ValueError: no compressor of that name is registered.
        """
        return self.default_encoding if compression is None else compression_name(compression)


class Call(Generic[RequestT, ResponseT]):
    """What the call objects of all four kinds have in common.

    An async context manager: entering opens the call, leaving it cancels whatever is unfinished.
    """

    __slots__ = (
        "_closed",
        "_deadline",
        "_encoding",
        "_factory",
        "_first",
        "_literals",
        "_reply",
        "_stream",
        "_timeout",
        "_timer",
        "_wait_for_ready",
    )

    def __init__(
        self,
        factory: Any,
        first: tuple[bytes, bool] | None,
        encoding: str,
        timeout: float | None,
        metadata: MetadataLike | None,
        wait_for_ready: bool | None,
    ) -> None:
        # Calls are made by stubs only: the public signature does not drag in the rooms below.
        self._factory: CallFactory[RequestT, ResponseT] = factory
        self._first = first
        self._encoding = encoding
        self._timeout = self._factory.choose_timeout(timeout)
        self._literals: Sequence[Field] = encode_metadata(metadata)
        if wait_for_ready is not None:
            check_kind("wait_for_ready", wait_for_ready, bool, " or None")
        self._wait_for_ready = wait_for_ready
        #: The stream, or what stands for it until it is known.
        self._stream: CallStream | None = None
        self._timer: Timer | None = None
        self._deadline = inf
        self._closed = False
        self._reply: ResponseT | None = None

    async def __aenter__(self: CallT) -> CallT:  # noqa: PYI019 # typing.Self is 3.11's
        if self._stream is not None or self._closed:
            raise RuntimeError("a call can be entered only once")
        calls = self._factory.channel._calls
        calls.started += 1
        try:
            await self._enter()
        except BaseException:
            calls.failed += 1
            raise
        return self

    async def _enter(self) -> None:
        # Ambient scopes may still move (watchdogs, nursery.start): only what is fixed goes on the wire.
        deadline = _inherited_deadline()
        began: float | None = None
        factory = self._factory
        if factory.config is None and factory.channel._service_config is not None:
            # It was not known when the call was made.
            began = trio.current_time()
            size = 0 if self._first is None else len(self._first[0])
            self._factory = await factory.resolved(self._wait_for_ready, self._timeout, size)
            self._timeout = self._factory.choose_timeout(self._timeout)
        if self._timeout is None:
            await self._open(deadline)
            return
        expires = self._timeout + (trio.current_time() if began is None else began)
        stream: CallStream | None = None
        with trio.CancelScope(deadline=expires):
            stream = await self._open(min(deadline, expires))
        if stream is None:
            raise deadline_error(self._factory.channel, DEADLINE_EXCEEDED, begun=False)
        self._deadline = min(deadline, expires)
        self._timer = call_at(expires, partial(expire, stream, DEADLINE_EXCEEDED))

    async def _open(self, deadline: float) -> CallStream:
        """Queue the request headers; the server's answer is awaited by others (a server may wait for our messages)."""
        await checkpoint()
        factory = self._factory
        wait_for_ready = factory.choose_wait_for_ready(self._wait_for_ready)
        request = factory.request(self._encoding, self._literals, deadline, wait_for_ready)
        attempts = factory.attempts(request, self._first, self._settle)
        self._stream = attempts
        try:
            await attempts.open()
        except BaseException:
            self._stream = None
            raise
        # It may be settled by now.
        return self._opened()

    def _settle(self, stream: Stream) -> None:
        """It is known now which stream is the call's."""
        self._stream = stream

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _close(self) -> None:
        closed, self._closed = self._closed, True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        stream = self._stream
        if stream is not None:
            if stream.outcome is None or not stream.left_table:
                stream.cancel("call closed")
            stream.discard_incoming()
            if not closed and self.status is not _OK:
                self._factory.channel._calls.failed += 1

    def cancel(self) -> None:
        """Give the call up now: RST_STREAM(CANCEL) goes out, operations on it raise `trio.ClosedResourceError`."""
        self._close()

    async def aclose(self) -> None:
        """`cancel` what is unfinished; leaving the block does the same."""
        self._close()
        await checkpoint()

    # -- what it looks like

    @property
    def status(self) -> StatusCode | None:
        """The status code, None until the call has ended."""
        stream = self._stream
        if stream is None or stream.outcome is None:
            return None
        return stream.outcome.code

    @property
    def peer(self) -> str:
        """The peer's address; empty before the block is entered."""
        return "" if self._stream is None else self._stream.peer

    @property
    def tls(self) -> TlsInfo | None:
        """What TLS has found out about the server; None in plaintext, and before there is a connection."""
        return None if self._stream is None else self._stream.tls

    @property
    def response_compressed(self) -> bool:
        """Whether the response that was received last came compressed."""
        return self._stream is not None and self._stream.message_compressed

    @property
    def trailing_metadata(self) -> Metadata:
        """What the server sent with its status; empty until the call has ended."""
        stream = self._stream
        if stream is None or stream.outcome is None:
            return Metadata()
        return readable_metadata(stream.outcome.fields)

    async def wait_initial_metadata(self) -> Metadata:
        """Wait for the server's response headers and return its initial metadata (empty for Trailers-Only).

        Raises:
            RpcError: the call ended before any came.
            trio.ClosedResourceError: the call was closed on this side.
        """
        stream = self._opened()
        await stream.wait_head()
        head = stream.head_record
        if head is None:
            assert stream.outcome is not None
            raise outcome_error(stream.outcome, stream, self._deadline)
        if head.grpc_status is not None:
            return Metadata()
        return readable_metadata(head.fields)

    def __repr__(self) -> str:
        status = "open" if self.status is None else self.status.name
        return f"<{type(self).__name__} {self._factory.method.path} {status}>"

    # -- operations

    def _call_when_ended(self, callback: Callable[[], None] | None) -> None:
        """Have a callback called once when the call gets its status, at once if it has one (for stubs, no users)."""
        stream = self._opened()
        stream.on_ended = callback
        if callback is not None and stream.outcome is not None:
            callback()

    def _opened(self) -> CallStream:
        if self._stream is None:
            raise RuntimeError("the call is not open: use 'async with stub.Method(...) as call'")
        if self._closed:
            raise trio.ClosedResourceError("call closed")
        return self._stream

    async def _wait_end(self, stream: CallStream) -> None:
        """Return when the call has ended with OK."""
        if stream.outcome is None:
            await stream.wait_outcome()
        outcome = stream.outcome
        assert outcome is not None
        if self._closed:
            raise trio.ClosedResourceError("call closed")
        if outcome.code is not _OK:
            raise outcome_error(outcome, stream, self._deadline)


def reply_of(factory: CallFactory[Any, ResponseT], stream: CallStream) -> ResponseT:
    """Return the only message of a stream that ended with OK.

    Raises:
        RpcError: INTERNAL, there are none or several, or it cannot be parsed.
    """
    messages = stream.assembler.messages
    if len(messages) != 1:
        raise call_error(
            StatusCode.INTERNAL, f"{factory.method.path} replied with {len(messages)} messages instead of one"
        )
    return factory.parse(messages.popleft(), stream)


def _inherited_deadline() -> float:
    """Return the deadline of the RPC whose handler is making this call; inf outside handlers.

    Context variables also reach tasks that a handler starts in a longer-lived nursery, and code that it shields from
    its own cancellation. The RPC's scope bounds neither, so neither is bound by its deadline.
    """
    deadline = rpc_deadline.get()
    return deadline if deadline == inf or trio.current_effective_deadline() <= deadline else inf


def expire(stream: CallStream, message: str) -> None:
    """End a call at its own timeout: the next operation on it raises DEADLINE_EXCEEDED."""
    if stream.outcome is None:
        # A call that ended in time keeps the messages that its reader has not taken yet.
        _give_up(stream, Outcome(StatusCode.DEADLINE_EXCEEDED, message))


def _give_up(stream: CallStream, outcome: Outcome) -> None:
    """End a call with a status of this side's own, and tell the server."""
    stream.end(outcome)
    stream.discard_incoming()
    stream.reset(ErrorCode.CANCEL)


class _Sends(Call[RequestT, ResponseT]):
    """What the calls with a stream of requests have in common."""

    __slots__ = ()

    async def send(self, request: RequestT, *, compress: bool = True) -> None:
        """Send a request; waits while too much is queued.

        Args:
            request: the request message.
            compress: False sends this one as it is, whatever ``compression=`` chose for the others.

        Raises:
            trio.BrokenResourceError: the call has ended; `receive` tells how.
            trio.ClosedResourceError: after `done_sending`, or the call was closed on this side.
            trio.BusyResourceError: another task is sending.
            RpcError: RESOURCE_EXHAUSTED, the message is over ``max_send_message_length``.
        """
        stream = self._opened()
        if stream.end_stream:
            raise trio.ClosedResourceError("send after done_sending")
        data, compressed = self._factory.serialize(request, self._encoding if compress else "identity")
        if not await stream.send_message(data, compressed):
            outcome = stream.outcome
            if self._closed or (outcome is not None and outcome.closed_locally):
                raise trio.ClosedResourceError("call closed")
            raise trio.BrokenResourceError("the call has ended; receiving tells its status")

    async def done_sending(self) -> None:
        """Tell the server that no more requests come (half-close).

        Raises:
            trio.ClosedResourceError: the call was closed on this side.
        """
        self._opened().done_sending()
        await checkpoint()


class _ReceivesOne(Call[RequestT, ResponseT]):
    """What the calls with one response have in common."""

    __slots__ = ()

    async def receive(self) -> ResponseT:
        """Wait for the reply. It is given only after the status has told that it is valid; asked again, once more.

        Raises:
            RpcError: the call ended with another status than OK.
            trio.ClosedResourceError: the call was closed on this side.
            trio.BusyResourceError: another task is receiving.
        """
        stream = self._opened()
        if self._reply is None:
            if stream.outcome is not None:
                await checkpoint()
            await self._wait_end(stream)
            self._reply = reply_of(self._factory, stream)
        else:
            await checkpoint()
        return self._reply


class _ReceivesMany(Call[RequestT, ResponseT]):
    """What the calls with a stream of responses have in common."""

    __slots__ = ()

    async def receive(self) -> ResponseT:
        """Wait for the next response.

        Raises:
            trio.EndOfChannel: there are no more, and the status is OK.
            RpcError: the call ended with another status.
            trio.ClosedResourceError: the call was closed on this side.
            trio.BusyResourceError: another task is receiving.
        """
        stream = self._opened()
        message = await stream.receive()
        if message is None:
            await self._wait_end(stream)
            raise trio.EndOfChannel
        try:
            return self._factory.parse(message, stream)
        except RpcError as error:
            # The rest of the call is of no use to anybody.
            _give_up(stream, Outcome(error.code, error.message))
            raise

    def __aiter__(self: StreamingCallT) -> StreamingCallT:  # noqa: PYI019 # typing.Self is 3.11's
        return self

    async def __anext__(self) -> ResponseT:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None


class UnaryUnaryCall(_ReceivesOne[RequestT, ResponseT]):
    """A call with one request and one response, opened for its metadata."""

    __slots__ = ()


class UnaryStreamCall(_ReceivesMany[RequestT, ResponseT]):
    """A call with one request and a stream of responses; iterate over it or `receive` from it."""

    __slots__ = ()


class StreamUnaryCall(_Sends[RequestT, ResponseT], _ReceivesOne[RequestT, ResponseT]):
    """A call with a stream of requests and one response."""

    __slots__ = ()


class StreamStreamCall(_Sends[RequestT, ResponseT], _ReceivesMany[RequestT, ResponseT]):
    """A call with a stream each way. Sends and receives may run in different tasks."""

    __slots__ = ()
