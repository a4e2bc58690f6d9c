"""`run`, signals and Ctrl-C in processes of their own. Each step waits for a line of the process, never for a time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.support.echo import Echo
from tests.support.program import program
from trio_grpc import RpcError, StatusCode

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="sends signals")]


def assert_only_keyboard_interrupt(errors: str) -> None:
    """A traceback that ends with KeyboardInterrupt, and not a word beside it."""
    assert errors.endswith("\nKeyboardInterrupt\n"), errors
    assert errors.count("Traceback") == 1, errors
    assert_quiet(errors)


def assert_quiet(errors: str) -> None:
    for noise in ("ignored", "never awaited", "never retrieved", "Warning", "TrioInternalError", "ExceptionGroup"):
        assert noise not in errors, errors


RUN = """
trio_grpc.run([Endless()], "127.0.0.1:0", grace={grace})
print("over")
"""


@asynccontextmanager
async def conversation(address: str, text: str) -> AsyncIterator[Any]:
    async with trio_grpc.open_channel(address) as channel, EchoStub(channel).Bidi() as call:
        await call.send(EchoRequest(text=text))
        assert (await call.receive()).text == text
        yield call


async def wait_refused(address: str) -> None:
    """Return when nobody listens any more."""
    host, _, port = address.rpartition(":")
    while True:
        try:
            await (await trio.open_tcp_stream(host, int(port))).aclose()
        except OSError:
            return


async def expect_unavailable(call: trio_grpc.StreamStreamCall[EchoRequest, EchoReply]) -> None:
    with pytest.raises(RpcError) as caught:
        await call.receive()
    assert caught.value.code is StatusCode.UNAVAILABLE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_drains_and_the_exit_status_is_0(number: signal.Signals) -> None:
    async with program(RUN.format(grace=None)) as server:
        address = await server.address()
        async with conversation(address, "hello") as call:
            server.press(number)
            assert await server.line() == f"{number.name}: draining"
            # The call goes on, and nobody else gets in.
            await call.send(EchoRequest(text="still"))
            assert (await call.receive()).text == "still"
            await wait_refused(address)
            await call.done_sending()
            with pytest.raises(trio.EndOfChannel):
                await call.receive()
        assert await server.ended() == (0, ["finally", "over"])
    assert server.errors == ""


async def test_grace_ends_what_does_not_end_by_itself() -> None:
    async with program(RUN.format(grace=0)) as server:
        async with conversation(await server.address(), "stay") as call:
            await call.done_sending()
            server.press(signal.SIGTERM)
            await expect_unavailable(call)
        assert await server.ended() == (0, ["SIGTERM: draining, at most 0 s for the calls that run", "finally", "over"])
    assert server.errors == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_second_signal_ends_at_once_with_128_and_its_number(number: signal.Signals) -> None:
    async with program(RUN.format(grace=10_000)) as server:
        async with conversation(await server.address(), "stay") as call:
            server.press(signal.SIGTERM)
            assert await server.line() == "SIGTERM: draining, at most 10000 s for the calls that run"
            server.press(number)
            assert await server.line() == f"{number.name} while draining: calls that still run are cancelled"
            await expect_unavailable(call)
        # Handlers have cleaned up, and nothing after `run` was done.
        assert await server.ended() == (128 + number, ["finally"])
    assert server.errors == ""


async def test_a_third_signal_does_not_wait_for_anybody() -> None:
    async with program(RUN.format(grace=None)) as server, conversation(await server.address(), "cling"):
        server.press(signal.SIGTERM)
        await server.line()
        server.press(signal.SIGTERM)
        await server.line()
        server.press(signal.SIGTERM)
        assert await server.ended() == (-signal.SIGTERM, [])
    assert server.errors == ""


async def test_an_address_that_cannot_be_bound_comes_out_as_itself() -> None:
    async with program("trio_grpc.run([Endless()], '256.0.0.1:x')") as server:
        assert await server.ended() == (1, [])
    assert "ValueError: " in server.errors
    assert_quiet(server.errors)


def test_wrong_arguments_fail_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="grace must be 0 or more"):
        trio_grpc.run([Echo()], "127.0.0.1:0", grace=-1)
    with pytest.raises(TypeError, match="servicer must be an instance"):
        trio_grpc.run([Echo], "127.0.0.1:0")  # type: ignore[list-item]


# -- Ctrl-C without a helper: Python's own KeyboardInterrupt, on either side


async def test_ctrl_c_ends_a_plain_server_with_open_streams() -> None:
    text = """
    async def main():
        async with trio.open_nursery() as nursery:
            server = await nursery.start(trio_grpc.serve, [Endless()], "127.0.0.1:0")
            print("serving on", server.addresses[0])
    pressed = False
    try:
        trio.run(main)
    except* KeyboardInterrupt:
        pressed = True  # what is raised here, some versions of Python put into a group again
    if pressed:
        raise KeyboardInterrupt
    """
    if sys.version_info < (3, 11):
        text = text.replace("except*", "except")
    async with program(text) as server:
        async with conversation(await server.address(), "stay") as call:
            server.press(signal.SIGINT)
            await expect_unavailable(call)
        assert await server.ended() == (-signal.SIGINT, ["finally"])
    assert_only_keyboard_interrupt(server.errors)


CLIENT = """
async def dial():
    print("waiting")
    await trio.sleep_forever()

