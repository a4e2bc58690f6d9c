"""The server's side of one RPC: from a stream of bytes to the user's handler and back to a status."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from inspect import isawaitable
from math import inf
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Generic, NoReturn, TypeAlias, TypeVar, final

import trio
from trio.lowlevel import checkpoint

from trio_grpc._cancellation import split_cancelled
from trio_grpc._codec import Codec, encode_status_details
from trio_grpc._compression import Compression, accept_encoding, compression_name
from trio_grpc._deadline import rpc_deadline
from trio_grpc._interceptors import Proceed
from trio_grpc._message_coding import MessageCoder
from trio_grpc._metadata import Metadata, MetadataError, MetadataLike, encode_metadata
from trio_grpc._method import Cardinality, Method
from trio_grpc._observing import CallObserver, check_observer
from trio_grpc._options import Limits
from trio_grpc._status import RpcError, StatusCode
from trio_grpc._tls_info import TlsInfo
from trio_grpc._transport.frames import ErrorCode
from trio_grpc._transport.header_codec import Field, HeaderTemplate
from trio_grpc._transport.headers import (
    content_type_of,
    fit_status,
    header_list_size,
    over_peer_limit,
    response_fields,
    trailer_fields,
    trailers_only_fields,
)
from trio_grpc._transport.messages import TooManyMessages
from trio_grpc._transport.stream import Stream

_logger = logging.getLogger("trio_grpc")

RequestT = TypeVar("RequestT")
RequestT_co = TypeVar("RequestT_co", covariant=True)
ResponseT = TypeVar("ResponseT")
ResponseT_contra = TypeVar("ResponseT_contra", contravariant=True)

#: What a client is told of an exception that the handler did not mean for it.
UNEXPECTED = "exception in the handler"

_OK_TRAILERS = HeaderTemplate(trailer_fields(0))


class _ResponseHeads(dict[str, HeaderTemplate]):
    """Response heads of one content type by their encoding; made once, because templates are compared by identity."""

    def __init__(self, content_type: str) -> None:
        super().__init__()
        self._content_type = content_type

    def __missing__(self, encoding: str) -> HeaderTemplate:
        head = self[encoding] = HeaderTemplate(response_fields(encoding, accept_encoding(), self._content_type))
        return head


#: By content type: methods share them.
_HEADS: dict[str, _ResponseHeads] = {}


class Servicer:
    """Base of generated servicers; a service's implementation overrides their methods.

    Attributes:
        __trio_grpc_methods__: the methods by the names of the attributes that implement them.
        __trio_grpc_pb2__: the ``_pb2`` module of the .proto file that declares the service, for reflection; None if
            there is none, or if the code was generated before there was this attribute.
    """

    __trio_grpc_methods__: ClassVar[Mapping[str, Method[Any, Any]]] = {}
    # No ClassVar: to mypy, a module that is assigned in a class is none.
    __trio_grpc_pb2__: ModuleType | None = None

    # Its name cannot be that of an rpc, of which the generator keeps such names away.
    def __trio_grpc_draining__(self) -> None:
        """Called once by a server that serves this and begins to drain, before it tells its clients; does nothing.

        For handlers that would never end by themselves: `Server.drain` waits for them. It may wake them, and must not
        block. What it raises is logged.
        """


class RequestStream(Generic[RequestT_co]):
    """The requests of one RPC, for handlers of streaming methods: iterate over it or `receive` from it."""

    __slots__ = ("_handler", "_stream")

    def __init__(self, handler: Any, stream: Any) -> None:
        # Any: the server makes these, and the public signature does not drag in the rooms below.
        self._handler: MethodHandler = handler
        self._stream: Stream = stream

    async def receive(self) -> RequestT_co:
        """Wait for the next request.

        Raises:
            trio.EndOfChannel: the client has done sending.
            trio.BrokenResourceError: the RPC ended early and the handler's cancellation is shielded here.
            trio.BusyResourceError: another task is receiving.
            RpcError: a request cannot be parsed; it is the RPC's status if it escapes the handler.
        """
        stream = self._stream
        message = await stream.receive()
        if message is None:
            if stream.cancelled is not None:
                raise trio.BrokenResourceError(stream.cancelled)
            raise trio.EndOfChannel
        request: RequestT_co = self._handler.parse(message, stream)
        return request

    def __aiter__(self) -> RequestStream[RequestT_co]:
        return self

    async def __anext__(self) -> RequestT_co:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None


class _Aborted(RpcError):
    """What `ServicerContext.abort` raises, so that it cannot be mistaken for a downstream call's error."""


