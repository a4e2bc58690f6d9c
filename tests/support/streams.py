"""What a client of the echo service does with each kind of method, and what must come of it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub


async def converse(call: Any) -> None:
    """Send and receive by turns on a stream each way, to its end."""
    for word in "one", "two":
        await call.send(EchoRequest(text=word))
        assert (await call.receive()).text == word
    await call.done_sending()
    with pytest.raises(trio.EndOfChannel):
        await call.receive()


async def use_streams(echo: EchoStub) -> None:
    """Call the three methods with streams."""
    async with echo.ServerStream(EchoRequest(count=3)) as stream:
        assert [reply.count async for reply in stream] == [0, 1, 2]
    parts = [EchoRequest(payload=b"a"), EchoRequest(payload=b"b")]
    assert await echo.ClientStream(parts) == EchoReply(payload=b"ab", count=2)
    async with echo.Bidi() as call:
        await converse(call)
