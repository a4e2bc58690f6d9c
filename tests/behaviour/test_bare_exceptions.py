"""Errors of connecting and serving come out as themselves, with the reason in the first line."""

from __future__ import annotations

import errno
import os
import signal

import pytest
import trio
import trio.testing
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoServicer, EchoStub

import trio_grpc


class BrokenListener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts nothing, and fails."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def accept(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        raise self.error

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("error", [OSError(errno.EBADF, "gone"), KeyboardInterrupt()], ids=["OSError", "Ctrl-C"])
async def test_serve_raises_what_ended_it(error: BaseException) -> None:
    cause = ValueError("why")
    error.__cause__ = cause
    with pytest.raises(type(error)) as caught:
        await trio_grpc.serve([EchoServicer()], BrokenListener(error))
    assert caught.value is error
    assert caught.value.__cause__ is cause
    assert caught.value.__context__ is None


async def test_serve_that_cannot_bind_raises_a_bare_os_error() -> None:
    with trio.socket.socket() as taken:
        await taken.bind(("127.0.0.1", 0))
        with pytest.raises(OSError) as caught:
            await trio_grpc.serve([EchoServicer()], f"127.0.0.1:{taken.getsockname()[1]}")
    assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("address", ["192.0.2.1:1", "unix:/no/such/folder/socket", "no-such-name.invalid:1"])
async def test_serve_that_cannot_bind_says_where(address: str) -> None:
    with pytest.raises(OSError) as caught:
        await trio_grpc.serve([EchoServicer()], ["127.0.0.1:0", address])
    assert address in str(caught.value)


def test_ctrl_c_while_a_channel_writes_comes_out_bare() -> None:
    async def main() -> None:
        ours, _ = trio.testing.memory_stream_pair()

        async def press_ctrl_c() -> None:
            ours.send_stream.send_all_hook = None
            signal.raise_signal(signal.SIGINT)
            await trio.lowlevel.checkpoint()

        async def dial() -> trio.abc.Stream:
            await trio.lowlevel.checkpoint()
            ours.send_stream.send_all_hook = press_ctrl_c
            return ours

        with trio.fail_after(5):
            async with trio_grpc.open_channel(dial) as channel:
                await EchoStub(channel).Unary(EchoRequest())

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)


async def test_a_refused_connection_says_so() -> None:
    with trio.socket.socket() as silent:  # bound, so that nobody else gets the port, but not listening
        await silent.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        async with trio_grpc.open_channel(target) as channel:
            with pytest.raises(trio_grpc.RpcError) as caught:
                await EchoStub(channel).Unary(EchoRequest())
    assert caught.value.code is trio_grpc.StatusCode.UNAVAILABLE
    reason = os.strerror(errno.ECONNREFUSED)
    assert caught.value.message == f"failed to connect to {target}: [Errno {errno.ECONNREFUSED}] {reason}"
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


async def test_all_reasons_of_several_addresses_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_tcp_stream(host: str, port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        attempts = [OSError(errno.ENETUNREACH, "1"), OSError(errno.ECONNREFUSED, "2"), OSError(errno.ECONNREFUSED, "3")]
        error = OSError("all attempts failed")
        error.__cause__ = trio_group(attempts)
        raise error

    monkeypatch.setattr(trio, "open_tcp_stream", open_tcp_stream)
    async with trio_grpc.open_channel("127.0.0.1:1") as channel:
        with pytest.raises(trio_grpc.RpcError) as caught:
            await EchoStub(channel).Unary(EchoRequest())
    reasons = f"{os.strerror(errno.ENETUNREACH)}; {os.strerror(errno.ECONNREFUSED)}"
    assert caught.value.message == f"failed to connect to 127.0.0.1:1: {reasons}"


def trio_group(errors: list[OSError]) -> BaseException:
    """What trio puts them into; Python 3.10 has no such class of its own."""
    group = Exception("group")
    group.exceptions = tuple(errors)  # type: ignore[attr-defined]
    return group
