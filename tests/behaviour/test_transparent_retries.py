"""Calls that the server has certainly not run are repeated unseen, whatever their kind (gRFC A6; RFC 9113, 8.7)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.behaviour.scripted import Background, ScriptedServer
from tests.support.retries import A, B, Flaky, Operation, answer, every_kind, head_of
from trio_grpc import RpcError, StatusCode
from trio_grpc._transport.connection import Connection, ConnectionLost
from trio_grpc._transport.stream import Stream
from trio_grpc.testing import (
    DataFrame,
    ErrorCode,
    RstStreamFrame,
    ScriptedPeer,
    open_channel_pair,
)

Clock = trio.testing.MockClock
pytestmark = pytest.mark.usefixtures("quiet_log")


async def expect_all(peer: ScriptedPeer, stream_id: int) -> None:
    """A whole call, with all of its requests and no previous attempt."""
    headers = await head_of(peer, stream_id)
    assert headers.get("grpc-previous-rpc-attempts") is None
    texts = [EchoRequest.FromString(await peer.receive_message(stream_id)).text]
    if headers[":path"] in ("/echo.Echo/ClientStream", "/echo.Echo/Bidi"):
        texts.append(EchoRequest.FromString(await peer.receive_message(stream_id)).text)
    assert texts == ["a", "b"][: len(texts)]


@every_kind
async def test_a_refused_call_is_repeated(operation: Operation, nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, operation, scripted.stub)
        peer = await scripted.accept()
        await head_of(peer, 1)
        await peer.send_rst_stream(1, ErrorCode.REFUSED_STREAM)
        await expect_all(peer, 3)
        await answer(peer, 3)
        assert await call.result() == ["done"]
        await trio.testing.wait_all_tasks_blocked()
        scripted.assert_nothing_left()
        await peer.aclose()


@every_kind
async def test_a_call_that_is_refused_again_has_failed(
    operation: Operation, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, operation, scripted.stub)
        peer = await scripted.accept()
        for stream_id in (1, 3):
            await head_of(peer, stream_id)
            await peer.send_rst_stream(stream_id, ErrorCode.REFUSED_STREAM)
        error = await call.error()
        assert error.code is StatusCode.UNAVAILABLE
        assert error.message == "stream reset by peer with REFUSED_STREAM"
        await trio.testing.wait_all_tasks_blocked()
        scripted.assert_nothing_left()
        await peer.aclose()


@every_kind
async def test_a_call_above_the_last_stream_of_a_goaway_goes_elsewhere(
    operation: Operation, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, operation, scripted.stub)
        peer = await scripted.accept()
        await head_of(peer, 1)
        await peer.send_goaway(0, ErrorCode.NO_ERROR, b"max_age")
        second = await scripted.accept()
        await expect_all(second, 1)
        await answer(second, 1)
        assert await call.result() == ["done"]
        await peer.aclose()
        await second.aclose()


@every_kind
async def test_a_call_that_never_leaves_is_repeated_as_often_as_it_takes(
    operation: Operation, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_stream = Connection.open_stream
    lost = 0

    def lose(self: Connection, *args: Any) -> Stream:
        nonlocal lost
        stream = open_stream(self, *args)
        if lost < 3:
            lost += 1
            self._fail(ConnectionLost("gone"))
        return stream

    monkeypatch.setattr(Connection, "open_stream", lose)
    flaky = Flaky()
    async with open_channel_pair(flaky) as (channel, _):
        with trio.fail_after(1000):
            assert await operation(EchoStub(channel)) is not None
    assert lost == 3
    assert len(flaky.attempts) == 1
    assert flaky.previous == [[]]


@every_kind
async def test_what_the_server_may_have_run_is_not_repeated(
    operation: Operation, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, operation, scripted.stub)
        peer = await scripted.accept()
        await head_of(peer, 1)
        await peer.send_rst_stream(1, ErrorCode.INTERNAL_ERROR)
        assert (await call.error()).code is StatusCode.INTERNAL
        await peer.aclose()


@pytest.mark.parametrize("how", ["reset", "goaway"])
@every_kind
async def test_a_call_whose_response_has_begun_is_not_repeated_although_it_is_refused(
    operation: Operation, how: str, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with ScriptedServer() as scripted:
        call = Background(nursery, operation, scripted.stub)
        peer = await scripted.accept()
        await head_of(peer, 1)
        await peer.send_response(1)
        await trio.sleep(5)
        if how == "reset":
            await peer.send_rst_stream(1, ErrorCode.REFUSED_STREAM)
        else:
            await peer.send_goaway(0)
        await trio.testing.wait_all_tasks_blocked()
        assert not call.running
        assert (await call.error()).code is StatusCode.UNAVAILABLE
        await peer.aclose()


async def test_a_sender_that_waits_for_the_window_goes_on_with_the_next_stream(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    big = EchoRequest(payload=bytes(50_000))
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as call:
            peer = await accepted.result()
            sent = 0

            async def send() -> None:
                nonlocal sent
                for _ in range(4):
                    await call.send(big)
                    sent += 1
                await call.done_sending()

            nursery.start_soon(send)
            await head_of(peer, 1)
            await trio.testing.wait_all_tasks_blocked()
            assert sent < 4
            await peer.send_rst_stream(1, ErrorCode.REFUSED_STREAM)
            await peer.send_window_update(0, 65_535)
            await head_of(peer, 3)
            received = 0
            while True:
                frame = await peer.expect(DataFrame, stream_id=3)
                received += len(frame.data)
                if frame.end_stream:
                    break
                if frame.data:
                    await peer.send_window_update(3, len(frame.data))
                    await peer.send_window_update(0, len(frame.data))
            assert received == 4 * (5 + len(big.SerializeToString()))
            await answer(peer, 3)
            assert (await call.receive()).text == "done"
        await peer.aclose()


async def test_more_than_may_be_kept_commits_a_call(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    limits = trio_grpc.Limits(adaptive_window=False, retry_buffer_size=1000)
    async with ScriptedServer(limits=limits) as scripted:
        accepted = Background(nursery, scripted.accept)
        for size, repeated in ((300, True), (400, False)):
            async with scripted.stub.Bidi() as call:
                if accepted.running:
                    peer = await accepted.result()
                for _ in range(3):
                    await call.send(EchoRequest(payload=bytes(size)))
                first = await head_of(peer, 1 if repeated else 5)
                assert scripted.channel._retry_bytes == (3 * (5 + 3 + size) if repeated else 0)
                await peer.send_rst_stream(first.stream_id, ErrorCode.REFUSED_STREAM)
                if repeated:
                    second = await head_of(peer, 3)
                    for _ in range(3):
                        await peer.receive_message(second.stream_id)
                    await answer(peer, second.stream_id)
                    assert (await call.receive()).text == "done"
                else:
                    with pytest.raises(RpcError, match="REFUSED_STREAM"):
                        await call.receive()
            assert scripted.channel._retry_bytes == 0
        await peer.aclose()


async def test_who_waits_for_initial_metadata_has_it_although_what_was_sent_commits_the_call(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    limits = trio_grpc.Limits(adaptive_window=False, retry_buffer_size=100)
    async with ScriptedServer(limits=limits) as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as call:
            peer = await accepted.result()
            metadata = Background(nursery, call.wait_initial_metadata)
            await trio.testing.wait_all_tasks_blocked()
            await call.send(EchoRequest(payload=bytes(200)))
            await trio.testing.wait_all_tasks_blocked()
            assert metadata.running
            await head_of(peer, 1)
            await peer.send_response(1, [("a", "b")])
            assert (await metadata.result())["a"] == "b"
        await peer.aclose()


async def test_the_calls_of_a_channel_share_a_bound(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    limits = trio_grpc.Limits(adaptive_window=False, total_retry_buffer_size=1000)
    message = EchoRequest(payload=bytes(597))
    async with ScriptedServer(limits=limits) as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as one, scripted.stub.Bidi() as two:
            peer = await accepted.result()
            await one.send(message)
            await two.send(message)
            assert scripted.channel._retry_bytes == 605
            for stream_id in (1, 3):
                await peer.send_rst_stream(stream_id, ErrorCode.REFUSED_STREAM)
            with pytest.raises(RpcError, match="REFUSED_STREAM"):
                await two.receive()
            await head_of(peer, 5)
            await answer(peer, 5)
            await one.receive()
            assert scripted.channel._retry_bytes == 0
        await peer.aclose()


# ---------------------------------------------------------------------------------------------------------------------
# Between two attempts


class Between:
    """A call whose first attempt was refused, while no connection can be made for the next."""

    def __init__(self, scripted: ScriptedServer, nursery: trio.Nursery) -> None:
        self.scripted = scripted
        self.nursery = nursery
        self.first: ScriptedPeer

    async def refuse(self, accepted: Background[ScriptedPeer]) -> None:
        self.first = await accepted.result()
        await head_of(self.first, 1)
        await self.first.send_goaway(0, ErrorCode.NO_ERROR, b"max_age")
        await trio.testing.wait_all_tasks_blocked()
        # The next connection is dialled; nobody answers until `resume`.

    async def resume(self) -> ScriptedPeer:
        return await self.scripted.accept()


async def test_what_a_call_looks_like_between_two_attempts(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as call:
            between = Between(scripted, nursery)
            await between.refuse(accepted)
            assert (call.status, call.peer, call.response_compressed) == (None, "", False)
            assert list(call.trailing_metadata) == []
            assert repr(call).endswith(" /echo.Echo/Bidi open>")
            # Nothing holds a sender up; a receiver waits, and there can be one.
            await call.send(A)
            await call.send(B)
            await call.done_sending()
            with pytest.raises(trio.ClosedResourceError, match="send after done_sending"):
                await call.send(A)
            first = Background(nursery, call.receive)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError, match="another task is already receiving"):
                await call.receive()
            head = Background(nursery, call.wait_initial_metadata)
            peer = await between.resume()
            await expect_all(peer, 1)
            await peer.send_response(1, [("name", "value")])
            assert (await head.result())["name"] == "value"
            assert call.peer == "MemoryListener.connect"
            await peer.send_message(1, EchoReply(text="done").SerializeToString())
            assert (await first.result()).text == "done"
            await peer.send_trailers(1, StatusCode.OK)
            with pytest.raises(trio.EndOfChannel):
                await call.receive()
            assert call.status is StatusCode.OK
        await peer.aclose()


@pytest.mark.parametrize("what", ["receive", "wait_initial_metadata"])
async def test_a_cancelled_wait_leaves_the_call_alone(what: str, nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as call:
            between = Between(scripted, nursery)
            await between.refuse(accepted)
            for _ in range(2):
                with trio.move_on_after(1) as scope:
                    await getattr(call, what)()
                assert scope.cancelled_caught
            peer = await between.resume()
            await answer(peer, 1)
            assert (await call.receive()).text == "done"
        await peer.aclose()


async def test_a_sender_that_cannot_be_kept_waits_for_the_next_attempt(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    limits = trio_grpc.Limits(adaptive_window=False, retry_buffer_size=100)
    async with ScriptedServer(limits=limits) as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as call:
            between = Between(scripted, nursery)
            await between.refuse(accepted)
            await call.send(EchoRequest(payload=bytes(50)))
            with trio.move_on_after(1) as scope:
                await call.send(EchoRequest(payload=bytes(60)))
            assert scope.cancelled_caught
            sender = Background(nursery, call.send, EchoRequest(payload=bytes(70)))
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError, match="another task is already sending"):
                await call.send(EchoRequest(payload=bytes(80)))
            peer = await between.resume()
            await sender.result()
            await call.done_sending()
            await head_of(peer, 1)
            sizes = [len(EchoRequest.FromString(await peer.receive_message(1)).payload) for _ in range(2)]
            assert sizes == [50, 70]
            # It is committed now.
            await peer.send_rst_stream(1, ErrorCode.REFUSED_STREAM)
            with pytest.raises(RpcError, match="REFUSED_STREAM"):
                await call.receive()
        await peer.aclose()


@pytest.mark.parametrize("how", ["cancel", "aclose", "leave"])
async def test_a_call_that_is_closed_meanwhile_has_no_further_attempt(
    how: str, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as call:
            between = Between(scripted, nursery)
            await between.refuse(accepted)
            await call.send(A)
            receiver = Background(nursery, call.receive)
            await trio.testing.wait_all_tasks_blocked()
            if how == "cancel":
                call.cancel()
            elif how == "aclose":
                await call.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await receiver.result()
        assert call.status is StatusCode.CANCELLED
        assert scripted.channel._retry_bytes == 0
        peer = await between.resume()
        await peer.expect_silence()
        scripted.assert_nothing_left()
        await peer.aclose()


async def test_a_call_whose_time_is_over_meanwhile_has_no_further_attempt(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi(timeout=10) as call:
            between = Between(scripted, nursery)
            await between.refuse(accepted)
            with pytest.raises(RpcError) as caught:
                await call.receive()
            assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
            with pytest.raises(trio.BrokenResourceError):
                await call.send(A)
            with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
                await call.wait_initial_metadata()
            assert call.status is StatusCode.DEADLINE_EXCEEDED
        peer = await between.resume()
        await peer.expect_silence()
        scripted.assert_nothing_left()
        await peer.aclose()


@pytest.mark.parametrize("early", [True, False], ids=["aclose", "leaving the block"])
async def test_a_closed_channel_ends_the_call(early: bool, nursery: trio.Nursery, autojump_clock: Clock) -> None:
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, scripted.accept)
        call = scripted.stub.Bidi()
        await call.__aenter__()
        between = Between(scripted, nursery)
        await between.refuse(accepted)
        receiver = Background(nursery, call.receive)
        await trio.testing.wait_all_tasks_blocked()
        if early:
            await scripted.channel.aclose()
    with pytest.raises(trio.ClosedResourceError, match="channel closed"):
        await receiver.result()
    await call.__aexit__(None, None, None)


async def test_no_connection_for_the_next_attempt_is_the_error_of_the_call(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as call:
            await Between(scripted, nursery).refuse(accepted)
            ended = Background(nursery, call.receive)
            error = await ended.error()
            assert error.code is StatusCode.UNAVAILABLE
            assert error.message.startswith("failed to connect to MemoryListener.connect")
            assert call.status is StatusCode.UNAVAILABLE
            with pytest.raises(RpcError, match="failed to connect"):
                await call.wait_initial_metadata()


async def test_a_block_is_entered_once_its_call_has_been_sent(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    """A cancelled entry leaves nothing behind, and the call may be entered again."""
    async with ScriptedServer() as scripted:
        call = scripted.stub.Bidi()
        with trio.move_on_after(1) as scope:
            await call.__aenter__()
        assert scope.cancelled_caught
        peer = await scripted.accept()
        await peer.expect_silence()
        scripted.assert_nothing_left()
        if not scripted.channel._interceptors:
            async with call:
                await head_of(peer, 1)
            await peer.expect(RstStreamFrame, stream_id=1)
        await peer.aclose()


async def test_interceptors_see_one_call(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    seen = []

    async def watch(call: trio_grpc.InterceptedCall, proceed: trio_grpc.Proceed) -> None:
        try:
            await proceed()
        finally:
            seen.append((call.status, call.peer, call.initial_metadata.get("name")))

    async with ScriptedServer(interceptors=[watch]) as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as call:
            peer = await accepted.result()
            await head_of(peer, 1)
            await peer.send_rst_stream(1, ErrorCode.REFUSED_STREAM)
            await head_of(peer, 3)
            await peer.send_response(3, [("name", "value")])
            await peer.send_trailers(3, StatusCode.OK)
            assert [reply async for reply in call] == []
        assert seen == [(StatusCode.OK, "MemoryListener.connect", "value")]
        await peer.aclose()


async def test_a_picker_that_fails_in_the_next_attempt_ends_the_call(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    async with ScriptedServer() as scripted:
        accepted = Background(nursery, scripted.accept)
        async with scripted.stub.Bidi() as call:
            peer = await accepted.result()
            await head_of(peer, 1)

            def fail(_: Any) -> Connection:
                raise ZeroDivisionError("no luck")

            balancer = scripted.channel._balancer
            balancer.connection, balancer._picker = None, fail  # type: ignore[assignment]
            await peer.send_rst_stream(1, ErrorCode.REFUSED_STREAM)
            with pytest.raises(RpcError) as caught:
                await call.receive()
            assert caught.value.code is StatusCode.UNKNOWN
            assert caught.value.message == "ZeroDivisionError: no luck"
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
        await peer.aclose()
