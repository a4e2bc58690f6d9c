"""`trio_grpc.testing.assert_no_leaks`: what it finds, and what it lets pass."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoStub

from tests.echo_service import Echo, Waiting
from trio_grpc.testing import assert_no_leaks, open_channel_pair


async def test_channels_and_servers_that_end_leave_nothing() -> None:
    async with assert_no_leaks(), open_channel_pair(Echo(), sockets=True) as (channel, _):
        await EchoStub(channel).Unary(EchoRequest())


async def test_a_task_that_goes_on_is_named_with_its_place(nursery: trio.Nursery) -> None:
    async def forgotten() -> None:
        await trio.sleep_forever()

    with pytest.raises(AssertionError) as caught:
        async with assert_no_leaks():
            nursery.start_soon(forgotten)
    text = str(caught.value)
    assert "forgotten' " in text or "forgotten'," in text
    assert f"{__file__}:" in text
    assert text.startswith("left behind:\n  task ")


async def test_a_socket_that_is_open_is_named() -> None:
    pair: tuple[socket.socket, ...] = ()
    with pytest.raises(AssertionError, match=r"file descriptor \d+: socket:\[\d+\]"):
        async with assert_no_leaks():
            pair = socket.socketpair()
    for one in pair:
        one.close()


async def test_calls_that_go_on_are_named_for_channels_and_servers_that_are_given() -> None:
    async with open_channel_pair(Waiting()) as (channel, server):
        await channel.wait_ready()
        async with assert_no_leaks(channel, server):
            pass
        async with EchoStub(channel).ServerStream(EchoRequest(count=1)) as replies:
            await replies.receive()
            with pytest.raises(AssertionError) as caught:
                async with assert_no_leaks(channel, server):
                    pass
        assert f"{channel!r}: streams=1" in str(caught.value)
        assert f"{server!r}: handlers=1" in str(caught.value)


async def test_an_exception_goes_before(nursery: trio.Nursery) -> None:
    with pytest.raises(KeyError):  # noqa: PT012 -- the block is what is tested
        async with assert_no_leaks():
            nursery.start_soon(trio.sleep_forever)
            raise KeyError


def test_only_channels_and_servers_can_be_named() -> None:
    with pytest.raises(TypeError, match="assert_no_leaks takes channels and servers, not int"):
        assert_no_leaks(5)  # type: ignore[arg-type]
