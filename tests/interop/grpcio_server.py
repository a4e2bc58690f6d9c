"""A grpcio server as a process of its own: prints one line of JSON with its addresses, ends with its standard input.

A request's ``text`` says what the handler does, its ``payload`` is the handler's name for it where several calls speak
of one another. Every ``x-`` key of the request's metadata comes back as initial metadata, every ``t-`` key as trailing.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from echo_pb2 import EchoReply, EchoRequest
from google.protobuf.wrappers_pb2 import StringValue
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tests.interop.wire import method_handlers, status_bytes


class Servicer:
    """What every server of this process serves; one object, so that a call on one server can ask about another."""

    def __init__(self) -> None:
        self.events: defaultdict[tuple[str, bytes], asyncio.Event] = defaultdict(asyncio.Event)
        self.running: Counter[bytes] = Counter()
        self.peak: Counter[bytes] = Counter()
        self.attempts: defaultdict[bytes, list[str]] = defaultdict(list)
        self.servers: dict[str, grpc.aio.Server] = {}
        self.stopping: set[asyncio.Task[None]] = set()
        self.news = asyncio.Condition()

    # -- what all kinds do

    async def _metadata(self, context: Any) -> None:
        pairs = context.invocation_metadata() or ()
        initial = [(key, value) for key, value in pairs if key.startswith("x-")]
        trailing = [(key, value) for key, value in pairs if key.startswith("t-")]
        if initial:
            await context.send_initial_metadata(initial)
        if trailing:
            context.set_trailing_metadata(trailing)

    async def _act(self, request: EchoRequest, context: Any) -> None:
        """Do what the first request asks for before there is an answer."""
        verb, name = request.text, request.payload
        if verb == "wait":
            self.events["started", name].set()
            try:
                await asyncio.Event().wait()
            finally:
                self.events["cancelled", name].set()
        elif verb == "gate":
            await self._count(name, 1)
            try:
                await self.events["released", name].wait()
            finally:
                await self._count(name, -1)
        elif verb == "abort":
            await context.abort(_code(request.count), name.decode())
        elif verb == "abort-details":
            message = name.decode()
            details = status_bytes(request.count, message, StringValue(value="why"))
            context.set_trailing_metadata([("grpc-status-details-bin", details), ("t-also", "this")])
            await context.abort(_code(request.count), message)
        elif verb == "raise":
            raise RuntimeError("a handler's own fault")
        elif verb == "flaky":
            previous = dict(context.invocation_metadata() or ()).get("grpc-previous-rpc-attempts", "0")
            self.attempts[name].append(previous)
            if previous != "2":
                context.set_trailing_metadata([("grpc-retry-pushback-ms", "1")])
                await context.abort(grpc.StatusCode.UNAVAILABLE, "busy")

    async def _count(self, name: bytes, change: int) -> None:
        async with self.news:
            self.running[name] += change
            self.peak[name] = max(self.peak[name], self.running[name])
            self.news.notify_all()

    async def _answer(self, request: EchoRequest, context: Any) -> EchoReply:
        """Answer questions about other calls, and echo."""
        verb, name = request.text, request.payload
        if verb in ("started", "cancelled"):
            await self.events[verb, name].wait()
        elif verb == "release":
            self.events["released", name].set()
        elif verb == "running":
            async with self.news:
                await self.news.wait_for(lambda: self.running[name] >= request.count)
        elif verb == "attempts":
            return EchoReply(text=" ".join(self.attempts[name]))
        elif verb == "peak":
            return EchoReply(count=self.peak[name])
        elif verb == "time-remaining":
            return EchoReply(text=json.dumps(context.time_remaining()))
        elif verb == "metadata":
            pairs = context.invocation_metadata() or ()
            return EchoReply(text=json.dumps([[key, repr(value)] for key, value in pairs]))
        elif verb == "size":
            return EchoReply(payload=bytes(request.count))
        elif verb == "spawn":
            server = grpc.aio.server(options=[tuple(option) for option in json.loads(name)])
            server.add_generic_rpc_handlers((method_handlers(self),))
            address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            self.servers[address] = server
            return EchoReply(text=address)
        elif verb == "stop":
            server = self.servers.pop(name.decode())
            task = asyncio.create_task(server.stop(request.count))
            self.stopping.add(task)
            task.add_done_callback(self.stopping.discard)
        return EchoReply(payload=name, count=request.count, text=verb)

    # -- the four kinds

    async def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
        await self._metadata(context)
        await self._act(request, context)
        return await self._answer(request, context)

    async def ServerStream(self, request: EchoRequest, context: Any) -> AsyncIterator[EchoReply]:
        await self._metadata(context)
        if request.text in ("wait", "gate"):
            yield EchoReply(text="first")
        await self._act(request, context)
        if request.text == "size":
            yield EchoReply(payload=bytes(request.count))
            return
        for number in range(request.count):
            yield EchoReply(payload=request.payload, count=number)

    async def ClientStream(self, requests: AsyncIterator[EchoRequest], context: Any) -> EchoReply:
        await self._metadata(context)
        payload, count = b"", 0
        async for request in requests:
            if not count:
                await self._act(request, context)
            payload += request.payload
            count += 1
        return EchoReply(payload=payload, count=count)

    async def Bidi(self, requests: AsyncIterator[EchoRequest], context: Any) -> AsyncIterator[EchoReply]:
        await self._metadata(context)
        async for request in requests:
            await self._act(request, context)
            yield await self._answer(request, context)


class ThreadServicer:
    """The plain echo for grpcio's older server, which runs handlers in threads."""

    def Unary(self, request: EchoRequest, context: Any) -> EchoReply:
        return EchoReply(payload=request.payload, count=request.count, text=request.text)

    def ServerStream(self, request: EchoRequest, context: Any) -> Iterator[EchoReply]:
        for number in range(request.count):
            yield EchoReply(payload=request.payload, count=number)

    def ClientStream(self, requests: Iterator[EchoRequest], context: Any) -> EchoReply:
        payloads = [request.payload for request in requests]
        return EchoReply(payload=b"".join(payloads), count=len(payloads))

    def Bidi(self, requests: Iterator[EchoRequest], context: Any) -> Iterator[EchoReply]:
        for request in requests:
            yield EchoReply(payload=request.payload, count=request.count, text=request.text)


