"""What calls are made of, for those who measure and trace them: attempts, and the sizes of messages.

An interceptor goes around a whole call, which may be several attempts on the wire. One that wants to know more has a
`CallObserver` told of it. Calls that nobody observes have none of this.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import trio

from trio_grpc._metadata import MetadataLike, encode_metadata
from trio_grpc._status import StatusCode
from trio_grpc._transport.header_codec import Field
from trio_grpc._transport.stream import ObservedStream, Outcome, Stream

_logger = logging.getLogger("trio_grpc")


class AttemptKind(enum.Enum):
    """Why there is an attempt; the values are those of gRFC A96's ``grpc.attempt_type``."""

    ORIGINAL = "original"
    """It is the first one."""
    RETRY = "retry"
    """One before it failed, and a `RetryPolicy` lets another one follow."""
    HEDGE = "hedge"
    """A `HedgingPolicy` wants several."""
    TRANSPARENT_RETRY = "transparent_retry"
    """The server has certainly not run the one before it."""


@final
class Attempt:
    """One attempt of a call: one stream on one connection, if it gets so far.

    Attributes:
        kind: why there is this attempt.
        previous: how many attempts came before it, transparent retries not counted
            (``grpc-previous-rpc-attempts``, gRFC A6).
        metadata: sent with this attempt beside what the call sends; an observer may set it when the attempt starts.
        started: trio's time when it began to look for a connection.
        connected: trio's time when it had one, None if it never had.
        delayed: whether it had to wait for one.
        ended: trio's time of its end, None before.
        status: its status code, None before its end.
        peer: the server's address; empty before there is a connection.
        sent_messages, received_messages: how many messages.
        sent_bytes, received_bytes: bytes of these, compressed where they are, without their prefixes. What has come and
            was never received does not count.
    """

    __slots__ = (
        "_observation",
        "connected",
        "delayed",
        "ended",
        "kind",
        "metadata",
        "peer",
        "previous",
        "received_bytes",
        "received_messages",
        "sent_bytes",
        "sent_messages",
        "started",
        "status",
    )

    def __init__(self, observation: Any, kind: AttemptKind, previous: int) -> None:
        # Made by calls only.
        self._observation: Observation = observation
        self.kind: AttemptKind = kind
        self.previous: int = previous
        self.metadata: MetadataLike | None = None
        self.started: float = trio.current_time()
        self.connected: float | None = None
        self.delayed: bool = False
        self.ended: float | None = None
        self.status: StatusCode | None = None
        self.peer: str = ""
        self.sent_messages: int = 0
        self.received_messages: int = 0
        self.sent_bytes: int = 0
        self.received_bytes: int = 0

    def __repr__(self) -> str:
        status = "open" if self.status is None else self.status.name
        return f"<Attempt {self.kind.value} {status}>"

    # -- for the call

    def _with_metadata(self, fields: Sequence[Field]) -> list[Field]:
        """Return the header fields that the attempt sends, from those of the call."""
        return [*fields, *encode_metadata(self.metadata)]

    def _connect(self, stream: Stream, delayed: bool) -> None:
        """There is a stream, on which nothing was queued yet."""
        self.connected = trio.current_time()
        self.delayed = delayed
        self.peer = stream.peer
        stream.__class__ = ObservedStream
        stream.observer = self
        self._observation.tell("attempt_connected", self)
        stream.on_outcome = partial(self._on_outcome, stream.on_outcome)
        if stream.outcome is not None:
            self._end(stream.outcome.code)

    def _on_outcome(self, told_before: Callable[[Outcome], None] | None, outcome: Outcome) -> None:
        if told_before is not None:
            told_before(outcome)
        self._end(outcome.code)

    def _end(self, status: StatusCode) -> None:
        if self.status is None:
            self.ended = trio.current_time()
            self.status = status
            self._observation.ended(self)

    def message_queued(self, size: int, compressed: bool) -> None:
        """See `ObservedStream`."""
        self.sent_messages += 1
        self.sent_bytes += size
        self._observation.tell("message_sent", size, compressed, self)


