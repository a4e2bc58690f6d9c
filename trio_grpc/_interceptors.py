"""Interceptors: async callables around a call, one in the other, the first of the list outermost.

An interceptor is given its call and ``proceed``, which runs what is further in: the next interceptor, and behind the
last one the call itself. What stands before ``await proceed()`` runs before the call, what stands behind it after, and
an exception of the call passes through it like through any other await. That holds for every kind of call on both
sides; this room has the client's chain and the words that both sides share.

Each ``proceed`` hands a copy of the call further in. So one interceptor may try a call again, and those further in see
each attempt as the first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar, final

import trio

from trio_grpc._cancellation import split_cancelled
from trio_grpc._compression import Compression
from trio_grpc._metadata import Metadata, encode_metadata, readable_metadata
from trio_grpc._method import Method
from trio_grpc._observing import CallObserver, Observation, check_observer
from trio_grpc._options import check_async_callable, check_kind, check_timeout, name_of
from trio_grpc._status import RpcError, StatusCode
from trio_grpc._transport.header_codec import Field
from trio_grpc._transport.stream import Answer

InterceptorT = TypeVar("InterceptorT", bound=Callable[..., Awaitable[None]])

#: Runs what is further in. Returns when that has ended, raises what it raises.
Proceed: TypeAlias = Callable[[], Awaitable[None]]


@final
class InterceptedCall:
    """A client's call as its interceptors see it: what it will be until ``proceed`` is awaited, how it went after that.

    Attributes:
        method: what is called.
        target: what the channel connects to.
        awaited: whether the call is an awaited one (``await stub.Method(...)``), and not a block. Only an awaited call
            may be answered without ``proceed``, by setting ``reply``, or be tried again by awaiting ``proceed`` again.
        request: the request of a method that takes one, None for a stream of requests. May be replaced.
        reply: the reply of an awaited call, None until there is one. May be replaced.
        wait_for_ready: wait through failed connection attempts; None is False. May be set.
        compression: algorithm for the requests; None for the channel's. May be set.
    """

    __slots__ = (
        "_deadline",
        "_fields",
        "_limit",
        "_metadata",
        "_observation",
        "_observers",
        "_origin",
        "_request_maps",
        "_response_maps",
        "_root",
        "_scope",
        "_scope_deadline",
        "_seconds",
        "_state",
        "_status",
        "awaited",
        "compression",
        "method",
        "reply",
        "request",
        "target",
        "wait_for_ready",
    )

    def __init__(
        self,
        method: Method[Any, Any],
        *,
        target: str,
        awaited: bool,
        request: Any,
        timeout: float | None,
        fields: Any,
        wait_for_ready: bool | None,
        compression: Compression | str | None,
    ) -> None:
        # Made by stubs only. ``fields``, the metadata as it goes on the wire, is Any: the public signature does not
        # drag in the rooms below.
        self.method: Method[Any, Any] = method
        self.target: str = target
        self.awaited: bool = awaited
        self.request: Any = request
        self.reply: Any = None
        if wait_for_ready is not None:
            check_kind("wait_for_ready", wait_for_ready, bool, " or None")
        self.wait_for_ready: bool | None = wait_for_ready
        self.compression: Compression | str | None = compression
        #: The outermost of the copies, None in itself. It has what all of them share, when that is first asked for.
        self._root: InterceptedCall | None = None
        self._state: SimpleNamespace | None = None
        self._seconds = timeout
        self._deadline = inf if timeout is None else trio.current_time() + timeout
        self._limit = self._deadline
        self._fields: list[Field] | tuple[Field, ...] = fields
        self._metadata: Metadata | None = None
        self._request_maps: tuple[Callable[[Any], Any], ...] = ()
        self._response_maps: tuple[Callable[[Any], Any], ...] = ()
        self._observers: tuple[CallObserver, ...] = ()
        self._observation: Observation | None = None
        self._status: StatusCode | None = None
        #: Where metadata comes from: the stream, or the metadata of an error (the error itself would be a cycle), and
        #: the address that it came from.
        self._origin: Answer | tuple[Metadata, Metadata, str] | None = None
        self._scope: trio.CancelScope | None = None
        self._scope_deadline = self._deadline

    @property
    def state(self) -> SimpleNamespace:
        """Takes values of the application's own; one object for all interceptors of a call."""
        root = self if self._root is None else self._root
        state = root._state
        if state is None:
            state = root._state = SimpleNamespace()
        return state

    # -- what it will be

    @property
    def metadata(self) -> Metadata:
        """What is sent with the request, beside the ``metadata=`` of the channel; change it in place."""
        if self._metadata is None:
            self._metadata = Metadata.from_wire(self._fields)
        return self._metadata

    @property
    def timeout(self) -> float | None:
        """Seconds that are left for the call, None without a timeout.

        May be set, to seconds from now. What is further in gets that, but never more than was left: the caller's own
        ``timeout=`` bounds the whole call, its interceptors included. Deadlines of cancel scopes are not counted here.
        """
        return None if self._deadline == inf else max(0.0, self._deadline - trio.current_time())

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        deadline = inf if seconds is None else trio.current_time() + check_timeout(seconds)
        if deadline < self._limit:
            self._deadline, self._seconds = deadline, seconds
        else:
            self._deadline = self._limit

    def map_requests(self, function: Callable[[Any], Any], /) -> None:
        """Have a function called with each request before it is sent; what it returns is sent.

        Functions of outer interceptors come first. They run in the task that sends, and what they raise, it gets.
        """
        self._request_maps = (*self._request_maps, function)

    def map_responses(self, function: Callable[[Any], Any], /) -> None:
        """Have a function called with each response that arrives; what it returns is received.

        Functions of inner interceptors come first. They run in the task that receives, and what they raise, it gets;
        an `RpcError` ends the call with its status.
        """
        self._response_maps = (function, *self._response_maps)

    def observe(self, observer: CallObserver, /) -> None:
        """Have an observer told of the call's attempts and of each message, see `CallObserver`.

        Before ``proceed``, and for what that runs.

        Raises:
            TypeError: that is no `CallObserver`.
        """
        self._observers = (*self._observers, check_observer(observer))

    # -- how it went

    @property
    def status(self) -> StatusCode | None:
        """The status code, None until the call has ended. A call that was cancelled on this side has CANCELLED."""
        origin = self._origin
        if not self.awaited and origin is not None and not isinstance(origin, tuple):
            return None if origin.outcome is None else origin.outcome.code
        return self._status

    @property
    def initial_metadata(self) -> Metadata:
        """What the server sent before its first response; empty before it came, and if none did."""
        origin = self._origin
        if isinstance(origin, tuple):
            return origin[0]
        head = None if origin is None else origin.head_record
        return Metadata() if head is None or head.grpc_status is not None else readable_metadata(head.fields)

    @property
    def trailing_metadata(self) -> Metadata:
        """What the server sent with its status; empty until the call has ended."""
        origin = self._origin
        if isinstance(origin, tuple):
            return origin[1]
        outcome = None if origin is None else origin.outcome
        return Metadata() if outcome is None else readable_metadata(outcome.fields)

    @property
    def peer(self) -> str:
        """The address of the server that answered; empty before there is one, and where none did."""
        origin = self._origin
        if isinstance(origin, tuple):
            return origin[2]
        return "" if origin is None else origin.peer

    def __repr__(self) -> str:
        status = "open" if self.status is None else self.status.name
        return f"<InterceptedCall {self.method.path} {status}>"

    # -- for the chain and its ends

    def _inner(self) -> InterceptedCall:
        """Return a copy for what is further in."""
        inner = InterceptedCall.__new__(InterceptedCall)
        inner.method = self.method
        inner.target = self.target
        inner.awaited = self.awaited
        inner.request = self.request
        inner.reply = None
        inner.wait_for_ready = self.wait_for_ready
        inner.compression = self.compression
        inner._root = self if self._root is None else self._root
        inner._observers = self._observers
        inner._observation = None
        inner._seconds = self._seconds
        inner._deadline = inner._limit = self._deadline
        inner._fields = self._wire_metadata()
        inner._metadata = None
        inner._request_maps = self._request_maps
        inner._response_maps = self._response_maps
        inner._status = None
        inner._origin = None
        inner._scope = self._scope
        inner._scope_deadline = self._scope_deadline
        return inner

    def _is_open(self) -> bool:
        """Whether it is a block that was entered."""
        return self._origin is not None and not isinstance(self._origin, tuple)

    def _wire_metadata(self) -> list[Field] | tuple[Field, ...]:
        return self._fields if self._metadata is None else encode_metadata(self._metadata)

    def _failed(self, error: BaseException, inner: InterceptedCall | None = None) -> None:
        """Note what the call, or the attempt ``inner``, ended with."""
        _, others = split_cancelled(error)
        if self._status is StatusCode.OK and others is None:
            # Of attempts at the same time, those that are cancelled for the one that succeeded do not count.
            return
        if inner is not None:
            self._origin = inner._origin
        if isinstance(error, RpcError):
            self._status = error.code
            if self.awaited or self._origin is None:
                self._origin = (error.initial_metadata, error.trailing_metadata, error._peer or self.peer)
        elif others is None or isinstance(error, trio.ClosedResourceError):
            self._status = StatusCode.CANCELLED
        else:
            self._status = StatusCode.UNKNOWN


