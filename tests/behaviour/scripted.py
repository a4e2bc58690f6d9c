"""What the tests with a scripted peer share: a servicer, a running server or channel, and calls in the background."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar, final

import outcome
import trio
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

import trio_grpc
from trio_grpc.testing import (
    Frame,
    HeadersFrame,
    MemoryListener,
    ScriptedPeer,
    SettingsFrame,
    WindowUpdateFrame,
)

T = TypeVar("T")

UNARY = "/echo.Echo/Unary"
SERVER_STREAM = "/echo.Echo/ServerStream"
CLIENT_STREAM = "/echo.Echo/ClientStream"
BIDI = "/echo.Echo/Bidi"

#: RFC 9113, 6.9.2.
_DEFAULT_WINDOW = 65_535
_INITIAL_WINDOW_SIZE = 4

#: No bandwidth probes, so that nothing is on the wire but what a test asked for.
QUIET = trio_grpc.Limits(adaptive_window=False)


class Echo(EchoServicer):
    """Echoes; `text` may ask for something else."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self.ended = 0
        self.gate = trio.Event()

    async def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
        self.started += 1
        try:
            if request.text == "wait":
                await self.gate.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.ended += 1
        return EchoReply(payload=request.payload, count=request.count, text=request.text)

    async def ServerStream(self, request: EchoRequest, context: Any) -> AsyncIterator[EchoReply]:
        self.started += 1
        try:
            for count in range(request.count):
                yield EchoReply(payload=request.payload, count=count)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.ended += 1

    async def ClientStream(self, requests: Any, context: Any) -> EchoReply:
        self.started += 1
        try:
            payload = b""
            async for request in requests:
                if request.text == "enough":
                    return EchoReply(text="enough")
                if request.text == "wait":
                    await self.gate.wait()
                payload += request.payload
            return EchoReply(payload=payload)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.ended += 1

    async def Bidi(self, requests: Any, context: Any) -> AsyncIterator[EchoReply]:
        self.started += 1
        try:
            async for request in requests:
                yield EchoReply(payload=request.payload, count=request.count, text=request.text)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.ended += 1


class Endpoint:
    """A server that runs in a test's nursery, for scripted clients."""

    def __init__(self, server: trio_grpc.Server, listener: MemoryListener | NarrowListener, servicer: Echo) -> None:
        self.server = server
        self.listener = listener
        self.servicer = servicer

    async def connect(self, *, auto_ack: bool = True) -> ScriptedPeer:
        """A new connection on which nothing was said yet."""
        return ScriptedPeer.client(await self.listener.connect(), auto_ack=auto_ack)

    async def client(self) -> ScriptedPeer:
        """A new connection after the handshake."""
        peer = await self.connect()
        await peer.handshake()
        return peer

    async def assert_serves(self, peer: ScriptedPeer | None = None, stream_id: int = 1) -> None:
        """A call on this connection, or on a new one, is answered."""
        if peer is None:
            async with await self.client() as new:
                await self.assert_serves(new)
            return
        request = EchoRequest(text=f"still there, {stream_id}?")
        await send_call(peer, stream_id, request)
        await expect_reply(peer, stream_id, EchoReply(text=request.text))

    async def assert_nothing_left(self, connections: int = 0) -> None:
        """All that the server holds is given back."""
        await trio.sleep(5)
        assert self.server.statistics() == trio_grpc.ServerStatistics(
            connections=connections, streams=0, handlers=0, control_frames=0
        )
        assert self.servicer.started == self.servicer.ended


async def start_server(
    nursery: trio.Nursery,
    *,
    limits: trio_grpc.Limits = QUIET,
    sockets: bool = False,
    capacity: int | None = None,
    servicer: Echo | None = None,
    **options: Any,
) -> Endpoint:
    """Start a server; with a capacity its connections hold only so many bytes. It sends no PINGs of its own."""
    options.setdefault("keepalive", trio_grpc.ServerKeepalive(time=math.inf))
    listener = MemoryListener(sockets=sockets) if capacity is None else NarrowListener(capacity)
    servicer = Echo() if servicer is None else servicer

    async def serve(*, task_status: trio.TaskStatus[trio_grpc.Server]) -> None:
        await trio_grpc.serve([servicer], listener, limits=limits, task_status=task_status, **options)

    return Endpoint(await nursery.start(serve), listener, servicer)


