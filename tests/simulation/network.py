"""A network of machines in memory, in virtual time: links with a latency that can be cut, machines that can vanish.

It does what TCP does, as far as a program can tell. Bytes arrive in order, or not at all. While a link is cut they wait
for its return, as if they were sent again. The connections of a process that is killed are reset. Those of a machine
that loses its power say nothing: bytes to it are lost, and once it is back it answers them with a reset. Buffers have
no end: nothing here sends much.
"""

from __future__ import annotations

import errno
import os
from functools import partial
from math import inf
from random import Random

import attrs
import trio

from tests.simulation.chronicle import Chronicle
from trio_grpc import Endpoint
from trio_grpc._transport.timers import call_at

#: Seconds that a byte travels between two machines of one data centre, for some and for others.
LATENCIES = (0.0005, 0.001)
#: Seconds between SYNs that nobody answers: the first wait, which doubles (RFC 6298, 2).
SYN_TIMEOUT = 1.0


@attrs.define(eq=False)
class Trouble:
    """Something wrong with a machine or a link, for a while.

    Attributes:
        kind: what.
        begin: since when.
        end: until when; inf while it lasts.
    """

    kind: str
    begin: float = attrs.field(factory=trio.current_time)
    end: float = inf

    def over(self) -> None:
        """It ends now."""
        self.end = trio.current_time()


class Troubles(list[Trouble]):
    """What was wrong with a machine or a link, and when."""

    def add(self, kind: str) -> Trouble:
        """Note that something is wrong from now on."""
        trouble = Trouble(kind)
        self.append(trouble)
        return trouble

    def happen(self, kind: str) -> None:
        """Note something that took no time."""
        self.add(kind).over()

    def between(self, begin: float, end: float) -> list[str]:
        """Return what was wrong at some time between two."""
        return [trouble.kind for trouble in self if trouble.begin <= end and begin <= trouble.end]


class Link:
    """The way between a client's machine and a backend's.

    Attributes:
        latency: seconds one way.
        cut: nothing passes.
        troubles: what was wrong with it.
    """

    __slots__ = ("_wires", "cut", "latency", "troubles")

    def __init__(self, latency: float) -> None:
        self.latency = latency
        self.cut = False
        self.troubles = Troubles()
        # In the order of their making: a set's would be another in each run.
        self._wires: dict[Wire, None] = {}

    def sever(self) -> None:
        """Let nothing pass."""
        if not self.cut:
            self.cut = True
            self.troubles.add("cut")

    def heal(self) -> None:
        """Let everything pass, what has waited first."""
        if self.cut:
            self.cut = False
            self.troubles[-1].over()
            for wire in tuple(self._wires):
                wire.resume()


class _Reset:
    """Takes the place of bytes: the connection is gone."""


_FIN = b""
_RESET = _Reset()


class Wire:
    """A connection: two ends, and what is on its way between them."""

    __slots__ = ("_held", "_link", "client_end", "server_end")

    def __init__(self, link: Link, machine: Machine) -> None:
        self.client_end = WireEnd(self, None)
        self.server_end = WireEnd(self, machine)
        self.client_end.other = self.server_end
        self.server_end.other = self.client_end
        self._link = link
        self._held: list[tuple[WireEnd, bytes | _Reset]] = []
        link._wires[self] = None
        machine._wires[self] = None

    def send(self, to: WireEnd, what: bytes | _Reset) -> None:
        """Send something on its way to one of the ends."""
        if self._link.cut:
            self._held.append((to, what))
        else:
            to.arrives_at = max(trio.current_time() + self._link.latency, to.arrives_at)
            call_at(to.arrives_at, partial(self._arrive, to, what))

    def _arrive(self, to: WireEnd, what: bytes | _Reset) -> None:
        if self._link.cut:
            self._held.append((to, what))
            return
        machine = to.machine
        if machine is not None and not machine.has_power:
            return
        if to.gone:
            # Nobody is there who could read it.
            if what is not _RESET:
                self._link.troubles.happen("reset")
                self.send(to.other, _RESET)
            return
        to.take(what)

    def resume(self) -> None:
        """The link is whole again."""
        held, self._held = self._held, []
        for to, what in held:
            self.send(to, what)

    def forget(self) -> None:
        """Both ends have gone."""
        self._link._wires.pop(self, None)
        assert self.server_end.machine is not None
        self.server_end.machine._wires.pop(self, None)


