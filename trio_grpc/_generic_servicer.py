"""Servicers that are asked for each method by its path, instead of listing the methods that they have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias, final

import attrs

from trio_grpc._metadata import Metadata
from trio_grpc._method import Method
from trio_grpc._servicer import Servicer, ServicerContext

__all__ = ["GenericHandler", "GenericServicer", "IncomingCall"]

#: What runs an RPC: as the methods of generated servicers, ``async def (request, context)`` returning the reply where
#: the method has one, an async generator (or ``async def`` that sends) where it has a stream of them. Where the method
#: takes a stream, ``request`` is a `RequestStream`.
GenericHandler: TypeAlias = Callable[[Any, ServicerContext[Any]], Any]


@final
@attrs.frozen
class IncomingCall:
    """What is known of an RPC before there is a handler for it.

    Attributes:
        path: what is called, as ``/package.Service/Method``.
        metadata: the metadata that came with the request.
        authority: the host name that the client called.
        peer: the client's address.
    """

    path: str
    metadata: Metadata
    authority: str
    peer: str


class GenericServicer(Servicer, ABC):
    """Base of servicers for methods that are not known beforehand: proxies, services that are described by data.

    An instance goes into the list that `serve` takes, beside any others. It is asked for RPCs that none of the
    generated servicers has, and before the generic ones that come behind it in the list.
    """

    @abstractmethod
    def find(self, call: IncomingCall, /) -> tuple[Method[Any, Any], GenericHandler] | None:
        """Return what an RPC calls and what runs it, None if that is not served here.

        Called for each RPC, in the task that will run the handler. Return the same `Method` each time where you can:
        making one costs more than looking it up.

        The method's `Method.codec` decides what messages are; without one it is the server's.

        Args:
            call: what is known so far.

        Raises:
            RpcError: the RPC ends with this status. After any other exception, which is logged, with UNKNOWN.
        """
