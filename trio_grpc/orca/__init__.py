"""Reports of a server's load, for clients that balance by it (ORCA, gRFC A51): per call, and on a call of their own."""

from __future__ import annotations

from trio_grpc.orca._metrics import MetricRecorder as MetricRecorder
from trio_grpc.orca._metrics import Metrics as Metrics
from trio_grpc.orca._reporter import LoadReporter as LoadReporter
from trio_grpc.orca._reporter import call_metrics as call_metrics
from trio_grpc.orca._servicer import OrcaServicer as OrcaServicer
from trio_grpc.orca._v3.orca_load_report_pb2 import OrcaLoadReport as OrcaLoadReport
from trio_grpc.orca._v3.orca_pb2 import OrcaLoadReportRequest as OrcaLoadReportRequest
from trio_grpc.orca._v3.orca_trio_grpc import OpenRcaServiceStub as OpenRcaServiceStub

__all__ = (
    "LoadReporter",
    "MetricRecorder",
    "Metrics",
    "OpenRcaServiceStub",
    "OrcaLoadReport",
    "OrcaLoadReportRequest",
    "OrcaServicer",
    "call_metrics",
)