#: The type of a client's interceptor.
ClientInterceptor: TypeAlias = Callable[[InterceptedCall, Proceed], Awaitable[None]]

#: The call itself, behind the last interceptor.
End = Callable[[InterceptedCall], Awaitable[None]]


def check_interceptors(interceptors: Iterable[InterceptorT], option: str = "interceptors") -> tuple[InterceptorT, ...]:
    """Return the interceptors of an option.

    Raises:
        TypeError: they are no iterable of callables.
    """
    if not isinstance(interceptors, Iterable):
        raise TypeError(f"{option} must be a list of async callables, not {type(interceptors).__name__}")
    checked = tuple(interceptors)
    for number, interceptor in enumerate(checked):
        check_async_callable(f"{option}[{number}]", interceptor)
    return checked


def intercept(
    call: InterceptedCall, interceptors: tuple[ClientInterceptor, ...], end: End
) -> Coroutine[Any, Any, None]:
    """Return what runs a call through interceptors.

    The caller's timeout bounds the interceptors too. While the call itself runs it is the call that knows its deadline,
    so that interceptors see DEADLINE_EXCEEDED come out of ``proceed`` and not a cancellation.

    Raises:
        RpcError: the call ended with another status than OK.
    """
    if call._deadline == inf:
        return _outermost(call, interceptors, end)
    return _in_time(call, interceptors, end)


