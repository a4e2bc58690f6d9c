"""What a server runs where no servicer lists the method: it asks the generic ones."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import inf
from typing import Any

import trio

from trio_grpc._generic_servicer import GenericServicer, IncomingCall
from trio_grpc._metadata import Metadata, MetadataError
from trio_grpc._servicer import UNEXPECTED, HandlerMaker, MethodHandler, ServicerContext, not_implemented
from trio_grpc._status import RpcError, StatusCode
from trio_grpc._transport.stream import Stream

_logger = logging.getLogger("trio_grpc")


class GenericHandlers:
    """Stands where a `MethodHandler` stands, for all methods that no other servicer has.

    Args:
        servicers: asked in this order.
        make_handler: makes the handlers, one per RPC.
    """

    __slots__ = ("_make_handler", "_servicers")

    def __init__(self, servicers: Sequence[GenericServicer], make_handler: HandlerMaker) -> None:
        self._servicers = servicers
        self._make_handler = make_handler

    async def run(self, stream: Stream, deadline: float, scope: trio.CancelScope) -> bool:
        """See `MethodHandler.run`. Users' code runs here and not where the reader has found the RPC."""
        if stream.cancelled is not None:
            return True
        request = stream.request
        assert request is not None
        try:
            metadata = Metadata.from_wire(request.fields)
            handler = self._find(IncomingCall(request.path, metadata, request.authority, stream.peer))
        except MetadataError as error:
            stream.refuse(StatusCode.INTERNAL, f"malformed request: {error}")
        except RpcError as error:
            self._refuse(stream, error)
        except Exception:
            _logger.exception("exception in the search for a handler of %s (%s)", request.path, stream.peer)
            stream.refuse(StatusCode.UNKNOWN, UNEXPECTED)
        else:
            if handler is not None:
                return await handler.run(stream, deadline, scope)
            stream.refuse(StatusCode.UNIMPLEMENTED, not_implemented(request.path))
        return True

    def _refuse(self, stream: Stream, error: RpcError) -> None:
        """End an RPC as a handler that raises this would, details and metadata included."""
        try:
            ServicerContext[Any](self, stream, inf)._finish(error)
        except Exception:
            _logger.exception("status of %s (%s) cannot be encoded", error.code.name, stream.peer)
            stream.refuse(StatusCode.UNKNOWN, UNEXPECTED)

    def _find(self, call: IncomingCall) -> MethodHandler | None:
        for servicer in self._servicers:
            found = servicer.find(call)
            if found is not None:
                return self._make_handler(*found)
        return None
