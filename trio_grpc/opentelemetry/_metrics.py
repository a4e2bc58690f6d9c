"""Metrics of calls and attempts: names, units, labels and buckets are those of gRFC A66, and A96 for retries."""

from __future__ import annotations

import re
from typing import Any, final

import trio
from opentelemetry import metrics

from trio_grpc._interceptors import InterceptedCall, Proceed
from trio_grpc._observing import Attempt, AttemptKind, CallObserver
from trio_grpc._options import check_kind
from trio_grpc._servicer import ServicerContext
from trio_grpc._status import StatusCode
from trio_grpc._version import __version__

__all__ = ["ClientMetrics", "ServerMetrics"]

#: Seconds, from A66. They are advice: a program may tell its SDK others.
_LATENCY_BUCKETS = (
    *(0.0, 0.00001, 0.00005, 0.0001, 0.0003, 0.0006, 0.0008, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008),
    *(0.01, 0.013, 0.016, 0.02, 0.025, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5),
    *(0.65, 0.8, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0),
)
#: Bytes, from A66.
_SIZE_BUCKETS = (0.0, *(float(2**power) for power in (10, 11, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32)))
#: A96 leaves these open.
_COUNT_BUCKETS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 100.0, 1000.0)

_TARGET_WITH_SCHEME = re.compile(r"[a-z][a-z0-9+.\-]*:(//|[^0-9])", re.IGNORECASE)


def _meter(meter_provider: metrics.MeterProvider | None) -> metrics.Meter:
    return metrics.get_meter("trio_grpc", __version__, meter_provider)


def _latency(meter: metrics.Meter, name: str, description: str) -> metrics.Histogram:
    return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=_LATENCY_BUCKETS)


def _size(meter: metrics.Meter, name: str, description: str) -> metrics.Histogram:
    return meter.create_histogram(name, "By", description, explicit_bucket_boundaries_advisory=_SIZE_BUCKETS)


def _count(meter: metrics.Meter, name: str, unit: str, description: str) -> metrics.Histogram:
    return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=_COUNT_BUCKETS)


@final
class ClientMetrics:
    """An interceptor for `open_channel`: metrics of calls and attempts.

    ``grpc.client.attempt.started``, ``grpc.client.attempt.duration``,
    ``grpc.client.attempt.sent_total_compressed_message_size``,
    ``grpc.client.attempt.rcvd_total_compressed_message_size`` and ``grpc.client.call.duration``, with the labels
    ``grpc.method``, ``grpc.target`` and, where something has ended, ``grpc.status``.

    Args:
        meter_provider: makes the instruments; default: the global one.
        retries: ``grpc.client.call.retries``, ``.transparent_retries``, ``.hedges`` and ``.retry_delay`` as well, which
            gRFC A96 has off by default.

    Raises:
        TypeError: ``retries`` is no bool.
    """

    def __init__(self, meter_provider: metrics.MeterProvider | None = None, *, retries: bool = False) -> None:
        self._retries: bool = check_kind("retries", retries, bool)
        meter = _meter(meter_provider)
        self._started = meter.create_counter("grpc.client.attempt.started", "{attempt}", "Attempts that have begun.")
        self._attempt_duration = _latency(
            meter, "grpc.client.attempt.duration", "Duration of attempts, with the wait for a connection."
        )
        self._sent = _size(
            meter,
            "grpc.client.attempt.sent_total_compressed_message_size",
            "Bytes of all requests of an attempt, compressed.",
        )
        self._received = _size(
            meter,
            "grpc.client.attempt.rcvd_total_compressed_message_size",
            "Bytes of all responses of an attempt, compressed.",
        )
        self._call_duration = _latency(
            meter, "grpc.client.call.duration", "Duration of calls as the application sees them."
        )
        if self._retries:
            self._retry_counts = {
                AttemptKind.RETRY: _count(meter, "grpc.client.call.retries", "{retry}", "Retries of a call."),
                AttemptKind.TRANSPARENT_RETRY: _count(
                    meter,
                    "grpc.client.call.transparent_retries",
                    "{transparent_retry}",
                    "Transparent retries of a call.",
                ),
                AttemptKind.HEDGE: _count(meter, "grpc.client.call.hedges", "{hedge}", "Hedges of a call."),
            }
            self._retry_delay = _latency(
                meter, "grpc.client.call.retry_delay", "Time of a call without an attempt under way."
            )

    async def __call__(self, call: InterceptedCall, proceed: Proceed, /) -> None:
        """Run the call, and measure it."""
        started = trio.current_time()
        # A66: without the leading slash of the path.
        labels = {"grpc.method": call.method.path[1:], "grpc.target": _canonical(call.target)}
        attempts = _Attempts(self._started, labels)
        call.observe(attempts)
        try:
            await proceed()
        finally:
            status = StatusCode.UNKNOWN if call.status is None else call.status
            self._call_duration.record(trio.current_time() - started, {**labels, "grpc.status": status.name})
            for attempt in attempts.all:
                self._record(attempt, labels)
            if self._retries:
                self._record_retries(attempts.all, labels)

    def _record(self, attempt: Attempt, labels: dict[str, str]) -> None:
        # Not when the attempt ends: the application receives what has come with the status a little later.
        assert attempt.status is not None
        assert attempt.ended is not None
        labels = {**labels, "grpc.status": attempt.status.name}
        self._attempt_duration.record(attempt.ended - attempt.started, labels)
        self._sent.record(attempt.sent_bytes, labels)
        self._received.record(attempt.received_bytes, labels)

    def _record_retries(self, attempts: list[Attempt], labels: dict[str, str]) -> None:
        for kind, histogram in self._retry_counts.items():
            count = sum(attempt.kind is kind for attempt in attempts)
            if count:
                histogram.record(count, labels)
        delay = 0.0
        over = attempts[0].started if attempts else 0.0
        for attempt in attempts:
            delay += max(0.0, attempt.started - over)
            over = max(over, attempt.ended or over)
        if delay:
            self._retry_delay.record(delay, labels)


