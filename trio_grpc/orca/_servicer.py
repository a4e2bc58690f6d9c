"""Reports on a call of their own: the servicer of ``xds.service.orca.v3.OpenRcaService``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import ModuleType
from typing import Any, ClassVar

import trio

from trio_grpc._method import Method
from trio_grpc._options import check_kind, check_seconds
from trio_grpc._servicer import Servicer, ServicerContext
from trio_grpc._status import RpcError, StatusCode
from trio_grpc.orca._metrics import MetricRecorder, load_report
from trio_grpc.orca._v3 import orca_pb2
from trio_grpc.orca._v3.orca_load_report_pb2 import OrcaLoadReport
from trio_grpc.orca._v3.orca_pb2 import OrcaLoadReportRequest
from trio_grpc.orca._v3.orca_trio_grpc import OpenRcaServiceServicer


class OrcaServicer(Servicer):
    """Serves ``xds.service.orca.v3.OpenRcaService``: tells clients that ask the load of the server, again and again.

    When the server begins to drain the calls end with UNAVAILABLE. Give each server a servicer of its own.

    Args:
        server: the load of the server, which somebody keeps up to date.
        min_report_interval: seconds between two reports at least, whatever clients ask for (gRFC A51).

    Raises:
        TypeError: these are no recorder and no number.
        ValueError: the interval is not above 0.
    """

    # Not the generated class as a base: what it infers is not typed enough for a public one.
    __trio_grpc_methods__: ClassVar[Mapping[str, Method[Any, Any]]] = OpenRcaServiceServicer.__trio_grpc_methods__
    __trio_grpc_pb2__: ModuleType | None = orca_pb2

    def __init__(self, server: MetricRecorder, *, min_report_interval: float = 30.0) -> None:
        check_kind("server", server, MetricRecorder)
        # A report after the other without a pause would be a busy loop for as long as the client likes.
        if not check_seconds("min_report_interval", min_report_interval):
            raise ValueError("min_report_interval must be more than 0 seconds")
        self._server = server
        self._min_interval = min_report_interval
        self._draining = trio.Event()

    def __trio_grpc_draining__(self) -> None:
        self._draining.set()

    async def StreamCoreMetrics(
        self, request: OrcaLoadReportRequest, context: ServicerContext[OrcaLoadReport], /
    ) -> AsyncIterator[OrcaLoadReport]:
        asked = request.report_interval
        interval = max(asked.seconds + asked.nanos / 1e9, self._min_interval)
        while True:
            yield load_report(self._server)
            with trio.move_on_after(interval):
                await self._draining.wait()
                # Clients ask again, somewhere else.
                raise RpcError(StatusCode.UNAVAILABLE, "server is draining")


__all__ = ["OrcaServicer"]