async def _in_time(call: InterceptedCall, interceptors: tuple[ClientInterceptor, ...], end: End) -> None:
    with trio.CancelScope(deadline=call._deadline) as scope:
        call._scope = scope
        await _outermost(call, interceptors, end)
    if scope.cancelled_caught:
        raise RpcError(StatusCode.DEADLINE_EXCEEDED, f"deadline of {call._seconds:g} s exceeded")


async def _outermost(call: InterceptedCall, interceptors: tuple[ClientInterceptor, ...], end: End) -> None:
    """Run the first interceptor. The call is its own: nobody else looks at it before it is over."""
    if interceptors:
        await interceptors[0](call, partial(_proceed, call, interceptors, 1, end))
        _check_reply(call, interceptors[0])
    else:
        await _proceed(call, interceptors, 0, end)


async def _proceed(call: InterceptedCall, interceptors: tuple[ClientInterceptor, ...], index: int, end: End) -> None:
    """Run what is further in than ``index`` interceptors, and note on ``call`` how it went."""
    if index == len(interceptors):
        if call._scope is None and not call._observers and call.wait_for_ready is None:
            # What `_run_end` would do; an interceptor costs a fifth less without another coroutine.
            call._origin = None
            try:
                await end(call)
            except BaseException as error:
                call._failed(error)
                raise
            call._status = StatusCode.OK
        else:
            await _run_end(call, end)
        return
    inner = call._inner()
    interceptor = interceptors[index]
    try:
        await interceptor(inner, partial(_proceed, inner, interceptors, index + 1, end))
        _check_reply(inner, interceptor)
    except BaseException as error:
        call._failed(error, inner)
        raise
    call.reply = inner.reply
    call._origin = inner._origin
    call._status = StatusCode.OK


def _check_reply(call: InterceptedCall, interceptor: ClientInterceptor) -> None:
    if call.awaited and call.reply is None and call._status is not StatusCode.OK:
        raise RuntimeError(f"interceptor {name_of(interceptor)} returned, but the call has no reply")


async def _run_end(call: InterceptedCall, end: End) -> None:
    scope = call._scope
    if scope is not None:
        if trio.current_time() >= call._scope_deadline:
            # An interceptor that tries again and again must not do so after the call's time.
            scope.cancel()
        scope.deadline = inf
    call._origin = None  # an attempt before this one is over
    if call._observers:
        call._observation = Observation(call._observers)
    try:
        if call.wait_for_ready is not None:
            check_kind("wait_for_ready", call.wait_for_ready, bool, " or None")
        await end(call)
        call._status = StatusCode.OK
    except BaseException as error:
        call._failed(error)
        raise
    finally:
        # The timeout of a block belongs to its call, and not to what stands in the block.
        if scope is not None and (call.awaited or not call._is_open()):
            scope.deadline = call._scope_deadline
        if call._observation is not None:
            assert call._status is not None
            call._observation.close(call._status)


__all__ = ["ClientInterceptor", "InterceptedCall", "Proceed"]
