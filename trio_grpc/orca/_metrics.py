"""What a server knows of its load, in a form that checks what it is told."""

from __future__ import annotations

from collections import UserDict
from math import inf
from typing import Any

import attrs

from trio_grpc.orca._v3.orca_load_report_pb2 import OrcaLoadReport


def _check(name: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not low <= value <= high or value in (inf, -inf):
        bounds = (
            f"from {low:g} to {high:g}" if high < inf else f"of {low:g} or more" if low > -inf else "that is finite"
        )
        raise ValueError(f"{name} must be a number {bounds}, got {value}")
    return float(value)


def _number(high: float = inf) -> Any:
    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value is not None:
            _check(attribute.name, value, 0, high)

    return attrs.field(default=None, validator=check)


class Metrics(UserDict[str, float]):
    """Numbers by name, as a `dict` that checks what is put into it; made by `MetricRecorder`."""

    def __init__(self, name: str, low: float = -inf, high: float = inf) -> None:
        super().__init__()
        self._name = name
        self._low = low
        self._high = high

    def __setitem__(self, key: str, value: float) -> None:
        if not isinstance(key, str):
            raise TypeError(f"names in {self._name} must be str, not {type(key).__name__}")
        self.data[key] = _check(f"{self._name}[{key!r}]", value, self._low, self._high)


@attrs.define(kw_only=True, eq=False)
class MetricRecorder:
    """The load of a server, or what one call of it has to report (gRFC A51). Set what is known, whenever it changes.

    The names are those of gRPC's metric recorders. What is None is not reported.

    Attributes:
        cpu_utilization: how busy the processors are, 1.0 for all that they can do; may be more.
        memory_utilization: how much of the memory is used, from 0 to 1.
        application_utilization: how busy the server is by a measure of its own; weights are computed from this one
            rather than from that of the processors. May be over 1.
        qps: queries per second.
        eps: those that fail, per second.
        utilization: of other resources by name, each from 0 to 1.
        request_cost: what the call has cost, by name, in units of your own. Only of calls.
        named_metrics: any other number by name.

    Raises:
        TypeError: what is set is no number.
        ValueError: it is out of range, infinite or NaN; the message names it.
    """

    cpu_utilization: float | None = _number()
    memory_utilization: float | None = _number(1)
    application_utilization: float | None = _number()
    qps: float | None = _number()
    eps: float | None = _number()
    utilization: Metrics = attrs.field(
        init=False, factory=lambda: Metrics("utilization", 0, 1), on_setattr=attrs.setters.frozen
    )
    request_cost: Metrics = attrs.field(
        init=False, factory=lambda: Metrics("request_cost"), on_setattr=attrs.setters.frozen
    )
    named_metrics: Metrics = attrs.field(
        init=False, factory=lambda: Metrics("named_metrics"), on_setattr=attrs.setters.frozen
    )

    def _write(self, report: OrcaLoadReport) -> None:
        """Put what is known into a report, over what is there."""
        if self.cpu_utilization is not None:
            report.cpu_utilization = self.cpu_utilization
        if self.memory_utilization is not None:
            report.mem_utilization = self.memory_utilization
        if self.application_utilization is not None:
            report.application_utilization = self.application_utilization
        if self.qps is not None:
            report.rps_fractional = self.qps
        if self.eps is not None:
            report.eps = self.eps
        report.utilization.update(self.utilization)
        report.named_metrics.update(self.named_metrics)


def load_report(server: MetricRecorder | None, call: MetricRecorder | None = None) -> OrcaLoadReport:
    """Return what a server reports, and the one call where there is one; what the call says goes before (gRFC A51)."""
    report = OrcaLoadReport()
    if server is not None:
        server._write(report)
    if call is not None:
        call._write(report)
        report.request_cost.update(call.request_cost)
    return report


__all__ = ["MetricRecorder", "Metrics"]