class WireEnd(trio.abc.HalfCloseableStream):
    """One end of a connection, as a stream."""

    other: WireEnd

    def __init__(self, wire: Wire, machine: Machine | None) -> None:
        self.machine = machine
        self.gone = False
        self.arrives_at = 0.0
        self._wire = wire
        self._inbox = bytearray()
        self._eof = False
        self._reset = False
        self._news = trio.Event()

    def take(self, what: bytes | _Reset) -> None:
        """Something has arrived."""
        if isinstance(what, _Reset):
            self._reset = True
            self._inbox.clear()
        elif what:
            self._inbox += what
        else:
            self._eof = True
        self._news.set()

    def vanish(self, *, quietly: bool) -> None:
        """The process is no more. Its kernel tells the other end, unless that has gone as well."""
        if not self.gone:
            self._leave()
            if not quietly:
                self._wire.send(self.other, _RESET)
        self._reset = True
        self._inbox.clear()
        self._news.set()

    def _leave(self) -> None:
        self.gone = True
        if self.other.gone:
            self._wire.forget()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self._check()
        if data:
            self._wire.send(self.other, bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        self._check()
        self._wire.send(self.other, _FIN)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self._inbox or self._eof or self._reset or self.gone:
            await trio.lowlevel.checkpoint()
        while not self._inbox:
            self._check()
            if self._eof:
                return b""
            self._news = trio.Event()
            await self._news.wait()
        data = bytes(self._inbox[:max_bytes])
        del self._inbox[:max_bytes]
        return data

    def _check(self) -> None:
        if self._reset:
            raise trio.BrokenResourceError("connection reset by peer")
        if self.gone:
            raise trio.ClosedResourceError

    async def aclose(self) -> None:
        if not self.gone:
            self._leave()
            self._wire.send(self.other, _FIN)
            self._inbox.clear()
            self._news.set()
        await trio.lowlevel.checkpoint()


class WireListener(trio.abc.Listener[WireEnd]):
    """Where a process accepts connections."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[WireEnd](inf)

    def put(self, end: WireEnd) -> None:
        """A client has connected."""
        self._send.send_nowait(end)

    async def accept(self) -> WireEnd:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise trio.ClosedResourceError from None

    async def aclose(self) -> None:
        self._send.close()
        with self._receive:
            while True:
                try:
                    self._receive.receive_nowait().vanish(quietly=False)
                except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
                    break
        await trio.lowlevel.checkpoint()


class Machine:
    """Where one backend runs.

    Attributes:
        address: of the backend.
        has_power: False while the machine does not exist as far as others can tell.
        listener: of the process that runs there, None while nobody listens.
        troubles: what was wrong with it.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.has_power = True
        self.listener: WireListener | None = None
        self.troubles = Troubles()
        self._wires: dict[Wire, None] = {}

    def end_connections(self, *, quietly: bool) -> None:
        """The process that had them is no more."""
        for wire in tuple(self._wires):
            wire.server_end.vanish(quietly=quietly)


class Network:
    """All machines, and the links between them.

    Args:
        rng: says how long the links are.
        chronicle: takes notes of connections.

    Attributes:
        dials: attempts to connect.
        connections: those that came to be.
    """

    def __init__(self, rng: Random, chronicle: Chronicle) -> None:
        self.dials = 0
        self.connections = 0
        self._rng = rng
        self._chronicle = chronicle
        self._machines: dict[str, Machine] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._endpoints: dict[tuple[str, str], Endpoint] = {}

    def machine(self, address: str) -> Machine:
        """Return the machine that has an address."""
        if address not in self._machines:
            self._machines[address] = Machine(address)
        return self._machines[address]

    def link(self, client: str, address: str) -> Link:
        """Return the way between a client and an address."""
        key = client, address
        if key not in self._links:
            self._links[key] = Link(self._rng.choice(LATENCIES))
        return self._links[key]

    def endpoint(self, client: str, address: str) -> Endpoint:
        """Return what leads a client to an address; equal ones are one object."""
        key = client, address
        if key not in self._endpoints:
            self._endpoints[key] = Endpoint(address, connect=partial(self._dial, client, address))
        return self._endpoints[key]

    def troubles(self, client: str, address: str, begin: float, end: float) -> list[str]:
        """Return what was wrong for a client with an address between two times."""
        machine, link = self.machine(address), self.link(client, address)
        return machine.troubles.between(begin, end) + link.troubles.between(begin, end)

    async def _dial(self, client: str, address: str) -> WireEnd:
        machine, link = self.machine(address), self.link(client, address)
        self.dials += 1
        wait = SYN_TIMEOUT
        while link.cut or not machine.has_power:
            await trio.sleep(wait)
            wait *= 2
        await trio.sleep(2 * link.latency)
        if machine.listener is None:
            self._chronicle.note(client, "refused", address)
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._chronicle.note(client, "connected", address)
        self.connections += 1
        wire = Wire(link, machine)
        machine.listener.put(wire.server_end)
        return wire.client_end
