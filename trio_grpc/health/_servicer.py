"""The servicer of the health service: what is known of each service, and who watches it.

After grpc's health-checking.md, gRFC A17 (how clients watch) and A90 (List).
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import trio

from trio_grpc._method import Method
from trio_grpc._servicer import Servicer, ServicerContext
from trio_grpc._status import RpcError, StatusCode
from trio_grpc.health._v1 import health_pb2
from trio_grpc.health._v1.health_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthListResponse,
)
from trio_grpc.health._v1.health_trio_grpc import HealthServicer as GeneratedServicer

#: How many services List tells of (gRFC A90).
_MAX_LISTED = 100

_Context = ServicerContext[HealthCheckResponse]


class ServingStatus(enum.IntEnum):
    """Whether a service takes calls; the numbers are those of ``HealthCheckResponse.ServingStatus``."""

    UNKNOWN = 0
    """Nobody has found out yet."""
    SERVING = 1
    """It takes calls."""
    NOT_SERVING = 2
    """It takes no calls now."""
    SERVICE_UNKNOWN = 3
    """The server does not know this service, so far. Only Watch says so."""

    if TYPE_CHECKING:
        # A status of a reply is of a type that protoc made. The two are never the same type, but may well be equal:
        # without this, ``mypy --strict`` says that no comparison of them can be true.
        def __eq__(self, other: object, /) -> bool: ...
        def __ne__(self, other: object, /) -> bool: ...
        def __hash__(self) -> int: ...


_REPLIES = {status: HealthCheckResponse(status=status.name) for status in ServingStatus}


class HealthServicer(Servicer):
    """Serves ``grpc.health.v1.Health``: answers Check, List and Watch from what `set` was told.

    The server as a whole, whose name is empty, is SERVING from the beginning. When the server begins to drain,
    everything becomes NOT_SERVING and all watchers are told so; then their calls end with UNAVAILABLE. Give each server
    a servicer of its own. Its methods belong to the trio thread; from others, use `trio.from_thread.run_sync`.

    Args:
        services: more that is SERVING from the beginning: full names of services, or servicers, which stand for their
            services.

    Raises:
        TypeError: something else stands among the services, or they are no list.
    """

    # Not the generated class as a base: what it infers is not typed enough for a public one.
    __trio_grpc_methods__: ClassVar[Mapping[str, Method[Any, Any]]] = GeneratedServicer.__trio_grpc_methods__
    __trio_grpc_pb2__: ModuleType | None = health_pb2

    def __init__(self, services: Iterable[str | Servicer] = ()) -> None:
        self._statuses: dict[str, ServingStatus] = {"": ServingStatus.SERVING}
        self._watchers: dict[str, trio.lowlevel.ParkingLot] = {}
        self._shut_down = False
        self._draining = False
        if isinstance(services, str) or not isinstance(services, Iterable):
            # A string would be a list of letters.
            raise TypeError(f"services must be a list of names or servicers, not {type(services).__name__}")
        for service in services:
            for name in _service_names(service):
                self._statuses[name] = ServingStatus.SERVING

    def set(self, service: str, status: ServingStatus) -> None:
        """Set the status of a service, and tell those who watch it. After `shutdown` this is ignored.

        Args:
            service: its full name, such as ``pkg.Greeter``; empty for the server as a whole. A new one is welcome.
            status: any but SERVICE_UNKNOWN, which is what a service has that was never set.

        Raises:
            TypeError: the name is no string.
            ValueError: the status is SERVICE_UNKNOWN, or none at all.
        """
        if not isinstance(service, str):
            raise TypeError(f"service must be str, not {type(service).__name__}")
        status = ServingStatus(status)
        if status is ServingStatus.SERVICE_UNKNOWN:
            raise ValueError("status must not be SERVICE_UNKNOWN, which means that it was never set")
        if not self._shut_down:
            self._change({service: status})

    def shutdown(self) -> None:
        """Set everything to NOT_SERVING, and let it stay so until `resume`: calls to `set` are ignored."""
        self._shut_down = True
        self._change(dict.fromkeys(self._statuses, ServingStatus.NOT_SERVING))

    def resume(self) -> None:
        """Set everything to SERVING, and listen to `set` again."""
        self._shut_down = False
        self._draining = False
        self._change(dict.fromkeys(self._statuses, ServingStatus.SERVING))

    def _change(self, statuses: dict[str, ServingStatus]) -> None:
        for service, status in statuses.items():
            if self._statuses.get(service) is not status:
                self._statuses[service] = status
                if service in self._watchers:
                    self._watchers[service].unpark_all()

    def __trio_grpc_draining__(self) -> None:
        self._draining = True
        self.shutdown()
        # Also those who learn nothing new.
        for parking_lot in self._watchers.values():
            parking_lot.unpark_all()

    async def Check(self, request: HealthCheckRequest, context: _Context, /) -> HealthCheckResponse:
        status = self._statuses.get(request.service)
        if status is None:
            raise RpcError(StatusCode.NOT_FOUND, f"unknown service {request.service!r}")
        return _REPLIES[status]

    async def List(
        self,
        request: HealthListRequest,
        context: ServicerContext[HealthListResponse],
        /,
    ) -> HealthListResponse:
        if len(self._statuses) > _MAX_LISTED:
            raise RpcError(
                StatusCode.RESOURCE_EXHAUSTED,
                f"{len(self._statuses)} services are more than List tells of ({_MAX_LISTED})",
            )
        return HealthListResponse(statuses={name: _REPLIES[status] for name, status in self._statuses.items()})

    async def Watch(self, request: HealthCheckRequest, context: _Context, /) -> AsyncIterator[HealthCheckResponse]:
        service = request.service
        sent: ServingStatus | None = None
        while True:
            # What is true when the last reply has been taken, and not all that was true meanwhile.
            status = self._statuses.get(service, ServingStatus.SERVICE_UNKNOWN)
            if status is not sent:
                yield _REPLIES[status]
                sent = status
            elif self._draining:
                # After any end clients watch again, somewhere else (A17); this one says that it was nobody's fault.
                raise RpcError(StatusCode.UNAVAILABLE, "server is draining")
            else:
                await self._wait_changed(service)

    async def _wait_changed(self, service: str) -> None:
        parking_lot = self._watchers.setdefault(service, trio.lowlevel.ParkingLot())
        try:
            await parking_lot.park()
        finally:
            # The names come from clients: none is remembered longer than it is watched.
            if not parking_lot and self._watchers.get(service) is parking_lot:
                del self._watchers[service]


def _service_names(service: str | Servicer) -> Iterable[str]:
    if isinstance(service, str):
        return (service,)
    methods = getattr(service, "__trio_grpc_methods__", None)
    if methods is None:
        raise TypeError(f"services must be names or servicers, got {service!r}")
    return {method.service for method in methods.values()}