@final
class ServicerContext(Generic[ResponseT_contra]):
    """What interceptors and the handler are given about their RPC, and their way to answer.

    Attributes:
        deadline: absolute trio time at which the RPC ends, `math.inf` without one. The handler's scope has it too.
    """

    __slots__ = (
        "__dict__",
        "_encoding",
        "_handler",
        "_initial_metadata",
        "_metadata",
        "_status",
        "_stream",
        "_trailing_metadata",
        "deadline",
    )

    # Only where there are interceptors are these set, in the instance's dictionary.
    _handled: bool = True
    _ended: StatusCode | None = None
    _request_maps: tuple[Callable[[Any], Any], ...] = ()
    _response_maps: tuple[Callable[[Any], Any], ...] = ()
    _observers: tuple[CallObserver, ...] = ()
    _added_metadata: tuple[Field, ...] = ()

    def __init__(self, handler: Any, stream: Any, deadline: float) -> None:
        self._handler: MethodHandler = handler
        self._stream: Stream = stream
        self.deadline: float = deadline
        self._status: RpcError | None = None
        self._encoding = "identity"
        self._metadata: Metadata | None = None
        self._initial_metadata: list[Field] = []
        self._trailing_metadata: list[Field] = []

    @property
    def method(self) -> Method[Any, ResponseT_contra]:
        """What was called."""
        return self._handler.method

    @property
    def metadata(self) -> Metadata:
        """The metadata that came with the request.

        Raises:
            RpcError: INTERNAL, a ``-bin`` value is no base64; it is the RPC's status if it escapes the handler.
        """
        if self._metadata is None:
            request = self._stream.request
            assert request is not None
            try:
                self._metadata = Metadata.from_wire(request.fields)
            except MetadataError as error:
                raise RpcError(StatusCode.INTERNAL, f"malformed request: {error}") from error
        return self._metadata

    @property
    def authority(self) -> str:
        """The host name that the client called."""
        request = self._stream.request
        assert request is not None
        return request.authority

    @property
    def peer(self) -> str:
        """The client's address."""
        return self._stream.peer

    @property
    def tls(self) -> TlsInfo | None:
        """What TLS has found out about the client, its certificate included; None in plaintext."""
        return self._stream.tls

    @property
    def request_compressed(self) -> bool:
        """Whether the request that was received last came compressed."""
        return self._stream.message_compressed

    @property
    def state(self) -> SimpleNamespace:
        """Takes values of the application's own, as attributes: what interceptors have to tell the handler, say."""
        values = self.__dict__
        state: SimpleNamespace | None = values.get("_state")
        if state is None:
            state = values["_state"] = SimpleNamespace()
        return state

    @property
    def status(self) -> StatusCode | None:
        """What the RPC ended with as far as an interceptor can tell, None before its ``proceed`` is over.

        Interceptors further out may still turn it into something else. An RPC whose client has gone has CANCELLED.
        """
        if self._status is not None:
            return self._status.code
        return self._ended

    def map_requests(self, function: Callable[[Any], Any], /) -> None:
        """Have a function called with each request that arrives; what it returns is what the handler gets.

        For interceptors, before ``proceed``. Functions of outer interceptors come first. What they raise is the
        handler's exception where it receives, and that of the RPC where the method takes one request.

        Raises:
            RuntimeError: called by a handler.
        """
        self._check_mappable()
        self._request_maps = (*self._request_maps, function)

    def map_responses(self, function: Callable[[Any], Any], /) -> None:
        """Have a function called with each response before it is sent; what it returns is sent.

        For interceptors, before ``proceed``. Functions of inner interceptors come first. What they raise is the
        exception of the handler's `send`, or that of the RPC where the handler returns its reply.

        Raises:
            RuntimeError: called by a handler.
        """
        self._check_mappable()
        self._response_maps = (function, *self._response_maps)

    def observe(self, observer: CallObserver, /) -> None:
        """Have an observer told of each message, see `CallObserver`. For interceptors, before ``proceed``.

        Raises:
            TypeError: that is no `CallObserver`.
            RuntimeError: called by a handler.
        """
        self._check_mappable()
        self._observers = (*self._observers, check_observer(observer))

    def _check_mappable(self) -> None:
        if self._handled:
            raise RuntimeError("messages can be mapped and observed by interceptors only, before they await proceed()")

    def time_remaining(self) -> float:
        """Return the seconds until the deadline, `math.inf` without one."""
        return self.deadline if self.deadline == inf else max(0.0, self.deadline - trio.current_time())

    async def send(self, reply: ResponseT_contra, *, compress: bool = True) -> None:
        """Send a response; waits while too much is queued. Any task of the handler may send, one at a time.

        Args:
            reply: the response message.
            compress: False sends this one as it is, whatever `set_compression` chose for the others.

        Raises:
            trio.BrokenResourceError: the RPC has ended early (and cancellation is shielded here).
            trio.BusyResourceError: another task is sending.
            RpcError: RESOURCE_EXHAUSTED, the message is over ``max_send_message_length``.
        """
        stream = self._stream
        data, compressed = self._handler.serialize(reply, self._encoding if compress else "identity")
        if not stream.responded:
            self._queue_head()
        if not await stream.send_message(data, compressed):
            raise trio.BrokenResourceError(stream.cancelled or "the RPC has ended")

    async def send_initial_metadata(self, metadata: MetadataLike = ()) -> None:
        """Send the response headers now, with metadata, before the first response.

        Raises:
            RuntimeError: they were sent already.
            TypeError, ValueError: the metadata is malformed.
            RpcError: RESOURCE_EXHAUSTED, it is larger than the client accepts; nothing was sent. It is the RPC's
                status if it escapes the handler.
        """
        if self._stream.responded:
            raise RuntimeError("initial metadata was sent already")
        fields = encode_metadata(metadata)
        limit = self._stream.peer_header_list_limit
        size = self._handler.heads[self._encoding].list_size + header_list_size(fields)
        if size > limit:
            message = over_peer_limit("initial metadata", size, limit, "client")
            raise RpcError(StatusCode.RESOURCE_EXHAUSTED, message)
        self._initial_metadata = fields
        self._queue_head()
        self._stream.announce()
        await checkpoint()

    def set_trailing_metadata(self, metadata: MetadataLike) -> None:
        """Set what goes out with the status.

        Raises:
            TypeError, ValueError: the metadata is malformed.
        """
        self._trailing_metadata = encode_metadata(metadata)

    def add_trailing_metadata(self, metadata: MetadataLike) -> None:
        """Add to what goes out with the status, whoever sets that, and whatever the status: for interceptors.

        Raises:
            TypeError, ValueError: the metadata is malformed.
        """
        self._added_metadata = (*self._added_metadata, *encode_metadata(metadata))

    def set_compression(self, compression: Compression | str) -> None:
        """Compress the responses, if the client accepts that algorithm; call it before the first response.

        `Compression.NONE` takes back what `serve` was told.

        Args:
            compression: the algorithm, or the name of one that is registered.

        Raises:
            RuntimeError: the response headers were sent already.
            ValueError: no compressor of that name is registered.
        """
        if self._stream.responded:
            raise RuntimeError("compression must be set before the first response")
        name = compression_name(compression)
        request = self._stream.request
        assert request is not None
        self._encoding = name if name in request.accept_encoding else "identity"

    async def abort(
        self,
        code: StatusCode,
        message: str = "",
        *,
        details: Iterable[Any] = (),
        trailing_metadata: MetadataLike | None = None,
    ) -> NoReturn:
        """End the RPC with this status: records it, then raises, and the record stands whatever happens to the raise.

        Args:
            code: any status code but OK.
            message: for the developer at the other end.
            details: protobuf messages that go into ``google.rpc.Status``.
            trailing_metadata: sent with the status, in place of what `set_trailing_metadata` set.

        Raises:
            RpcError: unless the caller is being cancelled.
        """
        error = _Aborted(code, message, details=details)
        if trailing_metadata is not None:
            self._trailing_metadata = encode_metadata(trailing_metadata)
        if self._status is None:
            self._status = error
        await checkpoint()
        raise error

    # -- for `MethodHandler`

    def _queue_head(self) -> None:
        """Put the response headers in front of what is queued."""
        stream = self._stream
        stream.responded = True
        stream.head = self._handler.heads[self._encoding]
        stream.head_literals = self._initial_metadata

    def _finish(self, error: RpcError | None) -> None:
        """Queue the status."""
        stream = self._stream
        if error is None:
            metadata = self._trailing_metadata
            if self._added_metadata:
                metadata = [*metadata, *self._added_metadata]
            if metadata:
                limit = stream.peer_header_list_limit
                size = _OK_TRAILERS.list_size + header_list_size(metadata)
                if size > limit:
                    # An OK without what was to come with it would be a lie. (C-core ends such calls so, too.)
                    self._trailing_metadata = []
                    self._added_metadata = ()
                    message = over_peer_limit("trailing metadata", size, limit, "client")
                    self._finish(RpcError(StatusCode.RESOURCE_EXHAUSTED, message))
                    return
            if not stream.responded:
                self._queue_head()
            stream.finish(_OK_TRAILERS, metadata, alone=True)
            return
        make: Callable[..., tuple[Field, ...]] = trailer_fields
        if not stream.responded:
            assert stream.request is not None
            make = partial(trailers_only_fields, content_type=stream.request.content_type)
        details = encode_status_details(error.code, error.message, error.details) if error.details else b""
        metadata = self._trailing_metadata or error.trailing_metadata.to_wire()
        if self._added_metadata:
            metadata = [*metadata, *self._added_metadata]
        fields = fit_status(make, error.code, error.message, details, metadata, stream.peer_header_list_limit)
        stream.fail(fields, alone=True)


