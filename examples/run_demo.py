"""Runs the examples, each as a server and a client process that talk over TCP, and shows what the two say.

``make demo`` runs this. It ends by itself; its exit status is 0 only if every process ended well.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import trio

EXAMPLES = Path(__file__).parent
#: What a server says when it can be called, in front of its address.
LISTENING = "listening on "
#: For all examples together; they need a few seconds.
TIME_LIMIT = 60


async def run_example(name: str) -> str:
    """Start the server, run the client, stop the server; say what went wrong, or nothing."""
    print(f"\n===== examples/{name} =====")
    started = trio.current_time()

    def show(who: str, line: str) -> None:
        if line.startswith("--"):
            print()  # the client begins something new
        print(f"{trio.current_time() - started:5.2f} s  {who:<14}  {line}", flush=True)

    async def show_all(who: str, lines: AsyncIterator[str]) -> None:
        async for line in lines:
            show(who, line)

    async def talk() -> str:
        # Port 0 is any that is free; the server says which one it got.
        server = await start_program(nursery, EXAMPLES / name / "server.py", "127.0.0.1:0")
        server_lines = lines_of(server)
        address = ""
        async for line in server_lines:
            show("      server", line)
            if line.startswith(LISTENING):
                address = line.removeprefix(LISTENING)
                break
        if not address:
            return f"examples/{name}/server.py does not listen"
        nursery.start_soon(show_all, "      server", server_lines)

        client = await start_program(nursery, EXAMPLES / name / "client.py", address)
        await show_all("client", lines_of(client))
        if await client.wait() != 0:
            return f"examples/{name}/client.py ended with exit status {client.returncode}"

        server.terminate()  # it takes this as a request to stop in good order
        if await server.wait() != 0:
            return f"examples/{name}/server.py ended with exit status {server.returncode}"
        return ""

    async with trio.open_nursery() as nursery:
        problem = await talk()
        if problem:
            nursery.cancel_scope.cancel()
    return problem


async def start_program(nursery: trio.Nursery, program: Path, *arguments: str) -> trio.Process:
    """Start a Python program that ends with the nursery at the latest. Its errors go where ours go."""
    process: trio.Process = await nursery.start(
        partial(
            trio.run_process,
            [sys.executable, str(program), *arguments],
            stdout=subprocess.PIPE,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    )
    return process


async def lines_of(process: trio.Process) -> AsyncIterator[str]:
    """Yield the lines that a process prints, as it prints them."""
    assert process.stdout is not None
    rest = b""
    async for data in process.stdout:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode().rstrip()


async def main() -> int:
    problem = ""
    with trio.move_on_after(TIME_LIMIT) as scope:
        for name in ("helloworld", "route_guide"):
            problem = await run_example(name)
            if problem:
                break
    if scope.cancelled_caught:
        problem = f"it was not over after {TIME_LIMIT} s"
    if problem:
        print(f"\nThe demo FAILED: {problem}.", file=sys.stderr)
        return 1
    print("\nBoth examples did what they should. Their sources are worth reading: examples/*/server.py and client.py.")
    return 0


if __name__ == "__main__":
    sys.exit(trio.run(main))
