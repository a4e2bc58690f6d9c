"""One HTTP/2 connection: a byte stream, a reader, a loopy writer, and their common end.

It hands out streams (client) or announces them (server) and knows no servicer, stub or protobuf. Its tasks never raise
for a peer's fault: they record the reason, every live stream is told, and the scope ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from math import inf

import trio
from trio.lowlevel import enable_ki_protection

from trio_grpc._options import ConnectionLifetime, Keepalive, KeepaliveEnforcement, Limits, ServerKeepalive
from trio_grpc._registry import new_id
from trio_grpc._status import StatusCode
from trio_grpc._tls_info import TlsInfo
from trio_grpc._transport import frames
from trio_grpc._transport.byte_stream import ByteStream, Socket
from trio_grpc._transport.control_buffer import ControlBuffer, Farewell, RawFrame
from trio_grpc._transport.flow_control import IncomingWindows, OutgoingWindows
from trio_grpc._transport.frames import ConnectionFault, ErrorCode, error_name
from trio_grpc._transport.header_codec import Field, HeaderTemplate
from trio_grpc._transport.headers import header_list_size, over_peer_limit
from trio_grpc._transport.keepalive import KEEPALIVE_PING, TOO_MANY_PINGS, KeepaliveTimer, PingStrikes
from trio_grpc._transport.lifetime import MAX_AGE, LifetimeTimer
from trio_grpc._transport.loopy_writer import LoopyWriter
from trio_grpc._transport.reader import Reader
from trio_grpc._transport.side import Side
from trio_grpc._transport.stream import Outcome, Stream
from trio_grpc._transport.stream_table import DEFAULT_STREAM_LIMIT, StreamTable, WatchedStreamTable
from trio_grpc._transport.timers import Timer, call_at
from trio_grpc._transport.tls import explain

_logger = logging.getLogger("trio_grpc")

#: Seconds in which a farewell must be written, and for which a server waits for the peer to hang up first: closing a
#: socket with unread input makes the kernel reset it, and the last response would be lost with it.
FAREWELL_TIME = 1.0
#: Seconds between the two GOAWAYs of a drain when the peer does not answer the PING (grpc-go waits as long).
_DRAIN_PING_TIMEOUT = 5.0
_DRAIN_PING = b"trio_bye"
#: What the longest ``grpc-timeout`` adds to a header list.
_TIMEOUT_SIZE = header_list_size([(b"grpc-timeout", b"99999999H")])


def _always() -> bool:
    return True


class ConnectionLost(Exception):
    """The connection ended; its text says why, with the peer's address."""


