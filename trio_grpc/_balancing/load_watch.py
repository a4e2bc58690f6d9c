"""What a backend reports of its load on a call of its own, for as long as there is a connection to it (gRFC A51)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from trio_grpc._balancing.backoff import Backoff
from trio_grpc._balancing.subchannel_call import keep_calling
from trio_grpc._balancing.wire_fields import bytes_field, varint_field
from trio_grpc._status import StatusCode
from trio_grpc._transport.connection import Connection
from trio_grpc._transport.header_codec import HeaderTemplate
from trio_grpc._transport.stream import Outcome

_logger = logging.getLogger("trio_grpc")

_PATH = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"
_NANOS = 10**9
#: Of a ``google.protobuf.Duration``: 10,000 years.
_LONGEST_PERIOD = 315_576_000_000


class LoadWatch:
    """Asks one backend for its load, over whichever connection there is.

    Args:
        address: of the backend, for the log.
        period: seconds between reports, if the backend agrees.
        on_report: called with each report, an ``OrcaLoadReport``; must not wait or raise.
        start: starts a task, and returns the scope that cancels it.
        request_head: makes the head of a request from its path.
        backoff: the waits between calls that fail.
    """

    def __init__(
        self,
        address: str,
        period: float,
        on_report: Callable[[bytes | bytearray], None],
        start: Callable[[Callable[..., Any]], trio.CancelScope],
        request_head: Callable[[str], HeaderTemplate],
        backoff: Backoff,
    ) -> None:
        self._address = address
        self._request = load_report_request(period)
        self._on_report = on_report
        self._start = start
        self._request_head = request_head
        self._backoff = backoff
        self._connection: Connection | None = None
        self._scope = trio.CancelScope()
        self._told = False

    def move(self, connection: Connection | None) -> None:
        """Ask over this connection from now on; with None over none."""
        if connection is self._connection:
            return
        self._scope.cancel()
        self._connection = connection
        if connection is not None:
            self._scope = self._start(
                partial(
                    keep_calling,
                    connection,
                    self._request_head(_PATH),
                    self._request,
                    backoff=self._backoff,
                    on_start=_ignore,
                    on_message=self._on_report,
                    on_end=self._on_end,
                )
            )

    def _on_end(self, outcome: Outcome) -> None:
        # Not called again on this connection (A51), nor told again for the next one.
        if outcome.code is StatusCode.UNIMPLEMENTED and not self._told:
            self._told = True
            _logger.warning("%s does not serve %s, and its load is not known", self._address, _PATH)


def _ignore() -> None:
    pass


def load_report_request(period: float) -> bytes:
    """Return an ``OrcaLoadReportRequest``, whose first field is a ``google.protobuf.Duration``."""
    seconds, nanos = divmod(round(min(period, _LONGEST_PERIOD) * _NANOS), _NANOS)
    return bytes_field(1, varint_field(1, seconds) + varint_field(2, nanos))


__all__ = ["LoadWatch"]
