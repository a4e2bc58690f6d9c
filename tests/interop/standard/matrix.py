"""What the runs with peers and with proxies share: results, the matrix of them, and server processes."""

# ruff: noqa: T201 -- a command line
from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import attrs
import trio
import trustme

from tests.interop.standard.peers import ROOT, Argv, Endpoint, Peer

START_SECONDS = 60
#: How often a case, or a server's start, is tried before it has failed. Timers, threads and processes are real here,
#: and a machine with something else to do can make any of them late; what fails three times in a row is no accident.
TRIES = 3
#: Seconds between one try and the next.
PAUSE_SECONDS = 1.0
PASSED, FAILED, KNOWN, SURPRISE, SKIPPED = "passed", "failed", "known failure", "passes after all", "skipped"
_MARKS = {PASSED: "ok", FAILED: "FAIL", KNOWN: "known", SURPRISE: "ok!", SKIPPED: "skip"}


class CaseFailed(Exception):
    """A peer's client says that a case failed, or a server that it cannot go on."""


@attrs.frozen(kw_only=True)
class Result:
    """What became of one case.

    Attributes:
        direction: ``to`` the peer's server, or ``from`` the peer's client.
        message: what went wrong, or why that is known.
        tries: more than one if it failed at first.
        failed_tries: what went wrong in the tries before the last.
    """

    peer: str
    version: str
    direction: str
    tls: bool
    case: str
    outcome: str
    message: str = ""
    seconds: float = 0.0
    tries: int = 1
    failed_tries: Sequence[str] = ()


@attrs.frozen
class Attempt:
    """What became of a case, or of a server's start, after so many tries.

    Attributes:
        message: what went wrong at the last try, empty if nothing did.
        seconds: how long the last try took.
        failed_tries: what went wrong in the tries before.
    """

    message: str
    seconds: float
    failed_tries: Sequence[str] = ()

    @property
    def tries(self) -> int:
        return len(self.failed_tries) + 1


async def attempt(run: Callable[[], Awaitable[object]], tries: int = TRIES) -> Attempt:
    """Run a case until it passes, a few times at most."""
    failed: list[str] = []
    while True:
        started = monotonic()
        message = ""
        try:
            await run()
        except Exception as error:
            message = describe(error)
        result = Attempt(message, round(monotonic() - started, 3), tuple(failed))
        if not message or result.tries == tries:
            return result
        failed.append(message)
        await trio.sleep(PAUSE_SECONDS)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody has right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Certificates:
    """A throw-away certificate authority, and a certificate for ``localhost``; files in a folder."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        server = authority.issue_cert("localhost", "127.0.0.1")
        self.authority = directory / "ca.pem"
        self.chain = directory / "server.pem"
        self.key = directory / "server.key"
        authority.cert_pem.write_to_path(str(self.authority))
        for number, blob in enumerate(server.cert_chain_pems):
            blob.write_to_path(str(self.chain), append=number > 0)
        server.private_key_pem.write_to_path(str(self.key))

    def endpoint(self, *, tls: bool) -> Endpoint:
        return Endpoint(free_port(), tls, self.authority, self.chain, self.key)

    def endpoint_for(self, peer: Peer, *, tls: bool) -> Endpoint:
        """The same with the certificates that the peer's programs insist on."""
        if not tls or peer.certificates is None:
            return self.endpoint(tls=tls)
        folder = peer.certificates()
        return Endpoint(
            free_port(),
            tls,
            folder / "ca.pem",
            folder / "server1.pem",
            folder / "server1.key",
            name="foo.test.google.fr",
        )


def tail(log: Path) -> str:
    """The end of what a process has logged."""
    return log.read_text(errors="replace").strip()[-1000:]


