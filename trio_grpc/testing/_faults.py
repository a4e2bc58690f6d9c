"""What can go wrong between a client and a server, when a test wants it to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import trio

from trio_grpc._options import check_kind, check_seconds
from trio_grpc._transport import frames
from trio_grpc._transport.frames import ErrorCode
from trio_grpc.testing._faulty_link import Conditions, FrameReader, LinkEnd, Pipe


class Faults:
    """The network between a client and a server in memory, and all that can happen to it.

    Give it to `open_channel_pair` or to a `MemoryListener` as ``faults=``, and have things go wrong while the test
    runs. Each change holds for all connections, those to come included; what `cut`, `cut_after`, `goaway` and
    `reset_stream` do happens to those that there are. Nothing waits in real time, nothing is random, and there are no
    tasks: under ``autojump_clock`` the times are exact.

    Args:
        latency: see the attribute.
        bandwidth: see the attribute.

    Raises:
        TypeError, ValueError: an argument is no number, or out of range.
    """

    def __init__(self, *, latency: float = 0.0, bandwidth: float | None = None) -> None:
        self._conditions = Conditions(0.0, None)
        self._links: list[_Link] = []
        self._refusing = False
        self.latency = latency
        self.bandwidth = bandwidth

    # -- the network

    @property
    def latency(self) -> float:
        """Seconds that bytes are under way, in one direction; connecting takes two of them. May be set at any time.

        Bytes keep their order, and those under way keep their time.
        """
        return self._conditions.latency

    @latency.setter
    def latency(self, seconds: float) -> None:
        self._conditions.latency = check_seconds("latency", seconds)

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second in each direction of each connection, None for no limit. May be set at any time.

        A sender waits when 64 KiB are under way, as with a socket.
        """
        return self._conditions.bandwidth

    @bandwidth.setter
    def bandwidth(self, bytes_per_second: float | None) -> None:
        if bytes_per_second is not None:
            if isinstance(bytes_per_second, bool) or not isinstance(bytes_per_second, (int, float)):
                raise TypeError(f"bandwidth must be bytes per second, not {type(bytes_per_second).__name__}")
            if not bytes_per_second > 0:
                raise ValueError(f"bandwidth must be more than 0 bytes per second, got {bytes_per_second}")
        self._conditions.bandwidth = bytes_per_second

    def freeze(self) -> None:
        """Let nothing arrive any more, and tell nobody: a cable that was pulled, a machine that hangs."""
        self._conditions.frozen = True

    def thaw(self) -> None:
        """Let arrive what was sent meanwhile, and what comes."""
        self._conditions.frozen = False
        for link in self._links:
            link.wake()

    def refuse_connections(self) -> None:
        """Refuse new connections, as a machine does on which nobody listens; those that there are go on."""
        self._refusing = True

    def accept_connections(self) -> None:
        """Take new connections again."""
        self._refusing = False

    # -- connections that there are

    @property
    def connections(self) -> int:
        """How many connections there are: neither cut, nor closed by one of their ends."""
        return len(self._live())

    def cut(self) -> None:
        """Cut all connections: both ends get an error, and what was under way is lost."""
        for link in self._live():
            link.cut()

    def cut_after(self, count: int, *, toward: Literal["client", "server"]) -> None:
        """Cut each connection when so many more bytes have arrived at one end, wherever in a frame that is.

        Args:
            count: how many bytes still arrive.
            toward: at which end they are counted.

        Raises:
            TypeError, ValueError: an argument is malformed.
        """
        if check_kind("count", count, int) < 0:
            raise ValueError(f"count must not be negative, got {count}")
        if toward not in ("client", "server"):
            raise ValueError(f"toward must be 'client' or 'server', not {toward!r}")
        for link in self._live():
            (link.to_client if toward == "client" else link.to_server).cut_after(count)

    def goaway(self, error_code: int = ErrorCode.NO_ERROR, debug_data: bytes = b"") -> None:
        """Have the server's end say GOAWAY on each connection (RFC 9113, 6.8), as a proxy does that restarts.

        The streams that the server has seen go on. It does not get to see those that the client begins before it
        knows: as GOAWAY promises, nobody works on them.

        Args:
            error_code: the reason.
            debug_data: a text for people.

        Raises:
            TypeError, ValueError: an argument is malformed.
            RuntimeError: a connection has TLS, so that nobody in between can say anything.
        """
        _check_error_code(error_code)
        check_kind("debug_data", debug_data, bytes)
        for link in self._live():
            link.goaway(error_code, debug_data)

    def reset_stream(self, stream_id: int | None = None, error_code: int = ErrorCode.CANCEL) -> None:
        """Reset a stream in the name of the other end, for both ends (RFC 9113, 6.4).

        Args:
            stream_id: which; None: all streams that are open.
            error_code: the reason.

        Raises:
            ValueError: no connection has such a stream that is open, or there is no such error code.
            TypeError: an argument is no number.
            RuntimeError: a connection has TLS, so that nobody in between can say anything.
        """
        if stream_id is not None:
            check_kind("stream_id", stream_id, int, " or None")
        _check_error_code(error_code)
        found = [link.reset(stream_id, error_code) for link in self._live()]
        if stream_id is not None and not any(found):
            raise ValueError(f"stream_id: no connection has an open stream {stream_id}")

    @property
    def open_streams(self) -> tuple[int, ...]:
        """The numbers of the streams that are open on any connection, as far as the network has seen."""
        return tuple(sorted(number for link in self._live() for number in link.open_streams))

    # -- making connections

    async def connect(self, accept: Callable[[trio.abc.Stream], Awaitable[None] | None]) -> trio.abc.Stream:
        """Make a connection.

        Args:
            accept: gets the server's end.

        Returns:
            The client's end.

        Raises:
            ConnectionRefusedError: connections are refused.
        """
        await trio.sleep(2 * self.latency)
        if self._refusing:
            raise ConnectionRefusedError("connections are refused: Faults.refuse_connections() was called")
        link = _Link(self._conditions)
        self._links = [*self._live(), link]
        accepted = accept(link.server_end)
        if accepted is not None:
            await accepted
        return link.client_end

    def _live(self) -> list[_Link]:
        return [link for link in self._links if link.is_live]

    def __repr__(self) -> str:
        words = [f"latency={self.latency:g}"]
        if self.bandwidth is not None:
            words.append(f"bandwidth={self.bandwidth:g}")
        if self._conditions.frozen:
            words.append("frozen")
        if self._refusing:
            words.append("refusing connections")
        return f"<Faults {', '.join(words)}; {self.connections} connections>"


