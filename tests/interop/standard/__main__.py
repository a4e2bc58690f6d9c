"""Run the standard interoperability cases with every peer in both directions and print the matrix.

``python -m tests.interop.standard [--peers NAME,...] [--cases NAME,...] [--json FILE]``. Exits with 1 if a case failed
that is not expected to.
"""

# ruff: noqa: T201 -- a command line
from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic

import attrs
import trio

from tests.interop.standard import client as our_client
from tests.interop.standard.cases import CASES
from tests.interop.standard.installing import CACHE, Unavailable
from tests.interop.standard.matrix import (
    FAILED,
    SKIPPED,
    TRIES,
    Attempt,
    CaseFailed,
    Certificates,
    Result,
    attempt,
    judge,
    report,
    running,
    tail,
)
from tests.interop.standard.peers import PEERS, ROOT, Argv, Peer

#: One case of a peer's client, its start included; ours has the same.
PATIENCE = 60
#: A case of our own: our server has logged nothing, which it does for faults only.
LOG = "(our log)"


#: Stands in the matrix when a server did not start at once, or ended.
START = "(start)"


class Column:
    """The cases with one server, one after the other.

    Attributes:
        results: what became of each.
    """

    def __init__(self, reason: Callable[[str], str | None]) -> None:
        self.results: list[tuple[str, Attempt]] = []
        self._reason = reason

    async def case(self, name: str, run: Callable[[], Awaitable[object]]) -> None:
        # What is known to fail is not waited for.
        self.results.append((name, await attempt(run, 1 if self._reason(name) else TRIES)))


class Matrix:
    """Runs cases, a few at a time, and collects what became of them."""

    def __init__(self, directory: Path, cases: Sequence[str], jobs: int) -> None:
        self.results: list[Result] = []
        self._installing: dict[str, Peer] = {}
        self._unfinished: dict[str, Peer] = {}
        self._directory = directory
        self._cases = cases
        self._limiter = trio.CapacityLimiter(jobs)
        self._certificates = Certificates(directory)

    async def run_peer(self, peer: Peer) -> None:
        """Install a peer and run all its cases."""
        self._installing[peer.name] = peer
        try:
            await trio.to_thread.run_sync(peer.install, abandon_on_cancel=True)
        except Unavailable as error:
            self._skip(peer, str(error))
            return
        finally:
            del self._installing[peer.name]
        self._unfinished[peer.name] = peer
        started = monotonic()
        async with trio.open_nursery() as nursery:
            for tls in (False, True) if peer.tls else (False,):
                if peer.server is not None:
                    nursery.start_soon(self._to, peer, tls)
                if peer.client is not None:
                    nursery.start_soon(self._from, peer, tls)
        del self._unfinished[peer.name]
        print(f"{peer.name}: {monotonic() - started:.0f} s", flush=True)

    def time_is_over(self) -> None:
        """Peers that have not come to their end have failed; one that could not be had in time is left out."""
        for peer in self._installing.values():
            self._skip(peer, "not installed in time")
        for peer in self._unfinished.values():
            self._add(peer, "to", False, "(time)", Attempt("not ended in time", 0))

    def _skip(self, peer: Peer, why: str) -> None:
        nothing = Result(peer=peer.name, version=peer.version, direction="", tls=False, case="", outcome=SKIPPED)
        self.results.append(attrs.evolve(nothing, message=why))
        print(f"{peer.name}: SKIPPED ({why})", flush=True)

    async def _to(self, peer: Peer, tls: bool) -> None:
        """Our client, the peer's server."""
        server = peer.server
        assert server is not None

        async def run(column: Column) -> None:
            endpoint = self._certificates.endpoint_for(peer, tls=tls)
            name = f"{peer.name} server{' tls' if tls else ''}"
            flags = [f"--use_tls={tls}", f"--ca_file={endpoint.authority}", f"--server_host_override={endpoint.name}"]
            options = our_client.parse([*flags, f"--patience={PATIENCE}"])
            target = f"127.0.0.1:{endpoint.port}"
            async with running(name, server(endpoint), peer.environment(), endpoint.port, self._directory):
                for case in self._cases:
                    if case in CASES:
                        await column.case(case, partial(our_client.run_case, case, target, options))

        await self._column(peer, "to", tls, run)

    async def _from(self, peer: Peer, tls: bool) -> None:
        """The peer's client, our server."""
        client = peer.client
        assert client is not None

        async def run(column: Column) -> None:
            endpoint = self._certificates.endpoint_for(peer, tls=tls)
            name = f"our server for {peer.name}{' tls' if tls else ''}"
            command = [sys.executable, "-m", "tests.interop.standard.server"]
            command += ["--host=127.0.0.1", f"--port={endpoint.port}"]
            if tls:
                command += ["--use_tls", f"--tls_cert_file={endpoint.chain}", f"--tls_key_file={endpoint.key}"]
            environment = peer.environment()
            async with running(name, command, {}, endpoint.port, self._directory) as log:
                for case in peer.client_cases:
                    if case in self._cases or case not in CASES:
                        await column.case(case, partial(run_client, client(endpoint, case), environment))
            # A fault of ours is not tried again until it is gone.
            column.results.append((LOG, Attempt(tail(log), 0)))

        await self._column(peer, "from", tls, run)

    async def _column(self, peer: Peer, direction: str, tls: bool, run: Callable[[Column], Awaitable[None]]) -> None:
        """Run a server and all cases with it; anew if it does not start, or ends in the middle."""
        column = Column(lambda case: self._reason(peer, direction, tls, case))

        async def run_once() -> None:
            column.results.clear()
            await run(column)

        async with self._limiter:
            server = await attempt(run_once)
        for case, result in column.results:
            self._add(peer, direction, tls, case, result)
        if server.message or server.tries > 1:
            self._add(peer, direction, tls, START, server)

    @staticmethod
    def _reason(peer: Peer, direction: str, tls: bool, case: str) -> str | None:
        keys = [f"{direction} {case} tls", f"{direction} {case}"] if tls else [f"{direction} {case}"]
        return next((peer.expected[key] for key in keys if key in peer.expected), None)

    def _add(self, peer: Peer, direction: str, tls: bool, case: str, result: Attempt) -> None:
        reason = self._reason(peer, direction, tls, case)
        outcome = judge(reason, result.message)
        if outcome is FAILED:
            print(f"{peer.name}{' tls' if tls else ''} {direction} {case}: FAILED", flush=True)
        self.results.append(
            Result(
                peer=peer.name,
                version=peer.version,
                direction=direction,
                tls=tls,
                case=case,
                outcome=outcome,
                message="; ".join(filter(None, (reason, result.message))),
                seconds=result.seconds,
                tries=result.tries,
                failed_tries=result.failed_tries,
            )
        )


