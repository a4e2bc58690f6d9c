"""A servicer whose answers a test chooses, typed by the generated class that it stands for."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, overload

import attrs
import trio

from trio_grpc._metadata import Metadata
from trio_grpc._method import Method
from trio_grpc._options import check_kind, check_seconds
from trio_grpc._servicer import RequestStream, Servicer, ServicerContext
from trio_grpc._status import RpcError, StatusCode

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


@attrs.define(eq=False)
class FakeCall(Generic[RequestT]):
    """One call that a fake has had.

    Attributes:
        requests: what the client sent, as far as it was read.
        metadata: what the client sent with it.
        time_remaining: seconds that were left when the call arrived; infinity without a deadline.
        cancelled: it was cancelled, by the client or by its deadline, before its answer was complete.
    """

    requests: list[RequestT]
    metadata: Metadata
    time_remaining: float
    cancelled: bool = False

    @property
    def request(self) -> RequestT:
        """The only request.

        Raises:
            ValueError: there was another number of them.
        """
        if len(self.requests) != 1:
            raise ValueError(f"the call had {len(self.requests)} requests: look at 'requests'")
        return self.requests[0]


@attrs.frozen
class _Outcome(Generic[RequestT, ResponseT]):
    replies: tuple[ResponseT, ...] = ()
    error: RpcError | None = None
    delay: float = 0.0
    function: Callable[[FakeCall[RequestT]], Awaitable[ResponseT]] | None = None


class FakeMethod(Generic[RequestT, ResponseT]):
    """What a fake does when one of its methods is called; `FakeServicer.on` gives it.

    Each of `reply`, `abort` and `run` adds an outcome, and returns this object. Calls take the outcomes in their order;
    the last one holds for all calls that follow.

    Attributes:
        calls: the calls so far.
    """

    def __init__(self, method: Method[Any, Any], hint: str) -> None:
        self.calls: list[FakeCall[RequestT]] = []
        self._method = method
        self._hint = hint
        self._outcomes: list[_Outcome[RequestT, ResponseT]] = []

    def reply(
        self, *responses: ResponseT, delay: float = 0.0, then: RpcError | None = None
    ) -> FakeMethod[RequestT, ResponseT]:
        """Answer with these responses.

        Args:
            responses: one, or for a stream of responses any number.
            delay: seconds before each of them.
            then: with what a stream ends; None for OK.

        Raises:
            TypeError: a response is of another type, or there are more or fewer than the method gives; or ``then`` is
                no `RpcError`.
            ValueError: the delay is negative.
        """
        expected = self._method.response_type
        for response in responses:
            if not isinstance(response, expected):
                raise TypeError(f"{self._method.path} replies {expected.__name__}, not {type(response).__name__}")
        if not self._method.cardinality.server_streaming and (len(responses) != 1 or then is not None):
            raise TypeError(f"{self._method.path} gives one response, not {len(responses)}, and nothing then")
        if then is not None:
            check_kind("then", then, RpcError, " or None")
        check_seconds("delay", delay)
        return self._add(_Outcome(responses, then, delay))

    def abort(
        self, code: StatusCode, message: str = "", *, details: tuple[Any, ...] = (), delay: float = 0.0
    ) -> FakeMethod[RequestT, ResponseT]:
        """Answer with a status.

        Args:
            code: not OK.
            message: for the caller.
            details: protobuf messages for the caller.
            delay: seconds before it.

        Raises:
            TypeError, ValueError: that is no status to fail with.
        """
        check_seconds("delay", delay)
        return self._add(_Outcome(error=RpcError(code, message, details=details), delay=delay))

    def run(self, function: Callable[[FakeCall[RequestT]], Awaitable[ResponseT]], /) -> FakeMethod[RequestT, ResponseT]:
        """Answer with what an async function returns, for methods with one response; it may raise `RpcError`.

        Args:
            function: is given the call, with all its requests.

        Raises:
            TypeError: the method gives a stream of responses, or that is no function.
        """
        if not callable(function):
            raise TypeError(f"{self._method.path} can run an async function, not {type(function).__name__}")
        if self._method.cardinality.server_streaming:
            raise TypeError(f"{self._method.path} gives a stream: write a servicer for what 'reply' cannot say")
        return self._add(_Outcome(function=function))

    def _add(self, outcome: _Outcome[RequestT, ResponseT]) -> FakeMethod[RequestT, ResponseT]:
        self._outcomes.append(outcome)
        return self

    async def _handle(self, received: Any, context: ServicerContext[Any]) -> Any:
        call: FakeCall[RequestT] = FakeCall([], context.metadata, context.time_remaining())
        self.calls.append(call)
        if not self._outcomes:
            await context.abort(StatusCode.UNIMPLEMENTED, f"the fake was not told what to do: {self._hint}")
        outcome = self._outcomes[0] if len(self._outcomes) == 1 else self._outcomes.pop(0)
        try:
            return await self._answer(call, outcome, received, context)
        except trio.Cancelled:
            call.cancelled = True
            raise

    async def _answer(
        self,
        call: FakeCall[RequestT],
        outcome: _Outcome[RequestT, ResponseT],
        received: Any,
        context: ServicerContext[Any],
    ) -> Any:
        if self._method.cardinality.client_streaming:
            async for request in received:
                call.requests.append(request)
        else:
            call.requests.append(received)
        if outcome.function is not None:
            return await outcome.function(call)
        if not self._method.cardinality.server_streaming:
            await trio.sleep(outcome.delay)
            if outcome.error is not None:
                raise _copy(outcome.error)
            return outcome.replies[0]
        for response in outcome.replies:
            await trio.sleep(outcome.delay)
            await context.send(response)
        if outcome.error is not None:
            if not outcome.replies:
                await trio.sleep(outcome.delay)
            raise _copy(outcome.error)
        return None


class FakeServicer(Servicer):
    """A servicer that answers as a test says, and keeps what it was asked.

    It stands for a generated class, which types what the test may say::

        fake = FakeServicer(GreeterServicer)
        fake.on(GreeterServicer.Greet).abort(StatusCode.UNAVAILABLE).reply(Greeting(text="Hello"))
        async with open_channel_pair(fake) as (channel, server):
            ...
        assert fake.on(GreeterServicer.Greet).calls[0].request == Name(text="you")

    Requests of a stream are read to their end before it answers; a test that needs a conversation writes a servicer.

    Args:
        servicer_class: the generated class.

    Raises:
        TypeError: that is no class of a servicer.
    """

    def __init__(self, servicer_class: type[Servicer]) -> None:
        given: object = servicer_class
        if not (isinstance(given, type) and issubclass(given, Servicer)):
            raise TypeError(f"servicer_class must be a generated ...Servicer class, not {servicer_class!r}")
        self._servicer_class = servicer_class
        methods = servicer_class.__trio_grpc_methods__
        # By their paths: no rpc may take the place of what a fake has itself, such as `on`.
        vars(self)["__trio_grpc_methods__"] = {method.path: method for method in methods.values()}
        vars(self)["__trio_grpc_pb2__"] = servicer_class.__trio_grpc_pb2__
        self._methods: dict[str, FakeMethod[Any, Any]] = {}
        for name, method in methods.items():
            hint = f"fake.on({servicer_class.__name__}.{name}).reply(...)"
            fake = self._methods[name] = FakeMethod(method, hint)
            vars(self)[method.path] = fake._handle

    @overload
    def on(
        self, method: Callable[[Any, RequestStream[RequestT], ServicerContext[ResponseT]], Any], /
    ) -> FakeMethod[RequestT, ResponseT]: ...

    @overload
    def on(
        self, method: Callable[[Any, RequestT, ServicerContext[ResponseT]], Any], /
    ) -> FakeMethod[RequestT, ResponseT]: ...

    def on(self, method: Callable[..., Any], /) -> FakeMethod[Any, Any]:
        """Return what decides about a method.

        Args:
            method: as the generated class has it: ``GreeterServicer.Greet``.

        Raises:
            ValueError: the class has no such method.
        """
        name = getattr(method, "__name__", None)
        found = self._methods.get(name) if isinstance(name, str) else None
        whose = self._servicer_class.__name__
        given: object = method
        if isinstance(given, str):
            raise ValueError(f"method must be {whose}.{given} itself, not its name")
        if found is not None and getattr(self._servicer_class, str(name)) is not method:
            raise ValueError(f"method must be {whose}.{name}, of the class that the fake stands for, not {method!r}")
        if found is None:
            near = difflib.get_close_matches(str(name), self._methods, n=1)
            known = f"did you mean {near[0]}?" if near else f"it has {', '.join(self._methods)}"
            raise ValueError(f"{whose} has no method {name or method!r}: {known}")
        return found


def _copy(error: RpcError) -> RpcError:
    """Return an error to raise: each call needs a traceback of its own."""
    return RpcError(error.code, error.message, details=error.details, trailing_metadata=error.trailing_metadata)


__all__ = ["FakeCall", "FakeMethod", "FakeServicer"]
