"""Conversations with random damage: whatever comes, nothing but the damaged connection notices, and nothing is left."""

from __future__ import annotations

import contextlib
import os
import random
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest

from tests.behaviour.scripted import (
    CLIENT_STREAM,
    SERVER_STREAM,
    UNARY,
    Background,
    ScriptedServer,
    expect_call,
    send_call,
    start_server,
)
from trio_grpc import RpcError, StatusCode
from trio_grpc.testing import ErrorCode, ScriptedPeer

pytestmark = pytest.mark.usefixtures("quiet_log")

#: Which random numbers to begin with, and how many conversations; more of them find rarer faults.
SEEDS = range(int(os.environ.get("TRIO_GRPC_FUZZ_FROM", "0")), int(os.environ.get("TRIO_GRPC_FUZZ_TO", "60")))


async def record(peer: ScriptedPeer, far: trio.abc.ReceiveStream) -> list[bytes]:
    """The frames that a script has sent."""
    await peer.stream.send_eof()  # type: ignore[attr-defined]
    data = b""
    async for piece in far:
        data += piece
    return cut_frames(data)


def cut_frames(data: bytes) -> list[bytes]:
    pieces = []
    if data.startswith(b"PRI"):
        pieces.append(data[:24])
        data = data[24:]
    while data:
        length = 9 + int.from_bytes(data[:3], "big")
        pieces.append(data[:length])
        data = data[length:]
    return pieces


async def client_frames() -> list[bytes]:
    near, far = trio.testing.memory_stream_pair()
    peer = ScriptedPeer.client(near)
    await peer.send_preface({3: 100, 4: 100_000})
    await peer.send_settings_ack()
    await peer.send_request(1, UNARY, [("x-a", "1")])
    await peer.send_message(1, EchoRequest(text="one").SerializeToString(), end_stream=True)
    await peer.send_request(3, CLIENT_STREAM)
    await peer.send_data(3, b"\0\0", padding=9)
    await peer.send_data(3, b"\0\0\0", padding=0)
    await send_call(peer, 5, EchoRequest(count=20, payload=bytes(1000)), SERVER_STREAM)
    await peer.send_ping()
    await peer.send_window_update(0, 1000)
    await peer.send_window_update(3, 1000)
    await peer.send_settings({4: 10, 5: 20_000, 1: 0})
    await peer.send_message(3, EchoRequest(payload=b"three").SerializeToString())
    await peer.send_rst_stream(5, ErrorCode.CANCEL)
    await peer.send_headers(3, [("x-t", "1")], end_stream=True)
    await peer.send_frame(0xEE, 0, 1, b"unknown")
    await peer.send_goaway(0)
    return await record(peer, far)


async def server_frames() -> list[bytes]:
    near, far = trio.testing.memory_stream_pair()
    peer = ScriptedPeer.server(near)
    await peer.send_headers(1, [(":status", "103")])
    await peer.send_response(1, [("x-a", "1")])
    await peer.send_data(1, b"\0\0", padding=9)
    await peer.send_ping()
    await peer.send_settings({4: 10, 3: 1})
    await peer.send_window_update(0, 1000)
    await peer.send_window_update(3, 1000)
    await peer.send_response(3)
    await peer.send_message(3, EchoReply(count=1).SerializeToString())
    await peer.send_data(1, b"\0\0\0")
    await peer.send_trailers(1)
    await peer.send_message(3, EchoReply(count=2).SerializeToString())
    await peer.send_rst_stream(5, ErrorCode.REFUSED_STREAM)
    await peer.send_trailers(3, StatusCode.NOT_FOUND, "gone")
    await peer.send_goaway(5)
    return await record(peer, far)


def damage(frames: list[bytes], rng: random.Random) -> bytes:
    """The same conversation with one to four faults."""
    frames = frames[:]
    for _ in range(rng.randint(1, 4)):
        index = rng.randrange(len(frames))
        frame = bytearray(frames[index])
        kind = rng.randrange(8)
        if kind == 0:
            del frames[index]
            if not frames:
                break
        elif kind == 1:
            frames.insert(rng.randrange(len(frames) + 1), bytes(frame))
        elif kind == 2:
            other = rng.randrange(len(frames))
            frames[index], frames[other] = frames[other], frames[index]
        elif kind == 3 and frame:
            frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
            frames[index] = bytes(frame)
        elif kind == 4 and len(frame) >= 9:
            # Another type, other flags, or another stream.
            position = rng.choice([3, 4, 8])
            frame[position] = rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 32, 40, 255])
            frames[index] = bytes(frame)
        elif kind == 5:
            frames[index] = bytes(frame[: rng.randrange(len(frame) + 1)])
        elif kind == 6:
            frames.insert(index, rng.randbytes(rng.randrange(1, 40)))
        elif len(frame) > 9:
            # A payload that is shorter or longer, in a frame that is right.
            payload = bytes(frame[9:])
            payload = payload[: rng.randrange(len(payload))] if rng.random() < 0.5 else payload + rng.randbytes(3)
            frames[index] = len(payload).to_bytes(3, "big") + bytes(frame[3:9]) + payload
    return b"".join(frames)


async def send_in_pieces(peer: ScriptedPeer, data: bytes, rng: random.Random) -> None:
    try:
        while data:
            size = rng.choice([1, 5, 9, 50, 10_000])
            await peer.send_raw(data[:size])
            data = data[size:]
            if rng.random() < 0.3:
                await trio.testing.wait_all_tasks_blocked()
    except trio.BrokenResourceError:
        return


async def test_damaged_clients(nursery: trio.Nursery, autojump_clock: Any) -> None:
    endpoint = await start_server(nursery, handshake_timeout=5)
    frames = await client_frames()
    for seed in SEEDS:
        rng = random.Random(seed)
        async with await endpoint.connect(auto_ack=False) as peer:
            await send_in_pieces(peer, damage(frames, rng), rng)
            if rng.random() < 0.5:
                await trio.sleep(1)
    await endpoint.assert_serves()
    await endpoint.assert_nothing_left()


async def test_damaged_servers(nursery: trio.Nursery, autojump_clock: Any) -> None:
    frames = await server_frames()
    for seed in SEEDS:
        rng = random.Random(seed)
        async with ScriptedServer() as scripted:

            async def stream(scripted: ScriptedServer = scripted) -> int:
                async with scripted.stub.ServerStream(EchoRequest()) as call:
                    return len([reply async for reply in call])

            calls: list[Background[Any]] = [Background(nursery, scripted.stub.Unary, EchoRequest(), timeout=50)]
            async with await scripted.accept() as peer:
                peer.auto_ack = False
                await expect_call(peer, 1)
                calls.append(Background(nursery, stream))
                await expect_call(peer, 3, SERVER_STREAM)
                calls.append(Background(nursery, scripted.stub.Unary, EchoRequest(), timeout=50))
                await expect_call(peer, 5)
                await send_in_pieces(peer, damage(frames, rng), rng)
                await trio.sleep(1)
            for call in calls:
                # It ends, well or with a status: never with another exception.
                with contextlib.suppress(RpcError):
                    await call.result()
            await scripted.listener.aclose()
            await trio.sleep(5)
            scripted.assert_nothing_left(connections=0)
