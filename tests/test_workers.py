"""`run` with several workers: the rules in this process, and real processes that are signalled, killed and orphaned."""

from __future__ import annotations

import errno
import os
import signal
import socket
import ssl
import textwrap
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.support.echo import Echo
from tests.support.program import Program, program
from tests.test_run import assert_quiet, conversation, expect_unavailable, wait_refused
from trio_grpc._shared_addresses import SharedAddresses
from trio_grpc._workers import Restarts, check_workers, supervise
from trio_grpc.testing import MemoryListener

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="forks and sends signals")]

#: Each reply names the process that has made it.
RUN = """
import os

class Named(Endless):
    async def Unary(self, request, context):
        return EchoReply(text=str(os.getpid()))

{prelude}
trio_grpc.run([Named()], {address!r}, workers=2, grace={grace}, ssl_context={tls})
print("over")
"""


class Workers(Program):
    """A program with two workers, whose lines come in no order among processes."""

    def __init__(self, program: Program) -> None:
        self.__dict__ = program.__dict__
        self.where = ""
        self.pids: list[int] = []

    async def started(self) -> None:
        while not self.where or len(self.pids) < 2:
            await self.note(await self.line())

    async def note(self, line: str) -> None:
        where, _, rest = line.removeprefix("serving on ").partition(" with ")
        if rest:
            assert rest == "2 workers"
            self.where = where
        else:
            worker, pid, serves = line.split()
            assert (worker, serves) == ("worker", "serves")
            self.pids.append(int(pid))


@asynccontextmanager
async def workers(
    address: str | list[str] = "127.0.0.1:0", grace: float | None = None, prelude: str = "", tls: str = "None"
) -> AsyncIterator[Workers]:
    async with program(RUN.format(address=address, grace=grace, prelude=textwrap.dedent(prelude), tls=tls)) as started:
        running = Workers(started)
        await running.started()
        try:
            yield running
        finally:
            for pid in running.pids:
                # Whatever has failed: none of them outlives the test.
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


async def serving_pid(address: str, **options: Any) -> int:
    async with trio_grpc.open_channel(address, **options) as channel:
        return int((await EchoStub(channel).Unary(EchoRequest())).text)


async def reach(address: str, pid: int, **options: Any) -> None:
    """Call the worker with this pid: connections find theirs by chance."""
    while await serving_pid(address, **options) != pid:
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_the_parent_drains_all_workers(number: signal.Signals) -> None:
    async with workers() as server:
        for pid in server.pids:
            await reach(server.where, pid)
        async with conversation(server.where, "one") as one, conversation(server.where, "two") as two:
            server.press(number)
            assert await server.line() == f"{number.name}: draining"
            await wait_refused(server.where)
            for call in (one, two):
                await call.send(EchoRequest(text="still"))
                assert (await call.receive()).text == "still"
                await call.done_sending()
                with pytest.raises(trio.EndOfChannel):
                    await call.receive()
        status, lines = await server.ended()
    assert status == 0
    # Only this process goes on after `run`.
    assert sorted(lines) == sorted(
        ["finally", "finally", "over", *(f"worker {pid} ended with exit status 0" for pid in server.pids)]
    )
    assert server.errors == ""


async def test_a_signal_to_the_whole_group_counts_once() -> None:
    async with workers() as server:
        async with conversation(server.where, "hello") as call:
            # As a terminal does at Ctrl-C.
            for pid in (server.process.pid, *server.pids):
                os.kill(pid, signal.SIGINT)
            assert await server.line() == "SIGINT: draining"
            await wait_refused(server.where)
            await call.send(EchoRequest(text="still"))
            assert (await call.receive()).text == "still"
        status, _ = await server.ended()
    assert status == 0
    assert server.errors == ""


async def test_a_second_signal_ends_all_workers_at_once() -> None:
    async with workers() as server:
        async with conversation(server.where, "stay") as one, conversation(server.where, "stay") as two:
            server.press(signal.SIGTERM)
            assert await server.line() == "SIGTERM: draining"
            server.press(signal.SIGINT)
            while "while draining" not in await server.line():
                pass
            await expect_unavailable(one)
            await expect_unavailable(two)
        status, lines = await server.ended()
    assert status == 128 + signal.SIGINT
    assert lines.count("finally") == 2
    assert "over" not in lines
    assert server.errors == ""


