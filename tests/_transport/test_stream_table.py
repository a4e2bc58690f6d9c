"""Live streams and the peer's limit on them."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from trio_grpc._transport.stream_table import (
    DEFAULT_STREAM_LIMIT,
    UNLIMITED_STREAMS,
    StreamTable,
    WatchedStreamTable,
)


class Refused(Exception):
    pass


class Waiters:
    """Tasks that wait for a slot, in the order in which they got one."""

    def __init__(self, table: StreamTable[object], nursery: trio.Nursery) -> None:
        self.table = table
        self.nursery = nursery
        self.served: list[str] = []
        self.refused: list[str] = []
        self.scopes: dict[str, trio.CancelScope] = {}

    async def add(self, name: str) -> None:
        self.nursery.start_soon(self._wait, name)
        await trio.testing.wait_all_tasks_blocked()

    async def _wait(self, name: str) -> None:
        with trio.CancelScope() as self.scopes[name]:
            try:
                await self.table.acquire()
            except Refused:
                self.refused.append(name)
            else:
                self.served.append(name)


def make(limit: int) -> StreamTable[object]:
    return StreamTable(limit, lambda: None)


def test_constants_of_the_protocol() -> None:
    assert DEFAULT_STREAM_LIMIT == 100
    assert UNLIMITED_STREAMS == 2**31 - 1


def test_slots_are_counted() -> None:
    table = make(2)
    assert table.acquire_nowait()
    assert table.acquire_nowait()
    assert not table.acquire_nowait()
    assert (table.slots_used, table.opened) == (2, 2)
    table.streams[1] = object()
    table.leave(1)
    assert not table.streams
    assert table.acquire_nowait()
    assert (table.slots_used, table.opened) == (2, 3)


def test_a_stream_without_an_id_holds_a_slot_too() -> None:
    table = make(1)
    assert table.acquire_nowait()
    table.leave(0)
    assert table.slots_used == 0


def test_the_table_says_when_it_is_empty() -> None:
    times = 0

    def on_idle() -> None:
        nonlocal times
        times += 1

    table: StreamTable[object] = StreamTable(5, on_idle)
    table.acquire_nowait()
    table.acquire_nowait()
    table.leave(1)
    assert times == 0
    table.leave(3)
    assert times == 1


async def test_a_background_slot_is_a_slot_and_no_call() -> None:
    table = make(2)
    await table.acquire_background()
    assert (table.slots_used, table.background, table.opened) == (1, 1, 0)
    assert table.acquire_nowait()
    assert not table.acquire_nowait()
    assert (table.slots_used, table.background, table.opened) == (2, 1, 1)
    table.refuse(Refused())
    with pytest.raises(Refused):
        await table.acquire_background()
    assert (table.slots_used, table.background, table.opened) == (2, 1, 1)


async def test_waiters_are_served_in_their_order() -> None:
    table = make(1)
    await table.acquire()
    async with trio.open_nursery() as nursery:
        waiters = Waiters(table, nursery)
        for name in "abc":
            await waiters.add(name)
        assert table.waiting == 3
        for served in (["a"], ["a", "b"], ["a", "b", "c"]):
            table.leave(0)
            await trio.testing.wait_all_tasks_blocked()
            assert waiters.served == served
            assert table.slots_used == 1
        assert table.waiting == 0


async def test_nobody_slips_in_before_a_waiter() -> None:
    table = make(1)
    await table.acquire()
    async with trio.open_nursery() as nursery:
        waiters = Waiters(table, nursery)
        await waiters.add("a")
        table.leave(0)
        # The waiter has not run yet, but the slot is already its own.
        assert not table.acquire_nowait()
        await trio.testing.wait_all_tasks_blocked()
        assert waiters.served == ["a"]


async def test_a_cancelled_waiter_passes_its_turn_on() -> None:
    table = make(1)
    await table.acquire()
    async with trio.open_nursery() as nursery:
        waiters = Waiters(table, nursery)
        for name in "abc":
            await waiters.add(name)
        waiters.scopes["a"].cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert table.waiting == 2
        table.leave(0)
        await trio.testing.wait_all_tasks_blocked()
        assert waiters.served == ["b"]
        table.leave(0)
        await trio.testing.wait_all_tasks_blocked()
        assert waiters.served == ["b", "c"]


async def test_a_waiter_cancelled_after_it_was_served_has_the_slot() -> None:
    """As with all of trio: an operation that took effect does not raise Cancelled."""
    table = make(1)
    await table.acquire()
    async with trio.open_nursery() as nursery:
        waiters = Waiters(table, nursery)
        await waiters.add("a")
        table.leave(0)
        waiters.scopes["a"].cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert waiters.served == ["a"]
        assert table.slots_used == 1


async def test_a_raised_limit_serves_as_many_as_it_has_room_for() -> None:
    table = make(0)
    async with trio.open_nursery() as nursery:
        waiters = Waiters(table, nursery)
        for name in "abcd":
            await waiters.add(name)
        table.set_limit(3)
        await trio.testing.wait_all_tasks_blocked()
        # Woken together; trio runs such tasks in any order.
        assert sorted(waiters.served) == ["a", "b", "c"]
        table.set_limit(UNLIMITED_STREAMS)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(waiters.served) == ["a", "b", "c", "d"]


async def test_a_cut_below_what_is_used_waits_until_enough_have_left() -> None:
    table = make(4)
    for _ in range(4):
        table.acquire_nowait()
    table.set_limit(2)
    async with trio.open_nursery() as nursery:
        waiters = Waiters(table, nursery)
        await waiters.add("a")
        for slots_used in (3, 2):
            table.leave(0)
            await trio.testing.wait_all_tasks_blocked()
            assert not waiters.served
            assert table.slots_used == slots_used
        table.leave(0)
        await trio.testing.wait_all_tasks_blocked()
        assert waiters.served == ["a"]


async def test_refusal_wakes_all_waiters_and_stays() -> None:
    table = make(1)
    await table.acquire()
    async with trio.open_nursery() as nursery:
        waiters = Waiters(table, nursery)
        for name in "abc":
            await waiters.add(name)
        table.refuse(Refused())
        table.refuse(ValueError())
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(waiters.refused) == ["a", "b", "c"]
    table.leave(0)
    assert not table.acquire_nowait()
    with pytest.raises(Refused):
        await table.acquire()
    table.set_limit(100)
    assert not table.acquire_nowait()
    assert table.slots_used == 0


def test_streams_that_were_cut_short_are_remembered_but_not_for_ever() -> None:
    table = make(1)
    for stream_id in range(1, 10_001, 2):
        table.cut_short(stream_id)
        assert table.was_cut_short(stream_id)
    remembered = [stream_id for stream_id in range(1, 10_001, 2) if table.was_cut_short(stream_id)]
    assert remembered == list(range(10_001 - 2 * 1024, 10_001, 2))
    assert not table.was_cut_short(2)


# -- a table that is watched


def test_the_first_slot_is_told() -> None:
    told: list[int] = []
    table: WatchedStreamTable[object] = WatchedStreamTable(2, lambda: None, lambda: told.append(table.slots_used))
    for number in range(3):
        assert table.acquire_nowait()
        assert table.acquire_nowait()
        assert not table.acquire_nowait()
        table.leave(1)
        assert table.acquire_nowait()
        table.leave(3)
        table.leave(5)
        assert told == [1] * (number + 1)


async def test_the_first_slot_of_waiters_is_told(nursery: trio.Nursery) -> None:
    told: list[int] = []
    table: WatchedStreamTable[object] = WatchedStreamTable(0, lambda: None, lambda: told.append(table.slots_used))
    waiters = Waiters(table, nursery)
    for name in "abc":
        await waiters.add(name)
    assert told == []
    table.set_limit(2)
    assert told == [2]
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(waiters.served) == ["a", "b"]
    table.leave(1)
    assert told == [2]
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(waiters.served) == ["a", "b", "c"]