Handler = Callable[[Any, ServicerContext[Any]], Any]
_RunRpc = Callable[[Stream, ServicerContext[Any]], Awaitable[None]]

#: The type of a server's interceptor.
ServerInterceptor: TypeAlias = Callable[[ServicerContext[Any], Proceed], Awaitable[None]]


class MethodHandler(MessageCoder[Any, Any]):
    """One method of one servicer, ready to run RPCs.

    Args:
        method: what is called.
        function: the user's implementation.
        codec: turns messages into bytes and back.
        limits: message sizes.

    Attributes:
        method: what is called.
        heads: response heads by encoding.
    """

    __slots__ = ("_call", "_function", "heads", "method")

    def __init__(self, method: Method[Any, Any], function: Handler, codec: Codec, limits: Limits) -> None:
        super().__init__(
            codec,
            limits,
            sent_type=method.response_type,
            received_type=method.request_type,
            received_word="request",
            make_error=RpcError,
        )
        self.method = method
        content_type = content_type_of(codec.name)
        self.heads: Mapping[str, HeaderTemplate] = _HEADS.setdefault(content_type, _ResponseHeads(content_type))
        self._function = function
        self._call = self._choose_call()

    def compress_by_default(self, compression: str) -> None:
        """Have RPCs begin with this compression. Handlers that nobody asks for it pay nothing for it."""
        call = self._call

        async def compressing(stream: Stream, context: ServicerContext[Any]) -> None:
            context.set_compression(compression)
            await call(stream, context)

        self._call = compressing

    def _choose_call(self) -> _RunRpc:
        """Return what runs RPCs of this kind."""
        return {
            Cardinality.UNARY_UNARY: self._unary_unary,
            Cardinality.UNARY_STREAM: self._unary_stream,
            Cardinality.STREAM_UNARY: self._stream_unary,
            Cardinality.STREAM_STREAM: self._stream_stream,
        }[self.method.cardinality]

    # -- one RPC

    async def run(self, stream: Stream, deadline: float, scope: trio.CancelScope) -> bool:
        """Run one RPC inside ``scope``; True when it ended without an exception and without cancellation."""
        if stream.cancelled is not None:
            return True
        stream.on_ended = scope.cancel
        if deadline < inf:
            scope.deadline = deadline
            rpc_deadline.set(deadline)
        elif scope.deadline < inf:
            # That of an RPC before this one.
            scope.deadline = inf
        context: ServicerContext[Any] = ServicerContext(self, stream, deadline)
        try:
            await self._call(stream, context)
        except trio.Cancelled:
            self._cancelled(stream, context)
            raise
        except Exception as error:
            self._fail(stream, context, error)
            await self._wait_written(stream, deadline)
            return False
        except BaseException as error:
            # Not an `Exception`, and often no bare Cancelled either: where several tasks of the handler ended at once,
            # its nursery makes one group of Cancelled and of what else they raised. The scope takes only the first.
            cancelled, others = split_cancelled(error)
            if cancelled is None or not isinstance(others, (Exception, type(None))):
                raise
            if others is not None:
                self._log(stream, others)
            self._cancelled(stream, context)
            raise cancelled from None
        context._finish(context._status)
        if stream.pending_bytes and (stream.pending_bytes > stream.window or deadline < inf):
            await self._wait_written(stream, deadline)
        stream.on_ended = None
        return True

    async def _wait_written(self, stream: Stream, deadline: float) -> None:
        """Let the RPC's scope, deadline included, last until the trailers are out, where that may take a while.

        What fits into the stream's window goes with the next write, and that is about to come unless the writer stands
        in another one or waits for credit.
        """
        if stream.pending_bytes > stream.window or (deadline < inf and stream.control_buffer.hindered):
            try:
                await stream.wait_left_table()
            except trio.Cancelled:
                if trio.current_time() >= deadline:
                    # The client has not taken the last of it in time. (A server that ends lets it leave if it can.)
                    stream.reset(ErrorCode.CANCEL)
                raise

    def _cancelled(self, stream: Stream, context: ServicerContext[Any]) -> None:
        """The handler was cancelled: by its deadline, by the peer (then nothing is said), or with the server."""
        if stream.cancelled is not None:
            return
        stream.drop_chunks()
        if context._status is not None:
            context._finish(context._status)
        elif trio.current_time() >= context.deadline:
            # The client has its own timer and will mostly not wait for this; a client whose clock is slower reads the
            # true reason in it, which RST_STREAM(CANCEL) could not tell.
            context._finish(RpcError(StatusCode.DEADLINE_EXCEEDED, "deadline exceeded"))
        else:
            context._finish(RpcError(StatusCode.UNAVAILABLE, "server is shutting down"))

    def _status_code(self, stream: Stream, context: ServicerContext[Any], error: BaseException) -> StatusCode:
        """Return the code that an exception, where it gets out, gives the RPC."""
        if stream.cancelled is not None:
            return StatusCode.CANCELLED
        cancelled, others = split_cancelled(error)
        if cancelled is not None and isinstance(others, (Exception, type(None))):
            # As `run` takes it.
            expired = trio.current_time() >= context.deadline
            return StatusCode.DEADLINE_EXCEEDED if expired else StatusCode.UNAVAILABLE
        status = self._chosen_status(context, error)
        return StatusCode.UNKNOWN if status is None else status.code

    def _chosen_status(self, context: ServicerContext[Any], error: BaseException) -> RpcError | None:
        """Return the status that the handler has chosen, None where it has failed without."""
        if context._status is None and isinstance(error, RpcError) and not error.received:
            return error
        return context._status

    def _fail(self, stream: Stream, context: ServicerContext[Any], error: Exception) -> None:
        status = self._chosen_status(context, error)
        if status is None:
            self._log(stream, error)
            status = RpcError(StatusCode.UNKNOWN, UNEXPECTED)
        try:
            context._finish(status)
        except Exception:
            _logger.exception("status of %s cannot be encoded", self.method.path)
            context.set_trailing_metadata(())
            context._added_metadata = ()
            context._finish(RpcError(StatusCode.UNKNOWN, UNEXPECTED))

    def _log(self, stream: Stream, error: Exception) -> None:
        """Tell the log of an exception that nobody expected."""
        if stream.cancelled is None or not isinstance(error, trio.BrokenResourceError):
            _logger.error("exception in the handler of %s (%s)", self.method.path, stream.peer, exc_info=error)

    async def _receive_request(self, stream: Stream) -> Any:
        messages = stream.assembler.messages
        message = stream.take_message() if messages else await stream.receive()
        if message is None:
            if stream.cancelled is not None:
                raise trio.BrokenResourceError(stream.cancelled)
            raise RpcError(StatusCode.INTERNAL, f"{self.method.path} was called without a request message")
        if messages:
            raise RpcError(StatusCode.INTERNAL, f"{self.method.path} was called with more than one request message")
        if not stream.remote_closed:
            try:
                stream.take_no_more()
            except TooManyMessages as error:
                raise RpcError(StatusCode.INTERNAL, str(error)) from None
        return self.parse(message, stream)

    def _reply(self, stream: Stream, context: ServicerContext[Any], reply: Any) -> None:
        data, compressed = self.serialize(reply, context._encoding)
        if context._status is None and not stream.end_stream:
            if not stream.responded:
                context._queue_head()
            stream.queue_message(data, compressed)

    async def _unary_unary(self, stream: Stream, context: ServicerContext[Any]) -> None:
        request = await self._receive_request(stream)
        self._reply(stream, context, await self._function(request, context))

    async def _unary_stream(self, stream: Stream, context: ServicerContext[Any]) -> None:
        request = await self._receive_request(stream)
        await self._stream_replies(self._function(request, context), context)

    async def _stream_unary(self, stream: Stream, context: ServicerContext[Any]) -> None:
        self._reply(stream, context, await self._function(RequestStream[Any](self, stream), context))

    async def _stream_stream(self, stream: Stream, context: ServicerContext[Any]) -> None:
        await self._stream_replies(self._function(RequestStream[Any](self, stream), context), context)

    async def _stream_replies(
        self, replies: AsyncIterator[Any] | Awaitable[None], context: ServicerContext[Any]
    ) -> None:
        if isawaitable(replies):
            await replies
            return
        if not hasattr(replies, "asend"):
            # Some other async iterator, a memory channel say: it cannot be told of a failed send, only closed.
            try:
                async for reply in replies:
                    await context.send(reply)
            finally:
                close = getattr(replies, "aclose", None)
                if close is not None:
                    await close()
            return
        await _drive(replies, context)