async def run_client(argv: Argv, environment: Mapping[str, str]) -> None:
    """Run a peer's client for one case."""
    with trio.move_on_after(PATIENCE) as scope:
        done = await trio.run_process(
            [str(one) for one in argv],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, **environment},
        )
    if scope.cancelled_caught:
        raise CaseFailed(f"not ended within {PATIENCE} s")
    if done.returncode:
        output = (done.stderr + done.stdout).decode(errors="replace").strip()
        raise CaseFailed(f"exit code {done.returncode}: {output[-600:]}")


async def main(options: argparse.Namespace) -> int:
    started = monotonic()
    peers = [peer for peer in PEERS if not options.peers or peer.name in options.peers]
    cases = [case for case in CASES if not options.cases or case in options.cases]
    with tempfile.TemporaryDirectory() as directory:
        matrix = Matrix(Path(directory), cases, options.jobs)

        async def give_up() -> None:
            await trio.sleep(options.minutes * 60)
            matrix.time_is_over()
            nursery.cancel_scope.cancel()

        # Not a scope with a deadline: that would go out with every call.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(give_up)
            async with trio.open_nursery() as running_peers:
                for peer in peers:
                    running_peers.start_soon(matrix.run_peer, peer)
            nursery.cancel_scope.cancel()
    order = [peer.name for peer in peers]
    results = sorted(matrix.results, key=lambda one: (order.index(one.peer), one.direction, one.tls))
    titles = {"to": "our client, the peer's server", "from": "the peer's client, our server"}
    return report(results, cases, titles, options.json, monotonic() - started)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [name.strip() for name in text.split(",")]

    parser = argparse.ArgumentParser(prog="interop", description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", type=names, help=", ".join(peer.name for peer in PEERS))
    parser.add_argument("--cases", type=names, help="the default is all of them")
    parser.add_argument("--json", type=Path, default=CACHE / "matrix.json")
    parser.add_argument("--minutes", type=float, default=20, help="give up after so long")
    parser.add_argument("--jobs", type=int, default=2, help="servers that run at once")
    options = parser.parse_args(arguments)
    known = [peer.name for peer in PEERS]
    for name in options.peers or ():
        if name not in known:
            parser.error(f"no peer is called {name!r}, but these are: {', '.join(known)}")
    cases = {*CASES, *(case for peer in PEERS for case in peer.client_cases)}
    for name in options.cases or ():
        if name not in cases:
            parser.error(f"no case is called {name!r}, but these are: {', '.join(CASES)}")
    return options


if __name__ == "__main__":
    choices = parse(sys.argv[1:])
    # Should a fault of ours keep even the cancelled run from ending.
    signal.alarm(int(choices.minutes * 60) + 60)
    sys.exit(trio.run(main, choices))
