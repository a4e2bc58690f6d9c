"""A call that a channel makes for itself: how it goes, and when it is begun again."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from trio_grpc._balancing.backoff import Backoff
from trio_grpc._balancing.subchannel_call import call_once, keep_calling
from trio_grpc._options import Limits
from trio_grpc._status import StatusCode
from trio_grpc._transport import frames
from trio_grpc._transport.byte_stream import wrap
from trio_grpc._transport.connection import Connection
from trio_grpc._transport.frames import ErrorCode
from trio_grpc._transport.header_codec import HeaderTemplate
from trio_grpc._transport.side import Side
from trio_grpc._transport.stream import Outcome
from trio_grpc.testing import DataFrame, HeadersFrame, RstStreamFrame, ScriptedPeer

Clock = trio.testing.MockClock

HEAD = HeaderTemplate(
    (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/a.B/Watch"),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
)

settle = trio.testing.wait_all_tasks_blocked


class Bench:
    """A connection with one kept call on it, and its scripted peer.

    Attributes:
        news: what was reported: when a call began, messages, and codes with their texts.
    """

    def __init__(self, nursery: trio.Nursery, limits: Limits) -> None:
        near, far = trio.testing.memory_stream_pair()
        self.connection = Connection(Side.CLIENT, wrap(near), limits, peer="somebody", handshake_timeout=10)
        self.peer = ScriptedPeer.server(far)
        self.news: list[Any] = []
        self.scope = trio.CancelScope()
        self.over = trio.Event()
        self._nursery = nursery

    async def start(self, settings: dict[int, int] | None = None) -> None:
        self._nursery.start_soon(self.connection.run)
        await self.peer.handshake(settings)
        self._nursery.start_soon(self._keep)

    async def _keep(self) -> None:
        with self.scope:
            await keep_calling(
                self.connection,
                HEAD,
                b"who",
                backoff=Backoff(jitter=0),
                on_start=lambda: self.news.append(trio.current_time()),
                on_message=self.news.append,
                on_end=self._on_end,
            )
        self.over.set()

    def _on_end(self, outcome: Outcome) -> None:
        self.news.append((outcome.code, outcome.message))

    async def expect_call(self, stream_id: int) -> None:
        head = await self.peer.expect(HeadersFrame, stream_id=stream_id)
        assert head[":path"] == "/a.B/Watch"
        assert await self.peer.receive_message(stream_id) == b"who"

    @property
    def starts(self) -> list[float]:
        return [one for one in self.news if isinstance(one, float)]


@asynccontextmanager
async def open_bench(limits: Limits | None = None, settings: dict[int, int] | None = None) -> AsyncIterator[Bench]:
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, limits or Limits(adaptive_window=False))
        await bench.start(settings)
        yield bench
        await bench.connection.aclose()
        await bench.over.wait()
        table = bench.connection.table
        assert (table.slots_used, table.background, table.opened) == (0, 0, 0)
        await bench.peer.aclose()


async def test_responses_come_as_bytes(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        await bench.expect_call(1)
        await bench.peer.send_response(1)
        await bench.peer.send_message(1, b"one")
        await bench.peer.send_message(1, b"")
        await settle()
        assert bench.news == [0, b"one", b""]
        await trio.sleep(10_000)
        assert bench.news == [0, b"one", b""]


async def test_compressed_responses_are_decompressed(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        await bench.expect_call(1)
        await bench.peer.send_response(1, [("grpc-encoding", "gzip")])
        data = gzip.compress(b"one")
        await bench.peer.send_data(1, b"\1" + len(data).to_bytes(4, "big") + data)
        await settle()
        assert bench.news == [0, b"one"]


async def test_a_response_that_cannot_be_read_ends_the_call(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        await bench.expect_call(1)
        await bench.peer.send_response(1)
        await bench.peer.send_data(1, b"\1\0\0\0\1x")
        await bench.peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.CANCEL)
        assert bench.news[:1] == [0]
        ((code, message),) = bench.news[1:]
        assert code is StatusCode.INTERNAL
        assert "grpc-encoding" in message
        await bench.expect_call(3)


async def test_a_response_over_the_limit_ends_the_call(autojump_clock: Clock) -> None:
    async with open_bench(Limits(adaptive_window=False, max_receive_message_length=10)) as bench:
        await bench.expect_call(1)
        await bench.peer.send_response(1)
        await bench.peer.send_message(1, bytes(11))
        await settle()
        assert bench.news[1][0] is StatusCode.RESOURCE_EXHAUSTED


async def test_what_is_said_is_short_whatever_the_limit_of_calls_is(autojump_clock: Clock) -> None:
    async with open_bench(Limits(adaptive_window=False, max_receive_message_length=10**9)) as bench:
        await bench.expect_call(1)
        await bench.peer.send_response(1)
        # It is the prefix that tells.
        await bench.peer.send_data(1, b"\0" + (65_537).to_bytes(4, "big"))
        await settle()
        assert bench.news[1][0] is StatusCode.RESOURCE_EXHAUSTED


async def test_a_call_that_fails_is_begun_again_with_backoff(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        for number in range(5):
            await bench.expect_call(2 * number + 1)
            await bench.peer.send_trailers_only(2 * number + 1, StatusCode.UNAVAILABLE, "not now")
        await settle()
        # The values of connections: 1 s, growing by 1.6.
        assert bench.starts == pytest.approx([0, 1, 2.6, 5.16, 9.256])
        assert bench.news[1::2] == [(StatusCode.UNAVAILABLE, "not now")] * 5


async def test_a_call_that_had_an_answer_is_begun_again_at_once(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        await bench.expect_call(1)
        await bench.peer.send_trailers_only(1, StatusCode.INTERNAL)
        await bench.expect_call(3)
        await bench.peer.send_response(3)
        await bench.peer.send_message(3, b"fine")
        await trio.sleep(99)
        await bench.peer.send_trailers(3, StatusCode.OK)
        await bench.expect_call(5)
        await bench.peer.send_trailers_only(5, StatusCode.INTERNAL)
        await bench.expect_call(7)
        # Only the first one after the answer comes at once; the backoff begins anew.
        assert bench.starts == [0, 1, 100, 101]
        assert (StatusCode.OK, "") in bench.news


async def test_a_server_that_answers_and_hangs_up_is_given_time(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        for number in range(7):
            stream_id = 2 * number + 1
            await bench.expect_call(stream_id)
            await bench.peer.send_response(stream_id)
            await bench.peer.send_message(stream_id, b"fine")
            await bench.peer.send_trailers(stream_id, StatusCode.OK)
        await settle()
        assert bench.starts == pytest.approx([0, 0, 0, 0, 1, 2.6, 5.16])


@pytest.mark.parametrize("answered", [False, True])
async def test_unimplemented_is_for_good(answered: bool, autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        await bench.expect_call(1)
        if answered:
            await bench.peer.send_response(1)
            await bench.peer.send_message(1, b"fine")
            await bench.peer.send_trailers(1, StatusCode.UNIMPLEMENTED, "no such thing")
        else:
            await bench.peer.send_trailers_only(1, StatusCode.UNIMPLEMENTED, "no such thing")
        await bench.over.wait()
        assert bench.news[-1] == (StatusCode.UNIMPLEMENTED, "no such thing")
        await bench.peer.expect_silence(1000)


async def test_cancelling_it_resets_the_stream(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        await bench.expect_call(1)
        bench.scope.cancel()
        await bench.peer.expect(RstStreamFrame, stream_id=1, error_code=ErrorCode.CANCEL)
        await settle()
        assert bench.connection.table.slots_used == 0
        assert bench.news == [0]


async def test_the_end_of_the_connection_is_no_end_of_a_call(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        await bench.expect_call(1)
        await bench.peer.aclose()
        await bench.over.wait()
        assert bench.news == [0]


async def test_on_a_connection_that_takes_no_more_nothing_is_begun(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        await bench.expect_call(1)
        await bench.peer.send_goaway(1)
        await bench.peer.send_trailers_only(1, StatusCode.UNAVAILABLE)
        await bench.over.wait()
        assert bench.news == [0]


async def test_it_waits_for_a_slot_like_a_call(autojump_clock: Clock) -> None:
    async with open_bench(settings={frames.SETTINGS_MAX_CONCURRENT_STREAMS: 0}) as bench:
        await settle()
        assert bench.news == []
        assert bench.connection.table.waiting == 1
        await trio.sleep(5)
        await bench.peer.send_settings({frames.SETTINGS_MAX_CONCURRENT_STREAMS: 1})
        await bench.expect_call(1)
        assert bench.starts == [5]


async def test_it_is_no_call_in_the_eyes_of_the_connection(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        await bench.expect_call(1)
        table = bench.connection.table
        assert (table.slots_used, table.background, table.opened) == (1, 1, 0)
        # A peer that ends connections at once is not dialled in a loop, whatever was asked on them.
        assert not bench.connection.took_calls


async def test_one_call_says_how_it_ended(autojump_clock: Clock) -> None:
    async with open_bench() as bench:
        await bench.expect_call(1)
        await bench.connection.table.acquire_background()
        messages: list[bytes | bytearray] = []
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def answer() -> None:
                await bench.peer.expect(HeadersFrame, stream_id=3)
                data = await bench.peer.expect(DataFrame, stream_id=3)
                assert data.data == b"\0\0\0\0\4whom"
                assert data.end_stream
                await bench.peer.send_response(3)
                await bench.peer.send_message(3, b"me")
                await bench.peer.send_trailers(3, StatusCode.ABORTED, "enough")

            outcome = await call_once(bench.connection, HEAD, b"whom", messages.append)
        assert (outcome.code, outcome.message) == (StatusCode.ABORTED, "enough")
        assert messages == [b"me"]