async def _drive(generator: Any, context: ServicerContext[Any]) -> None:
    """Run an async generator: ``yield x`` is exactly ``await context.send(x)``, its exceptions included.

    One task drives and closes it, so that no scope or nursery opened in it ever changes hands.
    """
    send = context.send
    step = generator.__anext__
    try:
        reply = await step()
        while True:
            try:
                await send(reply)
            except BaseException as error:
                reply = await generator.athrow(error)
            else:
                reply = await step()
    except StopAsyncIteration:
        return
    finally:
        await generator.aclose()


def not_implemented(path: str) -> str:
    """Return what a client is told that calls a method which is not served."""
    return f"method {path[:256]} is not implemented here"


#: Makes what runs the RPCs of one method from the method and the user's implementation.
HandlerMaker = Callable[[Method[Any, Any], Handler], MethodHandler]


def handler_maker(
    codec: Codec,
    limits: Limits,
    handler_class: Callable[[Method[Any, Any], Handler, Codec, Limits], MethodHandler] = MethodHandler,
    compression: Compression | str | None = None,
) -> HandlerMaker:
    """Return what makes the handlers of a server.

    Raises:
        ValueError: there is no such compression.
    """
    encoding = "identity" if compression is None else compression_name(compression)

    def make_handler(method: Method[Any, Any], function: Handler) -> MethodHandler:
        handler = handler_class(method, function, method.codec or codec, limits)
        if encoding != "identity":
            handler.compress_by_default(encoding)
        return handler

    return make_handler


def find_handlers(servicers: Iterable[Servicer], make_handler: HandlerMaker) -> dict[str, MethodHandler]:
    """Return the handlers of all methods by their paths.

    Raises:
        TypeError: an object is not a servicer, or a method of its is not callable.
        ValueError: two servicers implement the same service.
    """
    handlers: dict[str, MethodHandler] = {}
    for servicer in servicers:
        methods = getattr(servicer, "__trio_grpc_methods__", None)
        if methods is None or isinstance(servicer, type):
            raise TypeError(f"servicer must be an instance of a generated ...Servicer class, got {servicer!r}")
        for name, method in methods.items():
            function = getattr(servicer, name)
            if not callable(function):
                raise TypeError(f"{type(servicer).__name__}.{name} is not callable")
            if method.path in handlers:
                raise ValueError(f"{method.path} is implemented by more than one servicer")
            handlers[method.path] = make_handler(method, function)
    return handlers
