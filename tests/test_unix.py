"""Unix sockets: one smoke test over a real one, and the life of its file."""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
from pathlib import Path

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

import trio_grpc
from tests.echo_service import Context, Echo
from trio_grpc import RpcError, Server, StatusCode

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no unix sockets on this platform")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


def files(directory: Path) -> dict[str, str]:
    """What lies in a directory, and the contents of what is no socket."""
    return {path.name: "" if path.is_socket() else path.read_text() for path in directory.iterdir()}


def is_socket(path: Path) -> bool:
    return path.is_socket()


async def call_it(target: str) -> None:
    async with trio_grpc.open_channel(target) as channel:
        assert (await EchoStub(channel).Unary(EchoRequest(count=7))).count == 7


async def test_all_kinds(nursery: trio.Nursery, path: Path) -> None:
    server: Server = await nursery.start(trio_grpc.serve, [Echo()], f"unix:{path}")
    assert server.addresses == (f"unix:{path}",)
    async with trio_grpc.open_channel(server.addresses[0]) as channel:
        echo = EchoStub(channel)
        payload = bytes(range(256)) * 4096
        assert (await echo.Unary(EchoRequest(payload=payload))).payload == payload
        async with echo.ServerStream(EchoRequest(count=3)) as down:
            assert [reply.count async for reply in down] == [0, 1, 2]
        assert (await echo.ClientStream([EchoRequest(payload=b"a"), EchoRequest(payload=b"b")])).payload == b"ab"
        async with echo.Bidi() as both:
            await both.send(EchoRequest(payload=payload))
            assert (await both.receive()).payload == payload
            assert both.peer == f"unix:{path}"


async def test_both_ends_know_what_they_talk_to(nursery: trio.Nursery, path: Path) -> None:
    class Curious(EchoServicer):
        async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
            return EchoReply(text=f"{context.peer} {context.authority}")

    await nursery.start(trio_grpc.serve, [Curious()], f"unix:{path}")
    async with trio_grpc.open_channel(f"unix:{path}") as channel:
        # The client's end has no name; the authority of a unix target is localhost.
        assert (await EchoStub(channel).Unary(EchoRequest())).text == "unix: localhost"


@pytest.mark.parametrize("form", ["unix:{}", "unix://{}"])
async def test_absolute_targets(nursery: trio.Nursery, path: Path, form: str) -> None:
    await nursery.start(trio_grpc.serve, [Echo()], form.format(path))
    await call_it(form.format(path))
    await call_it(f"unix:{path}")


