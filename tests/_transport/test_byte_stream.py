"""Bytes in and out, over sockets and over trio's streams."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from trio_grpc._transport import byte_stream
from trio_grpc._transport.byte_stream import ByteStream, SocketByteStream, TrioByteStream

READ_SIZE = 65_536

KINDS = ["socket", "trio socket", "memory"]


def make_pair(kind: str) -> tuple[ByteStream, trio.abc.Stream]:
    """Return a byte stream of ours and a plain trio stream at its other end."""
    if kind == "memory":
        near, far = trio.testing.memory_stream_pair()
        return TrioByteStream(near), far
    near_socket, far_socket = socket.socketpair()
    other = trio.SocketStream(trio.socket.from_stdlib_socket(far_socket))
    if kind == "socket":
        return SocketByteStream(near_socket), other
    return byte_stream.wrap(trio.SocketStream(trio.socket.from_stdlib_socket(near_socket))), other


@pytest.fixture(params=KINDS)
async def pair(request: pytest.FixtureRequest) -> Any:
    near, far = make_pair(request.param)
    yield near, far
    await near.aclose()
    await trio.aclose_forcefully(far)


Pair = tuple[ByteStream, trio.abc.Stream]


async def read_all(stream: trio.abc.ReceiveStream, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        more = await stream.receive_some(READ_SIZE)
        assert more
        data += more
    return bytes(data)


def pieces_of(sizes: list[int]) -> list[bytes | bytearray | memoryview]:
    """Return pieces of these sizes, of every type that the writer uses, no two alike."""
    types: list[Callable[[bytes], Any]] = [bytes, bytearray, memoryview]
    return [types[index % 3](bytes((index + at) % 251 for at in range(size))) for index, size in enumerate(sizes)]


async def test_bytes_arrive(pair: Pair) -> None:
    near, far = pair
    await far.send_all(b"hello")
    assert await near.receive(READ_SIZE) == b"hello"
    await near.send([b"wor", bytearray(b"l"), memoryview(b"d")])
    assert await read_all(far, 5) == b"world"


async def test_the_end_is_empty_bytes(pair: Pair) -> None:
    near, far = pair
    await far.send_all(b"last")
    await far.aclose()
    assert await near.receive(READ_SIZE) == b"last"
    assert await near.receive(READ_SIZE) == b""
    assert await near.receive(READ_SIZE) == b""


async def test_a_read_is_no_longer_than_asked_for(pair: Pair) -> None:
    near, far = pair
    await far.send_all(b"x" * 1000)
    assert await near.receive(600) == b"x" * 600
    assert await near.receive(600) == b"x" * 400


async def test_a_socket_takes_what_it_can_without_waiting() -> None:
    near, far = make_pair("socket")
    assert near.send_nowait(b"abc") == 3
    assert await far.receive_some(READ_SIZE) == b"abc"  # type: ignore[attr-defined]
    large = bytes(2**24)
    sent = near.send_nowait(large)
    assert 0 < sent < len(large)
    assert near.send_nowait(large) == 0
    await near.aclose()
    # Broken, or closed: that is for `send` to say.
    assert near.send_nowait(b"x") == 0
    await trio.aclose_forcefully(far)


async def test_other_streams_take_nothing_without_waiting() -> None:
    near, far = make_pair("memory")
    assert near.send_nowait(b"abc") == 0
    await near.aclose()
    await trio.aclose_forcefully(far)


async def test_a_read_of_exactly_what_there_was_waits_for_more(pair: Pair) -> None:
    near, far = pair
    await far.send_all(b"x" * 100)
    assert await near.receive(100) == b"x" * 100
    with trio.move_on_after(0) as scope:
        await near.receive(100)
    assert scope.cancelled_caught
    await far.send_all(b"y")
    assert await near.receive(100) == b"y"


@pytest.mark.parametrize(
    "sizes",
    [
        [1],
        [9, 5],
        [300_000],
        [9, 300_000, 9, 1],
        [20_000] * 50,
        [100] * 3000,
        [5000] * 1500,
    ],
    ids=["one byte", "joined", "one big", "gathered", "gathered often", "many small", "more than IOV_MAX"],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_pieces_arrive_in_order_when_the_peer_is_slow(kind: str, sizes: list[int]) -> None:
    near, far = make_pair(kind)
    pieces = pieces_of(sizes)
    expected = b"".join(pieces)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.send, pieces)
        # The kernel's buffers are full now, in the midst of a piece.
        await trio.testing.wait_all_tasks_blocked()
        assert await read_all(far, len(expected)) == expected
    await near.aclose()
    await trio.aclose_forcefully(far)


async def test_eof_ends_one_direction_only(pair: Pair) -> None:
    near, far = pair
    await near.send([b"bye"])
    await near.send_eof()
    assert await far.receive_some(READ_SIZE) == b"bye"
    assert await far.receive_some(READ_SIZE) == b""
    await far.send_all(b"answer")
    assert await near.receive(READ_SIZE) == b"answer"


async def test_eof_of_a_stream_that_cannot_be_half_closed_does_nothing() -> None:
    class NoHalfClose(trio.abc.Stream):
        async def send_all(self, data: Any) -> None:
            raise AssertionError

        async def wait_send_all_might_not_block(self) -> None:
            raise AssertionError

        async def receive_some(self, max_bytes: int | None = None) -> bytes:
            return b"still here"

        async def aclose(self) -> None:
            raise AssertionError

    stream = TrioByteStream(NoHalfClose())
    with trio.testing.assert_checkpoints():
        await stream.send_eof()
    assert await stream.receive(READ_SIZE) == b"still here"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_peer_that_is_gone_is_an_error_to_write_to(kind: str) -> None:
    near, far = make_pair(kind)
    await far.aclose()
    with pytest.raises((OSError, trio.BrokenResourceError)):  # noqa: PT012 # the kernel may take the first one
        for _ in range(3):
            await near.send([b"x" * 100_000])
    await near.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_closing_wakes_reader_and_writer(kind: str) -> None:
    near, far = make_pair(kind)
    ended: list[str] = []

    async def expect_end(name: str, operation: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises((OSError, trio.ClosedResourceError, trio.BrokenResourceError)):
            await operation()
        ended.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect_end, "read", lambda: near.receive(READ_SIZE))
        if kind != "memory":  # an in-memory stream takes any number of bytes
            nursery.start_soon(expect_end, "write", lambda: near.send([b"x" * 10_000_000]))
        await trio.testing.wait_all_tasks_blocked()
        await near.aclose()
    assert ended == ["read"] if kind == "memory" else sorted(ended) == ["read", "write"]
    await trio.aclose_forcefully(far)


@pytest.mark.parametrize("kind", KINDS)
async def test_closing_is_idempotent_and_done_even_when_cancelled(kind: str) -> None:
    near, far = make_pair(kind)
    with trio.CancelScope() as scope:
        scope.cancel()
        await near.aclose()
    assert scope.cancelled_caught
    await near.aclose()
    assert await far.receive_some(READ_SIZE) == b""
    await far.aclose()


async def test_every_operation_but_a_send_is_a_checkpoint(pair: Pair) -> None:
    near, far = pair
    await far.send_all(b"x" * 3000)
    await trio.testing.wait_all_tasks_blocked()
    # Also when the bytes are there already, and when the read before was cut short by its size.
    for _ in range(3):
        with trio.testing.assert_checkpoints():
            await near.receive(1000)
    with trio.testing.assert_checkpoints():
        await near.send_eof()
    with trio.testing.assert_checkpoints():
        await near.aclose()


async def test_a_busy_peer_lets_others_run(pair: Pair) -> None:
    """A reader that always finds bytes waiting yields at every read."""
    near, far = pair
    await far.send_all(b"x" * 10_000)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        for _ in range(100):
            await near.receive(100)
        nursery.cancel_scope.cancel()
    assert turns >= 95


def test_a_trio_socket_is_taken_over_and_all_else_is_wrapped() -> None:
    async def main() -> None:
        near, far = socket.socketpair()
        with far:
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(near))
            taken = byte_stream.wrap(stream)
            assert isinstance(taken, SocketByteStream)
            assert stream.socket.fileno() == -1
            await taken.aclose()
        memory, _ = trio.testing.memory_stream_pair()
        assert isinstance(byte_stream.wrap(memory), TrioByteStream)

    trio.run(main)


# -- TCP_USER_TIMEOUT (gRFC A18)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
@pytest.mark.parametrize(
    ("seconds", "milliseconds"), [(20.0, 20_000), (0.25, 250), (1e-9, 1), (1e12, 2**31 - 1), (float("inf"), 2**31 - 1)]
)
@pytest.mark.parametrize("tls", [False, True])
async def test_the_user_timeout_of_a_tcp_connection(tls: bool, seconds: float, milliseconds: int) -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    async with listener:
        near = await trio.testing.open_stream_to_socket_listener(listener)
        async with await listener.accept():
            # The option belongs to the socket, whoever holds it.
            with socket.socket(fileno=os.dup(near.socket.fileno())) as same:
                stream: trio.abc.Stream = near
                if tls:
                    stream = trio.SSLStream(near, ssl.create_default_context(), server_hostname="localhost")
                wrapped = byte_stream.wrap(stream)
                wrapped.set_user_timeout(seconds)
                assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == milliseconds
            await wrapped.aclose()
            # Too late, and no harm.
            wrapped.set_user_timeout(seconds)


async def test_other_streams_have_no_user_timeout() -> None:
    near, far = socket.socketpair()
    with far:
        stream = SocketByteStream(near)
        stream.set_user_timeout(20)
        await stream.aclose()
    memory, _ = trio.testing.memory_stream_pair()
    byte_stream.wrap(memory).set_user_timeout(20)
