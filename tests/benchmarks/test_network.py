"""The shim that stands for a network: exact on the clock of tests."""

from __future__ import annotations

from math import inf

import pytest
import trio
import trio.testing

from benchmarks.network import NETWORKS, Network, ShapedListener, ShapedStream, shaped
from trio_grpc.testing import MemoryListener

#: 1000 bytes a second.
SLOW = Network(8 / 1.024, 0.5, 100)


def pair(network: Network, nursery: trio.Nursery) -> tuple[ShapedStream, ShapedStream]:
    near, far = trio.testing.memory_stream_pair()
    return ShapedStream(near, network, nursery), ShapedStream(far, network, nursery)


async def arrivals(stream: trio.abc.Stream) -> list[tuple[float, bytes]]:
    """Everything up to the end, with the seconds since now."""
    started = trio.current_time()
    got = []
    while data := await stream.receive_some():
        got.append((round(trio.current_time() - started, 6), bytes(data)))
    got.append((round(trio.current_time() - started, 6), b""))
    return got


async def test_latency_is_exact_and_bandwidth_paces_packets_of_the_mtu(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        near, far = pair(SLOW, nursery)
        await near.send_all(bytes(250))
        await near.send_eof()
        assert await arrivals(far) == [(0.6, bytes(100)), (0.7, bytes(100)), (0.75, bytes(50)), (0.75, b"")]
        nursery.cancel_scope.cancel()


async def test_an_idle_link_saves_up_no_bandwidth(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        near, far = pair(SLOW, nursery)
        await trio.sleep(10)
        await near.send_all(bytes(100))
        await trio.sleep(0.05)
        await near.send_all(bytes(100))
        await near.send_eof()
        # Both are still on their way: 0.6 and 0.7 after the first was sent.
        assert await arrivals(far) == [(0.55, bytes(100)), (0.65, bytes(100)), (0.65, b"")]
        nursery.cancel_scope.cancel()


async def test_directions_are_links_of_their_own(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        near, far = pair(SLOW, nursery)
        started = trio.current_time()
        await near.send_all(bytes(100))
        await far.send_all(bytes(100))
        await near.receive_some()
        await far.receive_some()
        assert trio.current_time() - started == pytest.approx(0.6)
        nursery.cancel_scope.cancel()


async def test_a_slow_stream_below_does_not_change_the_pace(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        below, peer = trio.testing.memory_stream_pair()

        pump = below.send_stream.send_all_hook
        assert pump is not None

        async def write_slowly() -> None:
            await trio.sleep(0.25)
            await pump()

        below.send_stream.send_all_hook = write_slowly
        near = ShapedStream(below, SLOW, nursery)
        await near.send_all(bytes(1000))
        await near.send_eof()
        got = await arrivals(peer)
        assert sum(len(data) for _, data in got) == 1000
        # Ten packets, of which the last arrives after 1.5: what came meanwhile goes on in one write.
        assert got[-1][0] <= 1.5 + 2 * 0.25
        nursery.cancel_scope.cancel()


async def test_a_sender_waits_for_a_receiver_that_does_not_read(autojump_clock: trio.abc.Clock) -> None:
    network = Network(inf, 0.0, 1000)
    async with trio.open_nursery() as nursery:
        below, peer = trio.testing.lockstep_stream_pair()
        stream = ShapedStream(below, network, nursery)
        with trio.move_on_after(100) as scope:
            await stream.send_all(bytes(network.buffer + 1))
        assert scope.cancelled_caught
        nursery.cancel_scope.cancel()
    await peer.aclose()


async def test_closing_lets_what_was_sent_arrive_and_then_the_end(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        near, far = pair(SLOW, nursery)
        await near.send_all(bytes(100))
        await trio.aclose_forcefully(near)
        with pytest.raises(trio.ClosedResourceError):
            await near.send_all(b"x")
        with pytest.raises(trio.ClosedResourceError):
            await near.receive_some()
        assert await arrivals(far) == [(0.6, bytes(100)), (0.6, b"")]
        await far.aclose()
    # Both tasks have ended: nothing had to be cancelled.


async def test_closing_wakes_who_receives(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        near, far = pair(SLOW, nursery)

        async def receive() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await near.receive_some()

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await near.aclose()
        await far.aclose()


async def test_a_broken_stream_below_breaks_sending_and_what_came_before_is_received(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with trio.open_nursery() as nursery:
        below, peer = trio.testing.memory_stream_pair()
        stream = ShapedStream(below, SLOW, nursery)
        await peer.send_all(b"last words")
        await peer.aclose()
        await stream.send_all(b"x")
        await trio.sleep(1)
        with pytest.raises(trio.BrokenResourceError) as broken:
            await stream.send_all(b"y")
        assert isinstance(broken.value.__cause__, trio.BrokenResourceError)
        assert await stream.receive_some() == b"last words"
        await stream.aclose()


async def test_two_tasks_cannot_send_at_once(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        near, _ = pair(SLOW, nursery)
        nursery.start_soon(near.send_all, bytes(1000))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(near.send_all, bytes(100_000))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await near.send_all(b"x")
        nursery.cancel_scope.cancel()


async def test_it_keeps_the_manners_of_a_trio_stream(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:

        async def make() -> tuple[ShapedStream, ShapedStream]:
            return pair(Network(inf, 0.0, 1000), nursery)

        await trio.testing.check_half_closeable_stream(make, None)
        nursery.cancel_scope.cancel()


async def test_listener_and_connect_shape_both_ends(autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        below = MemoryListener()
        listener = ShapedListener(below, SLOW, nursery)
        near = await shaped(below.connect, SLOW, nursery)()
        far = await listener.accept()
        started = trio.current_time()
        await near.send_all(bytes(100))
        await far.send_all(await far.receive_some())
        await near.receive_some()
        assert trio.current_time() - started == pytest.approx(1.2)
        await listener.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await listener.accept()
        nursery.cancel_scope.cancel()


def test_modes_say_what_they_are_and_buffer_what_is_on_the_way() -> None:
    texts = {name: str(network) for name, network in NETWORKS.items() if network is not None}
    assert texts == {
        "local": "nothing added",
        "lan": "100 Mbit/s, 2 ms one way, MTU 1500",
        "wan": "20 Mbit/s, 30 ms one way, MTU 1500",
        "longhaul": "1000 Mbit/s, 200 ms one way, MTU 9000",
    }
    longhaul = NETWORKS["longhaul"]
    assert longhaul is not None
    assert longhaul.buffer == 2 * 1000 * 1024 * 128 // 5
