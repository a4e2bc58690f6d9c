"""Reports with each call: the interceptor that sends them, and the handlers' way to it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from trio_grpc._interceptors import Proceed
from trio_grpc._options import check_kind
from trio_grpc._servicer import ServicerContext
from trio_grpc.orca._metrics import MetricRecorder, load_report

#: Where clients look for it (gRFC A51).
_KEY = "endpoint-load-metrics-bin"

_recorder: ContextVar[MetricRecorder] = ContextVar("trio_grpc_call_metrics")


def call_metrics() -> MetricRecorder:
    """Return what the RPC that is being handled reports of itself, for its handler to fill in.

    Raises:
        RuntimeError: nothing would be reported: there is no `LoadReporter` around this call.
    """
    try:
        return _recorder.get()
    except LookupError:
        raise RuntimeError("there is no LoadReporter around this call (interceptors= of serve)") from None


class LoadReporter:
    """A server's interceptor that reports its load with the status of each RPC (gRFC A51), however that ends.

    What `call_metrics` was told is reported, and the load of the server as a whole beside it. An RPC with nothing to
    report has no report.

    Args:
        server: the load of the server, which somebody keeps up to date; None if only calls report.

    Raises:
        TypeError: that is no recorder.
    """

    def __init__(self, server: MetricRecorder | None = None) -> None:
        if server is not None:
            check_kind("server", server, MetricRecorder, " or None")
        self._server = server

    async def __call__(self, context: ServicerContext[Any], proceed: Proceed, /) -> None:
        """Run an RPC."""
        recorder = MetricRecorder()
        token = _recorder.set(recorder)
        try:
            await proceed()
        finally:
            _recorder.reset(token)
            report = load_report(self._server, recorder).SerializeToString()
            if report:
                context.add_trailing_metadata({_KEY: report})


__all__ = ["LoadReporter", "call_metrics"]