@asynccontextmanager
async def running(
    name: str, argv: Argv, environment: Mapping[str, str], port: int, directory: Path
) -> AsyncIterator[Path]:
    """A server process for the length of the block, listening on its port; gives the file with what it logs."""
    log = directory / f"{name.replace(' ', '-')}.log"
    with log.open("wb") as file:
        process = await trio.lowlevel.open_process(
            [str(one) for one in argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
            cwd=ROOT,
            env={**os.environ, **environment},
        )
        try:
            await _wait_listening(name, process, port, log)
            yield log
            if process.poll() is not None:
                raise CaseFailed(f"{name} has ended with {process.returncode}: {tail(log)}")
        finally:
            with trio.CancelScope(shield=True):
                process.terminate()
                with trio.move_on_after(5):
                    await process.wait()
                if process.poll() is None:
                    process.kill()
                    await process.wait()


async def _wait_listening(name: str, process: trio.Process, port: int, log: Path) -> None:
    with trio.move_on_after(START_SECONDS):
        while process.poll() is None:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:
                await trio.sleep(0.05)
            else:
                await stream.aclose()
                return
    raise CaseFailed(f"{name} does not listen: {tail(log)}")


def describe(error: BaseException) -> str:
    """An exception in a line; of a group, what is in it."""
    inner: Sequence[BaseException] = getattr(error, "exceptions", ())
    if inner:
        return "; ".join(dict.fromkeys(describe(one) for one in inner))
    return f"{type(error).__name__}: {error}"


def judge(reason: str | None, message: str) -> str:
    """The outcome of a case that may have gone wrong (message), and may be expected to (reason)."""
    if message:
        return FAILED if reason is None else KNOWN
    return PASSED if reason is None else SURPRISE


def print_matrix(results: Sequence[Result], cases: Sequence[str], titles: Mapping[str, str]) -> None:
    for direction, title in titles.items():
        chosen = [result for result in results if result.direction == direction]
        if not chosen:
            continue
        columns = list(dict.fromkeys((result.peer, result.tls) for result in chosen))
        cells = {(result.case, result.peer, result.tls): result for result in chosen}
        rows = [*cases, *dict.fromkeys(result.case for result in chosen if result.case not in cases)]
        names = [f"{peer}{' tls' if tls else ''}" for peer, tls in columns]
        widths = [max(len(name), 5) for name in names]
        print(f"\n{title}\n{'':36}", *[name.ljust(width) for name, width in zip(names, widths, strict=True)])
        for case in rows:
            line = []
            for (peer, tls), width in zip(columns, widths, strict=True):
                result = cells.get((case, peer, tls))
                mark = "-" if result is None else _MARKS[result.outcome] + ("~" if result.tries > 1 else "")
                line.append(mark.ljust(width))
            print(f"{case:36}", *line)
    print(
        "\nok: passed, ok~: at the second or third try, known: a known fault of the peer, ok!: one that is gone,"
        " -: that client has no such case"
    )
    for result in results:
        for number, message in enumerate(result.failed_tries, 1):
            print(f"try {number} of {_where(result)}: {' '.join(message.split())}")
    for outcome in (KNOWN, SURPRISE):
        notes = dict.fromkeys(
            (one.peer, one.direction, one.case, one.message.partition("; ")[0])
            for one in results
            if one.outcome == outcome
        )
        for peer, direction, case, reason in notes:
            print(f"{outcome}: {peer}, {direction}, {case}: {reason}")
    for result in results:
        if result.outcome == SKIPPED:
            print(f"SKIPPED {result.peer} ({result.message})")
        elif result.outcome == FAILED:
            print(f"FAILED {_where(result)}: {' '.join(result.message.split())}")


def _where(result: Result) -> str:
    return f"{result.peer}{' tls' if result.tls else ''}, {result.direction}, {result.case}"


def report(
    results: Sequence[Result], cases: Sequence[str], titles: Mapping[str, str], path: Path, seconds: float
) -> int:
    """Print everything, write it down as JSON, and return the exit code."""
    print_matrix(results, cases, titles)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([attrs.asdict(result) for result in results], indent=1) + "\n")
    counts = {outcome: sum(result.outcome == outcome for result in results) for outcome in _MARKS}
    said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    again = sum(result.tries > 1 for result in results)
    if again:
        said += f", {again} tried more than once,"
    print(f"\n{said} in {seconds:.0f} s; details in {path}")
    return 1 if counts[FAILED] else 0
