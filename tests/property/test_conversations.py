"""Long random conversations with h2 as the judge: it plays the server, then the client, and then we talk to ourselves.

Calls of all kinds run side by side; messages, resets, deadlines, cancellations, window changes, settings, pings and
GOAWAY come in any order; the bytes of both directions are cut at any place. Every message arrives once and in order, or
its call has a status that tells why not. At the end both sides agree on every window, all credit has come back, no
reply to a control frame is missing, no stream is open, and h2, which holds each frame that it is given against RFC
9113, has found nothing to complain of.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from random import Random
from typing import Any
from unittest import mock

import attrs
import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import hypothesis
import pytest
import trio
import trio._core._run as trio_run
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub
from hypothesis import given
from hypothesis import strategies as st

import trio_grpc
from tests.support.echo import Echo
from trio_grpc import Channel, KeepaliveEnforcement, Limits, RpcError, StatusCode
from trio_grpc._transport import frames
from trio_grpc._transport.connection import Connection
from trio_grpc._transport.messages import MessageAssembler, frame_message
from trio_grpc._transport.side import Side
from trio_grpc.testing import MemoryListener

# Hypothesis shall see the same schedule whenever it tries an example again.
hypothesis.register_random(trio_run._r)

#: HYPOTHESIS_PROFILE=explore looks for new ones for some minutes.
bounded = hypothesis.settings(max_examples=60 if hypothesis.settings.default.derandomize else 3000)

Clock = trio.testing.MockClock

KINDS = ["Unary", "ServerStream", "ClientStream", "Bidi"]
#: What stands for "all streams" in the first of two GOAWAYs.
ALL_STREAMS = 2**31 - 1
#: How the bytes of a connection may be cut: mostly into something, now and then into single bytes.
CUTS = [1, 2, 3, 8, 9, 10, 14, 100, 1000, 20_000, 10**6, 10**6]


@attrs.frozen
class CallPlan:
    """One call.

    Attributes:
        kind: the name of the method.
        sizes: bytes of each request's payload.
        replies: how many replies a server stream has.
        delay: ticks before it starts.
        leaves_after: replies after which the client gives up, None for never.
        fails_after: requests after which the server resets or fails, None for never.
        timeout: seconds that the call may take, None for no deadline.
        cancelled_after: seconds after which its caller is cancelled, None for never.
    """

    kind: str
    sizes: list[int]
    replies: int
    delay: int
    leaves_after: int | None
    fails_after: int | None
    timeout: float | None
    cancelled_after: float | None


sizes = st.lists(st.sampled_from([0, 1, 5, 90, 1000, 16_380, 16_400, 70_000]), max_size=6)
#: From before anything was said to after all was done; mostly none.
moments = st.none() | st.none() | st.none() | st.sampled_from([0.0, 0.001, 0.006, 0.011, 0.026, 0.051, 0.2])
plans = st.builds(
    CallPlan,
    kind=st.sampled_from(KINDS),
    sizes=sizes,
    replies=st.integers(0, 5),
    delay=st.integers(0, 5),
    leaves_after=st.none() | st.integers(0, 4),
    fails_after=st.none() | st.none() | st.integers(0, 4),
    timeout=moments,
    cancelled_after=moments,
)
conversations = st.lists(plans, min_size=1, max_size=8)
seeds = st.integers(0, 2**32)
#: What lets little of several streams through at once, and the default.
connection_windows = st.sampled_from([65_535, 65_535, 2**20])
#: When the server says goodbye, in ticks.
goodbyes = st.none() | st.integers(0, 40)
windows = st.sampled_from([100, 5000, 65_535, 65_535, 300_000])


class Cut(trio.abc.Stream):
    """A stream whose reads are of any size."""

    def __init__(self, stream: trio.abc.Stream, random: Random) -> None:
        self._stream = stream
        self._random = random

    async def send_all(self, data: Any) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(min(max_bytes or 10**6, self._random.choice(CUTS)))

    async def aclose(self) -> None:
        await self._stream.aclose()


class CutListener(MemoryListener):
    """A listener whose connections are cut at both ends."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    async def connect(self) -> trio.abc.Stream:
        return Cut(await super().connect(), self._random)

    async def accept(self) -> trio.abc.Stream:
        return Cut(await super().accept(), self._random)


def request(number: int, size: int, count: int = 0) -> EchoRequest:
    return EchoRequest(payload=bytes([number % 251]) * size, count=count, text=str(number))


# ---------------------------------------------------------------------------------------------------------------------
# Our client: runs the plans against any server.


