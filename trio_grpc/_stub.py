"""What the attributes of a generated stub are: one callable object per method and kind."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Mapping
from math import inf
from typing import Any, Generic, TypeVar

import trio

from trio_grpc._awaited import RunUnary, run_configured, run_unary
from trio_grpc._call import (
    CallFactory,
    StreamStreamCall,
    StreamUnaryCall,
    UnaryStreamCall,
    UnaryUnaryCall,
    reply_of,
)
from trio_grpc._channel import Channel
from trio_grpc._compression import Compression
from trio_grpc._credentials import CallCredentialsLike
from trio_grpc._intercepted_call import (
    InterceptedStreamStreamCall,
    InterceptedStreamUnaryCall,
    InterceptedUnaryStreamCall,
    InterceptedUnaryUnaryCall,
    factory_for,
)
from trio_grpc._interceptors import ClientInterceptor, End, InterceptedCall, intercept
from trio_grpc._metadata import MetadataLike, encode_metadata
from trio_grpc._method import Cardinality, Method
from trio_grpc._options import check_kind, check_timeout
from trio_grpc._status import RpcError
from trio_grpc._transport.header_codec import Field
from trio_grpc._transport.stream import Answer

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
MethodT = TypeVar("MethodT", bound="_Method[Any, Any]")

_NO_FIELDS: tuple[Field, ...] = ()


class _Method(Generic[RequestT, ResponseT]):
    """What the four kinds share.

    Attributes:
        method: what is called.
    """

    __slots__ = ("_factory", "method")

    def __new__(cls: type[MethodT], channel: Channel, method: Method[Any, Any]) -> MethodT:  # noqa: ARG004, PYI019
        check_kind("channel", channel, Channel)
        # Chosen once, so that calls of a channel without interceptors know nothing of any.
        return object.__new__(_INTERCEPTED.get(cls, cls) if channel._interceptors else cls)

    def __init__(self, channel: Channel, method: Method[RequestT, ResponseT]) -> None:
        """Bind a method to a channel.

        Args:
            channel: carries the calls.
            method: what to call.

        Raises:
            TypeError: that is no channel, or its codec cannot handle the method's message types.
        """
        self._factory: CallFactory[RequestT, ResponseT] = CallFactory(channel, method)
        self.method: Method[RequestT, ResponseT] = method

    def _intercepted(self, cls: type[MethodT]) -> MethodT:
        """Return this method for one call with interceptors, where the channel has none."""
        twin = object.__new__(cls)
        twin._factory = self._factory
        twin.method = self.method
        return twin

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.method.path} on {self._factory.channel!r}>"


class UnaryUnaryMethod(_Method[RequestT, ResponseT]):
    """A method with one request and one response: await it."""

    __slots__ = ()

    async def __call__(
        self,
        request: RequestT,
        /,
        *,
        timeout: float | None = None,
        metadata: MetadataLike | None = None,
        wait_for_ready: bool | None = None,
        compression: Compression | str | None = None,
        credentials: CallCredentialsLike | None = None,
    ) -> ResponseT:
        """Call the method and wait for its reply.

        The earlier of ``timeout`` and the ambient cancel scopes' deadline goes to the server. Cancelling the caller
        cancels the RPC.

        Args:
            request: the request message.
            timeout: seconds from now; when they are over the call raises DEADLINE_EXCEEDED.
            metadata: sent with the request.
            wait_for_ready: wait through failed connection attempts instead of raising UNAVAILABLE.
            compression: algorithm for the request; None for the channel's.
            credentials: asked for metadata, beside those of the channel.

        Returns:
            The reply.

        Raises:
            RpcError: the call ended with another status than OK.
            trio.ClosedResourceError: the channel is closed.
            TypeError, ValueError: an argument is malformed.
        """
        if credentials is not None:
            reply: ResponseT = await self._intercepted(InterceptedUnaryUnaryMethod)(
                request,
                timeout=timeout,
                metadata=metadata,
                wait_for_ready=wait_for_ready,
                compression=compression,
                credentials=credentials,
            )
            return reply
        factory = self._factory
        run: RunUnary = run_unary
        if factory.channel._service_config is not None:
            factory = factory.configured()
            run = run_configured
        encoding = factory.choose_encoding(compression)
        data, compressed = factory.serialize(request, encoding)
        fields = encode_metadata(metadata) if metadata is not None else _NO_FIELDS
        if wait_for_ready is not None:
            check_kind("wait_for_ready", wait_for_ready, bool, " or None")
        calls = factory.channel._calls
        calls.started += 1
        try:
            stream = await run(factory, data, compressed, encoding, fields, wait_for_ready, timeout)
        except BaseException:
            calls.failed += 1
            raise
        return reply_of(factory, stream)

    def open(
        self,
        request: RequestT,
        /,
        *,
        timeout: float | None = None,
        metadata: MetadataLike | None = None,
        wait_for_ready: bool | None = None,
        compression: Compression | str | None = None,
        credentials: CallCredentialsLike | None = None,
    ) -> UnaryUnaryCall[RequestT, ResponseT]:
        """Return a call object, to be entered with ``async with``: for the reply together with its metadata.

        Args:
            request: the message to send.
            timeout: seconds for the call, not for the block's body; None for no deadline of its own.
            metadata: sent with the request.
            wait_for_ready: as for the awaited call.
            compression: as for the awaited call.
            credentials: as for the awaited call.

        Raises:
            RpcError: RESOURCE_EXHAUSTED, the request is over ``max_send_message_length``.
            TypeError, ValueError: an argument is malformed.
        """
        if credentials is not None:
            return self._intercepted(InterceptedUnaryUnaryMethod).open(
                request,
                timeout=timeout,
                metadata=metadata,
                wait_for_ready=wait_for_ready,
                compression=compression,
                credentials=credentials,
            )
        factory = self._factory.configured()
        encoding = factory.choose_encoding(compression)
        first = factory.serialize(request, encoding)
        return UnaryUnaryCall(factory, first, encoding, timeout, metadata, wait_for_ready)


class UnaryStreamMethod(_Method[RequestT, ResponseT]):
    """A method with one request and a stream of responses: enter it."""

    __slots__ = ()

    def __call__(
        self,
        request: RequestT,
        /,
        *,
        timeout: float | None = None,
        metadata: MetadataLike | None = None,
        wait_for_ready: bool | None = None,
        compression: Compression | str | None = None,
        credentials: CallCredentialsLike | None = None,
    ) -> UnaryStreamCall[RequestT, ResponseT]:
        """Return a call object, to be entered with ``async with`` and iterated over.

        Args:
            request: the request message.
            timeout: seconds for the whole call; when they are over, the next operation on it raises DEADLINE_EXCEEDED.
            metadata: sent with the request.
            wait_for_ready: wait through failed connection attempts instead of raising UNAVAILABLE.
            compression: algorithm for the request; None for the channel's.
            credentials: asked for metadata, beside those of the channel.

        Raises:
            RpcError: RESOURCE_EXHAUSTED, the request is over ``max_send_message_length``.
            TypeError, ValueError: an argument is malformed.
        """
        if credentials is not None:
            return self._intercepted(InterceptedUnaryStreamMethod).open(
                request,
                timeout=timeout,
                metadata=metadata,
                wait_for_ready=wait_for_ready,
                compression=compression,
                credentials=credentials,
            )
        factory = self._factory.configured()
        encoding = factory.choose_encoding(compression)
        first = factory.serialize(request, encoding)
        return UnaryStreamCall(factory, first, encoding, timeout, metadata, wait_for_ready)

    open = __call__


class StreamUnaryMethod(_Method[RequestT, ResponseT]):
    """A method with a stream of requests and one response: await it with an iterable, or `open` it."""

    __slots__ = ()

    async def __call__(
        self,
        requests: Iterable[RequestT] | AsyncIterable[RequestT],
        /,
        *,
        timeout: float | None = None,
        metadata: MetadataLike | None = None,
        wait_for_ready: bool | None = None,
        compression: Compression | str | None = None,
        credentials: CallCredentialsLike | None = None,
    ) -> ResponseT:
        """Send all requests and wait for the reply.

        A server may reply before it has read all requests: iteration then stops early. An async generator is closed
        when the call is over, whatever its end.

        Args:
            requests: an iterable or async iterable of request messages.
            timeout: seconds for the whole call.
            metadata: sent with the request.
            wait_for_ready: wait through failed connection attempts instead of raising UNAVAILABLE.
            compression: algorithm for the requests; None for the channel's.
            credentials: asked for metadata, beside those of the channel.

        Returns:
            The reply.

        Raises:
            RpcError: the call ended with another status than OK.
            trio.ClosedResourceError: the channel is closed.
            TypeError, ValueError: an argument is malformed.
        """
        if credentials is not None:
            reply: ResponseT = await self._intercepted(InterceptedStreamUnaryMethod)(
                requests,
                timeout=timeout,
                metadata=metadata,
                wait_for_ready=wait_for_ready,
                compression=compression,
                credentials=credentials,
            )
            return reply
        iterator: Iterator[RequestT] | None = None
        if not isinstance(requests, AsyncIterable):
            try:
                iterator = iter(requests)
            except TypeError:
                wrong = type(requests).__name__
                raise TypeError(f"requests must be an iterable or async iterable of messages, not {wrong}") from None
        call = self.open(timeout=timeout, metadata=metadata, wait_for_ready=wait_for_ready, compression=compression)
        async with call:
            # An iterator that waits for something must not outwait a call that has already ended.
            with trio.CancelScope() as scope:
                call._call_when_ended(scope.cancel)
                try:
                    if iterator is not None:
                        for request in iterator:
                            await call.send(request)
                    elif isinstance(requests, AsyncIterable):
                        async for request in requests:
                            await call.send(request)
                    await call.done_sending()
                except trio.BrokenResourceError:
                    # The status, which `receive` raises, says more.
                    pass
                finally:
                    # Whoever gave us a generator has no way to close it in time; a plain iterator is the caller's own.
                    if isinstance(requests, AsyncGenerator):
                        await requests.aclose()
            call._call_when_ended(None)
            return await call.receive()

    def open(
        self,
        *,
        timeout: float | None = None,
        metadata: MetadataLike | None = None,
        wait_for_ready: bool | None = None,
        compression: Compression | str | None = None,
        credentials: CallCredentialsLike | None = None,
    ) -> StreamUnaryCall[RequestT, ResponseT]:
        """Return a call object, to be entered with ``async with``: `send`, `done_sending`, then `receive` the reply.

        Args:
            timeout: seconds for the call, not for the block's body; None for no deadline of its own.
            metadata: sent with the request.
            wait_for_ready: as for the awaited call.
            compression: as for the awaited call.
            credentials: as for the awaited call.

        Raises:
            TypeError, ValueError: an argument is malformed.
        """
        if credentials is not None:
            return self._intercepted(InterceptedStreamUnaryMethod).open(
                timeout=timeout,
                metadata=metadata,
                wait_for_ready=wait_for_ready,
                compression=compression,
                credentials=credentials,
            )
        factory = self._factory.configured()
        encoding = factory.choose_encoding(compression)
        return StreamUnaryCall(factory, None, encoding, timeout, metadata, wait_for_ready)


class StreamStreamMethod(_Method[RequestT, ResponseT]):
    """A method with a stream each way: enter it."""

    __slots__ = ()

    def __call__(
        self,
        *,
        timeout: float | None = None,
        metadata: MetadataLike | None = None,
        wait_for_ready: bool | None = None,
        compression: Compression | str | None = None,
        credentials: CallCredentialsLike | None = None,
    ) -> StreamStreamCall[RequestT, ResponseT]:
        """Return a call object, to be entered with ``async with``: `send` and `receive` as you like.

        Args:
            timeout: seconds for the whole call; when they are over, the next operation on it raises DEADLINE_EXCEEDED.
            metadata: sent with the request.
            wait_for_ready: wait through failed connection attempts instead of raising UNAVAILABLE.
            compression: algorithm for the requests; None for the channel's.
            credentials: asked for metadata, beside those of the channel.

        Raises:
            TypeError, ValueError: an argument is malformed.
        """
        if credentials is not None:
            return self._intercepted(InterceptedStreamStreamMethod).open(
                timeout=timeout,
                metadata=metadata,
                wait_for_ready=wait_for_ready,
                compression=compression,
                credentials=credentials,
            )
        factory = self._factory.configured()
        encoding = factory.choose_encoding(compression)
        return StreamStreamCall(factory, None, encoding, timeout, metadata, wait_for_ready)

    open = __call__


# -- the same for channels with interceptors


def _around(channel: Channel, credentials: CallCredentialsLike | None) -> tuple[ClientInterceptor, ...]:
    """Return the interceptors of a call that has credentials of its own, or None."""
    if credentials is None:
        return channel._interceptors
    return (*channel._interceptors, channel._attacher.attach(credentials))


async def _run_awaited(interceptors: tuple[ClientInterceptor, ...], call: InterceptedCall, end: End) -> Any:
    """Run an awaited call through the interceptors of its channel."""
    try:
        await intercept(call, interceptors, end)
    except RpcError as error:
        # See `RpcError.received`: for a handler this is the error of a call that it made.
        error.received = True
        raise
    return call.reply


class InterceptedUnaryUnaryMethod(UnaryUnaryMethod[RequestT, ResponseT]):
    """A method with one request and one response, on a channel with interceptors."""

    __slots__ = ()

    async def __call__(
        self,
        request: RequestT,
        /,
        *,
        timeout: float | None = None,
        metadata: MetadataLike | None = None,
        wait_for_ready: bool | None = None,
        compression: Compression | str | None = None,
        credentials: CallCredentialsLike | None = None,
    ) -> ResponseT:
        interceptors = _around(self._factory.channel, credentials)
        call = InterceptedCall(
            self.method,
            target=self._factory.channel.target,
            awaited=True,
            request=request,
            timeout=None if timeout is None else check_timeout(timeout),
            fields=encode_metadata(metadata) if metadata is not None else _NO_FIELDS,
            wait_for_ready=wait_for_ready,
            compression=compression,
        )
        reply: ResponseT = await _run_awaited(interceptors, call, self._attempt)
        return reply

    async def _attempt(self, call: InterceptedCall) -> None:
        """Make the call itself."""
        factory = factory_for(self._factory.configured(), call)
        run: RunUnary = run_unary if factory.channel._service_config is None else run_configured
        encoding = factory.choose_encoding(call.compression)
        data, compressed = factory.serialize(call.request, encoding)
        fields = call._wire_metadata()
        timeout = None if call._deadline == inf else call._seconds
        calls = factory.channel._calls
        calls.started += 1
        try:
            stream = await run(
                factory, data, compressed, encoding, fields, call.wait_for_ready, timeout, call._deadline
            )
        except BaseException:
            calls.failed += 1
            raise
        call._origin = stream
        call.reply = reply_of(factory, stream)

    def open(self, request: RequestT, /, **options: Any) -> UnaryUnaryCall[RequestT, ResponseT]:
        around = _around(self._factory.channel, options.pop("credentials", None))
        call = super().open(request, **options)
        return InterceptedUnaryUnaryCall(call, around, options.get("compression"), request)


class InterceptedUnaryStreamMethod(UnaryStreamMethod[RequestT, ResponseT]):
    """A method with one request and a stream of responses, on a channel with interceptors."""

    __slots__ = ()

    def __call__(self, request: RequestT, /, **options: Any) -> UnaryStreamCall[RequestT, ResponseT]:
        around = _around(self._factory.channel, options.pop("credentials", None))
        call = super().__call__(request, **options)
        return InterceptedUnaryStreamCall(call, around, options.get("compression"), request)

    open = __call__


class InterceptedStreamUnaryMethod(StreamUnaryMethod[RequestT, ResponseT]):
    """A method with a stream of requests and one response, on a channel with interceptors."""

    __slots__ = ()

    async def __call__(
        self,
        requests: Iterable[RequestT] | AsyncIterable[RequestT],
        /,
        *,
        timeout: float | None = None,
        metadata: MetadataLike | None = None,
        wait_for_ready: bool | None = None,
        compression: Compression | str | None = None,
        credentials: CallCredentialsLike | None = None,
    ) -> ResponseT:
        async def attempt(call: InterceptedCall) -> None:
            sender = _Sender.of(factory_for(self._factory.configured(), call))
            try:
                call.reply = await sender(
                    requests,
                    timeout=call.timeout,
                    metadata=call.metadata,
                    wait_for_ready=call.wait_for_ready,
                    compression=call.compression,
                )
            finally:
                call._origin = sender.stream

        interceptors = _around(self._factory.channel, credentials)
        call = InterceptedCall(
            self.method,
            target=self._factory.channel.target,
            awaited=True,
            request=None,
            timeout=None if timeout is None else check_timeout(timeout),
            fields=encode_metadata(metadata),
            wait_for_ready=wait_for_ready,
            compression=compression,
        )
        reply: ResponseT = await _run_awaited(interceptors, call, attempt)
        return reply

    def open(self, **options: Any) -> StreamUnaryCall[RequestT, ResponseT]:
        around = _around(self._factory.channel, options.pop("credentials", None))
        return InterceptedStreamUnaryCall(super().open(**options), around, options.get("compression"), None)


class _Sender(StreamUnaryMethod[RequestT, ResponseT]):
    """Makes one plain call, and remembers it."""

    __slots__ = ("_opened",)

    _opened: StreamUnaryCall[RequestT, ResponseT] | None

    @classmethod
    def of(cls, factory: CallFactory[RequestT, ResponseT]) -> _Sender[RequestT, ResponseT]:
        sender = object.__new__(cls)
        sender._factory = factory
        sender.method = factory.method
        sender._opened = None
        return sender

    def open(self, **options: Any) -> StreamUnaryCall[RequestT, ResponseT]:
        self._opened = super().open(**options)
        return self._opened

    @property
    def stream(self) -> Answer | None:
        """The stream of the call, None before there is one."""
        return None if self._opened is None else self._opened._stream


class InterceptedStreamStreamMethod(StreamStreamMethod[RequestT, ResponseT]):
    """A method with a stream each way, on a channel with interceptors."""

    __slots__ = ()

    def __call__(self, **options: Any) -> StreamStreamCall[RequestT, ResponseT]:
        around = _around(self._factory.channel, options.pop("credentials", None))
        return InterceptedStreamStreamCall(super().__call__(**options), around, options.get("compression"), None)

    open = __call__


_INTERCEPTED: Mapping[type[Any], type[Any]] = {
    UnaryUnaryMethod: InterceptedUnaryUnaryMethod,
    UnaryStreamMethod: InterceptedUnaryStreamMethod,
    StreamUnaryMethod: InterceptedStreamUnaryMethod,
    StreamStreamMethod: InterceptedStreamStreamMethod,
}

_KINDS: Mapping[Cardinality, type[Any]] = {
    Cardinality.UNARY_UNARY: UnaryUnaryMethod,
    Cardinality.UNARY_STREAM: UnaryStreamMethod,
    Cardinality.STREAM_UNARY: StreamUnaryMethod,
    Cardinality.STREAM_STREAM: StreamStreamMethod,
}


def bind(channel: Channel, method: Method[Any, Any]) -> Any:
    """Return what calls a method on a channel: an object of the class for the method's kind."""
    return _KINDS[method.cardinality](channel, method)
