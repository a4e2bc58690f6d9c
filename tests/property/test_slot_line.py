"""A line for the slots of several tables: whatever comes, nobody waits beside a free slot, and nobody overtakes."""

from __future__ import annotations

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_grpc._transport.stream_table import SlotLine, StreamTable

bounded = settings(max_examples=150, derandomize=True, deadline=None)

TABLES = 3


class Refused(Exception):
    pass


class Machine:
    """Tables of one line, and calls that take their slots.

    Attributes:
        waiting: calls that stand in line, in their order, and the only table that will do for each.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.line = SlotLine(lambda: None)
        self.tables: list[StreamTable[object]] = [StreamTable(1, lambda: None) for _ in range(TABLES)]
        self.held = [0] * TABLES
        self.refused = [False] * TABLES
        self.waiting: dict[int, int | None] = {}
        self.scopes: dict[int, trio.CancelScope] = {}
        self._calls = 0
        self._nursery = nursery
        for number, table in enumerate(self.tables):
            self.line.add(table, number)

    def call(self, number: int, own: bool) -> None:
        self._calls += 1
        self._nursery.start_soon(self._run, self._calls, number, own)

    async def _run(self, name: int, number: int, own: bool) -> None:
        table = self.tables[number]
        too_late = self.refused[number]
        self.waiting[name] = number if own else None
        with trio.CancelScope() as self.scopes[name]:
            try:
                if own:
                    await table.acquire_background()
                    owner = number
                else:
                    owner = await table.acquire()
            except Refused:
                assert self.refused[number]
                assert own or too_late or not self.line.tables
            else:
                assert not self.refused[owner]
                # Whoever came before, and would have taken this slot too, has one.
                before = [other for other in self.waiting if other < name and self.waiting[other] in (None, owner)]
                assert not before
                self.held[owner] += 1
        del self.waiting[name]
        del self.scopes[name]

    def cancel(self, number: int) -> None:
        names = list(self.waiting)
        if names:
            self.scopes[names[number % len(names)]].cancel()

    def leave(self, number: int) -> None:
        if self.held[number]:
            self.held[number] -= 1
            self.tables[number].leave(0)

    def limit(self, number: int, limit: int) -> None:
        self.tables[number].set_limit(limit)

    def refuse(self, number: int) -> None:
        self.refused[number] = True
        self.tables[number].refuse(Refused())

    def nowait(self, number: int) -> None:
        somebody = any(only in (None, number) for only in self.waiting.values())
        if self.tables[number].acquire_nowait():
            assert not somebody
            self.held[number] += 1

    def check(self) -> None:
        for number, table in enumerate(self.tables):
            assert table.slots_used == self.held[number]
            if table in self.line.tables and table.slots_used < table.limit:
                assert not any(only in (None, number) for only in self.waiting.values())
        assert len(self.line.waiters) == len(self.waiting)
        assert sum(table.waiting for table in self.tables) == (len(self.waiting) if self.line.tables else 0)
        if not self.line.tables:
            assert not self.waiting


numbers = st.integers(0, TABLES - 1)
steps = st.one_of(
    st.tuples(st.just("call"), numbers, st.booleans()),
    st.tuples(st.just("call"), numbers, st.just(False)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("leave"), numbers),
    st.tuples(st.just("limit"), numbers, st.integers(0, 3)),
    st.tuples(st.just("refuse"), numbers),
    st.tuples(st.just("nowait"), numbers),
)


@bounded
@given(st.lists(st.lists(steps, min_size=1, max_size=3), max_size=25))
def test_nobody_waits_beside_a_free_slot_and_nobody_overtakes(rounds: list[list[tuple[str, int, bool]]]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            machine = Machine(nursery)
            for together in rounds:
                for step, *arguments in together:
                    getattr(machine, step)(*arguments)
                    if step == "call":
                        # Tasks start in no order of their own.
                        await trio.testing.wait_all_tasks_blocked()
                await trio.testing.wait_all_tasks_blocked()
                machine.check()
            for number in range(TABLES):
                machine.refuse(number)
            await trio.testing.wait_all_tasks_blocked()
            machine.check()

    trio.run(main)