async def run_client(channel: Channel, conversation: list[CallPlan], *, forgiving: bool = False) -> None:
    """Run all calls side by side; check what each of them gets, a status included where it fails.

    Args:
        channel: carries the calls.
        conversation: what to do.
        forgiving: whether streams may end with UNAVAILABLE, as those that a GOAWAY did not spare do.
    """
    stub = EchoStub(channel)

    async def run(number: int, plan: CallPlan) -> None:
        await trio.sleep(plan.delay * 0.01)
        with trio.CancelScope() as scope:
            if plan.cancelled_after is not None:
                nursery.start_soon(cancel_later, scope, plan.cancelled_after)
            try:
                await RUNNERS[plan.kind](stub, number, plan)
            except RpcError as error:
                allowed = allowed_statuses(plan)
                if forgiving and plan.kind != "Unary":
                    allowed.add(StatusCode.UNAVAILABLE)
                if error.code not in allowed:
                    raise

    async with trio.open_nursery() as nursery:
        for number, plan in enumerate(conversation):
            nursery.start_soon(run, number, plan)


async def cancel_later(scope: trio.CancelScope, seconds: float) -> None:
    await trio.sleep(seconds)
    scope.cancel()


def allowed_statuses(plan: CallPlan) -> set[StatusCode]:
    """The statuses other than OK that a call may end with."""
    allowed: set[StatusCode] = set()
    if plan.fails_after is not None:
        # Those that `H2Server` resets with, and the one of the trailers.
        allowed |= {
            StatusCode.FAILED_PRECONDITION,
            StatusCode.INTERNAL,
            StatusCode.CANCELLED,
            StatusCode.RESOURCE_EXHAUSTED,
        }
    if plan.timeout is not None:
        allowed.add(StatusCode.DEADLINE_EXCEEDED)
    return allowed


def metadata_of(number: int, plan: CallPlan) -> dict[str, str]:
    """Who calls, of whatever size, and what tells the server when to fail."""
    metadata = {"x-number": str(number), f"x-padding-{number % 3}": "x" * (number * 37 % 200)}
    if plan.fails_after is not None:
        metadata["x-fails-after"] = str(plan.fails_after)
    return metadata


async def run_unary(stub: EchoStub, number: int, plan: CallPlan) -> None:
    size = plan.sizes[0] if plan.sizes else 0
    with trio.move_on_after(0.01 if plan.leaves_after == 0 else 10_000):
        reply = await stub.Unary(request(number, size), metadata=metadata_of(number, plan), timeout=plan.timeout)
        assert (reply.text, reply.payload) == (str(number), request(number, size).payload)


async def run_server_stream(stub: EchoStub, number: int, plan: CallPlan) -> None:
    size = plan.sizes[0] if plan.sizes else 0
    sent = request(number, size, plan.replies)
    async with stub.ServerStream(sent, metadata=metadata_of(number, plan), timeout=plan.timeout) as call:
        received = 0
        while received != plan.leaves_after:
            try:
                reply = await call.receive()
            except trio.EndOfChannel:
                assert received == plan.replies
                assert call._stream.unconsumed == 0
                return
            assert (reply.count, reply.payload) == (received, sent.payload)
            received += 1


async def run_client_stream(stub: EchoStub, number: int, plan: CallPlan) -> None:
    async with stub.ClientStream.open(metadata=metadata_of(number, plan), timeout=plan.timeout) as call:
        try:
            for count, size in enumerate(plan.sizes):
                if count == plan.leaves_after:
                    return
                await call.send(request(number, size))
            await call.done_sending()
        except trio.BrokenResourceError:
            pass  # told why below
        reply = await call.receive()
        assert reply.count == len(plan.sizes)
        assert reply.payload == b"".join(request(number, size).payload for size in plan.sizes)


async def run_bidi(stub: EchoStub, number: int, plan: CallPlan) -> None:
    options: dict[str, Any] = {"metadata": metadata_of(number, plan), "timeout": plan.timeout}
    async with stub.Bidi(**options) as call, trio.open_nursery() as nursery:

        @nursery.start_soon
        async def send() -> None:
            try:
                for count, size in enumerate(plan.sizes):
                    await call.send(request(number, size, count))
                await call.done_sending()
            except trio.BrokenResourceError:
                return  # the receiver is told why

        error: RpcError | None = None
        received = 0
        while received != plan.leaves_after:
            try:
                reply = await call.receive()
            except trio.EndOfChannel:
                assert received == len(plan.sizes)
                assert call._stream.unconsumed == 0
                break
            except RpcError as caught:
                # Not from here: it would come out in the group of this nursery.
                error = caught
                break
            assert (reply.count, reply.text, len(reply.payload)) == (received, str(number), plan.sizes[received])
            received += 1
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error


RUNNERS: dict[str, Callable[[EchoStub, int, CallPlan], Awaitable[None]]] = {
    "Unary": run_unary,
    "ServerStream": run_server_stream,
    "ClientStream": run_client_stream,
    "Bidi": run_bidi,
}


# ---------------------------------------------------------------------------------------------------------------------
# The judge's side: what an h2 client and an h2 server share.


