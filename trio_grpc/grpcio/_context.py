"""The context of handlers that were written for ``grpc.aio``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn, final

import grpc
import grpc.aio
import trio

from trio_grpc._servicer import RequestStream, ServicerContext
from trio_grpc._status import RpcError
from trio_grpc.grpcio._facts import Facts

__all__ = ["GrpcioContext"]


@final
class GrpcioContext(Facts):
    """What a handler written for ``grpc.aio`` gets as its context: `grpc.aio.ServicerContext` in all its methods.

    Cancellation is trio's: a handler whose client has gone gets `trio.Cancelled`.

    Args:
        context: the RPC's own.
        requests: where the client streams.
        writable: whether the method has a stream of responses.
    """

    def __init__(
        self, context: ServicerContext[Any], requests: RequestStream[Any] | None = None, *, writable: bool = False
    ) -> None:
        super().__init__(context)
        self._requests = requests
        self._writable = writable

    async def read(self) -> Any:
        """Return the next request, ``grpc.aio.EOF`` after the last one.

        Raises:
            grpc.aio.UsageError: the method takes one request.
        """
        if self._requests is None:
            raise grpc.aio.UsageError("read() is for methods with a stream of requests")
        try:
            return await self._requests.receive()
        except trio.EndOfChannel:
            return grpc.aio.EOF

    async def write(self, message: Any) -> None:
        """Send a response; waits while too much is queued.

        Raises:
            grpc.aio.UsageError: the method has one response.
        """
        if not self._writable:
            raise grpc.aio.UsageError("write() is for methods with a stream of responses")
        await self._context.send(message, compress=self._take_compress())

    async def send_initial_metadata(self, initial_metadata: Iterable[tuple[str, Any]]) -> None:
        """Send the response headers now.

        Raises:
            RuntimeError: they were sent already.
            TypeError, ValueError: the metadata is malformed.
        """
        await self._context.send_initial_metadata(tuple(initial_metadata))

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str | None = "",
        trailing_metadata: Iterable[tuple[str, Any]] = (),
    ) -> NoReturn:
        """End the RPC with this status, which stands whatever happens to the exception.

        Args:
            code: the status code, not OK.
            details: a text for developers.
            trailing_metadata: sent with the status, beside what was set before.

        Raises:
            grpc.aio.AbortError: always.
            ValueError: the code is OK, or there is no such code.
        """
        pairs = tuple(trailing_metadata)
        if pairs:
            self.set_trailing_metadata(pairs)
        try:
            await self._record(code, details)
        except RpcError as error:
            raise grpc.aio.AbortError(error.message) from error
        raise AssertionError("abort always raises")

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """End the RPC with a status object, such as ``grpc_status.rpc_status.to_status`` makes.

        Raises:
            grpc.aio.AbortError: always.
        """
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    def code(self) -> grpc.StatusCode:
        """Return what `set_code` was told, OK before."""
        return grpc.StatusCode.OK if self._code is None else self._code

    def cancelled(self) -> bool:
        """Return whether the RPC was cancelled."""
        return self._is_cancelled()

    def done(self) -> bool:
        """Return whether the handler has ended."""
        return self._ended

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Have a function called with this context when the handler has ended."""
        self._callbacks.append(lambda: callback(self))