@final
class ServerMetrics:
    """An interceptor for `serve`: metrics of RPCs.

    ``grpc.server.call.started``, ``grpc.server.call.duration``,
    ``grpc.server.call.sent_total_compressed_message_size`` and ``grpc.server.call.rcvd_total_compressed_message_size``,
    with the labels ``grpc.method`` and, where something has ended, ``grpc.status``. RPCs that reach no handler are not
    counted: no interceptor sees them.

    Args:
        meter_provider: makes the instruments; default: the global one.
    """

    def __init__(self, meter_provider: metrics.MeterProvider | None = None) -> None:
        meter = _meter(meter_provider)
        self._started = meter.create_counter("grpc.server.call.started", "{call}", "RPCs that have begun.")
        self._duration = _latency(meter, "grpc.server.call.duration", "Duration of RPCs as the server sees them.")
        self._sent = _size(
            meter,
            "grpc.server.call.sent_total_compressed_message_size",
            "Bytes of all responses of an RPC, compressed.",
        )
        self._received = _size(
            meter,
            "grpc.server.call.rcvd_total_compressed_message_size",
            "Bytes of all requests of an RPC, compressed.",
        )

    async def __call__(self, context: ServicerContext[Any], proceed: Proceed, /) -> None:
        """Run the RPC, and measure it."""
        started = trio.current_time()
        labels = {"grpc.method": context.method.path[1:]}
        self._started.add(1, labels)
        sizes = _Sizes()
        context.observe(sizes)
        try:
            await proceed()
        finally:
            status = StatusCode.UNKNOWN if context.status is None else context.status
            labels = {**labels, "grpc.status": status.name}
            self._duration.record(trio.current_time() - started, labels)
            self._sent.record(sizes.sent, labels)
            self._received.record(sizes.received, labels)


class _Attempts(CallObserver):
    """Counts attempts as they begin, and keeps them all."""

    def __init__(self, started: metrics.Counter, labels: dict[str, str]) -> None:
        self.all: list[Attempt] = []
        self._started = started
        self._labels = labels

    def attempt_started(self, attempt: Attempt, /) -> None:
        self.all.append(attempt)
        self._started.add(1, self._labels)


class _Sizes(CallObserver):
    """Adds sizes up."""

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0

    def message_sent(self, size: int, compressed: bool, attempt: Attempt | None, /) -> None:
        self.sent += size

    def message_received(self, size: int, compressed_size: int | None, attempt: Attempt | None, /) -> None:
        self.received += size if compressed_size is None else compressed_size


def _canonical(target: str) -> str:
    """Return a target with its scheme (A66); ``dns`` is the one that goes without saying."""
    return target if _TARGET_WITH_SCHEME.match(target) or ":" not in target else f"dns:///{target}"