@attrs.define(eq=False)
class H2Stream:
    """One stream as the judge sees it."""

    stream_id: int
    path: str = ""
    number: str = ""
    began: float = 0.0
    fails_after: int | None = None
    assembler: MessageAssembler = attrs.field(factory=lambda: MessageAssembler(10**8))
    messages: list[bytes] = attrs.field(factory=list)
    outgoing: bytearray = attrs.field(factory=bytearray)
    finishing: bool = False  # end of stream, or trailers, behind what is queued
    finished: bool = False  # written
    answered: bool = False  # response headers are written
    ended: bool = False  # by the peer
    reset_by_us: bool = False
    reset_by_peer: bool = False
    status: int | None = None
    owed: int = 0  # credit that the peer has used and not got back


Setting = h2.settings.SettingCodes
#: What changes in the middle of a conversation, and to what.
CHANGES = {
    Setting.INITIAL_WINDOW_SIZE: [0, 50, 5000, 65_535, 200_000],
    Setting.HEADER_TABLE_SIZE: [0, 100, 4096],
    Setting.MAX_FRAME_SIZE: [16_384, 16_385, 70_000],
    Setting.MAX_CONCURRENT_STREAMS: [0, 1, 3, 100],
}


class H2Peer:
    """An endpoint on h2 that pauses, credits, pads, pings and changes its mind at random."""

    def __init__(self, stream: trio.abc.Stream, random: Random, window: int, *, client: bool) -> None:
        self.stream = Cut(stream, random)
        self.random = random
        self.conn = h2.connection.H2Connection(h2.config.H2Configuration(client_side=client, header_encoding="utf-8"))
        self.preface_seen = client
        self.conn.local_settings = h2.settings.Settings(
            client=client, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
        )
        self.streams: dict[int, H2Stream] = {}
        self.pings = 0
        self.pongs = 0
        self.settings_sent = 1
        self.settings_acknowledged = 0
        self.calm = False
        self.settled = False
        #: GOAWAY goes by h2, which would take it for the end of every stream.
        self.incoming = bytearray()
        self.goodbyes_received: list[int] = []
        self.outgoing = bytearray()
        self.goodbyes_sent: list[int] = []
        self.broken = False
        self.changes = dict(CHANGES)
        if client:
            # No stream is pushed; and h2 would count a late answer to a stream that it has reset as one.
            del self.changes[Setting.MAX_CONCURRENT_STREAMS]
        #: One tick in so many has a change of settings, and one a PING. Where there are none, nothing else wakes a
        #: writer that waits for credit.
        self.noise = random.choice([20, 20, 10**9])

    async def run(self) -> None:
        self.conn.initiate_connection()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tick)
            while True:
                await self._flush()
                data = await self.stream.receive_some(10**6)
                if not data:
                    break
                for frame in self.take_frames(data):
                    for event in self.conn.receive_data(frame):
                        self.handle(event)
                if not self.random.randrange(3):
                    self.act()
            nursery.cancel_scope.cancel()
        self.on_eof()

    def take_frames(self, data: bytes | bytearray) -> Iterator[bytes]:
        """Return all whole frames but GOAWAY, one by one.

        Of several at a time, h2 would judge those behind a SETTINGS ACK by the frame size before it.
        """
        self.incoming += data
        if not self.preface_seen:
            if len(self.incoming) < len(frames.PREFACE):
                return
            self.preface_seen = True
            yield bytes(self.incoming[: len(frames.PREFACE)])
            del self.incoming[: len(frames.PREFACE)]
        while len(self.incoming) >= 9:
            length = 9 + int.from_bytes(self.incoming[:3], "big")
            if len(self.incoming) < length:
                break
            frame = bytes(self.incoming[:length])
            del self.incoming[:length]
            if frame[3] != frames.GOAWAY:
                yield frame
                continue
            assert frames.read_uint32(frame, 13) == 0, frame
            self.goodbyes_received.append(frames.read_uint32(frame, 9))

    def say_goodbye(self, last_stream_id: int) -> None:
        self.goodbyes_sent.append(last_stream_id)
        self.outgoing += frames.goaway(last_stream_id, 0)

    async def _tick(self) -> None:
        """Time goes on also where nobody says anything, and with it credit comes back and data leaves."""
        while True:
            await trio.sleep(0.005)
            self.act()
            await self._flush()

    async def _flush(self) -> None:
        data = self.conn.data_to_send() + self.outgoing
        self.outgoing = bytearray()
        if data:
            try:
                await self.stream.send_all(data)
            except trio.BrokenResourceError:
                # What goes away may be gone before our last words; `check` asks whether it should have.
                self.broken = True

    # -- what it does

    def act(self) -> None:
        # One change of settings at a time: h2 takes an acknowledgement for that of all changes under way.
        if self.settings_acknowledged < self.settings_sent:
            pass
        elif self.calm:
            if not self.settled:
                self.settled = True
                self.change_settings({Setting.INITIAL_WINDOW_SIZE: 10**6, Setting.MAX_CONCURRENT_STREAMS: 100})
        elif not self.random.randrange(self.noise):
            changed = self.random.sample(list(self.changes), self.random.choice([1, 1, 2, 3]))
            self.change_settings({setting: self.random.choice(self.changes[setting]) for setting in changed})
        if not self.calm and not self.random.randrange(self.noise):
            self.pings += 1
            self.conn.ping(b"%08d" % self.pings)
        for stream in list(self.streams.values()):
            if stream.owed and (self.calm or self.random.randrange(2)):
                self.give_credit(stream)
            self.write(stream)

    def change_settings(self, changes: dict[h2.settings.SettingCodes, int]) -> None:
        self.settings_sent += 1
        self.conn.update_settings(changes)

    def settle(self) -> None:
        """From now on be helpful: no more changes but one, to windows that let everything through."""
        self.calm = True

    def give_credit(self, stream: H2Stream) -> None:
        # A part of it, so that windows have any size.
        part = stream.owed if self.calm else self.random.randint(1, stream.owed)
        stream.owed -= part
        try:
            self.conn.acknowledge_received_data(part, stream.stream_id)
        except h2.exceptions.StreamClosedError:
            pass

    def write(self, stream: H2Stream) -> None:
        """Write what windows allow, in frames of any size, padded or not."""
        if stream.reset_by_us or stream.reset_by_peer or stream.finished:
            return
        self.write_head(stream)
        while stream.outgoing:
            padding = self.random.choice([None, None, None, 0, 200])
            extra = 0 if padding is None else padding + 1
            room = min(
                self.conn.local_flow_control_window(stream.stream_id) - extra,
                self.conn.max_outbound_frame_size - extra,
                self.random.choice([1, 7, 1000, 10**6]),
            )
            if room <= 0:
                if extra:
                    continue
                return
            data = bytes(stream.outgoing[:room])
            del stream.outgoing[:room]
            self.conn.send_data(stream.stream_id, data, pad_length=padding)
            if not self.random.randrange(10):
                return
        if stream.finishing:
            stream.finished = True
            self.write_tail(stream)

    def write_head(self, stream: H2Stream) -> None:
        raise NotImplementedError

    def write_tail(self, stream: H2Stream) -> None:
        raise NotImplementedError

    def reset(self, stream: H2Stream) -> None:
        if stream.reset_by_us or stream.reset_by_peer or (stream.finished and stream.ended):
            return
        try:
            self.conn.reset_stream(stream.stream_id, self.random.choice([2, 8, 11]))
        except h2.exceptions.StreamClosedError:
            # The peer's own reset is among the events that wait to be handled.
            return
        stream.reset_by_us = True

    # -- what it is told

    def handle(self, event: h2.events.Event) -> None:
        stream_id = getattr(event, "stream_id", None)
        if stream_id and stream_id not in self.streams and not isinstance(event, h2.events.RequestReceived):
            # Opened after we had said goodbye. The connection is credited all the same.
            assert self.goodbyes_sent
            if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                self.conn.acknowledge_received_data(event.flow_controlled_length, stream_id)
        elif isinstance(event, h2.events.DataReceived):
            stream = self.streams[event.stream_id]
            stream.owed += event.flow_controlled_length
            assert event.data is not None
            stream.assembler.feed(event.data, 0, len(event.data))
            while stream.assembler.messages:
                message = bytes(stream.assembler.messages.popleft())
                stream.messages.append(message)
                self.on_message(stream, message)
        elif isinstance(event, h2.events.StreamEnded):
            stream = self.streams[event.stream_id]
            stream.ended = True
            # What is owed for a stream that has ended goes to the connection alone.
            self.on_end(stream)
        elif isinstance(event, h2.events.StreamReset):
            self.streams[event.stream_id].reset_by_peer = True
        elif isinstance(event, h2.events.PingAckReceived):
            self.pongs += 1
        elif isinstance(event, h2.events.SettingsAcknowledged):
            self.settings_acknowledged += 1
        else:
            self.on_event(event)

    def on_eof(self) -> None:
        """The other side has closed the connection."""

    def on_event(self, event: h2.events.Event) -> None:
        """Everything else."""

    def on_message(self, stream: H2Stream, message: bytes) -> None:
        raise NotImplementedError

    def on_end(self, stream: H2Stream) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """No reply to a control frame is missing, and no end of a stream."""
        if self.goodbyes_sent or self.goodbyes_received:
            # The last ones crossed the end of the connection.
            assert self.pongs <= self.pings
            return
        assert not self.broken
        assert self.pongs == self.pings
        assert self.settings_acknowledged == self.settings_sent
        assert (self.conn.open_inbound_streams, self.conn.open_outbound_streams) == (0, 0)