def _code(number: int) -> grpc.StatusCode:
    return next(code for code in grpc.StatusCode if code.value[0] == number)


async def main(directory: Path) -> None:
    server = grpc.aio.server()
    servicer = Servicer()
    server.add_generic_rpc_handlers((method_handlers(servicer),))
    statuses = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(statuses, server)
    await statuses.set("", health_pb2.HealthCheckResponse.SERVING)
    await statuses.set("echo.Echo", health_pb2.HealthCheckResponse.NOT_SERVING)
    reflection.enable_server_reflection(("echo.Echo", health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    threads = grpc.server(ThreadPoolExecutor(8))
    threads.add_generic_rpc_handlers((method_handlers(ThreadServicer()),))
    credentials = grpc.ssl_server_credentials(
        [((directory / "server.key").read_bytes(), (directory / "server.pem").read_bytes())]
    )
    unix = f"unix:{directory / 'aio.sock'}"
    server.add_insecure_port(unix)
    addresses = {
        "aio": f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}",
        "tls": f"localhost:{server.add_secure_port('localhost:0', credentials)}",
        "unix": unix,
        "threads": f"127.0.0.1:{threads.add_insecure_port('127.0.0.1:0')}",
    }
    await server.start()
    threads.start()
    print(json.dumps(addresses), flush=True)  # noqa: T201 -- the parent waits for it
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    threads.stop(None)
    for one in (server, *servicer.servers.values()):
        await one.stop(None)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
