"""The context of handlers that run in threads: those written for grpcio's server without asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from threading import get_ident
from typing import Any, NoReturn, TypeVar, final

import grpc
import trio

from trio_grpc._servicer import RequestStream, ServicerContext
from trio_grpc._status import StatusCode
from trio_grpc.grpcio._facts import Facts

__all__ = ["GrpcioThreadContext", "ThreadRequests"]

ResultT = TypeVar("ResultT")


@final
class GrpcioThreadContext(Facts):
    """What a handler in a thread gets as its context: `grpc.ServicerContext` in all its methods.

    A method that waits raises `trio.Cancelled` once the client has gone; let it pass. Threads that the handler has
    started may use the context too, as long as the handler runs; there it raises `trio.BrokenResourceError`.

    Args:
        context: the RPC's own.
    """

    def __init__(self, context: ServicerContext[Any]) -> None:
        super().__init__(context)
        self._token = trio.lowlevel.current_trio_token()
        self._trio_thread = get_ident()
        #: That of the handler, once it runs.
        self._own_thread: int | None = None
        #: What other threads wait for.
        self._elsewhere: set[trio.CancelScope] = set()

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline, None without one."""
        return self._call_nowait(super().time_remaining)  # trio's clock is not for threads

    def is_active(self) -> bool:
        """Return whether somebody still waits for the answer."""
        return not self._ended and not self._is_cancelled()

    def cancel(self) -> None:
        """End the RPC with CANCELLED."""
        self._call_nowait(self._context._stream.refuse, StatusCode.CANCELLED, "cancelled by the handler")

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Have a function called, in trio's thread, when the RPC has ended or was cancelled.

        Returns:
            False where it has ended already: the function will not be called.
        """
        return self._call_nowait(self._add_callback, callback)

    def _add_callback(self, callback: Callable[[], None]) -> bool:
        if not self.is_active():
            return False
        self._callbacks.append(callback)
        return True

    def send_initial_metadata(self, initial_metadata: Iterable[tuple[str, Any]]) -> None:
        """Send the response headers now.

        Raises:
            RuntimeError: they were sent already.
            TypeError, ValueError: the metadata is malformed.
        """
        self._call(self._context.send_initial_metadata, tuple(initial_metadata))

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """End the RPC with this status, which stands whatever happens to the exception.

        Args:
            code: the status code, not OK.
            details: a text for developers.

        Raises:
            RpcError: always.
            ValueError: the code is OK, or there is no such code.
        """
        self._call(self._record, code, details)
        raise AssertionError("abort always raises")

    def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """End the RPC with a status object, such as ``grpc_status.rpc_status.to_status`` makes.

        Raises:
            RpcError: always.
        """
        if status.trailing_metadata:
            self.set_trailing_metadata(status.trailing_metadata)
        self.abort(status.code, status.details)

    def code(self) -> grpc.StatusCode | None:
        """Return what `set_code` was told, None before."""
        return self._code

    # -- for the handler's adapter

    def _send(self, message: Any) -> None:
        self._call(self._send_in_trio, message)

    async def _send_in_trio(self, message: Any) -> None:
        await self._context.send(message, compress=self._take_compress())

    def _tell_ended(self) -> None:
        super()._tell_ended()
        for scope in self._elsewhere:
            scope.cancel()

    # -- from a thread to trio

    def _call(self, function: Callable[..., Awaitable[ResultT]], *args: Any) -> ResultT:
        """Run an async function in trio's thread: in the handler's task for the handler's thread."""
        if get_ident() == self._own_thread:
            return trio.from_thread.run(function, *args)
        return trio.from_thread.run(self._run_elsewhere, function, *args, trio_token=self._token)

    def _call_nowait(self, function: Callable[..., ResultT], *args: Any) -> ResultT:
        """Call a function in trio's thread, where callbacks are already."""
        if get_ident() == self._trio_thread:
            return function(*args)
        token = None if get_ident() == self._own_thread else self._token
        return trio.from_thread.run_sync(function, *args, trio_token=token)

    async def _run_elsewhere(self, function: Callable[..., Awaitable[ResultT]], *args: Any) -> ResultT:
        """Run in a task of no handler: it must not outlive this one."""
        if not self._ended:
            with trio.CancelScope() as scope:
                self._elsewhere.add(scope)
                try:
                    return await function(*args)
                finally:
                    self._elsewhere.discard(scope)
        raise trio.BrokenResourceError("the RPC has ended")


@final
class ThreadRequests:
    """The requests of one RPC as an iterator, for a thread.

    Args:
        context: the RPC's.
        requests: what to iterate over.
    """

    def __init__(self, context: GrpcioThreadContext, requests: RequestStream[Any]) -> None:
        self._context = context
        self._requests = requests

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._context._call(self._requests.receive)
        except trio.EndOfChannel:
            raise StopIteration from None