class H2Server(H2Peer):
    """The echo service on h2."""

    def __init__(self, stream: trio.abc.Stream, random: Random, window: int, goodbye: int | None) -> None:
        super().__init__(stream, random, window, client=False)
        #: Ticks until it says goodbye.
        self.goodbye = goodbye

    def act(self) -> None:
        super().act()
        if self.goodbye is not None and not self.calm:
            self.goodbye -= 1
            if self.goodbye == 0 and self.random.randrange(2):
                self.say_goodbye(ALL_STREAMS)
            elif self.goodbye < 0 and not self.random.randrange(3):
                self.say_goodbye(max(self.streams, default=0))
                self.goodbye = None

    def on_event(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            if self.goodbyes_sent and event.stream_id > self.goodbyes_sent[-1]:
                return
            fields = dict(event.headers or ())
            assert fields["te"] == "trailers"
            fails_after = fields.get("x-fails-after")
            stream = H2Stream(
                event.stream_id,
                path=fields[":path"].rpartition("/")[2],
                fails_after=None if fails_after is None else int(fails_after),
            )
            stream.number = fields["x-number"]
            assert len(fields[f"x-padding-{int(stream.number) % 3}"]) == int(stream.number) * 37 % 200
            self.streams[event.stream_id] = stream
            self.maybe_fail(stream)

    def maybe_fail(self, stream: H2Stream) -> bool:
        if stream.fails_after is None or len(stream.messages) < stream.fails_after:
            return False
        if stream.finishing or stream.reset_by_us:
            return True
        if self.random.randrange(2):
            self.reset(stream)
        else:
            # A status in the middle of the request, behind whatever was said already.
            stream.status = 9
            stream.finishing = True
        return True

    def on_message(self, stream: H2Stream, message: bytes) -> None:
        # Who said so in its metadata: both sides have the same header tables.
        assert EchoRequest.FromString(message).text == stream.number
        if self.maybe_fail(stream):
            return
        if stream.path == "Bidi":
            stream.outgoing += frame_message(message)
        elif stream.path == "ServerStream":
            sent = EchoRequest.FromString(message)
            for count in range(sent.count):
                reply = EchoReply(payload=sent.payload, count=count, text=sent.text)
                stream.outgoing += frame_message(reply.SerializeToString())

    def on_end(self, stream: H2Stream) -> None:
        if self.maybe_fail(stream):
            return
        if stream.path == "Unary":
            (message,) = stream.messages
            stream.outgoing += frame_message(message)
        elif stream.path == "ClientStream":
            parts = [EchoRequest.FromString(message) for message in stream.messages]
            reply = EchoReply(payload=b"".join(part.payload for part in parts), count=len(parts))
            stream.outgoing += frame_message(reply.SerializeToString())
        stream.status = 0
        stream.finishing = True

    def write_head(self, stream: H2Stream) -> None:
        if not stream.answered and (stream.outgoing or stream.finishing or not self.random.randrange(4)):
            stream.answered = True
            self.conn.send_headers(stream.stream_id, [(":status", "200"), ("content-type", "application/grpc")])

    def write_tail(self, stream: H2Stream) -> None:
        self.conn.send_headers(
            stream.stream_id, [("grpc-status", str(stream.status)), ("grpc-message", "text")], end_stream=True
        )


class H2Client(H2Peer):
    """Runs the plans on h2."""

    def __init__(self, stream: trio.abc.Stream, random: Random, window: int, conversation: list[CallPlan]) -> None:
        super().__init__(stream, random, window, client=True)
        self.waiting = list(enumerate(conversation))
        self.plans: dict[int, tuple[int, CallPlan]] = {}
        self.witness: H2Stream | None = None
        self.served = trio.Event()

    def act(self) -> None:
        if self.goodbyes_received:
            self.waiting.clear()
        room = self.conn.open_outbound_streams < self.conn.remote_settings.max_concurrent_streams
        if self.waiting and room and not self.random.randrange(2):
            self.open(*self.waiting.pop(0))
        super().act()
        for stream in self.streams.values():
            number, plan = self.plans[stream.stream_id]
            if plan.leaves_after is not None and len(stream.messages) >= plan.leaves_after and number % 2:
                self.reset(stream)
            if plan.cancelled_after is not None and trio.current_time() >= stream.began + plan.cancelled_after:
                self.reset(stream)
        if not self.waiting and all(
            self.has_ended(stream) for stream in self.streams.values() if stream is not self.witness
        ):
            self.served.set()

    def on_eof(self) -> None:
        assert self.goodbyes_received
        self.served.set()

    def has_ended(self, stream: H2Stream) -> bool:
        return (
            stream.reset_by_us
            or stream.reset_by_peer
            or (stream.ended and stream.finished)
            or (bool(self.goodbyes_received) and stream.stream_id > self.goodbyes_received[-1])
        )

    def open(self, number: int, plan: CallPlan) -> None:
        stream_id = self.conn.get_next_available_stream_id()
        stream = self.streams[stream_id] = H2Stream(stream_id, plan.kind, began=trio.current_time())
        self.plans[stream_id] = number, plan
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/echo.Echo/{plan.kind}"),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *metadata_of(number, plan).items(),
        ]
        if plan.timeout is not None:
            fields.append(("grpc-timeout", f"{round(plan.timeout * 1e6)}u"))
        self.conn.send_headers(stream_id, fields)
        for sent in self.requests_of(number, plan):
            stream.outgoing += frame_message(sent.SerializeToString())
        if plan is WITNESS:
            self.witness = stream
        else:
            stream.finishing = True

    def requests_of(self, number: int, plan: CallPlan) -> list[EchoRequest]:
        if plan.kind in {"Unary", "ServerStream"}:
            return [request(number, plan.sizes[0] if plan.sizes else 0, plan.replies)]
        return [request(number, size, count) for count, size in enumerate(plan.sizes)]

    def write_head(self, stream: H2Stream) -> None:
        """Request headers are written when a call is opened."""

    def write_tail(self, stream: H2Stream) -> None:
        self.conn.end_stream(stream.stream_id)

    def on_event(self, event: h2.events.Event) -> None:
        if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
            fields = dict(event.headers or ())
            assert fields.get(":status", "200") == "200"
            if "grpc-status" in fields:
                self.streams[event.stream_id].status = int(fields["grpc-status"])

    def on_message(self, stream: H2Stream, message: bytes) -> None:
        """Kept, and compared at the end."""

    def on_end(self, stream: H2Stream) -> None:
        assert stream.status is not None
        # A deadline may cut a message in two.
        assert not stream.assembler.mid_message or stream.status == StatusCode.DEADLINE_EXCEEDED.value
        # The server says that it wants no more only where it has not had everything.

    def check(self) -> None:
        super().check()
        for stream in self.streams.values():
            assert self.has_ended(stream)
            if self.goodbyes_received and stream.stream_id > self.goodbyes_received[-1]:
                assert not stream.messages
                assert stream.status is None
            else:
                self.check_stream(stream, *self.plans[stream.stream_id])

    def check_stream(self, stream: H2Stream, number: int, plan: CallPlan) -> None:
        replies = [EchoReply.FromString(message) for message in stream.messages]
        sent = self.requests_of(number, plan)
        expected: list[EchoReply]
        if plan.kind == "ServerStream":
            expected = [EchoReply(payload=sent[0].payload, count=n, text=sent[0].text) for n in range(plan.replies)]
        elif plan.kind == "ClientStream":
            payload = b"".join(one.payload for one in sent)
            expected = [EchoReply(payload=payload, count=len(sent), text=str(number) * len(sent))]
        else:
            expected = [EchoReply(payload=one.payload, count=one.count, text=one.text) for one in sent]
        assert replies == expected[: len(replies)]
        if stream.status == 0 and not stream.reset_by_us:
            assert len(replies) == len(expected)
        elif not stream.reset_by_us and stream.status is not None:
            assert StatusCode(stream.status) in allowed_statuses(plan)
        elif not stream.reset_by_us:
            # At its deadline, where its client opened no window for the last of it.
            assert plan.timeout is not None


