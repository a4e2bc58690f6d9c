"""Live streams and the peer's limit on them."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from trio_grpc._transport.stream_table import (
    DEFAULT_STREAM_LIMIT,
    UNLIMITED_STREAMS,
    SlotLine,
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
    assert told == [1]
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(waiters.served) == ["a", "b"]
    table.leave(1)
    assert told == [1]
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(waiters.served) == ["a", "b", "c"]


# ---------------------------------------------------------------------------------------------------------------------
# Several tables with one line


class Line:
    """Tables of one slot each that share a line; the owner of each is its number.

    Attributes:
        served: who got a slot, and of which table.
    """

    def __init__(self, nursery: trio.Nursery, count: int = 2) -> None:
        self.waited = 0
        self.line = SlotLine(self._on_wait)
        self.tables = [make(1) for _ in range(count)]
        self.served: list[tuple[str, object]] = []
        self.refused: list[str] = []
        self.scopes: dict[str, trio.CancelScope] = {}
        self._nursery = nursery
        for number, table in enumerate(self.tables):
            self.line.add(table, number)

    def _on_wait(self) -> None:
        self.waited += 1

    async def add(self, *names: str, at: int = 0, background: bool = False) -> None:
        for name in names:
            self._nursery.start_soon(self._wait, name, self.tables[at], background)
            await trio.testing.wait_all_tasks_blocked()

    async def _wait(self, name: str, table: StreamTable[object], background: bool) -> None:
        with trio.CancelScope() as self.scopes[name]:
            try:
                owner = await (table.acquire_background() if background else table.acquire())
            except Refused:
                self.refused.append(name)
            else:
                self.served.append((name, owner))

    async def leave(self, number: int) -> None:
        self.tables[number].leave(0)
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
def line(nursery: trio.Nursery) -> Line:
    return Line(nursery)


async def test_whoever_waits_takes_the_first_slot_of_any_table(line: Line) -> None:
    await line.add("a", "b", "c", "d")
    assert line.served == [("a", 0), ("b", 1)]
    assert line.waited == 2
    assert not line.tables[0].acquire_nowait()
    await line.leave(1)
    await line.leave(0)
    assert line.served[2:] == [("c", 1), ("d", 0)]
    assert [table.opened for table in line.tables] == [2, 2]


async def test_nobody_slips_in_before_those_who_wait_elsewhere(line: Line) -> None:
    await line.add("a", "b")
    await line.add("c", at=0)
    line.tables[1].leave(0)
    assert not line.tables[1].acquire_nowait()
    await trio.testing.wait_all_tasks_blocked()
    assert line.served[2:] == [("c", 1)]


async def test_who_waits_in_a_line_is_counted_once(line: Line) -> None:
    await line.add("a", "b", "c", "d", "e")
    assert [table.waiting for table in line.tables] == [3, 0]
    line.tables[0].refuse(Refused())
    assert [table.waiting for table in line.tables] == [0, 3]


async def test_a_table_that_comes_later_brings_its_waiters_and_serves(nursery: trio.Nursery) -> None:
    line = Line(nursery, 1)
    await line.add("a", "b")
    late = make(0)
    waiters = Waiters(late, nursery)
    await waiters.add("c")
    line.line.add(late, "late")
    late.set_limit(1)
    await trio.testing.wait_all_tasks_blocked()
    assert line.served == [("a", 0), ("b", "late")]
    await line.leave(0)
    assert waiters.served == ["c"]


async def test_one_table_that_refuses_lets_the_others_serve(line: Line) -> None:
    await line.add("a", "b", "c", "d")
    line.tables[0].refuse(Refused())
    # Once more, as connections do that drain and then end.
    line.tables[0].refuse(Refused())
    await line.leave(0)
    assert line.served == [("a", 0), ("b", 1)]
    await line.leave(1)
    assert line.served[2:] == [("c", 1)]
    line.tables[1].refuse(Refused())
    await trio.testing.wait_all_tasks_blocked()
    assert line.refused == ["d"]
    assert not line.line.tables
    await line.add("e", at=1)
    assert line.refused == ["d", "e"]


async def test_who_is_cancelled_leaves_the_line_whatever_has_become_of_the_table(line: Line) -> None:
    await line.add("a", "b", "c", "d", "e", at=0)
    line.scopes["c"].cancel()
    line.tables[0].refuse(Refused())
    line.scopes["d"].cancel()
    await trio.testing.wait_all_tasks_blocked()
    await line.leave(1)
    assert line.served[2:] == [("e", 1)]
    assert not line.line.waiters


async def test_the_channels_own_stream_takes_no_slot_of_another_table_and_is_in_nobodys_way(line: Line) -> None:
    await line.add("a", "b")
    await line.add("own", at=0, background=True)
    await line.leave(1)
    assert len(line.served) == 2
    await line.add("c")
    assert line.served[2:] == [("c", 1)]
    await line.add("d")
    await line.leave(1)
    assert line.served[3:] == [("d", 1)]
    await line.leave(0)
    assert line.served[4:] == [("own", None)]
    assert [table.background for table in line.tables] == [1, 0]


async def test_the_channels_own_stream_ends_with_its_table(line: Line) -> None:
    await line.add("a", "b")
    await line.add("own", at=0, background=True)
    await line.add("c")
    line.tables[0].refuse(Refused())
    await trio.testing.wait_all_tasks_blocked()
    assert line.refused == ["own"]
    assert len(line.line.waiters) == 1
