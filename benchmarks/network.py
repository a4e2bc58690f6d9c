"""A network in the process: streams that take as long as a link of some bandwidth, latency and MTU would.

Each end shapes what it sends, so that no clock has to be shared between processes: bytes enter the link when it has
sent those before them (bandwidth), packet by packet (MTU), and come out of it one latency later.  Only then are they
written to the stream below.  The end of the bytes, and closing, travel through the link behind them.

Times are trio's: exact on the clock of a test; on the system's clock a wake-up may come up to a millisecond late,
which delays bytes a little and never changes the pace, because every packet's times come from those of the packet
before it.  What is not modelled: loss, the handshake of TCP, and a congestion window.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

import trio

#: What a link without a limit of its own holds at most: like a socket's buffer, it is there so that senders wait for
#: receivers that do not read.
_UNLIMITED_BUFFER = 4 * 1024 * 1024
_SMALLEST_BUFFER = 64 * 1024


@dataclass(frozen=True)
class Network:
    """What a link is like, in one direction.

    Attributes:
        kilobits: Its bandwidth in units of 1024 bits a second; infinite for no limit.
        latency: Seconds that each packet travels after it was sent in full.
        mtu: Bytes of the largest packet.
    """

    kilobits: float
    latency: float
    mtu: int

    @property
    def bytes_per_second(self) -> float:
        """The bandwidth."""
        return self.kilobits * 1024 / 8

    @property
    def buffer(self) -> int:
        """Bytes that may have been sent and not delivered: what is on its way, and as much waiting before it."""
        if self.bytes_per_second == inf:
            return _UNLIMITED_BUFFER
        return max(_SMALLEST_BUFFER, int(2 * self.bytes_per_second * self.latency))

    def __str__(self) -> str:
        """Returns what a newcomer wants to know."""
        if self.bytes_per_second == inf and not self.latency:
            return "nothing added"
        return f"{self.kilobits / 1024:g} Mbit/s, {self.latency * 1000:g} ms one way, MTU {self.mtu}"


#: The modes of grpc-go's benchmark and their figures.  `none` is no shim at all; `local` is one that adds nothing,
#: and so tells what the shim itself costs.
NETWORKS: dict[str, Network | None] = {
    "none": None,
    "local": Network(inf, 0.0, 65_536),
    "lan": Network(100 * 1024, 0.002, 1500),
    "wan": Network(20 * 1024, 0.030, 1500),
    "longhaul": Network(1000 * 1024, 0.200, 9000),
}


class _News(enum.Enum):
    """What can come out of a link besides bytes."""

    EOF = "the end of the bytes"
    CLOSE = "the end of the stream"


class ShapedStream(trio.abc.HalfCloseableStream):
    """One end of a connection over a link: what it sends takes its time; what it receives has taken it already.

    Args:
        transport: The stream below, owned from here on.
        network: The link.
        nursery: Where the task that delivers runs, until the stream is closed.
    """

    def __init__(self, transport: trio.abc.Stream, network: Network, nursery: trio.Nursery) -> None:
        self.transport_stream = transport
        self._network = network
        # When the link will have sent all that it was given.
        self._idle_at = -inf
        # What travels, each with the time of its arrival.
        self._travelling: deque[tuple[float, memoryview | _News]] = deque()
        self._held = 0
        self._departure = trio.Event()
        self._room = trio.Event()
        self._sending = False
        self._ended = False
        self._closed = trio.Event()
        self._failure: BaseException | None = None
        self._receiving: set[trio.CancelScope] = set()
        nursery.start_soon(self._deliver)

    # -- into the link

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Returns when the link has taken the last byte; it has copied all of them."""
        with self._one_sender():
            await trio.lowlevel.checkpoint()
            rest = memoryview(bytes(data))
            while rest:
                packet, rest = rest[: self._network.mtu], rest[self._network.mtu :]
                await self._wait_room(len(packet))
                self._depart(packet)

    async def wait_send_all_might_not_block(self) -> None:
        """Waits for room in the link."""
        with self._one_sender():
            await trio.lowlevel.checkpoint()
            await self._wait_room(1)

    async def send_eof(self) -> None:
        """Ends the bytes, behind the last of them."""
        with self._one_sender(again=True):
            await trio.lowlevel.checkpoint()
            if not self._ended:
                self._ended = True
                self._depart(_News.EOF)

    @contextmanager
    def _one_sender(self, again: bool = False) -> Iterator[None]:
        if self._sending:
            raise trio.BusyResourceError("another task is sending")
        self._check(again)
        self._sending = True
        try:
            yield
        finally:
            self._sending = False

    def _check(self, again: bool = False) -> None:
        if self._closed.is_set() or (self._ended and not again):
            raise trio.ClosedResourceError("this end was closed")
        if self._failure is not None:
            raise trio.BrokenResourceError("the stream below the link is broken") from self._failure

    async def _wait_room(self, size: int) -> None:
        # An empty link takes anything: a packet may be larger than the buffer.
        while self._held and self._held + size > self._network.buffer:
            self._room = trio.Event()
            await self._room.wait()
            self._check()

    def _depart(self, what: memoryview | _News) -> None:
        self._idle_at = max(self._idle_at, trio.current_time())
        if isinstance(what, memoryview):
            self._held += len(what)
            self._idle_at += len(what) / self._network.bytes_per_second
        self._travelling.append((self._idle_at + self._network.latency, what))
        self._departure.set()

    # -- out of the link

    async def _deliver(self) -> None:
        """Passes on what arrives.  Ends by closing the stream below."""
        try:
            try:
                await self._deliver_all()
            except (trio.BrokenResourceError, OSError) as error:
                # Senders are told; what the peer sent before it left can still be received.
                self._failure = error
                self._room.set()
                await self._closed.wait()
        finally:
            await trio.aclose_forcefully(self.transport_stream)

    async def _deliver_all(self) -> None:
        travelling = self._travelling
        while True:
            while not travelling:
                self._departure = trio.Event()
                await self._departure.wait()
            await trio.sleep_until(travelling[0][0])
            # One write for all that has arrived: timers are coarser than packets.
            now = trio.current_time()
            arrived: list[memoryview] = []
            news: _News | None = None
            while news is None and travelling and travelling[0][0] <= now:
                what = travelling.popleft()[1]
                if isinstance(what, memoryview):
                    arrived.append(what)
                else:
                    news = what
            if arrived:
                data = b"".join(arrived)
                await self.transport_stream.send_all(data)
                self._held -= len(data)
                self._room.set()
            if news is _News.CLOSE:
                return
            if news is _News.EOF and isinstance(self.transport_stream, trio.abc.HalfCloseableStream):
                await self.transport_stream.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receives what the other end's link has let out."""
        if self._closed.is_set():
            await trio.lowlevel.checkpoint()
            raise trio.ClosedResourceError("this end was closed")
        with trio.CancelScope() as scope:
            self._receiving.add(scope)
            try:
                return await self.transport_stream.receive_some(max_bytes)
            finally:
                self._receiving.discard(scope)
        raise trio.ClosedResourceError("this end was closed while it was receiving")

    async def aclose(self) -> None:
        """Closes this end at once; the other end learns of it when all that was sent has arrived there."""
        if not self._closed.is_set():
            self._closed.set()
            self._depart(_News.CLOSE)
            self._room.set()
            for scope in self._receiving:
                scope.cancel()
        await trio.lowlevel.checkpoint()


class ShapedListener(trio.abc.Listener[ShapedStream]):
    """Accepts connections over a link.

    Args:
        listener: Accepts the streams below; owned from here on.
        network: The link.
        nursery: Where the links' tasks run.
    """

    def __init__(self, listener: trio.abc.Listener[trio.abc.Stream], network: Network, nursery: trio.Nursery) -> None:
        self._listener = listener
        self._network = network
        self._nursery = nursery

    async def accept(self) -> ShapedStream:
        """Accepts the next connection."""
        return ShapedStream(await self._listener.accept(), self._network, self._nursery)

    async def aclose(self) -> None:
        """Accepts no more; connections live on."""
        await self._listener.aclose()


def shaped(
    connect: Callable[[], Awaitable[trio.abc.Stream]], network: Network, nursery: trio.Nursery
) -> Callable[[], Awaitable[ShapedStream]]:
    """Returns a function that connects as `connect` does, over a link."""

    async def connect_shaped() -> ShapedStream:
        return ShapedStream(await connect(), network, nursery)

    return connect_shaped
