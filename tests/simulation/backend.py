"""A backend of a simulated world: a real server in a process that can be killed, on a machine that can vanish."""

from __future__ import annotations

from collections.abc import AsyncIterator
from math import ceil
from random import Random

import trio
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer

import trio_grpc
from tests.simulation.chronicle import Chronicle
from tests.simulation.network import Machine, Trouble, WireListener
from trio_grpc import KeepaliveEnforcement, Limits, RpcError, Server, ServicerContext, StatusCode

Context = ServicerContext[EchoReply]

#: Seconds that a handler works on average.
SERVICE_TIME = 0.05
SERVICE_STEP = 0.025
#: What multiplies it at a slow node.
SLOWNESS = 100.0

_LIMITS = Limits(adaptive_window=False)
#: Clients ask slow backends whether they are still there.
_ENFORCEMENT = KeepaliveEnforcement(min_time=10)


class Backend:
    """One place where a server runs, mostly.

    Attributes:
        machine: where.
        handled: calls that its servers have begun to handle, ever.
        running: handlers that work right now.
    """

    def __init__(self, nursery: trio.Nursery, machine: Machine, rng: Random, chronicle: Chronicle) -> None:
        self.machine = machine
        self.handled = 0
        self.running = 0
        self._nursery = nursery
        self._rng = rng
        self._chronicle = chronicle
        self._process: _Process | None = None
        #: What is wrong with it on purpose, by kind.
        self._troubles: dict[str, Trouble] = {}

    @property
    def address(self) -> str:
        """Where clients find it."""
        return self.machine.address

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong with it."""
        return self._process is not None and not self._troubles

    # -- its life

    async def start(self) -> None:
        """Start a process, on a machine that gets its power back first if need be."""
        assert self._process is None
        self.machine.has_power = True
        for kind in ("draining", "killed", "without power"):
            self._end(kind)
        process = self._process = _Process(self)
        process.server = await self._nursery.start(process.run)
        self.machine.listener = process.listener
        self._chronicle.note(self.address, "started")

    async def drain(self) -> None:
        """Let the process end in good order: it finishes its calls, and is waited for."""
        process = self._leave("draining")
        assert process.server is not None
        await process.server.drain()
        await process.ended.wait()
        self._chronicle.note(self.address, "drained")

    async def kill(self) -> None:
        """End the process without a word; its kernel resets its connections."""
        process = self._leave("killed")
        self.machine.end_connections(quietly=False)
        await process.stop()

    async def lose_power(self) -> None:
        """Let the machine vanish: nobody is told."""
        process = self._leave("without power")
        self.machine.has_power = False
        self.machine.end_connections(quietly=True)
        await process.stop()

    def _leave(self, kind: str) -> _Process:
        process, self._process = self._process, None
        assert process is not None
        self.machine.listener = None
        self.begin(kind)
        return process

    # -- its troubles

    def begin(self, kind: str) -> None:
        """Let something be wrong with it: ``"slow"`` and ``"failing"`` are what its handlers look at."""
        self._troubles[kind] = self.machine.troubles.add(kind)
        self._chronicle.note(self.address, kind)

    def end(self, kind: str) -> None:
        """Let that be over."""
        if self._end(kind):
            self._chronicle.note(self.address, "no longer", kind)

    def _end(self, kind: str) -> bool:
        trouble = self._troubles.pop(kind, None)
        if trouble is not None:
            trouble.over()
        return trouble is not None

    # -- its calls

    async def work(self, call: str) -> None:
        """Take the time that a call takes."""
        self.handled += 1
        self._chronicle.note(self.address, "handles", call)
        if "failing" in self._troubles:
            raise RpcError(StatusCode.UNAVAILABLE, "overloaded")
        await self.pause()

    async def pause(self) -> None:
        """Take the time of one message."""
        # On a grid: a virtual clock need not stop for each of them.
        seconds = ceil(self._rng.expovariate(1 / SERVICE_TIME) / SERVICE_STEP) * SERVICE_STEP
        self.running += 1
        try:
            await trio.sleep(seconds * SLOWNESS if "slow" in self._troubles else seconds)
        finally:
            self.running -= 1


class _Process(EchoServicer):
    """A server, until its end."""

    def __init__(self, backend: Backend) -> None:
        self.listener = WireListener()
        self.server: Server | None = None
        self.ended = trio.Event()
        self._backend = backend
        self._scope = trio.CancelScope()

    async def run(self, task_status: trio.TaskStatus[Server]) -> None:
        with self._scope:
            await trio_grpc.serve(
                [self],
                self.listener,
                limits=_LIMITS,
                keepalive_enforcement=_ENFORCEMENT,
                task_status=task_status,
            )
        self.ended.set()

    async def stop(self) -> None:
        self._scope.cancel()
        await self.ended.wait()

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        await self._backend.work(request.text)
        return EchoReply(text=request.text)

    async def ServerStream(self, request: EchoRequest, context: Context, /) -> AsyncIterator[EchoReply]:
        await self._backend.work(request.text)
        for number in range(request.count):
            yield EchoReply(text=request.text, count=number)
            await self._backend.pause()
