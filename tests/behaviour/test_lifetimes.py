"""What lives how long, and that nobody's end is anybody else's exception."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.behaviour.scripted import ScriptedServer, expect_call, send_reply
from tests.support.echo import Context, Echo, Requests, sleep_forever
from trio_grpc import Channel, Limits, RpcError, StatusCode
from trio_grpc._transport.stream import Stream
from trio_grpc.testing import HeadersFrame, MemoryListener, ScriptedPeer, open_channel_pair

Clock = trio.testing.MockClock


class UserError(Exception):
    pass


def assert_untouched(error: BaseException, original: UserError, cause: BaseException) -> None:
    assert error is original
    assert error.__cause__ is cause
    assert error.__context__ is None


# -- the body fails while the peer fails

PEER_FAILURES = ["reset", "goaway", "hang up", "garbage", "status", "silence"]


async def fail(peer: ScriptedPeer, how: str) -> None:
    if how == "reset":
        await peer.send_rst_stream(1, 2)
    elif how == "goaway":
        await peer.send_goaway(0, 2)
    elif how == "hang up":
        await peer.aclose()
    elif how == "garbage":
        await peer.send_raw(b"\xff" * 100)
    elif how == "status":
        await peer.send_trailers_only(1, StatusCode.INTERNAL, "text")


@pytest.mark.parametrize("how", PEER_FAILURES)
@pytest.mark.parametrize("moment", range(6))
async def test_the_users_exception_comes_out_when_the_peer_fails_at_the_same_time(
    how: str, moment: int, autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    """At every step between the two: before it is read, while it is read, after it has ended the call."""
    error, cause = UserError(), KeyError()
    error.__cause__ = cause
    accepted = trio.Event()
    peers: list[ScriptedPeer] = []

    async def accept(scripted: ScriptedServer) -> None:
        peers.append(await scripted.accept())
        accepted.set()

    with pytest.raises(UserError) as caught:  # noqa: PT012
        async with ScriptedServer() as scripted:
            nursery.start_soon(accept, scripted)
            async with scripted.stub.Bidi() as call:
                await accepted.wait()
                (peer,) = peers
                nursery.start_soon(receive_quietly, call)
                await peer.expect(HeadersFrame, stream_id=1)
                await fail(peer, how)
                for _ in range(moment):
                    await trio.lowlevel.checkpoint()
                raise error
    assert_untouched(caught.value, error, cause)
    nursery.cancel_scope.cancel()


async def receive_quietly(call: Any) -> None:
    try:
        await call.receive()
    except (RpcError, trio.ClosedResourceError, trio.EndOfChannel):
        pass


async def test_the_users_exception_comes_out_of_a_pair_whose_handler_fails_at_the_same_time(
    autojump_clock: Clock,
) -> None:
    error, cause = UserError(), KeyError()
    error.__cause__ = cause

    async def handler(requests: Requests, context: Context) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ZeroDivisionError

    with pytest.raises(UserError) as caught:  # noqa: PT012
        async with open_channel_pair(Echo(bidi=handler)) as (channel, _), EchoStub(channel).Bidi():
            await trio.testing.wait_all_tasks_blocked()
            raise error
    assert_untouched(caught.value, error, cause)


async def test_one_rpc_error_is_one_exception_also_from_several_blocks_deep(autojump_clock: Clock) -> None:
    async def handler(requests: Requests, context: Context) -> None:
        raise RpcError(StatusCode.ABORTED, "text")

    seen: list[RpcError] = []
    with pytest.raises(RpcError) as caught:  # noqa: PT012
        async with open_channel_pair(Echo(bidi=handler)) as (channel, _):
            stub = EchoStub(channel)
            async with stub.ServerStream(EchoRequest(count=10**9)), stub.Bidi(timeout=100) as call:
                try:
                    await call.receive()
                except RpcError as error:
                    seen.append(error)
                    raise
    assert caught.value is seen[0]
    assert caught.value.__cause__ is None


async def test_a_group_comes_out_only_where_the_user_made_it(autojump_clock: Clock) -> None:
    async def failing(request: EchoRequest, context: Context) -> EchoReply:
        raise RpcError(StatusCode.ABORTED)

    with pytest.raises(BaseException) as caught:  # noqa: PT012
        async with open_channel_pair(Echo(unary=failing)) as (channel, _):
            stub = EchoStub(channel)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stub.Unary, EchoRequest())
                nursery.start_soon(stub.Unary, EchoRequest())
    group: Any = caught.value
    # One level: that of the user's nursery.
    assert all(isinstance(error, RpcError) for error in group.exceptions)


async def test_a_lost_connection_is_the_cause_and_nothing_more(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    async with ScriptedServer() as scripted:
        results: list[RpcError] = []

        async def caller() -> None:
            with pytest.raises(RpcError) as caught:
                await scripted.stub.Unary(EchoRequest())
            results.append(caught.value)

        for _ in range(3):
            nursery.start_soon(caller)
        peer = await scripted.accept()
        for stream_id in (1, 3, 5):
            await expect_call(peer, stream_id)
        await peer.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert len(results) == 3
        assert {error.code for error in results} == {StatusCode.UNAVAILABLE}
        assert all(error.__cause__ is not None for error in results)
        # Each caller has an error of its own: a shared one would collect everybody's tracebacks.
        assert len({id(error) for error in results}) == 3
        # The channel itself goes on.
        nursery.start_soon(scripted.stub.Unary, EchoRequest())
        async with await scripted.accept() as second:
            await expect_call(second, 1)
            await send_reply(second, 1, EchoReply())
            await trio.testing.wait_all_tasks_blocked()


# -- the body's end is not the end of everything


@pytest.mark.parametrize("end", ["cancelled", "raising", "returning"])
async def test_a_finally_in_the_body_can_still_finish_its_calls(end: str, autojump_clock: Clock) -> None:
    steps: list[object] = []

    async def body(channel: Channel) -> None:
        stub = EchoStub(channel)
        async with stub.Bidi() as chat:
            await chat.send(EchoRequest(count=1))
            try:
                if end == "cancelled":
                    await trio.sleep_forever()
                elif end == "raising":
                    raise UserError
            finally:
                with trio.CancelScope(shield=True):
                    steps.append((await chat.receive()).count)
                    await chat.send(EchoRequest(count=2))
                    await chat.done_sending()
                    steps.extend([reply.count async for reply in chat])
                    steps.append(chat.status)
                    steps.append((await stub.Unary(EchoRequest(count=3))).count)

    with trio.move_on_after(1):
        try:
            async with open_channel_pair(Echo()) as (channel, _):
                await body(channel)
        except UserError:
            assert end == "raising"
    assert steps == [1, 2, StatusCode.OK, 3]


async def test_leaving_a_channel_waits_for_its_tasks(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        listener = MemoryListener()
        await nursery.start(trio_grpc.serve, [Echo()], listener)
        before = trio.lowlevel.current_statistics().tasks_living
        for _ in range(5):
            async with trio_grpc.open_channel(listener.connect) as channel:
                await EchoStub(channel).Unary(EchoRequest(), timeout=100)
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == before
        nursery.cancel_scope.cancel()


async def test_the_goodbye_is_said(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    async with ScriptedServer() as scripted:
        nursery.start_soon(scripted.stub.Unary, EchoRequest())
        peer = await scripted.accept()
        await expect_call(peer, 1)
        await send_reply(peer, 1, EchoReply())
        await trio.testing.wait_all_tasks_blocked()
    goaway = await peer.receive_frame()
    assert (type(goaway).__name__, getattr(goaway, "error_code", None)) == ("GoawayFrame", 0)
    await peer.expect_eof()


@pytest.mark.parametrize("sockets", [False, True], ids=["memory", "sockets"])
async def test_a_peer_that_does_not_read_holds_nobody_up(sockets: bool, autojump_clock: Clock) -> None:
    """The farewell has a time bound, also where the socket's buffers are full."""
    listener = MemoryListener(sockets=sockets)
    stream: trio.abc.Stream | None = None
    async with trio_grpc.open_channel(listener.connect) as channel, trio.open_nursery() as nursery:
        nursery.start_soon(quiet_upload, EchoStub(channel))
        stream = await listener.accept()
        peer = ScriptedPeer.server(stream)
        await peer.handshake({4: 2**24})
        await peer.send_window_update(0, 2**24)
        await trio.sleep(10)
        started = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - started < 5
    await trio.aclose_forcefully(stream)