async def test_relative_targets(nursery: trio.Nursery, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    await nursery.start(trio_grpc.serve, [Echo()], f"unix:{path.name}")
    assert is_socket(path)
    await call_it(f"unix:{path.name}")


@pytest.mark.parametrize("way", ["drain", "cancel", "cancel while it drains"])
async def test_the_file_is_removed_at_the_end(path: Path, way: str) -> None:
    class Stubborn(EchoServicer):
        async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
            raise AssertionError

    async with trio.open_nursery() as nursery:
        server: Server = await nursery.start(trio_grpc.serve, [Stubborn()], [f"unix:{path}", f"unix:{path}2"])
        assert is_socket(path)
        if way == "drain":
            await server.drain()
        elif way == "cancel":
            nursery.cancel_scope.cancel()
        else:
            nursery.start_soon(server.drain)
            nursery.cancel_scope.cancel()
    assert not files(path.parent)


async def test_the_file_is_removed_when_another_address_fails(nursery: trio.Nursery, path: Path) -> None:
    server: Server = await nursery.start(trio_grpc.serve, [Echo()], "127.0.0.1:0")
    with pytest.raises(OSError, match=r"."):
        await trio_grpc.serve([Echo()], [f"unix:{path}", server.addresses[0]])
    assert not files(path.parent)


async def test_a_file_that_a_dead_server_left_is_replaced(nursery: trio.Nursery, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert is_socket(path)
    await nursery.start(trio_grpc.serve, [Echo()], f"unix:{path}")
    await call_it(f"unix:{path}")


async def test_a_living_servers_place_is_not_taken(nursery: trio.Nursery, path: Path) -> None:
    first = Echo()
    await nursery.start(trio_grpc.serve, [first], f"unix:{path}")
    with pytest.raises(OSError, match=r".") as caught:
        await trio_grpc.serve([Echo()], f"unix:{path}")
    assert caught.value.errno == errno.EADDRINUSE
    await call_it(f"unix:{path}")
    assert first.calls == 1


@pytest.fixture
def precious(path: Path) -> Path:
    path.write_text("precious")
    return path


async def test_a_file_that_is_no_socket_is_left_alone(path: Path, precious: Path) -> None:
    with pytest.raises(OSError, match=r".") as caught:
        await trio_grpc.serve([Echo()], f"unix:{path}")
    assert caught.value.errno == errno.EADDRINUSE
    assert files(path.parent) == {path.name: "precious"}


async def test_a_successor_may_take_the_place_of_a_draining_server_and_keeps_it(
    nursery: trio.Nursery, path: Path
) -> None:
    started, gate = trio.Event(), trio.Event()

    class Slow(EchoServicer):
        async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
            started.set()
            await gate.wait()
            return EchoReply(count=1)

    replies: list[EchoReply] = []

    async def call_slow() -> None:
        async with trio_grpc.open_channel(f"unix:{path}") as channel:
            replies.append(await EchoStub(channel).Unary(EchoRequest()))

    old: Server = await nursery.start(trio_grpc.serve, [Slow()], f"unix:{path}")
    async with trio.open_nursery() as inner:
        inner.start_soon(call_slow)
        await started.wait()
        inner.start_soon(old.drain)
        await trio.testing.wait_all_tasks_blocked()
        await nursery.start(trio_grpc.serve, [Echo()], f"unix:{path}")
        await call_it(f"unix:{path}")
        gate.set()
    assert [reply.count for reply in replies] == [1]
    # The old server's end has not removed the new one's file.
    await call_it(f"unix:{path}")


async def test_a_path_that_is_too_long_is_a_bare_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="too long"):
        await trio_grpc.serve([Echo()], f"unix:{tmp_path / ('x' * 200)}")
    async with trio_grpc.open_channel(f"unix:{tmp_path / ('x' * 200)}") as channel:
        with pytest.raises(RpcError, match="too long") as caught:
            await EchoStub(channel).Unary(EchoRequest())
    assert caught.value.code is StatusCode.UNAVAILABLE


async def test_a_directory_that_is_missing_is_a_bare_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await trio_grpc.serve([Echo()], f"unix:{tmp_path / 'missing' / 's'}")


async def test_calling_a_missing_socket(path: Path) -> None:
    async with trio_grpc.open_channel(f"unix:{path}") as channel:
        with pytest.raises(RpcError, match=f"unix:{path}") as caught:
            await EchoStub(channel).Unary(EchoRequest())
    assert caught.value.code is StatusCode.UNAVAILABLE
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert os.strerror(errno.ENOENT) in caught.value.message


async def test_calling_a_dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with trio_grpc.open_channel(f"unix:{path}") as channel:
        with pytest.raises(RpcError, match=f"unix:{path}") as caught:
            await EchoStub(channel).Unary(EchoRequest())
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


# -- abstract names


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="abstract names are Linux's")
async def test_an_abstract_name(nursery: trio.Nursery, tmp_path: Path) -> None:
    # The path makes it unique, as names are the machine's.
    name = f"unix-abstract:{tmp_path}"
    server: Server = await nursery.start(trio_grpc.serve, [Echo()], name)
    assert server.addresses == (name,)
    await call_it(name)
    assert not files(tmp_path)
    with pytest.raises(OSError, match=re.escape(name)):
        await trio_grpc.serve([Echo()], name)
    await server.drain()
    async with trio_grpc.open_channel(name) as channel:
        with pytest.raises(RpcError, match=f"failed to connect to {re.escape(name)}") as caught:
            await EchoStub(channel).Unary(EchoRequest())
        assert caught.value.code is StatusCode.UNAVAILABLE
