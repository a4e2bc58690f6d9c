"""Servers that go and come back under load: real processes, real signals, and a client that never pauses."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.support.program import Program, program
from trio_grpc import RpcError, StatusCode

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="sends signals")]

#: Every reply names the process that has made it; calls take some milliseconds, so that a signal finds some running.
SERVER = """
import os

class Named(EchoServicer):
    async def Unary(self, request, context):
        await trio.sleep(0.01)
        return EchoReply(text=str(os.getpid()))

    async def ServerStream(self, request, context):
        for number in range(request.count):
            yield EchoReply(text=str(os.getpid()), count=number)
            await trio.sleep(0.01)

"""
WORKERS = (
    SERVER
    + """
trio_grpc.run([Named()], "127.0.0.1:0", grace=10, workers=2)
"""
)
#: Makes a server at each address that it is told: most of the time that a process needs to start goes into imports.
LAUNCHER = (
    SERVER
    + """
def tell_end(*_):
    pid, status = os.wait()
    print(f"{pid} ended with {os.waitstatus_to_exitcode(status)}")

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(process)d %(message)s", force=True)
before = signal.signal(signal.SIGCHLD, tell_end)
for address in sys.stdin:
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, before)
        trio_grpc.run([Named()], address.strip(), grace=10)
        os._exit(0)
