"""The context of handlers that run in threads: those written for grpcio's server without asyncio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, final

import grpc
import trio

from trio_grpc._servicer import RequestStream
from trio_grpc._status import StatusCode
from trio_grpc.grpcio._facts import Facts

__all__ = ["GrpcioThreadContext", "ThreadRequests"]


@final
class GrpcioThreadContext(Facts):
    """What a handler in a thread gets as its context: `grpc.ServicerContext` in all its methods.

    A method that waits raises `trio.Cancelled` once the client has gone; let it pass.
    """

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline, None without one."""
        return trio.from_thread.run_sync(super().time_remaining)  # trio's clock is not for threads

    def is_active(self) -> bool:
        """Return whether somebody still waits for the answer."""
        return not self._ended and not self._is_cancelled()

    def cancel(self) -> None:
        """End the RPC with CANCELLED."""
        trio.from_thread.run_sync(self._context._stream.refuse, StatusCode.CANCELLED, "cancelled by the handler")

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Have a function called, in trio's thread, when the RPC has ended or was cancelled.

        Returns:
            False where it has ended already: the function will not be called.
        """
        return trio.from_thread.run_sync(self._add_callback, callback)

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
        trio.from_thread.run(self._context.send_initial_metadata, tuple(initial_metadata))

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """End the RPC with this status, which stands whatever happens to the exception.

        Raises:
            RpcError: always.
            ValueError: the code is OK, or there is no such code.
        """
        trio.from_thread.run(self._record, code, details)
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
        trio.from_thread.run(self._send_in_trio, message)

    async def _send_in_trio(self, message: Any) -> None:
        await self._context.send(message, compress=self._take_compress())


@final
class ThreadRequests:
    """The requests of one RPC as an iterator, for a thread."""

    def __init__(self, requests: RequestStream[Any]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return trio.from_thread.run(self._requests.receive)
        except trio.EndOfChannel:
            raise StopIteration from None
