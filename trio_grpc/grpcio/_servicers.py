"""What the generated ``add_XServicer_to_server`` is given instead of a server of grpcio's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, final

import attrs
import trio

from trio_grpc._generic_servicer import GenericHandler, GenericServicer, IncomingCall
from trio_grpc._method import Method
from trio_grpc._options import check_kind
from trio_grpc.grpcio._adapters import adapt
from trio_grpc.grpcio._facts import Metadatum

__all__ = ["GrpcioServicers"]

#: Methods of generic handlers that are remembered. One that serves any path must not fill the memory.
_MAX_REMEMBERED = 1024


@attrs.frozen
class _CallDetails:
    """As `grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: tuple[Metadatum, ...]


@final
class GrpcioServicers(GenericServicer):
    """Servicers that were written for grpcio, as one servicer for `serve`.

    Generated code adds to it as to a server::

        servicers = trio_grpc.grpcio.GrpcioServicers()
        greeter_pb2_grpc.add_GreeterServicer_to_server(Greeter(), servicers)
        await nursery.start(trio_grpc.serve, [servicers], "127.0.0.1:50051")

    Handlers written for ``grpc.aio`` (``async def``, async generators) run in trio's tasks: what they await must be
    trio's, not asyncio's. Plain functions run in threads, as in grpcio. Add all servicers before the server starts.

    Args:
        max_workers: plain functions that run at once; default as for Python's thread pools, 4 more than there are
            processors, and 32 at most.

    Raises:
        TypeError, ValueError: ``max_workers`` is no positive number.
    """

    def __init__(self, *, max_workers: int | None = None) -> None:
        workers = min(32, (os.cpu_count() or 1) + 4) if max_workers is None else max_workers
        if check_kind("max_workers", workers, int, " or None") < 1:
            raise ValueError(f"max_workers must be 1 or more, got {workers}")
        self._limiter = trio.CapacityLimiter(workers)
        self._generic: list[Any] = []
        self._remembered: dict[str, tuple[Any, tuple[Method[Any, Any], GenericHandler]]] = {}
        self._registered: dict[str, Method[Any, Any]] = {}
        # Generated servicers have it in their classes; here each instance has its own.
        vars(self)["__trio_grpc_methods__"] = self._registered

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        """Add handlers of one service; generated code calls this.

        Args:
            service_name: the full name of the service.
            method_handlers: ``grpc.RpcMethodHandler`` objects by the names of their methods.

        Raises:
            ValueError: a method is there already.
        """
        for name, handler in method_handlers.items():
            path = f"/{service_name}/{name}"
            if path in self._registered:
                raise ValueError(f"{path} is implemented by more than one servicer")
            method, function = adapt(path, handler, self._limiter)
            # The path is the attribute's name, which no other attribute can have.
            setattr(self, path, function)
            self._registered[path] = method

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[Any]) -> None:
        """Add handlers that are asked for each method by its path; generated code calls this.

        Args:
            generic_rpc_handlers: ``grpc.GenericRpcHandler`` objects.

        Raises:
            TypeError: one of them has no method ``service``.
        """
        handlers = tuple(generic_rpc_handlers)
        for handler in handlers:
            if not callable(getattr(handler, "service", None)):
                raise TypeError(f"generic_rpc_handlers must be grpc.GenericRpcHandler objects, got {handler!r}")
        self._generic.extend(handlers)

    def find(self, call: IncomingCall, /) -> tuple[Method[Any, Any], GenericHandler] | None:
        """Ask the generic handlers in their order; see `GenericServicer`."""
        if not self._generic:
            return None
        details = _CallDetails(call.path, tuple(Metadatum(key, value) for key, value in call.metadata))
        for generic in self._generic:
            theirs = generic.service(details)
            if theirs is not None:
                remembered = self._remembered.get(call.path)
                if remembered is not None and remembered[0] is theirs:
                    return remembered[1]
                ours = adapt(call.path, theirs, self._limiter)
                if len(self._remembered) < _MAX_REMEMBERED:
                    self._remembered[call.path] = (theirs, ours)
                return ours
        return None
