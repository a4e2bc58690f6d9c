"""The processes of `run` as their parent sees them: start, ask, end."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

from benchmarks.machine import ROOT
from benchmarks.run_end import BOTH, CLIENT, SERVER, Plan

_CLOSE_TIMEOUT = 5.0


class EndFailedError(Exception):
    """A process gave no figures; the text says which one, and why."""


@final
class End:
    """One process, to be used in a `with` block.

    Args:
        role: What it plays.
        plan: The case.
        core: The core it is pinned to, None for any.
        target: Where a client finds its server.
    """

    def __init__(self, role: str, plan: Plan, core: int | None, target: str = "") -> None:
        command = [sys.executable, "-m", "benchmarks.run_end", role, plan.to_json(), "--target", target]
        if core is not None:
            command += ["--core", str(core)]
        self.role = role
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed with the process
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        # A thread, because there is no reading of a pipe with a timeout that works everywhere.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def say(self, command: str) -> None:
        """Sends a command."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # It has gone. What it left is told when its answer is read.
            return

    def answer(self, timeout: float) -> dict[str, Any]:
        """Returns what it says next.

        Raises:
            EndFailedError: It says nothing, or has ended.
        """
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise EndFailedError(f"the {self.role} process said nothing for {timeout:.0f} s") from None
        if not line:
            raise self._failed()
        figures: dict[str, Any] = json.loads(line)
        return figures

    def _failed(self) -> EndFailedError:
        code = self._process.wait(_CLOSE_TIMEOUT)
        # The last line of a traceback; groups draw a frame to the left of it.
        lines = [text.strip(" |+-") for text in self._printed().splitlines()]
        reason = next((text for text in reversed(lines) if text), "it printed nothing")
        return EndFailedError(f"the {self.role} process ended with code {code}: {reason}")

    def _printed(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def __enter__(self) -> End:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            # The end of its input is what ends it.
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(_CLOSE_TIMEOUT)
        except subprocess.TimeoutExpired:
            print(f"the {self.role} process did not end within {_CLOSE_TIMEOUT:.0f} s", file=sys.stderr)
            self._process.kill()
            self._process.wait()
            kind = subprocess.TimeoutExpired
        self._reader.join()
        self._process.stdout.close()
        try:
            # Figures of a process that could not end well are not to be believed.
            if kind is None and self._process.returncode:
                raise self._failed()
            sys.stderr.write(self._printed() if kind is None else "")
        finally:
            self._errors.close()


@contextmanager
def started(plan: Plan, cores: tuple[int, int] | None, in_memory: bool, timeout: float) -> Iterator[tuple[End, ...]]:
    """Starts the ends of a case, and gives them when all are connected: the client first, or the one that is both.

    Raises:
        EndFailedError: One of them does not get so far.
    """
    server_core, client_core = cores or (None, None)
    if in_memory:
        with End(BOTH, plan, client_core) as both:
            both.answer(timeout)
            yield (both,)
        return
    with End(SERVER, plan, server_core) as server:
        port = server.answer(timeout)["port"]
        with End(CLIENT, plan, client_core, f"127.0.0.1:{port}") as client:
            client.answer(timeout)
            yield client, server


def ask(ends: tuple[End, ...], command: str, timeout: float) -> list[dict[str, Any]]:
    """Has all ends do something at once, and returns what each says, in order."""
    for end in ends:
        end.say(command)
    return [end.answer(timeout) for end in ends]