def failing_echo() -> Echo:
    """The echo service with failures on demand, for our server."""

    async def limit(context: Any, *requests: EchoRequest) -> int:
        # Both sides have the same header tables.
        number = context.metadata["x-number"]
        assert len(context.metadata[f"x-padding-{int(number) % 3}"]) == int(number) * 37 % 200
        assert all(one.text == number for one in requests)
        value = context.metadata.get("x-fails-after")
        return 10**9 if value is None else int(value)

    async def unary(one: EchoRequest, context: Any) -> EchoReply:
        if await limit(context, one) <= 1:
            raise RpcError(StatusCode.FAILED_PRECONDITION, "text")
        return EchoReply(payload=one.payload, count=one.count, text=one.text)

    async def server_stream(one: EchoRequest, context: Any) -> Any:
        if await limit(context, one) <= 1:
            await context.abort(StatusCode.FAILED_PRECONDITION, "text")
        for count in range(one.count):
            yield EchoReply(payload=one.payload, count=count, text=one.text)

    async def client_stream(requests: Any, context: Any) -> EchoReply:
        most = await limit(context)
        total = EchoReply()
        while True:
            if total.count >= most:
                raise RpcError(StatusCode.FAILED_PRECONDITION, "text")
            try:
                one = await requests.receive()
            except trio.EndOfChannel:
                assert requests._stream.unconsumed == 0
                return total
            total.payload += one.payload
            total.text += one.text
            total.count += 1

    async def bidi(requests: Any, context: Any) -> Any:
        most = await limit(context)
        count = 0
        while True:
            if count >= most:
                raise RpcError(StatusCode.FAILED_PRECONDITION, "text")
            try:
                one = await requests.receive()
            except trio.EndOfChannel:
                assert requests._stream.unconsumed == 0
                return
            count += 1
            if count < most:
                yield EchoReply(payload=one.payload, count=one.count, text=one.text)

    return Echo(unary=unary, server_stream=server_stream, client_stream=client_stream, bidi=bidi)


