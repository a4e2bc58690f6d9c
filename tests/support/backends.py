"""Places where servers come and go, in memory, for tests of channels with several of them."""

from __future__ import annotations

from collections.abc import Iterable

import trio

import trio_grpc
from tests.echo_service import Echo
from trio_grpc import Endpoint, Limits, Server, Servicer
from trio_grpc.testing import MemoryListener


class Backend:
    """One place; nobody is there until `start`.

    Attributes:
        endpoint: leads there.
        dials: connection attempts, ever.
        refusals: those of them that found nobody.
        servicer: of the server that is up, or was last.
        server: the one that is up.
        others: servicers that it serves besides.
    """

    def __init__(self, nursery: trio.Nursery, name: str) -> None:
        self.endpoint = Endpoint(name, connect=self.dial)
        self.dials = 0
        self.refusals = 0
        self.servicer = Echo()
        self.server: Server | None = None
        self.others: tuple[Servicer, ...] = ()
        self._nursery = nursery
        self._listener: MemoryListener | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    @property
    def calls(self) -> int:
        """Calls that the server that is up, or was last, has begun."""
        return self.servicer.calls

    async def dial(self) -> trio.abc.Stream:
        self.dials += 1
        if self._listener is None:
            self.refusals += 1
            await trio.lowlevel.checkpoint()
            raise ConnectionRefusedError("no server here")
        return await self._listener.connect()

    async def start(
        self,
        servicer: Echo | None = None,
        limits: Limits | None = None,
        interceptors: Iterable[trio_grpc.ServerInterceptor] = (),
    ) -> Server:
        """Start a server."""
        self.servicer = Echo() if servicer is None else servicer
        self._listener = MemoryListener()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        server: Server = await self._nursery.start(
            self._serve, limits or Limits(adaptive_window=False), tuple(interceptors)
        )
        self.server = server
        return server

    async def _serve(
        self,
        limits: Limits,
        interceptors: tuple[trio_grpc.ServerInterceptor, ...],
        task_status: trio.TaskStatus[Server],
    ) -> None:
        listener, ended = self._listener, self._ended
        assert listener is not None
        with self._scope:
            await trio_grpc.serve(
                [self.servicer, *self.others],
                listener,
                limits=limits,
                interceptors=interceptors,
                task_status=task_status,
            )
        ended.set()

    async def stop(self) -> None:
        """End the server and its connections now."""
        self._listener = None
        self._scope.cancel()
        await self._ended.wait()

    async def drain(self) -> None:
        """End the server once its calls have ended; dials fail from now on."""
        assert self.server is not None
        self._listener = None
        await self.server.drain()
        await self._ended.wait()