"""
)
STREAMED = 5


@attrs.define
class Load:
    """Callers in tight loops, each with a call of its own kind.

    Attributes:
        options: of all calls.
        unary: finished calls, by the process that has answered.
        streams: the same for server-streaming ones.
        failures: what other calls have ended with.
    """

    options: dict[str, Any] = attrs.field(factory=dict)
    unary: Counter[int] = attrs.field(factory=Counter)
    streams: Counter[int] = attrs.field(factory=Counter)
    failures: list[RpcError] = attrs.field(factory=list)
    _progress: trio.Event = attrs.field(factory=trio.Event)

    async def call(self, channel: trio_grpc.Channel) -> None:
        """Make unary calls for ever."""
        echo = EchoStub(channel)
        while True:
            try:
                reply = await echo.Unary(EchoRequest(), **self.options)
                self._note(self.unary, int(reply.text))
            except RpcError as error:
                self.failures.append(error)

    async def stream(self, channel: trio_grpc.Channel) -> None:
        """Make server-streaming calls for ever, each of which must give all of its replies."""
        echo = EchoStub(channel)
        while True:
            try:
                async with echo.ServerStream(EchoRequest(count=STREAMED), **self.options) as call:
                    replies = [reply async for reply in call]
            except RpcError as error:
                self.failures.append(error)
            else:
                assert [reply.count for reply in replies] == list(range(STREAMED))
                self._note(self.streams, int(replies[0].text))

    def _note(self, kind: Counter[int], pid: int) -> None:
        kind[pid] += 1
        self._progress.set()
        self._progress = trio.Event()

    async def reaches(self, *pids: int, calls: int = 3) -> None:
        """Wait until each of these processes has answered so many more calls of both kinds."""
        enough = {(id(kind), pid): kind[pid] + calls for kind in (self.unary, self.streams) for pid in pids}
        while any(kind[pid] < enough[id(kind), pid] for kind in (self.unary, self.streams) for pid in pids):
            await self._progress.wait()


@asynccontextmanager
async def load(channels: list[trio_grpc.Channel], **options: Any) -> AsyncIterator[Load]:
    """Four callers, and two that stream, on these channels in turn."""
    running = Load(options)
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(running.call, channels[number % len(channels)])
        for number in range(2):
            nursery.start_soon(running.stream, channels[number % len(channels)])
        yield running
        nursery.cancel_scope.cancel()


@attrs.define
class Server:
    """A server process that can be replaced by another one at the same address."""

    _launcher: Program
    address: str = "127.0.0.1:0"
    pid: int = 0

    async def start(self) -> None:
        await self._launcher.tell(self.address)
        pid, text = (await self._launcher.line()).split(maxsplit=1)
        assert text.startswith("serving on "), text
        self.pid, self.address = int(pid), text.removeprefix("serving on ")

    async def drain(self) -> None:
        """Stop it as a supervisor does, and wait until it has ended in good order."""
        os.kill(self.pid, signal.SIGTERM)
        line = await self._launcher.line()
        assert line == f"{self.pid} SIGTERM: draining, at most 10 s for the calls that run"
        assert await self._launcher.line() == f"{self.pid} ended with 0"
        self.pid = 0


@asynccontextmanager
async def three_servers() -> AsyncIterator[list[Server]]:
    """Three of them, and not one is left when the block has ended."""
    async with program(LAUNCHER) as launcher:
        servers = [Server(launcher) for _ in range(3)]
        try:
            for server in servers:
                await server.start()
            yield servers
            for server in servers:
                await server.drain()
        finally:
            for server in servers:
                if server.pid:
                    os.kill(server.pid, signal.SIGKILL)
        assert await launcher.ended() == (0, [])
    assert launcher.errors == ""


async def test_no_call_fails_when_all_servers_are_restarted_in_turn() -> None:
    async with three_servers() as servers:
        target = "ipv4:" + ",".join(server.address for server in servers)
        async with (
            trio_grpc.open_channel(target, load_balancing="round_robin") as channel,
            load([channel]) as calls,
        ):
            await calls.reaches(*(server.pid for server in servers))
            for server in servers:
                others = [other.pid for other in servers if other is not server]
                await server.drain()
                await calls.reaches(*others)
                await server.start()
                await calls.reaches(server.pid, *others)
        assert calls.failures == []
        assert len(calls.unary) == len(calls.streams) == 6


async def test_a_killed_worker_loses_only_its_own_calls_and_the_drain_of_all_loses_none() -> None:
    async with program(WORKERS) as server, AsyncExitStack() as stack:
        where, pids = "", []
        while len(pids) < 2:
            line = await server.line()
            if line.startswith("serving on "):
                where = line.split()[2]
            else:
                pids.append(int(line.split()[1]))
        # Connections find their worker by chance: open some until each has two.
        channels: dict[int, list[trio_grpc.Channel]] = {pid: [] for pid in pids}
        while any(len(there) < 2 for there in channels.values()):
            channel = await stack.enter_async_context(trio_grpc.open_channel(where))
            channels[int((await EchoStub(channel).Unary(EchoRequest())).text)].append(channel)
        victim, other = pids
        # One that connects in the very moment may still be given to the dead worker. Such calls wait, and do not fail.
        used = [channels[victim][0], channels[other][0], channels[victim][1]]
        async with load(used, wait_for_ready=True) as calls:
            await calls.reaches(victim, other)
            os.kill(victim, signal.SIGKILL)
            assert (await server.line()).startswith(f"worker {victim} ended with SIGKILL; another one starts in ")
            worker, successor, serves = (await server.line()).split()
            assert (worker, serves) == ("worker", "serves")
            assert int(successor) not in pids
            await calls.reaches(other)
            # Those in flight there: at most one of each caller. New ones go to a worker that lives.
            assert 0 < len(calls.failures) <= 4
            assert {failure.code for failure in calls.failures} == {StatusCode.UNAVAILABLE}
            failed = len(calls.failures)
            await calls.reaches(other)
            assert len(calls.failures) == failed
        # One that has reached the successor.
        channel = channels[other][0]
        while int((await EchoStub(channel).Unary(EchoRequest())).text) != int(successor):
            channel = await stack.enter_async_context(trio_grpc.open_channel(where))
        async with trio.open_nursery() as nursery:
            results: list[int] = []

            async def stream(channel: trio_grpc.Channel) -> None:
                async with EchoStub(channel).ServerStream(EchoRequest(count=100)) as call:
                    await call.receive()
                    begun.append(channel)
                    if len(begun) == 2:
                        server.press(signal.SIGTERM)
                    results.append(sum([1 async for _ in call]))

            begun: list[trio_grpc.Channel] = []
            nursery.start_soon(stream, channel)
            nursery.start_soon(stream, channels[other][0])
        assert results == [99, 99]
        status, lines = await server.ended()
    assert (status, server.errors) == (0, "")
    assert (
        sorted(line.removeprefix("worker ").partition(" ")[2] for line in lines[1:]) == ["ended with exit status 0"] * 2
    )
