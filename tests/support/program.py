"""Python code in a process of its own, whose lines a test waits for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

ROOT = Path(__file__).parent.parent.parent

#: A shell in the background may have told its children to ignore Ctrl-C.
PRELUDE = """
import logging, signal, sys
import trio
import trio_grpc
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

signal.signal(signal.SIGINT, signal.default_int_handler)
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")


class Endless(EchoServicer):
    async def Bidi(self, requests, context):
        try:
            async for request in requests:
                yield EchoReply(text=request.text)
            await trio.sleep_forever() if request.text == "stay" else None
        finally:
            with trio.CancelScope(shield=request.text == "cling"):
                await trio.sleep_forever() if request.text == "cling" else None
            print("finally")

"""


class Program:
    """A Python process whose lines a test waits for."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.errors = ""
        self._lines = bytearray()

    async def line(self) -> str:
        """The next line of its output."""
        assert self.process.stdout is not None
        while b"\n" not in self._lines:
            data = await self.process.stdout.receive_some()
            assert data, f"the process has ended: {self.errors}"
            self._lines += data
        line, _, rest = self._lines.partition(b"\n")
        self._lines = bytearray(rest)
        return line.decode()

    async def address(self) -> str:
        """Where it says that it serves."""
        line = await self.line()
        assert line.startswith("serving on "), line
        return line.removeprefix("serving on ")

    async def tell(self, line: str) -> None:
        """Give it a line to read."""
        assert self.process.stdin is not None
        await self.process.stdin.send_all(f"{line}\n".encode())

    def press(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self) -> tuple[int, list[str]]:
        """How it ended, and the lines that nobody has read; it is told no more."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        await self.process.stdin.aclose()
        async for data in self.process.stdout:
            self._lines += data
        return await self.process.wait(), self._lines.decode().splitlines()

    async def read_errors(self) -> None:
        assert self.process.stderr is not None
        async for data in self.process.stderr:
            self.errors += data.decode()


@asynccontextmanager
async def program(text: str, *arguments: str) -> AsyncIterator[Any]:
    """Run Python code; what it writes on standard error is complete after the block."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "protos")])
    process = await trio.lowlevel.open_process(
        [sys.executable, "-X", "dev", "-W", "error", "-u", "-c", PRELUDE + textwrap.dedent(text), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    running = Program(process)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.read_errors)
            yield running
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