async def send_call(peer: ScriptedPeer, stream_id: int, request: EchoRequest, path: str = UNARY) -> None:
    """A whole call with one request."""
    async with peer.one_segment():
        await peer.send_request(stream_id, path)
        await peer.send_message(stream_id, request.SerializeToString(), end_stream=True)


async def expect_reply(peer: ScriptedPeer, stream_id: int, reply: EchoReply) -> None:
    """A whole answer with one reply and status OK."""
    headers = await peer.expect(HeadersFrame, stream_id=stream_id)
    assert headers.get(":status") == "200", headers
    assert headers.get("grpc-status") is None, headers
    assert EchoReply.FromString(await peer.receive_message(stream_id)) == reply
    await expect_status(peer, stream_id, trio_grpc.StatusCode.OK)


async def expect_status(peer: ScriptedPeer, stream_id: int, code: trio_grpc.StatusCode) -> str:
    """Trailers, or headers that are both, with this status; return its message."""
    trailers = await peer.expect(HeadersFrame, stream_id=stream_id, end_stream=True)
    assert trailers["grpc-status"] == str(code.value), trailers
    return trailers.get("grpc-message") or ""


async def send_reply(peer: ScriptedPeer, stream_id: int, reply: EchoReply) -> None:
    """A whole answer with one reply and status OK."""
    async with peer.one_segment():
        await peer.send_response(stream_id)
        await peer.send_message(stream_id, reply.SerializeToString())
        await peer.send_trailers(stream_id)


async def expect_call(peer: ScriptedPeer, stream_id: int, path: str = UNARY) -> EchoRequest:
    """A whole call with one request."""
    headers = await peer.expect(HeadersFrame, stream_id=stream_id)
    assert headers[":path"] == path
    return EchoRequest.FromString(await peer.receive_message(stream_id))


@final
class ScriptedServer:
    """A channel under test, and the listener at which the scripted server takes its connections."""

    def __init__(
        self,
        *,
        sockets: bool = False,
        capacity: int | None = None,
        limits: trio_grpc.Limits = QUIET,
        **options: Any,
    ) -> None:
        self.listener = MemoryListener(sockets=sockets) if capacity is None else NarrowListener(capacity)
        # Tests of what happens in a day want it to happen on one connection.
        options.setdefault("idle_timeout", None)
        self.channel = trio_grpc.open_channel(self.listener.connect, limits=limits, **options)
        self.stub = EchoStub(self.channel)

    async def __aenter__(self) -> ScriptedServer:
        await self.channel.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.channel.__aexit__(*exc_info)

    async def accept(self, settings: dict[int, int] | None = None) -> ScriptedPeer:
        """The next connection that the channel makes, after its handshake."""
        peer = ScriptedPeer.server(await self.listener.accept())
        await peer.handshake(settings)
        return peer

    def assert_nothing_left(self, connections: int = 1) -> None:
        """All that the channel holds is given back."""
        statistics = self.channel.statistics()
        assert (statistics.connections, statistics.streams, statistics.waiting, statistics.control_frames) == (
            connections,
            0,
            0,
            0,
        )


class Background(Generic[T]):
    """A call that runs beside the test."""

    def __init__(
        self, nursery: trio.Nursery, function: Callable[..., Awaitable[T]], *args: Any, **options: Any
    ) -> None:
        self.outcome: outcome.Outcome[T] | None = None
        self.scope = trio.CancelScope()
        self._ended = trio.Event()
        nursery.start_soon(self._run, function, args, options)

    async def _run(self, function: Callable[..., Awaitable[T]], args: Any, options: Any) -> None:
        with self.scope:
            try:
                self.outcome = outcome.Value(await function(*args, **options))
            except Exception as error:
                self.outcome = outcome.Error(error)
        self._ended.set()

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    async def result(self) -> T:
        """What the call returned; raises what it raised."""
        with trio.fail_after(60):
            await self._ended.wait()
        assert self.outcome is not None, "cancelled"
        return self.outcome.unwrap()

    async def error(self) -> trio_grpc.RpcError:
        """The error that the call must end with."""
        try:
            result = await self.result()
        except trio_grpc.RpcError as error:
            return error
        raise AssertionError(f"the call returned {result!r}")