# ---------------------------------------------------------------------------------------------------------------------
# The conversations


def converse(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded_main() -> None:
        with trio.fail_after(10_000):
            await main()

    trio.run(bounded_main, clock=Clock(autojump_threshold=0))


@contextmanager
def connections_of(side: Side) -> Iterator[list[Connection]]:
    """All connections that are made, also those that end before the conversation does."""
    connections: list[Connection] = []
    run = Connection.run

    async def tracked_run(self: Connection) -> None:
        if self.side is side:
            connections.append(self)
        await run(self)

    with mock.patch.object(Connection, "run", tracked_run):
        yield connections


def assert_windows_agree(connection: Connection, peer: H2Peer) -> None:
    """Both sides count the same credit of the connection, in both directions."""
    assert connection.outgoing.connection == peer.conn.inbound_flow_control_window
    assert connection.incoming._remaining == peer.conn.outbound_flow_control_window


def assert_nothing_left(connection: Connection) -> None:
    """All credit has come back or is owed; every control frame was written or orphaned."""
    incoming, table = connection.incoming, connection.table
    assert incoming._remaining + incoming._owed == incoming._connection_target
    assert (table.slots_used, table.waiting, len(table.streams)) == (0, 0, 0)
    assert (connection.control_buffer.pending_responses, connection.control_buffer.pending_frames) == (0, 0)


#: A call that is open all the time, so that the windows of a stream can be compared too: messages of these sizes go
#: there and back.
WITNESS = CallPlan(
    kind="Bidi",
    sizes=[0, 1, 5000, 70_000, 90, 16_400],
    replies=0,
    delay=0,
    leaves_after=None,
    fails_after=None,
    timeout=None,
    cancelled_after=None,
)


async def bear_witness(call: Any) -> None:
    """Send and receive all messages of the witness; leave its call open."""

    async def send() -> None:
        for count, size in enumerate(WITNESS.sizes):
            await call.send(request(0, size, count))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        for count, size in enumerate(WITNESS.sizes):
            reply = await call.receive()
            assert (reply.count, len(reply.payload)) == (count, size)


def assert_stream_windows_agree(connection: Connection, peer: H2Peer, stream_id: int) -> None:
    """The same for one stream, through all changes of the initial window."""
    ours, theirs = connection.table.streams[stream_id], peer.conn.streams[stream_id]
    assert ours.window == theirs._inbound_window_manager.current_window_size
    assert ours.receive_window == theirs.outbound_flow_control_window


async def wait_quiet() -> None:
    """Let everything arrive that is on its way: several ticks of the judge."""
    await trio.sleep(0.2)


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 -- what it waits for has no event
        await trio.sleep(0.01)


async def settle_later(peer: H2Peer) -> None:
    """A window or a limit of 0 that stays 0 would stop everything, rightly."""
    await trio.sleep(2)
    peer.settle()


@bounded
@given(conversations, windows, connection_windows, windows, seeds, goodbyes)
def test_our_client_with_an_h2_server(
    conversation: list[CallPlan], ours: int, connection: int, theirs: int, seed: int, goodbye: int | None
) -> None:
    random = Random(seed)
    servers: list[H2Server] = []

    async def main() -> None:
        async def connect() -> trio.abc.Stream:
            near, far = trio.testing.memory_stream_pair()
            # Only the first one goes away.
            servers.append(H2Server(far, random, theirs, None if servers else goodbye))
            nursery.start_soon(servers[-1].run)
            nursery.start_soon(settle_later, servers[-1])
            return Cut(near, random)

        limits = Limits(initial_window_size=ours, initial_connection_window_size=connection, adaptive_window=False)
        async with trio.open_nursery() as nursery:
            async with trio_grpc.open_channel(connect, limits=limits) as channel:
                async with AsyncExitStack() as stack:
                    if goodbye is None:
                        witness = await stack.enter_async_context(
                            EchoStub(channel).Bidi(metadata=metadata_of(0, WITNESS))
                        )
                        calls = await stack.enter_async_context(trio.open_nursery())
                        calls.start_soon(bear_witness, witness)
                    await run_client(channel, conversation, forgiving=goodbye is not None)
                    for server in servers:
                        server.settle()
                    if goodbye is None:
                        await wait_until(lambda: not calls.child_tasks)
                        await wait_quiet()
                        assert_stream_windows_agree(connections[0], servers[0], witness._stream.stream_id)
                        await witness.done_sending()
                        with pytest.raises(trio.EndOfChannel):
                            await witness.receive()
                await wait_quiet()
                statistics = channel.statistics()
                assert (statistics.streams, statistics.waiting, statistics.control_frames) == (0, 0, 0)
                assert len(connections) == len(servers)
                for near, server in zip(connections, servers, strict=True):
                    assert_nothing_left(near)
                    server.check()
                    if not server.goodbyes_sent:
                        assert_windows_agree(near, server)
            nursery.cancel_scope.cancel()

    with connections_of(Side.CLIENT) as connections:
        converse(main)


@bounded
@given(conversations, windows, connection_windows, windows, seeds, goodbyes)
def test_our_server_with_an_h2_client(
    conversation: list[CallPlan], ours: int, connection: int, theirs: int, seed: int, goodbye: int | None
) -> None:
    random = Random(seed)

    async def main() -> None:
        listener = CutListener(random)
        limits = Limits(initial_window_size=ours, initial_connection_window_size=connection, adaptive_window=False)
        # This client pings as it likes.
        enforcement = KeepaliveEnforcement(min_time=0, permit_without_calls=True)

        async def serve(*, task_status: trio.TaskStatus[trio_grpc.Server]) -> None:
            await trio_grpc.serve(
                [failing_echo()],
                listener,
                limits=limits,
                keepalive_enforcement=enforcement,
                task_status=task_status,
            )

        async with trio.open_nursery() as nursery:
            server = await nursery.start(serve)
            plans = conversation if goodbye is not None else [WITNESS, *conversation]
            client = H2Client(await listener.connect(), random, theirs, plans)
            nursery.start_soon(client.run)
            nursery.start_soon(settle_later, client)
            if goodbye is not None:
                nursery.start_soon(drain_later, server, goodbye)
            await client.served.wait()
            client.settle()
            if client.witness is not None:
                received = client.witness.messages
                await wait_until(lambda: len(received) == len(WITNESS.sizes))
                await wait_quiet()
                assert_stream_windows_agree(connections[0], client, client.witness.stream_id)
                client.witness.finishing = True
            await wait_quiet()
            statistics = server.statistics()
            assert (statistics.streams, statistics.handlers, statistics.control_frames) == (0, 0, 0)
            (near,) = connections
            assert_nothing_left(near)
            client.check()
            if not client.goodbyes_received:
                assert_windows_agree(near, client)
            nursery.cancel_scope.cancel()

    with connections_of(Side.SERVER) as connections:
        converse(main)


async def drain_later(server: trio_grpc.Server, ticks: int) -> None:
    # Not before the connection has been taken from the listener.
    await trio.sleep(0.001 + ticks * 0.005)
    await server.drain()


@bounded
@given(conversations, windows, windows, seeds, st.integers(2, 10), goodbyes)
def test_our_client_with_our_server(
    conversation: list[CallPlan], ours: int, theirs: int, seed: int, streams: int, goodbye: int | None
) -> None:
    random = Random(seed)

    async def main() -> None:
        listeners: list[CutListener] = []
        server_limits = Limits(initial_window_size=ours, max_concurrent_streams=streams, adaptive_window=False)

        async def serve(*, task_status: trio.TaskStatus[trio_grpc.Server]) -> None:
            listeners.append(CutListener(random))
            await trio_grpc.serve([failing_echo()], listeners[-1], limits=server_limits, task_status=task_status)

        async def replace(server: trio_grpc.Server, ticks: int) -> None:
            await trio.sleep(ticks * 0.005)
            await nursery.start(serve)
            await server.drain()

        async def connect() -> trio.abc.Stream:
            return await listeners[-1].connect()

        async with trio.open_nursery() as nursery:
            server = await nursery.start(serve)
            if goodbye is not None:
                nursery.start_soon(replace, server, goodbye)
            limits = Limits(
                initial_window_size=theirs, initial_connection_window_size=65_535, adaptive_window=bool(seed % 2)
            )
            async with trio_grpc.open_channel(connect, limits=limits) as channel:
                async with EchoStub(channel).Bidi(metadata=metadata_of(0, WITNESS)) as witness:
                    async with trio.open_nursery() as calls:
                        calls.start_soon(bear_witness, witness)
                        # No call is lost to a drain.
                        await run_client(channel, conversation)
                    await wait_quiet()
                    near, far = (connections[0].table.streams[1] for connections in (at_clients, at_servers))
                    assert (near.window, near.receive_window) == (far.receive_window, far.window)
                    await witness.done_sending()
                    with pytest.raises(trio.EndOfChannel):
                        await witness.receive()
                await wait_quiet()
                at_client, at_server = channel.statistics(), server.statistics()
                assert (at_client.streams, at_client.waiting, at_client.control_frames) == (0, 0, 0)
                assert (at_server.streams, at_server.handlers, at_server.control_frames) == (0, 0, 0)
                assert len(at_clients) == len(at_servers)
                for client_connection, server_connection in zip(at_clients, at_servers, strict=True):
                    for near, far in (
                        (client_connection, server_connection),
                        (server_connection, client_connection),
                    ):
                        assert_nothing_left(near)
                        # What ends while credit is on its way never sees it.
                        assert near.outgoing.connection <= far.incoming._remaining
                        if not near.closed.is_set():
                            assert near.outgoing.connection == far.incoming._remaining
            nursery.cancel_scope.cancel()

    with connections_of(Side.CLIENT) as at_clients, connections_of(Side.SERVER) as at_servers:
        converse(main)
