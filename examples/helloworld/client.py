"""The client of the hello world example: one call that succeeds, and three ways for a call to end early.

Start the server first, then run ``python client.py``. An address may follow, e.g. ``unix:/tmp/hello``.
"""

from __future__ import annotations

import sys

import trio
from helloworld_pb2 import HelloRequest
from helloworld_trio_grpc import GreeterStub

import trio_grpc


async def say_hello(greeter: GreeterStub) -> None:
    print("-- A call: one request goes over, one reply comes back.")
    reply = await greeter.SayHello(HelloRequest(name="trio"))
    print(f"reply: {reply.message}")


async def be_refused(greeter: GreeterStub) -> None:
    print("-- An error: the server refuses a request without a name. Every failed call raises RpcError.")
    try:
        await greeter.SayHello(HelloRequest())
    except trio_grpc.RpcError as error:
        print(f"RpcError: {error.code.name}, {error.message!r}")
    else:
        raise SystemExit("the server should have refused this")


async def lose_patience(greeter: GreeterStub) -> None:
    slow = HelloRequest(name="sloth", thinking_time=60)

    print("-- A deadline, as an argument: timeout=0.5, but the server wants to think for a minute.")
    try:
        await greeter.SayHello(slow, timeout=0.5)
    except trio_grpc.RpcError as error:
        print(f"RpcError: {error.code.name}, {error.message!r}")
    else:
        raise SystemExit("the server should have been too slow")

    print("-- A deadline, the trio way: any cancel scope around the call. The server learns of it all the same.")
    with trio.move_on_after(0.5) as scope:
        await greeter.SayHello(slow)
    if not scope.cancelled_caught:
        raise SystemExit("the server should have been too slow")
    print("moved on after 0.5 s, as trio code does")


async def change_mind(greeter: GreeterStub) -> None:
    print("-- A cancellation: of two calls the first to answer wins. The other is cancelled, at the server too.")

    async def ask(name: str, thinking_time: float) -> None:
        reply = await greeter.SayHello(HelloRequest(name=name, thinking_time=thinking_time))
        print(f"reply: {reply.message}")
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "hare", 0.2)
        nursery.start_soon(ask, "tortoise", 60)


async def talk(channel: trio_grpc.Channel) -> None:
    greeter = GreeterStub(channel)
    await say_hello(greeter)
    await be_refused(greeter)
    await lose_patience(greeter)
    await change_mind(greeter)


async def main(address: str) -> None:
    # The channel connects with its first call. Everything that it runs ends with this block.
    async with trio_grpc.open_channel(address) as channel:
        await talk(channel)


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051")