async def test_a_third_signal_waits_for_no_worker() -> None:
    async with workers() as server, conversation(server.where, "cling"):
        for _ in range(2):
            server.press(signal.SIGTERM)
            await server.line()
        server.press(signal.SIGTERM)
        # Its output ends with the last process that has it.
        assert (await server.ended())[0] == -signal.SIGTERM


async def test_a_worker_that_dies_is_started_again() -> None:
    async with workers() as server:
        victim, other = server.pids
        os.kill(victim, signal.SIGKILL)
        line = await server.line()
        assert line.startswith(f"worker {victim} ended with SIGKILL; another one starts in "), line
        # Until then the other has all connections.
        assert await serving_pid(server.where) == other
        await server.note(await server.line())
        successor = server.pids[-1]
        await reach(server.where, successor)
        server.press(signal.SIGTERM)
        assert (await server.ended())[0] == 0
    assert server.errors == ""


async def test_a_signal_to_one_worker_drains_it_and_another_takes_its_place() -> None:
    async with workers() as server:
        leaving, other = server.pids
        os.kill(leaving, signal.SIGTERM)
        line = await server.line()
        assert line.startswith(f"worker {leaving} ended with exit status 0; another one starts in "), line
        await server.note(await server.line())
        for pid in (other, server.pids[-1]):
            await reach(server.where, pid)
        server.press(signal.SIGTERM)
        assert (await server.ended())[0] == 0
    assert server.errors == ""


async def test_a_system_without_room_for_a_worker_is_asked_again() -> None:
    prelude = """
    def fork(real=os.fork, rooms=[True, True, False, True]):
        if not rooms.pop(0):
            raise BlockingIOError("no room")
        return real()
    os.fork = fork
    """
    async with workers(prelude=prelude) as server:
        os.kill(server.pids[0], signal.SIGKILL)
        assert (await server.line()).startswith(f"worker {server.pids[0]} ended with SIGKILL")
        assert (await server.line()).startswith("a worker cannot be started: no room; again in ")
        await server.note(await server.line())
        await reach(server.where, server.pids[-1])
        server.press(signal.SIGTERM)
        assert (await server.ended())[0] == 0
    assert server.errors == ""


async def test_orphans_drain() -> None:
    async with workers() as server, conversation(server.where, "hello") as call:
        server.process.kill()
        await wait_refused(server.where)
        await call.send(EchoRequest(text="still"))
        assert (await call.receive()).text == "still"
        await call.done_sending()
        with pytest.raises(trio.EndOfChannel):
            await call.receive()
        # The output ends with the last process that has it.
        await server.ended()


async def test_a_unix_socket_is_shared_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with workers(f"unix:{path}") as server:
        for pid in server.pids:
            await reach(server.where, pid)
        server.press(signal.SIGTERM)
        assert (await server.ended())[0] == 0
    assert not path.exists()
    assert server.errors == ""


async def test_an_address_in_use_is_an_error_of_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with program(RUN.format(address=f"127.0.0.1:{port}", grace=None, prelude="", tls=None)) as server:
            assert await server.ended() == (1, [])
    assert f"in use: '127.0.0.1:{port}'" in server.errors
    assert server.errors.count("Traceback") == 1
    assert_quiet(server.errors)


async def test_a_worker_that_cannot_serve_ends_the_program() -> None:
    text = """
    from trio_grpc._shared_addresses import SharedAddresses
    def refuse(self):
        raise OSError("no more listeners")
    SharedAddresses.listeners = refuse
    trio_grpc.run([Endless()], "127.0.0.1:0", workers=2)
    """
    async with program(text) as server:
        status, _lines = await server.ended()
    assert status == 1
    last = server.errors.splitlines()[-1]
    assert last.startswith("RuntimeError: worker ")
    assert last.endswith(" ended with exit status 1 (OSError: no more listeners) before it served")


