"""The machines: server processes in network namespaces of their own, or on loopback addresses of this machine.

Either kind can be started, asked to stop, killed, and made a black hole: one that takes everything and never answers.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

SERVER = Path(__file__).parent / "server.py"
COUNT = 3
#: What a server's log says when it can be called.
SERVING = b"serving on "


class Machine:
    """A machine on a loopback address. Cut off, its process stands still: the kernel takes bytes, nobody reads them.

    Attributes:
        name: what it calls itself.
        host: its address.
        port: where its server listens.
    """

    def __init__(self, nursery: trio.Nursery, name: str, host: str, port: int) -> None:
        self.name = name
        self.host = host
        self.port = port
        self._nursery = nursery
        self._process: trio.Process | None = None

    def command(self) -> list[str]:
        """Return what starts the server."""
        return [sys.executable, str(SERVER), f"{self.host}:{self.port}", self.name]

    async def start(self) -> None:
        """Start the server, and return when it can be called."""
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        run = partial(
            trio.run_process,
            self.command(),
            stdout=subprocess.PIPE,
            check=False,
            env=environment,
            # One that stands still would not hear a request to stop.
            deliver_cancel=_kill,
        )
        process: trio.Process = await self._nursery.start(run)
        assert process.stdout is not None
        seen = b""
        while SERVING not in seen:
            data = await process.stdout.receive_some()
            if not data:
                raise RuntimeError(f"the server on {self.name} has not started")
            seen += data
        self._process = process

    async def stop(self) -> None:
        """Ask the server to stop, as a supervisor does, and wait until it has drained."""
        if await self._end(signal.SIGTERM) != 0:
            raise RuntimeError(f"the server on {self.name} has not stopped in good order")

    async def kill(self) -> None:
        """Kill the server where it stands."""
        await self._end(signal.SIGKILL)

    async def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return await self._process.wait()

    async def cut_off(self) -> None:
        """Make it a black hole."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    async def reconnect(self) -> None:
        """Make it answer again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class NamespacedMachine(Machine):
    """A machine with a network of its own. Cut off, it gets every packet, and none of its own leaves it."""

    def __init__(self, nursery: trio.Nursery, name: str, number: int, port: int) -> None:
        # A network for measurements (RFC 2544), which nothing else uses, but perhaps a second demo.
        network = f"198.18.{os.getpid() % 256}"
        super().__init__(nursery, name, f"{network}.{4 * number + 2}", port)
        self.namespace = f"trio-grpc-{os.getpid()}-{number}"
        self._client = f"{network}.{4 * number + 1}"
        self._link = f"tg{os.getpid()}-{number}"

    def command(self) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *super().command()]

    async def open(self) -> None:
        """Make the namespace, and a cable between it and us."""
        await _ip("netns", "add", self.namespace)
        await _ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        await _ip("address", "add", f"{self._client}/30", "dev", self._link)
        await _ip("link", "set", self._link, "up")
        await _ip("-n", self.namespace, "address", "add", f"{self.host}/30", "dev", "eth0")
        await _ip("-n", self.namespace, "link", "set", "eth0", "up")

    async def close(self) -> None:
        """Remove both, as far as they have been made."""
        await trio.run_process(["ip", "netns", "delete", self.namespace], capture_stderr=True, check=False)

    async def cut_off(self) -> None:
        await _ip("-n", self.namespace, "route", "add", "blackhole", f"{self._client}/32")

    async def reconnect(self) -> None:
        await _ip("-n", self.namespace, "route", "delete", "blackhole", f"{self._client}/32")


@asynccontextmanager
async def open_machines(*, loopback: bool) -> AsyncGenerator[list[Machine], None]:
    """Start all machines; when the block ends, nothing of them is left.

    Args:
        loopback: on loopback addresses also where this program may make network namespaces.
    """
    opened: list[NamespacedMachine] = []
    machines: list[Machine] = []
    try:
        async with trio.open_nursery() as nursery:
            if loopback or not await can_make_namespaces():
                port = free_port()
                machines = [Machine(nursery, f"machine-{n}", f"127.0.0.{n + 1}", port) for n in range(1, COUNT + 1)]
                print(f"Machines: {COUNT} processes on the loopback addresses 127.0.0.2 to .{COUNT + 1}.")
            else:
                for n in range(1, COUNT + 1):
                    opened.append(NamespacedMachine(nursery, f"machine-{n}", n, 50051))
                    await opened[-1].open()
                machines = [*opened]
                print(f"Machines: {COUNT} processes, each in a network namespace of its own.")
            async with trio.open_nursery() as starting:
                for machine in machines:
                    starting.start_soon(machine.start)
            yield machines
            # The processes end with their tasks.
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            for machine in opened:
                await machine.close()


async def can_make_namespaces() -> bool:
    """Whether this program may make network namespaces: mostly only root may, and not in every container."""
    if not shutil.which("ip") or os.geteuid() != 0:
        return False
    name = f"trio-grpc-{os.getpid()}"
    made = await trio.run_process(["ip", "netns", "add", name], capture_stderr=True, check=False)
    if made.returncode != 0:
        return False
    await _ip("netns", "delete", name)
    return True


def free_port() -> int:
    """Return a port that is free on the first of the loopback addresses, and so most probably on all."""
    with socket.create_server(("127.0.0.2", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


async def _ip(*arguments: str) -> None:
    await trio.run_process(["ip", *arguments])


async def _kill(process: trio.Process) -> None:
    process.kill()