class Sender:
    """A scripted peer that keeps to the windows it is given, and keeps count."""

    def __init__(self, peer: ScriptedPeer, initial: int = _DEFAULT_WINDOW) -> None:
        self.peer = peer
        self.connection = _DEFAULT_WINDOW
        self.initial = initial
        self.streams: dict[int, int] = {}
        self.frames: list[Frame] = []

    async def read(self) -> None:
        frame = await self.peer.receive_frame()
        if isinstance(frame, WindowUpdateFrame):
            assert frame.increment > 0
            if frame.stream_id:
                self.streams[frame.stream_id] = self.window(frame.stream_id) + frame.increment
            else:
                self.connection += frame.increment
        elif isinstance(frame, SettingsFrame) and _INITIAL_WINDOW_SIZE in frame.settings:
            self.initial = frame.settings[_INITIAL_WINDOW_SIZE]
        else:
            self.frames.append(frame)
        assert max([self.connection, *self.streams.values()]) < 2**31

    def window(self, stream_id: int) -> int:
        return self.streams.get(stream_id, self.initial)

    async def send(self, stream_id: int, data: bytes, *, padding: int | None = None, end_stream: bool = False) -> None:
        """Send one DATA frame as soon as there is credit for all of it."""
        length = len(data) + (0 if padding is None else padding + 1)
        while length > min(self.connection, self.window(stream_id)):
            with trio.fail_after(30):
                await self.read()
        self.connection -= length
        self.streams[stream_id] = self.window(stream_id) - length
        await self.peer.send_data(stream_id, data, padding=padding, end_stream=end_stream)

    async def settle(self) -> None:
        """Read whatever has come."""
        with trio.move_on_after(1):
            while True:
                await self.read()


class NarrowStream(trio.abc.HalfCloseableStream):
    """One end of an in-memory connection whose sender waits for its receiver, as a socket's does."""

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._outgoing.write(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        self._outgoing.close_writer()
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._incoming.read(max_bytes)

    async def aclose(self) -> None:
        self._outgoing.close_writer()
        self._incoming.close_reader()
        await trio.lowlevel.checkpoint()


class Pipe:
    """Bytes of one direction, at most `capacity` of them."""

    def __init__(self, capacity: int) -> None:
        self.data = bytearray()
        self.capacity = capacity
        self._ended = False
        self._broken = False
        self._changed = trio.lowlevel.ParkingLot()

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        while data:
            if self._broken:
                raise trio.BrokenResourceError
            if self._ended:
                raise trio.ClosedResourceError
            room = self.capacity - len(self.data)
            if not room:
                await self._changed.park()
                continue
            self.data += data[:room]
            data = data[room:]
            self._changed.unpark_all()

    async def read(self, max_bytes: int | None) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self.data and not self._ended and not self._broken:
            await self._changed.park()
        if self._broken:
            raise trio.ClosedResourceError
        data = bytes(self.data[:max_bytes])
        del self.data[: len(data)]
        self._changed.unpark_all()
        return data

    def close_writer(self) -> None:
        self._ended = True
        self._changed.unpark_all()

    def close_reader(self) -> None:
        self._broken = True
        self.data.clear()
        self._changed.unpark_all()


class NarrowListener(trio.abc.Listener[trio.abc.Stream]):
    """A memory listener whose connections hold `capacity` bytes each way."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._streams = trio.open_memory_channel[trio.abc.Stream](1000)

    async def connect(self) -> trio.abc.Stream:
        up, down = Pipe(self.capacity), Pipe(self.capacity)
        self._streams[0].send_nowait(NarrowStream(up, down))
        await trio.lowlevel.checkpoint()
        return NarrowStream(down, up)

    async def accept(self) -> trio.abc.Stream:
        return await self._streams[1].receive()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