async def test_several_addresses_with_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = tmp_path / "certificate.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    text = f"""
    import ssl
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain({str(certificate)!r})
    """
    addresses = ["127.0.0.1:0", "127.0.0.1:0"]
    async with workers(addresses, prelude=text, tls="tls") as server:
        first, second = server.where.split(", ")
        assert first != second
        for address in (first, second):
            for pid in server.pids:
                await reach(address, pid, ssl_context=trusting)
        server.press(signal.SIGTERM)
        assert (await server.ended())[0] == 0
    assert server.errors == ""


# -- in this process


def uniform(low: float, high: float) -> float:
    assert (low, high) == (0.8, 1.2)
    return 1.0


def test_young_deaths_make_it_wait_longer_and_longer() -> None:
    restarts = Restarts(uniform=uniform)
    assert [restarts.delay(0.1) for _ in range(4)] == pytest.approx([1, 1.6, 2.56, 4.096])
    assert [restarts.delay(9.9) for _ in range(10)][-1] == 120


def test_a_worker_that_has_lived_is_replaced_at_once_and_starts_afresh() -> None:
    restarts = Restarts(uniform=uniform)
    assert [restarts.delay(lived) for lived in (1, 1, 10, 1, 10_000, 1)] == [1, 1.6, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("workers", "error", "text"),
    [
        (0, ValueError, "workers must be 1 or more, got 0"),
        (-2, ValueError, "workers must be 1 or more, got -2"),
        (2.0, TypeError, "workers must be a number of processes, not float"),
        (True, TypeError, "workers must be a number of processes, not bool"),
        (None, TypeError, "workers must be a number of processes, not NoneType"),
    ],
)
def test_a_wrong_number_is_refused(workers: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        trio_grpc.run([Echo()], "127.0.0.1:0", workers=workers)


@pytest.mark.parametrize(("module", "name"), [(os, "fork"), (socket, "SO_REUSEPORT")])
def test_a_system_without_what_it_takes_is_named(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    monkeypatch.delattr(module, name)
    check_workers(1)
    with pytest.raises(ValueError, match=f"workers must be 1 on this system, which has no {name}; got 2"):
        trio_grpc.run([Echo()], "127.0.0.1:0", workers=2)


def test_a_system_without_room_for_all_pipes_has_those_back_that_it_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = os.pipe, 2

    def pipe() -> tuple[int, int]:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.EMFILE, "too many")
        return real()

    before = sorted(Path("/dev/fd").iterdir())
    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(OSError, match="too many"):
        supervise(1, lambda _: None, grace=None, where="", on_drain=lambda: None)
    assert left < 0
    assert sorted(Path("/dev/fd").iterdir()) == before


def test_only_the_main_thread_can_have_workers() -> None:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            trio_grpc.run([Echo()], "127.0.0.1:0", workers=2)
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


async def test_a_running_event_loop_is_not_forked() -> None:
    with pytest.raises(RuntimeError, match="from inside"):
        trio_grpc.run([Echo()], "127.0.0.1:0", workers=2)


def test_wrong_arguments_fail_before_any_process_is_made() -> None:
    with pytest.raises(TypeError, match="servicer must be an instance"):
        trio_grpc.run([Echo], "127.0.0.1:0", workers=2)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="no port"):
        trio_grpc.run([Echo()], ["127.0.0.1:0", "127.0.0.1"], workers=2)
    with pytest.raises(ValueError, match="workers: processes cannot share a MemoryListener"):
        trio_grpc.run([Echo()], MemoryListener(), workers=2)


async def test_a_reserved_port_is_refused_until_somebody_listens() -> None:
    shared = SharedAddresses("127.0.0.1:0")
    try:
        (name,) = shared.names
        await wait_refused(name)
        listeners = shared.listeners()
        assert [f"127.0.0.1:{one.socket.getsockname()[1]}" for one in listeners] == [name]
        await (await trio.open_tcp_stream("127.0.0.1", int(name.rpartition(":")[2]))).aclose()
        for listener in listeners:
            await listener.aclose()
    finally:
        shared.close()


def test_what_was_bound_is_closed_when_another_address_cannot_be(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"'127.0.0.1:{port}'"):
            SharedAddresses([f"unix:{tmp_path}/socket", "127.0.0.1:0", f"127.0.0.1:{port}"])
    assert list(tmp_path.iterdir()) == []