class CallObserver:
    """Base of what is told of a call; override what you want to know.

    An interceptor hands one to ``call.observe`` or ``context.observe`` before ``proceed``. Its methods are plain
    functions and must be quick: some run where frames are read, for all calls of a connection. What they raise is
    logged and goes no further.

    Servers have no attempts: of theirs, only messages are told.
    """

    def attempt_started(self, attempt: Attempt, /) -> None:
        """Called when an attempt begins to look for a connection."""

    def attempt_connected(self, attempt: Attempt, /) -> None:
        """Called when an attempt has a connection, before anything is sent."""

    def attempt_ended(self, attempt: Attempt, /) -> None:
        """Called when an attempt has its status. Attempts that never had a connection end, too."""

    def message_sent(self, size: int, compressed: bool, attempt: Attempt | None, /) -> None:
        """Called for each message that is queued to be sent; each attempt sends them anew.

        Args:
            size: its bytes, without the prefix, as they go on the wire.
            compressed: whether they are compressed.
            attempt: which attempt sends it; None on a server.
        """

    def message_received(self, size: int, compressed_size: int | None, attempt: Attempt | None, /) -> None:
        """Called for each message that the application receives, before it is parsed.

        Args:
            size: its bytes, without the prefix, after decompression.
            compressed_size: its bytes as they came; None if they were not compressed.
            attempt: which attempt has received it; None on a server.
        """


class Observation:
    """What stands between one run of a call and its observers.

    Args:
        observers: told in this order.

    Attributes:
        hedged: whether attempts beside the first are hedges.
    """

    __slots__ = ("_observers", "_open", "_previous", "hedged")

    def __init__(self, observers: tuple[CallObserver, ...]) -> None:
        self._observers = observers
        self._open: list[Attempt] = []
        #: Numbers of attempts that have begun: one that comes again is a transparent retry.
        self._previous: set[int] = set()
        self.hedged = False

    def tell(self, name: str, *arguments: object) -> None:
        """Call a method of all observers."""
        for observer in self._observers:
            try:
                getattr(observer, name)(*arguments)
            except Exception:
                _logger.exception("exception in %s.%s", type(observer).__name__, name)

    def begin(self, previous: int) -> Attempt:
        """Return an attempt that begins now, after so many others."""
        if previous in self._previous:
            kind = AttemptKind.TRANSPARENT_RETRY
        elif previous == 0:
            kind = AttemptKind.ORIGINAL
        else:
            kind = AttemptKind.HEDGE if self.hedged else AttemptKind.RETRY
        self._previous.add(previous)
        attempt = Attempt(self, kind, previous)
        self._open.append(attempt)
        self.tell("attempt_started", attempt)
        return attempt

    def ended(self, attempt: Attempt) -> None:
        """Note the end of an attempt."""
        self._open.remove(attempt)
        self.tell("attempt_ended", attempt)

    def close(self, status: StatusCode) -> None:
        """The call has ended with this status, and so have attempts that never had a stream to tell of it."""
        # One that the call went well without was given up.
        left = StatusCode.CANCELLED if status is StatusCode.OK else status
        for attempt in tuple(self._open):
            attempt._end(left)

    def received(self, source: Any, size: int, compressed_size: int | None) -> None:
        """Note a message that came on a stream, or on what stands for one."""
        attempt: Attempt | None = getattr(getattr(source, "live", source), "observer", None)
        if attempt is not None:
            attempt.received_messages += 1
            attempt.received_bytes += size if compressed_size is None else compressed_size
        self.tell("message_received", size, compressed_size, attempt)


def check_observer(observer: object) -> CallObserver:
    """Return what was given as an observer.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(observer, CallObserver):
        raise TypeError(f"observer must be a CallObserver, not {type(observer).__name__}")
    return observer


__all__ = ["Attempt", "AttemptKind", "CallObserver", "Observation", "check_observer"]
