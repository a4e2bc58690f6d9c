"""The server of the hello world example.

Run it with ``python server.py`` and stop it with Ctrl-C. An address may follow, e.g. ``unix:/tmp/hello``.
"""

from __future__ import annotations

import math
import sys

import trio
from helloworld_pb2 import HelloReply, HelloRequest
from helloworld_trio_grpc import GreeterServicer

import trio_grpc


class Greeter(GreeterServicer):
    """Implements the service: a method for each rpc of the .proto."""

    async def SayHello(self, request: HelloRequest, context: trio_grpc.ServicerContext[HelloReply]) -> HelloReply:
        if not request.name:
            print("SayHello without a name: refused")
            await context.abort(trio_grpc.StatusCode.INVALID_ARGUMENT, "tell me your name")

        # Nobody sent this number: it is what is left of the client's own deadline.
        patience = context.time_remaining()
        waits = f"the client waits for {patience:.1f} s" if patience < math.inf else "the client has no deadline"
        print(f"SayHello({request.name!r}): {waits}")

        # There is nothing to check while the handler works. When the client gives up, the handler is cancelled like
        # any other trio code, at the next `await`.
        try:
            await trio.sleep(request.thinking_time)
        except trio.Cancelled:
            print(f"SayHello({request.name!r}): cancelled, there is nobody left to greet")
            raise
        return HelloReply(message=f"Hello, {request.name}!")


async def main(address: str) -> None:
    async with trio.open_nursery() as nursery:
        server = await nursery.start(trio_grpc.serve, [Greeter()], address)
        print(f"listening on {server.addresses[0]}")
        # At the first Ctrl-C (or SIGTERM) no new calls, five seconds for those that run; at the second one, the end.
        await trio_grpc.drain_on_signal(server, grace=5)
        print("stopped")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051")
