"""Calls that are entered, with interceptors around the block.

An interceptor is one coroutine, and a block has two ends: entering it runs the interceptors up to where the innermost
``proceed`` waits for the block, leaving it runs them to their end. No task is started for that. The task that has the
block drives the coroutine at both ends, so a cancel scope, a nursery or a context variable of an interceptor is around
the block just as if the block's own task had entered it there.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar

import trio

from trio_grpc._call import (
    Call,
    CallFactory,
    StreamStreamCall,
    StreamUnaryCall,
    UnaryStreamCall,
    UnaryUnaryCall,
)
from trio_grpc._compression import Compression
from trio_grpc._interceptors import ClientInterceptor, InterceptedCall, intercept
from trio_grpc._message_coding import InterceptedCoder
from trio_grpc._status import RpcError

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
BlockT = TypeVar("BlockT", bound="_Block[Any, Any]")


class WatchedFactory(InterceptedCoder[RequestT, ResponseT], CallFactory[RequestT, ResponseT]):
    """The factory of a call whose interceptors want to see its messages."""


def factory_for(factory: CallFactory[RequestT, ResponseT], call: InterceptedCall) -> CallFactory[RequestT, ResponseT]:
    """Return a factory that shows the call's messages to its interceptors."""
    if not call._request_maps and not call._response_maps and call._observation is None:
        return factory
    return WatchedFactory[RequestT, ResponseT].copied(
        factory, call._request_maps, call._response_maps, call._observation
    )


class _Pause:
    """Awaited where a coroutine that `_Drive` drives waits for the end of the block."""

    def __await__(self) -> Generator[_Pause, None, None]:
        yield self


_PAUSE = _Pause()


class _Drive:
    """Runs a coroutine as part of the awaiting task: True when it has come to a pause, False when it has ended.

    A plain iterator, so that ``await`` sends and throws straight into the coroutine.
    """

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> _Drive:
        return self

    def __iter__(self) -> _Drive:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        return self._passed_on(self._coroutine.send(value))

    def throw(self, *error: Any) -> Any:
        return self._passed_on(self._coroutine.throw(*error))

    def _passed_on(self, trap: Any) -> Any:
        # What trio is to do. The coroutine's own StopIteration, its end, is ours: its value is None.
        if trap is _PAUSE:
            raise StopIteration(True)
        return trap

    def close(self) -> None:
        self._coroutine.close()


class _Block(Call[RequestT, ResponseT]):
    """What the four kinds have in common: entering and leaving run the interceptors."""

    __slots__ = ("_compression", "_coroutine", "_error", "_interceptors", "_request", "_task")

    def __init__(
        self,
        plain: Call[RequestT, ResponseT],
        interceptors: Any,
        compression: Compression | str | None,
        request: Any,
    ) -> None:
        # The plain call has checked all arguments: what is wrong must fail where it is made.
        for name in Call.__slots__:
            setattr(self, name, getattr(plain, name))
        self._interceptors: tuple[ClientInterceptor, ...] = interceptors
        self._compression = compression
        self._request = request
        self._coroutine: Coroutine[Any, Any, None] | None = None
        self._task: trio.lowlevel.Task | None = None
        #: What the block has raised, on its way into the coroutine.
        self._error: BaseException | None = None

    async def __aenter__(self: BlockT) -> BlockT:  # noqa: PYI019 # typing.Self is 3.11's
        if self._coroutine is not None or self._closed:
            raise RuntimeError("a call can be entered only once")
        factory = self._factory
        call = InterceptedCall(
            factory.method,
            target=factory.channel.target,
            awaited=False,
            request=self._request,
            timeout=self._timeout,
            fields=self._literals,
            wait_for_ready=self._wait_for_ready,
            compression=self._compression,
        )
        self._task = trio.lowlevel.current_task()
        self._coroutine = intercept(call, self._interceptors, self._run)
        try:
            paused = await _Drive(self._coroutine)
        except RpcError as error:
            # See `RpcError.received`: for a handler this is the error of a call that it made.
            error.received = True
            raise
        if not paused:
            raise RuntimeError("an interceptor returned without 'await proceed()': only awaited calls can do without")
        return self

    async def _run(self, call: InterceptedCall) -> None:
        """Open the call, and close it when the block is left."""
        if trio.lowlevel.current_task() is not self._task:
            raise RuntimeError("proceed() must be awaited by the interceptor itself, not by another task")
        if self._stream is not None:
            raise RuntimeError("proceed() was awaited again: the block of a call can be run only once")
        # Copies that obey a service config which comes while the call is opened keep all this.
        factory = self._factory = factory_for(self._factory, call)
        self._encoding = factory.choose_encoding(call.compression)
        if not factory.method.cardinality.client_streaming:
            self._first = factory.serialize(call.request, self._encoding)
        self._timeout = call.timeout
        self._literals = call._wire_metadata()
        self._wait_for_ready = call.wait_for_ready
        await super().__aenter__()
        call._origin = self._stream
        try:
            await _PAUSE
        finally:
            self._close()
        error, self._error = self._error, None
        if error is not None:
            # Raised and not thrown: Python would close the coroutine where a GeneratorExit is thrown into it.
            try:
                raise error
            finally:
                del error

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._coroutine is not None
        self._error = exc_value
        try:
            await _Drive(self._coroutine)
            if exc_value is not None:
                raise RuntimeError(
                    "an interceptor swallowed the exception of a block; it must raise one"
                ) from exc_value
        except RpcError as error:
            if error is not exc_value:
                error.received = True
            raise
        except RuntimeError as error:
            if not isinstance(exc_value, StopIteration) or error.__cause__ is not exc_value:
                raise
            # A coroutine cannot pass this one on as itself. Python does, behind us.
            return
        finally:
            # The exception has this frame in its traceback now.
            del exc_value, traceback
        await trio.lowlevel.cancel_shielded_checkpoint()


class InterceptedUnaryUnaryCall(_Block[RequestT, ResponseT], UnaryUnaryCall[RequestT, ResponseT]):
    """A call with one request and one response, and interceptors around its block."""

    __slots__ = ()


class InterceptedUnaryStreamCall(_Block[RequestT, ResponseT], UnaryStreamCall[RequestT, ResponseT]):
    """A call with one request and a stream of responses, and interceptors around its block."""

    __slots__ = ()


class InterceptedStreamUnaryCall(_Block[RequestT, ResponseT], StreamUnaryCall[RequestT, ResponseT]):
    """A call with a stream of requests and one response, and interceptors around its block."""

    __slots__ = ()


class InterceptedStreamStreamCall(_Block[RequestT, ResponseT], StreamStreamCall[RequestT, ResponseT]):
    """A call with a stream each way, and interceptors around its block."""

    __slots__ = ()
