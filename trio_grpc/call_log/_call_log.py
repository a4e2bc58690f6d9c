"""One log record for the end of each call, on either side, with its facts as fields."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, final

import trio

from trio_grpc._interceptors import InterceptedCall, Proceed
from trio_grpc._observing import Attempt, CallObserver
from trio_grpc._options import check_kind
from trio_grpc._servicer import ServicerContext
from trio_grpc._status import RpcError, StatusCode

__all__ = ["CallLog", "default_level"]

#: What is nobody's fault, or that of the caller alone (the levels of go-grpc-middleware's logging, for servers).
_INFO = frozenset(
    {
        StatusCode.OK,
        StatusCode.CANCELLED,
        StatusCode.INVALID_ARGUMENT,
        StatusCode.NOT_FOUND,
        StatusCode.ALREADY_EXISTS,
        StatusCode.UNAUTHENTICATED,
    }
)
_ERROR = frozenset({StatusCode.UNKNOWN, StatusCode.UNIMPLEMENTED, StatusCode.INTERNAL, StatusCode.DATA_LOSS})


def default_level(status: StatusCode, /) -> int:
    """Return the level of the record for a call with this status: INFO, WARNING, or ERROR for what looks like a bug."""
    if status in _INFO:
        return logging.INFO
    return logging.ERROR if status in _ERROR else logging.WARNING


class _Counts(CallObserver):
    """How many messages went each way, and how many attempts there were.

    Messages that failed attempts have sent do not count: they were sent anew.
    """

    def __init__(self) -> None:
        self.attempts = 0
        self.sent = 0
        self.received = 0

    def attempt_started(self, attempt: Attempt, /) -> None:
        self.attempts += 1

    def message_sent(self, size: int, compressed: bool, attempt: Attempt | None, /) -> None:
        self.sent = self.sent + 1 if attempt is None else max(self.sent, attempt.sent_messages)

    def message_received(self, size: int, compressed_size: int | None, attempt: Attempt | None, /) -> None:
        self.received += 1


#: What `logging` refuses in ``extra=``.
_RECORD_NAMES = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})


@final
class CallLog:
    """Logs each call when it has ended: an interceptor for `open_channel` and for `serve`, and one object will do.

    The text of a record is for people. For programs, a record has these attributes:

    ============================  =====================================================================================
    ``rpc_side``                  ``"client"`` or ``"server"``
    ``rpc_service``               full name of the service
    ``rpc_method``                name of the method
    ``rpc_kind``                  ``"unary_unary"``, ``"unary_stream"``, ``"stream_unary"`` or ``"stream_stream"``
    ``rpc_peer``                  address of the other side, empty where there was no connection
    ``rpc_status``                name of the status code; None in a record of the start
    ``rpc_message``               message of the status, where an exception of the call had one; empty else
    ``rpc_duration``              seconds
    ``rpc_timeout``               seconds that the call had when it began, None without a deadline
    ``rpc_sent``                  messages sent by this side
    ``rpc_received``              messages received by this side
    ``rpc_attempts``              attempts; 0 on a server
    ============================  =====================================================================================

    Messages and metadata are never logged: they are not ours to show.

    Args:
        logger: where to, a logger or its name.
        level: takes a status code and returns the level of the record; default `default_level`.
        starts: log the start of each call, too, as DEBUG.
        fields: takes the call, which has ended, and returns further attributes for its record: an identity from its
            metadata, say. What it raises is logged in its place. Names that every `logging.LogRecord` has are taken.

    Raises:
        TypeError: an argument is of another type.
    """

    def __init__(
        self,
        logger: logging.Logger | str = "trio_grpc.calls",
        *,
        level: Callable[[StatusCode], int] = default_level,
        starts: bool = False,
        fields: Callable[[Any], Mapping[str, object]] | None = None,
    ) -> None:
        if not isinstance(logger, (logging.Logger, str)):
            raise TypeError(f"logger must be a Logger or str, not {type(logger).__name__}")
        for name, function in ("level", level), ("fields", fields):
            if not callable(function) and (name == "level" or function is not None):
                raise TypeError(f"{name} must be a function, not {type(function).__name__}")
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._level = level
        self._starts: bool = check_kind("starts", starts, bool)
        self._fields = fields

    async def __call__(self, call: InterceptedCall | ServicerContext[Any], proceed: Proceed, /) -> None:
        """Run the call, and log how it went."""
        started = trio.current_time()
        counts = _Counts()
        call.observe(counts)
        method = call.method
        known: dict[str, object] = {
            "rpc_side": "client" if isinstance(call, InterceptedCall) else "server",
            "rpc_service": method.service,
            "rpc_method": method.name,
            "rpc_kind": method.cardinality.name.lower(),
            "rpc_timeout": _timeout(call),
        }
        if self._starts and self._logger.isEnabledFor(logging.DEBUG):
            record = {**known, "rpc_peer": call.peer, "rpc_status": None}
            self._logger.debug("%s %s: started", known["rpc_side"], method.full_name, extra=record)
        message = ""
        try:
            await proceed()
        except RpcError as error:
            message = error.message
            raise
        finally:
            status = StatusCode.UNKNOWN if call.status is None else call.status
            level = self._level_of(status)
            if self._logger.isEnabledFor(level):
                known |= {
                    "rpc_peer": call.peer,
                    "rpc_status": status.name,
                    "rpc_message": message,
                    "rpc_duration": trio.current_time() - started,
                    "rpc_sent": counts.sent,
                    "rpc_received": counts.received,
                    "rpc_attempts": counts.attempts,
                }
                self._log(level, call, known)

    def _level_of(self, status: StatusCode) -> int:
        # A call is not to fail for what its log is told.
        try:
            return check_kind("what level= returns", self._level(status), int)
        except Exception:
            self._logger.exception("exception in the level= of a CallLog")
            return default_level(status)

    def _further(self, call: InterceptedCall | ServicerContext[Any]) -> dict[str, object]:
        if self._fields is None:
            return {}
        try:
            further = dict(self._fields(call))
            taken = sorted(_RECORD_NAMES & further.keys())
            if taken:
                raise ValueError(f"records have attributes of these names: {', '.join(taken)}")
        except Exception:
            self._logger.exception("exception in the fields= of a CallLog")
            return {}
        return further

    def _log(self, level: int, call: InterceptedCall | ServicerContext[Any], known: dict[str, object]) -> None:
        known |= self._further(call)
        message = f": {known['rpc_message']}" if known["rpc_message"] else ""
        self._logger.log(
            level,
            "%s %s: %s after %.3f s%s",
            known["rpc_side"],
            call.method.full_name,
            known["rpc_status"],
            known["rpc_duration"],
            message,
            extra=known,
        )


def _timeout(call: InterceptedCall | ServicerContext[Any]) -> float | None:
    if isinstance(call, InterceptedCall):
        return call.timeout
    remaining = call.time_remaining()
    return None if remaining == float("inf") else remaining
