"""Few calls on a connection are written by their own tasks: whatever ends some, the others get their answers."""

from __future__ import annotations

import random
import socket

import pytest
import trio
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

from tests.support.echo import Context, Echo, echo_each
from trio_grpc import RpcError, StatusCode, open_channel, serve

CALLS = 150


async def answer(request: EchoRequest, context: Context) -> EchoReply:
    for _ in range(request.count):
        await trio.lowlevel.checkpoint()
    return EchoReply(text=request.text, payload=request.payload)


def small_buffers(sock: trio.socket.SocketType) -> None:
    """Most big messages are cut in the midst by a full socket then."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)


class Play:
    """Calls that are cancelled, time out or go well, as a seed has it."""

    def __init__(self, stub: EchoStub, seed: int) -> None:
        self.stub = stub
        self.random = random.Random(seed)
        self.left = CALLS
        self.answered = 0

    async def work(self) -> None:
        while self.left > 0:
            self.left -= 1
            text = f"call {self.left}"
            payload = self.random.randbytes(self.random.choice([0, 10, 5000, 40_000]))
            with trio.CancelScope() as scope:
                if self.random.random() < 0.3:
                    scope.deadline = trio.current_time() + self.random.random() * 0.003
                await (self.unary if self.random.random() < 0.7 else self.bidi)(text, payload)

    async def unary(self, text: str, payload: bytes) -> None:
        timeout = self.random.choice([None, None, 60.0, 0.001])
        request = EchoRequest(text=text, payload=payload, count=self.random.randrange(4))
        try:
            reply = await self.stub.Unary(request, timeout=timeout)
        except RpcError as error:
            if timeout != 0.001 or error.code is not StatusCode.DEADLINE_EXCEEDED:
                raise
        else:
            self.check(reply, text, payload)

    async def bidi(self, text: str, payload: bytes) -> None:
        async with self.stub.Bidi() as call:
            for number in range(self.random.randrange(4)):
                await call.send(EchoRequest(text=f"{text}.{number}", payload=payload))
                self.check(await call.receive(), f"{text}.{number}", payload)

    def check(self, reply: EchoReply, text: str, payload: bytes) -> None:
        assert reply.text == text
        assert reply.payload == payload
        self.answered += 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("concurrency", [1, 2, 4, 6])
async def test_calls_that_end_early_take_nothing_from_others(
    nursery: trio.Nursery, concurrency: int, seed: int
) -> None:
    near, far = socket.socketpair()
    streams = [trio.SocketStream(trio.socket.from_stdlib_socket(one)) for one in (near, far)]
    for stream in streams:
        small_buffers(stream.socket)
    send_accepted, accepted = trio.open_memory_channel[trio.abc.Stream](1)
    send_accepted.send_nowait(streams[1])

    class Listener(trio.abc.Listener[trio.abc.Stream]):
        async def accept(self) -> trio.abc.Stream:
            return await accepted.receive()

        async def aclose(self) -> None:
            await trio.lowlevel.checkpoint()

    echo = Echo(unary=answer, bidi=echo_each)
    await nursery.start(serve, [echo], Listener())
    async with open_channel(streams[0]) as channel:
        play = Play(EchoStub(channel), seed)
        async with trio.open_nursery() as workers:
            for _ in range(concurrency):
                workers.start_soon(play.work)
        assert play.answered > CALLS // 3
        # The connection is as good as new.
        with trio.fail_after(20):
            for number in range(10):
                assert (await play.stub.Unary(EchoRequest(text=str(number)))).text == str(number)
        assert channel.statistics().streams == 0
        assert channel.statistics().connections == 1
    nursery.cancel_scope.cancel()