class Connection:
    """One HTTP/2 connection of either side.

    Args:
        side: which end this is.
        byte_stream: owned from here on.
        limits: what we accept.
        peer: the peer's address, for messages.
        handshake_timeout: seconds for the peer's first SETTINGS to arrive.
        on_stream: called with each new stream (server); must not block or raise.
        on_draining: called once when no new streams may be opened any more (client).
        keepalive: when to ask a quiet peer whether it is there; None for never.
        enforcement: how often the peer may ask (server); None for as often as it likes.
        lifetime: when to end it although nothing is wrong (server); None for never.
        on_too_many_pings: called when the peer says that keepalive asks too often (client).
        tls: what TLS knows of the peer, for the streams; None in plaintext.

    Attributes:
        id: its own in this process, see `new_id`.
        ready: set when the peer's SETTINGS have arrived.
        closed: set when the connection has ended; ``reason`` says why.
        draining: no new streams.
        reason: the exception behind the end, None before it.
        table: the live streams and their slots.
        control_buffer: what is to be written.
        incoming, outgoing: the credit that we give, and that we have.
        reader, writer: the two halves.
    """

    __slots__ = (
        "_byte_stream",
        "_close_when_idle",
        "_drain_pong",
        "_drain_started",
        "_enforcement",
        "_failed",
        "_goaway",
        "_goaway_last_id",
        "_handshake_timeout",
        "_handshake_timer",
        "_hung_up",
        "_keepalive",
        "_keepalive_timeout",
        "_lifetime",
        "_on_draining",
        "_on_too_many_pings",
        "_reading",
        "_said_farewell",
        "_scope",
        "_strikes",
        "closed",
        "control_buffer",
        "draining",
        "id",
        "incoming",
        "limits",
        "outgoing",
        "peer",
        "reader",
        "ready",
        "reason",
        "side",
        "table",
        "writer",
    )

    def __init__(
        self,
        side: Side,
        byte_stream: ByteStream,
        limits: Limits,
        *,
        peer: str,
        handshake_timeout: float,
        on_stream: Callable[[Stream], None] | None = None,
        on_draining: Callable[[], None] | None = None,
        keepalive: Keepalive | ServerKeepalive | None = None,
        enforcement: KeepaliveEnforcement | None = None,
        lifetime: ConnectionLifetime | None = None,
        on_too_many_pings: Callable[[], None] | None = None,
        tls: TlsInfo | None = None,
    ) -> None:
        self.id: int = new_id()
        self.side = side
        self.peer = peer
        self.limits = limits
        self.ready: trio.Event = trio.Event()
        self.closed: trio.Event = trio.Event()
        self.draining: bool = False
        self.reason: BaseException | None = None
        self._enforcement = enforcement
        self._strikes: PingStrikes | None = None
        self._byte_stream = byte_stream
        self._handshake_timeout = handshake_timeout
        self._on_draining = on_draining
        self._on_too_many_pings = on_too_many_pings
        self._handshake_timer: Timer | None = None
        self._drain_pong: trio.Event | None = None
        self._drain_started = False
        #: Set when the peer has hung up, for the writer, where that waits for it.
        self._hung_up: trio.Event | None = None
        self._reading = True
        self._close_when_idle = False
        self._failed = False
        self._said_farewell = False
        self._goaway = ""
        self._goaway_last_id = frames.MAX_STREAM_ID
        self._scope = trio.CancelScope()
        server = side is Side.SERVER
        self.control_buffer: ControlBuffer = ControlBuffer()
        stream_limit = limits.max_concurrent_streams if server else DEFAULT_STREAM_LIMIT
        self._lifetime: LifetimeTimer | None = None
        on_idle = self._on_idle
        if lifetime is not None and min(lifetime.max_idle, lifetime.max_age) < inf:
            self._lifetime = LifetimeTimer(lifetime, busy=self._is_busy)
            if lifetime.max_idle < inf:
                on_idle = self._on_idle_timed
        self.table: StreamTable[Stream] = StreamTable(stream_limit, on_idle)
        self._keepalive: KeepaliveTimer | None = None
        if keepalive is not None and keepalive.time < inf:
            self._keepalive = self._make_keepalive(keepalive)
        self.table.tls = tls
        self.incoming: IncomingWindows = IncomingWindows(
            limits.initial_window_size, limits.initial_connection_window_size, adaptive=limits.adaptive_window
        )
        self.outgoing: OutgoingWindows = OutgoingWindows()
        self.writer: LoopyWriter = LoopyWriter(
            self.control_buffer,
            byte_stream,
            self.outgoing,
            streams=self.table.streams,
            on_ids_exhausted=self._stop_opening,
        )
        settings = {
            frames.SETTINGS_INITIAL_WINDOW_SIZE: limits.initial_window_size,
            frames.SETTINGS_MAX_FRAME_SIZE: limits.max_frame_size,
            frames.SETTINGS_MAX_HEADER_LIST_SIZE: limits.max_header_list_size,
        }
        if server:
            settings[frames.SETTINGS_MAX_CONCURRENT_STREAMS] = limits.max_concurrent_streams
        else:
            settings[frames.SETTINGS_ENABLE_PUSH] = 0
        self.reader: Reader = Reader(
            side,
            byte_stream,
            self.control_buffer,
            self.table,
            self.incoming,
            self.outgoing,
            settings=settings,
            message_limit=limits.receive_limit,
            max_header_list_size=limits.max_header_list_size,
            max_frame_size=limits.max_frame_size,
            max_premature_resets=limits.max_premature_resets,
            max_overhead_frames=limits.max_overhead_frames,
            peer=peer,
            last_opened=self._last_opened,
            on_stream=on_stream,
            on_goaway=self._on_goaway,
            on_settings=self._on_settings,
            on_pong=self._on_pong,
            on_ping=self._on_ping if enforcement is not None else None,
        )

    def _make_keepalive(self, option: Keepalive | ServerKeepalive) -> KeepaliveTimer:
        # A server asks at any time (gRFC A9).
        always = isinstance(option, ServerKeepalive) or option.permit_without_calls
        timer = KeepaliveTimer(
            option.time,
            option.timeout,
            last_read=self._last_read,
            busy=_always if always else self._is_busy,
            ask=self._ask_peer,
            on_dead=self._on_dead_peer,
        )
        if not always:
            self.table = WatchedStreamTable(self.table.limit, self._on_idle, timer.wake)
        self._byte_stream.set_user_timeout(option.timeout)
        self._keepalive_timeout = option.timeout
        return timer

    @property
    def socket(self) -> Socket | None:
        """What the operating system has of it, to be looked at; None where there is no socket, or none any more."""
        return self._byte_stream.socket

    @property
    def keepalive_pings(self) -> int:
        """PINGs that keepalive has sent so far."""
        return 0 if self._keepalive is None else self._keepalive.asked

    # What the timers and the reader look at. Methods, as closures take thrice the memory.

    def _is_busy(self) -> bool:
        return self.table.slots_used > 0

    def _last_read(self) -> float:
        return self.reader.last_read

    def _last_opened(self) -> int:
        return self.writer.last_stream_id

    def _spoken(self) -> int:
        return self.writer.header_blocks + self.outgoing.spent

    def _ask_peer(self) -> None:
        self.control_buffer.put(RawFrame(self.reader.framer.ping(KEEPALIVE_PING)))

    # -- the tasks

    @enable_ki_protection
    async def run(self) -> None:
        """Run the connection until it ends. Never raises for a peer's fault; may be cancelled at any time."""
        credit = self.incoming.initial_credit()
        preface = self.reader.framer.preface + (frames.window_update(0, credit) if credit else b"")
        self.control_buffer.put(RawFrame(preface))
        handshake_ends = trio.current_time() + self._handshake_timeout
        self._handshake_timer = call_at(handshake_ends, self._on_handshake_timeout)
        try:
            async with trio.open_nursery() as nursery:
                # Not around the nursery: a scope takes 600 bytes.
                nursery.cancel_scope.deadline = self._scope.deadline
                self._scope = nursery.cancel_scope
                nursery.start_soon(self._write)
                if self._lifetime is not None:
                    nursery.start_soon(self._end_in_time, self._lifetime)
                await self._read()
                self._reading = False
                if self._hung_up is not None:
                    self._hung_up.set()
        finally:
            self._end_handshake()
            if self._keepalive is not None:
                self._keepalive.end()
            self._fail(ConnectionLost(f"connection to {self.peer} was closed"))
            try:
                await self._byte_stream.aclose()
            finally:
                # Closing is a checkpoint, and this task may have been cancelled.
                self.closed.set()

    async def _read(self) -> None:
        try:
            await self.reader.run()
        except ConnectionFault as fault:
            self._break(fault)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._lose(error)
        except Exception as error:
            _logger.exception("internal error while reading from %s", self.peer)
            self._break(ConnectionFault(ErrorCode.INTERNAL_ERROR, "internal error"), error)
        else:
            self._lose(None)

    # Each task needs it anew: nurseries do not hand it down.
    @enable_ki_protection
    async def _write(self) -> None:
        try:
            await self.writer.run()
            # The farewell is out. A reader that waits for its replies to leave would wait in vain.
            self.control_buffer.close(self.reason)
            # Let the peer hang up first where that may save a response in flight.
            if self.side is Side.SERVER:
                with trio.move_on_after(FAREWELL_TIME):
                    await self._byte_stream.send_eof()
                    if self._reading:
                        self._hung_up = trio.Event()
                        await self._hung_up.wait()
        except trio.EndOfChannel:
            # The control buffer was closed: the reader has already said why.
            return
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._lose(error)
        except Exception as error:
            _logger.exception("internal error while writing to %s", self.peer)
            self._fail(error)
        finally:
            self._scope.cancel()

    @enable_ki_protection
    async def _end_in_time(self, lifetime: LifetimeTimer) -> None:
        """What a server has in store for connections although nothing is wrong with them (gRFC A9)."""
        reason = await lifetime.wait()
        await self._announce_drain(reason)
        if reason == MAX_AGE:
            # Counted from the second GOAWAY, as gRFC A9 would have it.
            await trio.sleep(lifetime.max_age_grace)
            for stream in list(self.table.streams.values()):
                stream.drop_chunks()
                stream.refuse(StatusCode.UNAVAILABLE, "the connection has reached its max_age and max_age_grace")
            await trio.sleep(FAREWELL_TIME)
            # A client that does not take even that.
            self._break(ConnectionFault(ErrorCode.NO_ERROR, "max_age"))

    # -- what the timers report

    def _end_handshake(self) -> None:
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None

    def _on_handshake_timeout(self) -> None:
        """RFC 9113, 3.4: the peer's SETTINGS come first; one that keeps silent does not keep its place."""
        reason = f"no SETTINGS frame from the peer in {self._handshake_timeout:g} s"
        self._break(ConnectionFault(ErrorCode.SETTINGS_TIMEOUT, reason))

    def _on_dead_peer(self) -> None:
        """Its answers do not come, so there is nothing to say to it: whoever stands in a write is called back."""
        error = TimeoutError(f"keepalive: no answer to a PING in {self._keepalive_timeout:g} s")
        _logger.info("connection to %s ended: %s", self.peer, error)
        self._lose(error)
        self._scope.cancel()

    # -- ends

    def _break(self, fault: ConnectionFault, cause: BaseException | None = None) -> None:
        """A connection error (RFC 9113, 5.4.1): tell the streams, tell the peer, and stop."""
        # A limit of ours is something that an operator may want to raise.
        level = logging.WARNING if fault.error_code == ErrorCode.ENHANCE_YOUR_CALM else logging.INFO
        _logger.log(level, "connection to %s ended with %s: %s", self.peer, error_name(fault.error_code), fault.reason)
        lost = ConnectionLost(f"connection to {self.peer} failed: {fault.reason}")
        lost.__cause__ = cause or fault
        # Before the last stream leaves: a connection that drains would say goodbye as if nothing had happened.
        self._put_farewell(fault.error_code, fault.reason.encode("utf-8", "replace")[:256])
        self._end_streams(lost)

    def _lose(self, error: BaseException | None) -> None:
        """The byte stream ended or failed: nothing more can be said."""
        text = (
            f"connection closed by {self.peer}"
            if error is None
            else f"connection to {self.peer} lost: {explain(error)}"
        )
        if self.side is Side.CLIENT and not self.ready.is_set() and (error is None or isinstance(error, OSError)):
            text += " before it said a word, as servers do that want TLS or a certificate"
        if self._goaway:
            # Often it says why.
            text += f"; before that, {self._goaway}"
        lost = ConnectionLost(text)
        lost.__cause__ = error
        self._fail(lost)

    def _fail(self, reason: BaseException) -> None:
        """Every live stream ends, every control frame is orphaned. Synchronous and idempotent."""
        if not self._failed:
            self._failed = True
            self._end_streams(reason)
            self.control_buffer.close(self.reason)
            self.writer.orphan_all()
            if self._drain_pong is not None:
                self._drain_pong.set()
        self._put_farewell(ErrorCode.NO_ERROR, b"")

    def _end_streams(self, reason: BaseException, *, locally: bool = False) -> None:
        if self.reason is None:
            self.reason = reason
        self._stop_opening(self.reason)
        outcome = Outcome(StatusCode.UNAVAILABLE, str(self.reason), cause=self.reason, closed_locally=locally)
        for stream in list(self.table.streams.values()):
            if self.side is Side.SERVER:
                stream.abandon(str(self.reason))
            elif locally:
                stream.end(outcome)
                stream.cancel("channel closed")
            else:
                stream.lose(outcome)

    def _stop_opening(self, reason: BaseException | None = None) -> None:
        self.writer.refusing = True
        self.table.refuse(reason or ConnectionLost(f"connection to {self.peer} takes no more calls"))
        if not self.draining:
            self.draining = True
            if self._on_draining is not None:
                self._on_draining()

    def _put_farewell(self, error_code: int, debug_data: bytes) -> None:
        if not self._said_farewell:
            self._said_farewell = True
            # A peer that no longer reads must not keep the connection: time to write it, and for the peer to hang up.
            self._scope.deadline = trio.current_time() + 2 * FAREWELL_TIME
            last = min(self.reader.last_peer_stream_id, self.reader.refuse_above)
            self.control_buffer.put(Farewell(frames.goaway(last, error_code, debug_data)))

    def _on_idle(self) -> None:
        """The last stream has left: a connection that is draining ends here."""
        if self._close_when_idle:
            self._put_farewell(ErrorCode.NO_ERROR, b"")

    def _on_idle_timed(self) -> None:
        assert self._lifetime is not None
        self._lifetime.on_idle()
        self._on_idle()

    async def aclose(self) -> None:
        """End all streams, say GOAWAY, and wait for the end. Bounded by the caller's scope; idempotent."""
        self._end_streams(trio.ClosedResourceError("channel closed"), locally=True)
        self._put_farewell(ErrorCode.NO_ERROR, b"")
        await self.closed.wait()

    def retire(self) -> None:
        """Take no new streams from now on; end once those in flight have ended (client). Nothing is waited for.

        Streams that are queued and not written yet are in flight: unlike with a GOAWAY the peer still takes them.
        """
        self.draining = True
        self.table.refuse(ConnectionLost(f"connection to {self.peer} takes no more calls"))
        self._close_when_idle = True
        if not self.table.slots_used:
            self._on_idle()

    def stop_accepting(self) -> None:
        """Take no new streams from now on (server). The peer is told, so it may open elsewhere what we do not see."""
        last = self.reader.last_peer_stream_id
        if self.reader.refuse_above > last and not self.closed.is_set():
            self.reader.refuse_above = last
            self.control_buffer.put(RawFrame(frames.goaway(last, ErrorCode.NO_ERROR, b"server is shutting down")))

    async def finish(self) -> None:
        """Write what the streams have queued, their handlers being over, then `aclose` (server).

        A peer that does not take it is not waited for.
        """
        self._close_when_idle = True
        if not self.table.slots_used:
            self._on_idle()
        with trio.move_on_after(FAREWELL_TIME):
            await self.closed.wait()
        await self.aclose()

    async def drain(self) -> None:
        """Take no new streams, finish the old ones, then end; in two steps, so that no call is lost in flight.

        GOAWAY with the highest id tells the peer to stop opening; after its PING ACK nothing that it opened before can
        still be under way, and the second GOAWAY names the real last id (RFC 9113, 6.8; gRFC A9).
        """
        await self._announce_drain(b"graceful_stop")
        await self.closed.wait()

    async def _announce_drain(self, debug_data: bytes) -> None:
        """The two GOAWAYs of a drain; the connection ends with its last stream from then on."""
        if self._drain_started or self.closed.is_set():
            return
        self._drain_started = True
        self.control_buffer.put(RawFrame(frames.goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR, debug_data)))
        self.control_buffer.put(RawFrame(self.reader.framer.ping(_DRAIN_PING)))
        if not self._failed:
            self._drain_pong = trio.Event()
            with trio.move_on_after(_DRAIN_PING_TIMEOUT):
                await self._drain_pong.wait()
        last = self.reader.last_peer_stream_id
        self.reader.refuse_above = last
        self.control_buffer.put(RawFrame(frames.goaway(last, ErrorCode.NO_ERROR, debug_data)))
        self._close_when_idle = True
        if not self.table.slots_used:
            self._on_idle()

    # -- what the reader reports

    def _on_settings(self) -> None:
        if not self.ready.is_set():
            self.ready.set()
            self._end_handshake()
            if self._keepalive is not None:
                self._keepalive.begin()

    def _on_ping(self, now: float) -> None:
        if self._strikes is None:
            assert self._enforcement is not None
            self._strikes = PingStrikes(self._enforcement, busy=self._is_busy, spoken=self._spoken)
        self._strikes.receive(now)

    def _on_pong(self, payload: bytes) -> None:
        if payload == _DRAIN_PING and self._drain_pong is not None:
            self._drain_pong.set()

    def _on_goaway(self, last_stream_id: int, error_code: int, debug_data: bytes) -> None:
        """The peer takes no streams above ``last_stream_id``; those up to it finish (RFC 9113, 6.8)."""
        if self.side is Side.SERVER:
            # A client that says goodbye opens nothing more; its open calls go on.
            return
        # It goes into logs and onto terminals, where a peer must not write lines of its own.
        decoded = debug_data[:256].decode("utf-8", "replace")
        text = "".join(char if char.isprintable() else "?" for char in decoded)
        self._goaway_last_id = last_stream_id
        self._goaway = f"{self.peer} is going away: {error_name(error_code)}" + (f" ({text})" if text else "")
        reason = ConnectionLost(self._goaway)
        if error_code != ErrorCode.NO_ERROR:
            _logger.warning("%s", reason)
            if (error_code, debug_data) == (ErrorCode.ENHANCE_YOUR_CALM, TOO_MANY_PINGS) and self._on_too_many_pings:
                self._on_too_many_pings()
        self._stop_opening(reason)
        outcome = Outcome(StatusCode.UNAVAILABLE, str(reason), cause=reason, unprocessed=True)
        for stream in list(self.table.streams.values()):
            if stream.stream_id > last_stream_id:
                stream.lose(outcome)
        self._close_when_idle = True
        if not self.table.slots_used:
            self._on_idle()

    # -- opening streams (client)

    @property
    def took_calls(self) -> bool:
        """Whether at least one call went out that the peer has not disowned with a GOAWAY (client)."""
        return self.table.opened > 0 and min(self.writer.last_stream_id, self._goaway_last_id) > 0

    async def acquire(self) -> Connection:
        """Take a slot for a call, waiting in line for one; return the connection that it is on (client).

        That is this one, or another one where several share a line.

        Raises:
            ConnectionLost, trio.ClosedResourceError: none of them takes calls any more.
        """
        owner: Connection | None = await self.table.acquire()
        return self if owner is None else owner

    def open_stream(
        self,
        head: HeaderTemplate,
        literals: Sequence[Field],
        message_limit: int | None = None,
        kind: type[Stream] = Stream,
    ) -> Stream:
        """Make a stream for a slot that the caller has acquired from ``table``. Nothing is queued yet.

        Where the server would not accept the headers, the stream has ended before it begins, and takes no id.
        """
        stream = kind(
            self.control_buffer,
            self.table,
            self.incoming,
            stream_id=0,
            send_window=0,
            message_limit=self.limits.receive_limit if message_limit is None else message_limit,
            peer=self.peer,
        )
        stream.head = head
        stream.head_literals = literals
        # A deadline is allowed for in advance: only calls with metadata are counted. (It comes before metadata.)
        if head.list_size + _TIMEOUT_SIZE > self.table.peer_header_list_limit or (
            literals and literals[-1][0] != b"grpc-timeout"
        ):
            self._check_size(stream, head, literals)
        return stream

    def _check_size(self, stream: Stream, head: HeaderTemplate, literals: Sequence[Field]) -> None:
        """End a call here whose headers the server would not accept, or would answer with an end of the connection.

        C-core does so with this status, grpc-go with INTERNAL; PROTOCOL-HTTP2 leaves it open.
        """
        limit = self.table.peer_header_list_limit
        size = head.list_size + header_list_size(literals)
        if size > limit:
            message = over_peer_limit("request metadata", size, limit, "server")
            stream.end(Outcome(StatusCode.RESOURCE_EXHAUSTED, message))
            stream.reset(ErrorCode.CANCEL)
