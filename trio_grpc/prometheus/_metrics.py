"""Counters and histograms of calls, the same for both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, final

import trio
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from trio_grpc._interceptors import InterceptedCall, Proceed
from trio_grpc._method import Cardinality
from trio_grpc._observing import Attempt, CallObserver
from trio_grpc._servicer import ServicerContext
from trio_grpc._status import StatusCode

__all__ = ["ClientMetrics", "ServerMetrics"]

_LABELS = ("grpc_type", "grpc_service", "grpc_method")
_TYPES = {
    Cardinality.UNARY_UNARY: "unary",
    Cardinality.UNARY_STREAM: "server_stream",
    Cardinality.STREAM_UNARY: "client_stream",
    Cardinality.STREAM_STREAM: "bidi_stream",
}
#: Codes as Go writes them, which dashboards look for: ``NotFound``, and ``Canceled`` with one l.
_CODES = {
    code: code.name if code is StatusCode.OK else code.name.title().replace("_", "").replace("Cancelled", "Canceled")
    for code in StatusCode
}


class _Metrics:
    """What both sides have in common."""

    #: ``"server"`` or ``"client"``, which is part of the names.
    _side: ClassVar[str]

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        *,
        buckets: Sequence[float] | None = Histogram.DEFAULT_BUCKETS,
    ) -> None:
        side = self._side

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"grpc_{side}_{name}", text, (*_LABELS, *labels), registry=registry)

        self._started = counter("started", f"RPCs started by the {side}.")
        self._handled = counter("handled", f"RPCs completed by the {side}, whatever their status.", "grpc_code")
        self._received = counter("msg_received", f"Messages received by the {side}.")
        self._sent = counter("msg_sent", f"Messages sent by the {side}.")
        self._seconds: Histogram | None = None
        if buckets is not None:
            self._seconds = Histogram(
                f"grpc_{side}_handling_seconds",
                f"Seconds until RPCs were completed by the {side}.",
                _LABELS,
                registry=registry,
                buckets=buckets,
            )

    async def _measure(self, call: InterceptedCall | ServicerContext[Any], proceed: Proceed) -> None:
        method = call.method
        labels = (_TYPES[method.cardinality], method.service, method.name)
        started = trio.current_time()
        self._started.labels(*labels).inc()
        call.observe(_Messages(self._sent.labels(*labels), self._received.labels(*labels)))
        try:
            await proceed()
        finally:
            status = StatusCode.UNKNOWN if call.status is None else call.status
            self._handled.labels(*labels, _CODES[status]).inc()
            if self._seconds is not None:
                self._seconds.labels(*labels).observe(trio.current_time() - started)


@final
class ServerMetrics(_Metrics):
    """An interceptor for `serve`.

    ``grpc_server_started_total``, ``grpc_server_handled_total``, ``grpc_server_msg_received_total``,
    ``grpc_server_msg_sent_total`` and the histogram ``grpc_server_handling_seconds``. Labels are ``grpc_type``,
    ``grpc_service``, ``grpc_method`` and, for what was handled, ``grpc_code``. RPCs that reach no handler are not
    counted: no interceptor sees them.

    Args:
        registry: where to register the metrics; a registry takes them once, so share one object among servers.
        buckets: of the histogram, in seconds; None for no histogram.

    Raises:
        ValueError: the registry has metrics of these names.
    """

    _side = "server"

    async def __call__(self, context: ServicerContext[Any], proceed: Proceed, /) -> None:
        """Run the RPC, and count it."""
        await self._measure(context, proceed)


@final
class ClientMetrics(_Metrics):
    """An interceptor for `open_channel`.

    ``grpc_client_started_total``, ``grpc_client_handled_total``, ``grpc_client_msg_received_total``,
    ``grpc_client_msg_sent_total`` and the histogram ``grpc_client_handling_seconds``; labels as for `ServerMetrics`.
    Retries are part of their call; the messages that they send count.

    Args:
        registry: where to register the metrics; a registry takes them once, so share one object among channels.
        buckets: of the histogram, in seconds; None for no histogram.

    Raises:
        ValueError: the registry has metrics of these names.
    """

    _side = "client"

    async def __call__(self, call: InterceptedCall, proceed: Proceed, /) -> None:
        """Run the call, and count it."""
        await self._measure(call, proceed)


class _Messages(CallObserver):
    """Counts the messages of one call."""

    def __init__(self, sent: Counter, received: Counter) -> None:
        self._sent = sent
        self._received = received

    def message_sent(self, size: int, compressed: bool, attempt: Attempt | None, /) -> None:
        self._sent.inc()

    def message_received(self, size: int, compressed_size: int | None, attempt: Attempt | None, /) -> None:
        self._received.inc()
