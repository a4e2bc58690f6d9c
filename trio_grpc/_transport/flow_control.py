"""The books of HTTP/2 credit (RFC 9113, 5.2 and 6.9), without I/O and with time as an argument.

Outgoing: what the peer lets us send; kept by the loopy writer, raised by the reader. Incoming: what we let the peer
send; kept by the reader's side. Connection credit goes back when DATA arrives (each stream's window already bounds
memory, so holding it back would only let one slow consumer stall the others); stream credit goes back as the
application takes the bytes.
"""

from __future__ import annotations

from math import inf

from trio_grpc._transport.frames import DEFAULT_MAX_FRAME_SIZE, DEFAULT_WINDOW

#: The most that bandwidth-delay growth may advertise per stream and connection; grpc-go and C-core stop there too.
MAX_ADAPTIVE_WINDOW = 16 * 2**20
#: A read of at least this many DATA bytes is worth a bandwidth sample; small calls never pay for a PING.
_SAMPLE_FLOOR = 16_384
#: A round trip measured shorter than this is taken as this long: a loopback RTT of 0 would make any bandwidth infinite.
_RTT_FLOOR = 1e-5
#: Seconds. The longest rest between samples that find nothing new. A PING goes through h2 on both sides, and its ACK
#: interrupts the sender: a sample at every round trip (a PING per MiB on loopback) took 19 % of the CPU of both sides
#: of a stream of 1 MiB messages, and 7 % of one of 100 B.
_LONGEST_REST = 0.5


class OutgoingWindows:
    """Connection-wide credit for sending.

    Attributes:
        connection: bytes of DATA that the connection still lets us send; often zero, never negative.
        granted: all that the peer has ever given the connection.
        initial: the peer's SETTINGS_INITIAL_WINDOW_SIZE as applied by the writer.
        max_frame_size: the peer's SETTINGS_MAX_FRAME_SIZE as applied by the writer.
        starved: the writer has data that only the connection window holds back.
    """

    __slots__ = ("connection", "granted", "initial", "max_frame_size", "starved")

    def __init__(self) -> None:
        self.connection: int = DEFAULT_WINDOW
        self.granted: int = DEFAULT_WINDOW
        self.initial: int = DEFAULT_WINDOW
        self.max_frame_size: int = DEFAULT_MAX_FRAME_SIZE
        self.starved: bool = False

    @property
    def spent(self) -> int:
        """Bytes of DATA written so far."""
        return self.granted - self.connection


class IncomingWindows:
    """Connection-wide credit for receiving, and the size that stream windows aim at.

    Attributes:
        stream_window: what a stream starts with (our SETTINGS_INITIAL_WINDOW_SIZE).
        stream_target: what a stream with a waiting receiver is topped up to; grows with the bandwidth-delay product.
        wakeups: tasks that the read in hand has woken so far; the reader sizes its next read by it.
        estimator: measures the bandwidth-delay product, None where windows do not adapt.
        tolerance: credit a peer may still believe in because it has not seen our SETTINGS yet.
    """

    __slots__ = (
        "_connection_target",
        "_granted",
        "_owed",
        "_remaining",
        "estimator",
        "stream_target",
        "stream_window",
        "tolerance",
        "wakeups",
    )

    def __init__(self, stream_window: int, connection_window: int, *, adaptive: bool) -> None:
        self.stream_window: int = stream_window
        self.stream_target: int = stream_window
        self.tolerance: int = max(0, DEFAULT_WINDOW - stream_window)
        self.estimator: BandwidthEstimator | None = (
            BandwidthEstimator(max(stream_window, DEFAULT_WINDOW)) if adaptive else None
        )
        self.wakeups: int = 0
        self._connection_target = connection_window
        self._remaining = DEFAULT_WINDOW
        self._granted = DEFAULT_WINDOW
        self._owed = connection_window - DEFAULT_WINDOW

    @property
    def connection(self) -> int:
        """Bytes of DATA that the peer may send now, on all streams together."""
        return self._remaining

    @property
    def received(self) -> int:
        """Bytes of DATA that came so far, padding included."""
        return self._granted - self._remaining

    def receive(self, length: int) -> bool:
        """Count a DATA frame of ``length`` bytes, padding included; False when the peer had no credit for it."""
        self._remaining -= length
        self._owed += length
        return self._remaining >= 0

    def credit(self) -> int:
        """Return how much to give back now in one WINDOW_UPDATE on stream 0; 0 while it is not worth a frame.

        A quarter of the window is worth one, as for streams. Half of it would save 9 % of the CPU of 1 MiB unary calls,
        but then a far peer spends every other round trip waiting.
        """
        owed = self._owed
        if owed * 4 < self._connection_target:
            return 0
        self._owed = 0
        self._remaining += owed
        self._granted += owed
        return owed

    def initial_credit(self) -> int:
        """Return what lifts the connection window from RFC 9113's 65,535 to ours, for the first flight."""
        owed, self._owed = max(self._owed, 0), min(self._owed, 0)
        self._remaining += owed
        self._granted += owed
        return owed

    def grow(self, window: int) -> None:
        """Raise the targets to a new bandwidth-delay product."""
        self.stream_target = max(self.stream_target, window)
        if window > self._connection_target:
            self._owed += window - self._connection_target
            self._connection_target = window


class BandwidthEstimator:
    """Bandwidth-delay product by PING, as grpc-go's estimator does it: bytes that arrive between a PING and its ACK.

    A sample of at least two thirds of the current estimate at a new bandwidth maximum doubles the sample into the
    estimate. Sampling stops at the cap, and never starts for small reads, so a peer that counts pings has no reason to
    complain: pings go out only while bulk data comes in. After a sample that changed nothing it rests, first for one
    round trip and each time twice as long (C-core rests too); growth ends the rest.

    Attributes:
        window: the estimate so far, in bytes.
    """

    __slots__ = ("_best_bandwidth", "_rest", "_rest_ends", "_sample", "_sent_at", "window")

    def __init__(self, window: int) -> None:
        self.window: int = window
        self._best_bandwidth = 0.0
        self._sample = 0
        self._sent_at: float | None = None
        self._rest = 0.0
        self._rest_ends = -inf

    def receive(self, length: int, now: float) -> bool:
        """Count DATA bytes of one read; True when a PING should go out now to start a sample."""
        if self._sent_at is not None:
            self._sample += length
            return False
        if length < _SAMPLE_FLOOR or now < self._rest_ends or self.window >= MAX_ADAPTIVE_WINDOW:
            return False
        self._sample = length
        self._sent_at = now
        return True

    def acknowledge(self, now: float) -> int | None:
        """End a sample at its PING's ACK; return the new estimate when it grew."""
        if self._sent_at is None:
            return None
        round_trip = max(now - self._sent_at, _RTT_FLOOR)
        self._sent_at = None
        bandwidth = self._sample / round_trip
        if bandwidth <= self._best_bandwidth or self._sample * 3 < self.window * 2:
            self._rest = min(max(2 * self._rest, round_trip), _LONGEST_REST)
            self._rest_ends = now + self._rest
            return None
        self._best_bandwidth = bandwidth
        self._rest = 0.0
        self.window = min(2 * self._sample, MAX_ADAPTIVE_WINDOW)
        return self.window