async def quiet_upload(stub: EchoStub) -> None:
    async with stub.Bidi() as call:
        while True:
            await call.send(EchoRequest(payload=bytes(60_000)))


async def test_a_cancelled_channel_with_a_peer_that_does_not_read(autojump_clock: Clock) -> None:
    listener = MemoryListener(sockets=True)
    streams: list[trio.abc.Stream] = []

    async def accept() -> None:
        streams.append(await listener.accept())

    started = trio.current_time()
    with trio.move_on_after(10) as scope:
        async with trio_grpc.open_channel(listener.connect) as channel, trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            await EchoStub(channel).Unary(EchoRequest(payload=bytes(10**6)))
    assert scope.cancelled_caught
    assert trio.current_time() - started < 15
    for stream in streams:
        await trio.aclose_forcefully(stream)


async def test_calls_in_flight_when_the_block_ends_are_closed(autojump_clock: Clock) -> None:
    """A task that outlives the channel is told; it does not hang."""
    ended: list[str] = []

    async def caller(name: str, operation: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await operation()
        ended.append(name)

    async def stream(stub: EchoStub) -> None:
        async with stub.ServerStream(EchoRequest()) as call:
            await call.receive()

    async def upload(stub: EchoStub) -> None:
        async with stub.ClientStream.open() as call:
            while True:
                await call.send(EchoRequest(payload=bytes(60_000)))

    servicer = Echo(unary=sleep_forever, server_stream=sleep_forever, client_stream=sleep_forever)
    async with trio.open_nursery() as nursery, open_channel_pair(servicer) as (channel, _):
        stub = EchoStub(channel)
        nursery.start_soon(caller, "unary", lambda: stub.Unary(EchoRequest()))
        nursery.start_soon(caller, "stream", lambda: stream(stub))
        nursery.start_soon(caller, "upload", lambda: upload(stub))
        nursery.start_soon(caller, "iterable", lambda: stub.ClientStream(forever()))
        await trio.testing.wait_all_tasks_blocked()
    assert sorted(ended) == ["iterable", "stream", "unary", "upload"]


async def forever() -> AsyncIterator[EchoRequest]:
    while True:
        await trio.sleep(1)
        yield EchoRequest()


async def test_calls_that_wait_for_the_stream_limit_when_the_block_ends_are_closed(autojump_clock: Clock) -> None:
    ended: list[BaseException] = []

    async def caller(operation: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(trio.ClosedResourceError) as caught:
            await operation()
        ended.append(caught.value)

    async def enter(stub: EchoStub) -> None:
        async with stub.Bidi():
            raise AssertionError

    limits = Limits(max_concurrent_streams=1, adaptive_window=False)
    async with trio.open_nursery() as nursery:
        servicer = Echo(unary=sleep_forever)
        async with open_channel_pair(servicer, limits=limits) as (channel, _):
            stub = EchoStub(channel)
            for _ in range(3):
                nursery.start_soon(caller, lambda: stub.Unary(EchoRequest()))
                await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(caller, lambda: enter(stub))
            await trio.testing.wait_all_tasks_blocked()
            assert channel.statistics().waiting == 3
    assert len(ended) == 4
    assert len({id(error) for error in ended}) == 4


async def test_a_call_queued_but_not_written_when_the_channel_closes_is_closed(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        stub = EchoStub(channel)
        await stub.Unary(EchoRequest())
        async with stub.Bidi() as call:
            await channel.aclose()
            for operation in (call.receive, call.wait_initial_metadata, lambda: call.send(EchoRequest())):
                with pytest.raises(trio.ClosedResourceError):
                    await operation()


async def test_blocks_are_entered_once(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        call = EchoStub(channel).Bidi()
        async with call:
            with pytest.raises(RuntimeError, match="once"):
                await call.__aenter__()
        with pytest.raises(RuntimeError, match="once"):
            await call.__aenter__()
        with pytest.raises(trio.ClosedResourceError):
            await call.receive()


async def test_operations_before_entering_say_what_is_missing(autojump_clock: Clock) -> None:
    async with open_channel_pair(Echo()) as (channel, _):
        call = EchoStub(channel).Bidi()
        assert (call.status, call.peer, call.trailing_metadata) == (None, "", [])
        for operation in (call.receive, call.wait_initial_metadata, call.done_sending):
            with pytest.raises(RuntimeError, match="async with"):
                await operation()
        with pytest.raises(RuntimeError, match="async with"):
            await call.send(EchoRequest())


# -- nothing is left to the garbage collector


async def test_a_call_that_has_ended_is_not_kept(autojump_clock: Clock) -> None:
    servicer = Echo()
    async with open_channel_pair(servicer) as (channel, server):
        stub = EchoStub(channel)
        # The arguments with which a task was started live as long as the task (trio 0.27): that is one call per worker.
        await stub.Unary(EchoRequest())
        for _ in range(3):
            async with stub.ServerStream(EchoRequest(count=3)) as call:
                await call.receive()
            await stub.Unary(EchoRequest(payload=bytes(1000)))
            with pytest.raises(RpcError):
                await stub.ClientStream([EchoRequest()], timeout=0)
        del call
        servicer.contexts.clear()
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        tables = [connection.table for connection in channel._balancer.connections]
        tables += [connection.table for connection in server._connections]
        assert len(tables) == 2
        streams = [one for one in gc.get_objects() if type(one) is Stream and one._table in tables]
        assert [one for one in streams if one.stream_id > 1] == []


ABANDONED = """
    import gc, sys
    import trio, trio.testing
    from echo_pb2 import EchoReply, EchoRequest
    from echo_trio_grpc import EchoServicer, EchoStub
    from trio_grpc.testing import open_channel_pair

    class Echo(EchoServicer):
        async def ServerStream(self, request, context):
            for count in range(request.count):
                yield EchoReply(count=count)

        async def Bidi(self, requests, context):
            async for request in requests:
                yield EchoReply(count=request.count)

        async def ClientStream(self, requests, context):
            return EchoReply(count=(await requests.receive()).count)

    async def requests():
        while True:
            yield EchoRequest(count=1)

    async def iterate(stub, how):
        async with stub.ServerStream(EchoRequest(count=10**6)) as call:
            async for reply in call:
                if how == "break":
                    break
                if how == "raise":
                    raise ValueError
                if how == "cancel":
                    with trio.CancelScope() as scope:
                        scope.cancel()
                        await call.receive()
                    break
                if how == "return":
                    return

    async def main():
        async with open_channel_pair(Echo()) as (channel, server):
            stub = EchoStub(channel)
            for how in ("break", "raise", "cancel", "return"):
                try:
                    await iterate(stub, how)
                except ValueError:
                    pass
                gc.collect()
            # From another task, and never entered, and entered and left at once.
            async with stub.ServerStream(EchoRequest(count=10**6)) as call, trio.open_nursery() as nursery:
                @nursery.start_soon
                async def reader():
                    async for reply in call:
                        break
                    nursery.cancel_scope.cancel()
            stub.Bidi(), stub.ServerStream(EchoRequest())
            async with stub.Bidi():
                pass
            assert (await stub.ClientStream(requests())).count == 1
            with trio.move_on_after(1):
                async with stub.Bidi() as call:
                    await call.receive()
            del call
            gc.collect()
            await trio.testing.wait_all_tasks_blocked()
            assert server.statistics().handlers == 0, server.statistics()
        gc.collect()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    gc.collect()
    print("done")
"""


def test_abandoned_iteration_makes_no_noise() -> None:
    """In a process of its own, in development mode, with every warning an error and the collector forced."""
    protos = Path(__file__).parent.parent / "protos"
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(ABANDONED)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={"PYTHONPATH": f"{protos}:{Path(trio_grpc.__file__).parent.parent}"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