def _check_error_code(error_code: int) -> None:
    if not 0 <= check_kind("error_code", error_code, int) < 1 << 32:
        raise ValueError(f"error_code must be a number of 32 bits, got {error_code}")


class _Link:
    """One connection."""

    def __init__(self, conditions: Conditions) -> None:
        self._requests = FrameReader(frames.PREFACE, self._from_client)
        self._responses = FrameReader(b"", self._from_server)
        self.to_server = Pipe(conditions, self._requests, self.cut)
        self.to_client = Pipe(conditions, self._responses, self.cut)
        self.client_end = LinkEnd(self.to_server, self.to_client)
        self.server_end = LinkEnd(self.to_client, self.to_server)
        self.open_streams: set[int] = set()
        self._last_stream_id = 0
        self._last_allowed = frames.MAX_STREAM_ID

    @property
    def is_live(self) -> bool:
        return not any(pipe.broken or pipe.ended for pipe in (self.to_client, self.to_server))

    def wake(self) -> None:
        self.to_client.wake()
        self.to_server.wake()

    def cut(self) -> None:
        self.to_client.break_off()
        self.to_server.break_off()

    def goaway(self, error_code: int, debug_data: bytes) -> None:
        self._check_readable()
        self._last_allowed = self._last_stream_id
        self._requests.filtering = True
        self.to_client.inject(frames.goaway(self._last_stream_id, error_code, debug_data))

    def reset(self, stream_id: int | None, error_code: int) -> bool:
        self._check_readable()
        chosen = [number for number in sorted(self.open_streams) if stream_id in (None, number)]
        for number in chosen:
            self.open_streams.discard(number)
            for pipe in (self.to_client, self.to_server):
                pipe.inject(frames.rst_stream(number, error_code))
        return bool(chosen)

    def _check_readable(self) -> None:
        if self._requests.opaque or self._responses.opaque:
            raise RuntimeError("this connection has TLS: no frame can be put into it from outside")

    def _from_client(self, frame_type: int, _flags: int, stream_id: int) -> bool:
        if stream_id > self._last_allowed:
            return False
        if frame_type == frames.HEADERS and stream_id > self._last_stream_id:
            self._last_stream_id = stream_id
            self.open_streams.add(stream_id)
        elif frame_type == frames.RST_STREAM:
            self.open_streams.discard(stream_id)
        return True

    def _from_server(self, frame_type: int, flags: int, stream_id: int) -> bool:
        ends = frame_type in (frames.HEADERS, frames.DATA) and flags & frames.END_STREAM
        if ends or frame_type == frames.RST_STREAM:
            self.open_streams.discard(stream_id)
        return True


__all__ = ["Faults"]