async def main():
    target = sys.argv[1] if sys.argv[1:] else dial
    async with trio_grpc.open_channel(target) as channel:
        echo = EchoStub(channel)
        {body}

trio.run(main)
"""

BODIES = {
    "unary": 'await echo.Unary(EchoRequest(text="wait"))',
    "wait for ready": 'await echo.Unary(EchoRequest(text="wait"), wait_for_ready=True)',
    "stream": "async with echo.Bidi() as call: print((await call.receive()).text); await call.receive()",
}


async def wait_forever(*_: object) -> EchoReply:
    await trio.sleep_forever()
    raise AssertionError


@pytest.mark.parametrize("body", ["unary", "wait for ready"])
async def test_ctrl_c_while_a_client_dials(body: str) -> None:
    async with program(CLIENT.format(body=BODIES[body])) as client:
        assert await client.line() == "waiting"
        client.press(signal.SIGINT)
        assert await client.ended() == (-signal.SIGINT, [])
    assert_only_keyboard_interrupt(client.errors)


@pytest.mark.parametrize("body", ["unary", "wait for ready"])
async def test_ctrl_c_while_a_client_waits_for_the_servers_first_word(body: str) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        async with program(CLIENT.format(body=BODIES[body]), address) as client, await listener.accept() as stream:
            assert (await stream.receive_some()).startswith(b"PRI * HTTP/2.0")
            client.press(signal.SIGINT)
            assert await client.ended() == (-signal.SIGINT, [])
        assert_only_keyboard_interrupt(client.errors)


@pytest.mark.parametrize("body", ["unary", "stream"])
async def test_ctrl_c_while_a_client_waits_for_a_reply(nursery: trio.Nursery, body: str) -> None:
    called, left = trio.Event(), trio.Event()

    async def unary(*_: object) -> EchoReply:
        called.set()
        try:
            await trio.sleep_forever()
            raise AssertionError
        finally:
            left.set()

    async def bidi(*_: object) -> AsyncIterator[EchoReply]:
        try:
            yield EchoReply(text="first")
            await trio.sleep_forever()
        finally:
            left.set()

    server = await nursery.start(trio_grpc.serve, [Echo(unary=unary, bidi=bidi)], "127.0.0.1:0")
    async with program(CLIENT.format(body=BODIES[body]), server.addresses[0]) as client:
        if body == "unary":
            await called.wait()
        else:
            assert await client.line() == "first"
        client.press(signal.SIGINT)
        # The server is told before the process has gone.
        await left.wait()
        assert await client.ended() == (-signal.SIGINT, [])
    assert_only_keyboard_interrupt(client.errors)
    await server.drain()
