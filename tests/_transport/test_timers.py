"""Timers that are no tasks."""

from __future__ import annotations

import gc
import weakref
from math import inf
from typing import Any

import pytest
import trio
import trio.testing

from trio_grpc._transport import timers
from trio_grpc._transport.timers import Timer, call_at, keep_task


class Record:
    """What was called, and when."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []

    def at(self, when: float, name: str = "") -> Timer:
        return call_at(when, lambda: self.calls.append((name, trio.current_time())))


def tasks() -> list[str]:
    """The tasks of ours among those of the run."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    children = [task for nursery in root.child_nurseries for task in nursery.child_tasks]
    return [task.name for task in children if task.name == "timers of trio_grpc"]


async def test_in_the_order_of_their_times(autojump_clock: Any) -> None:
    record = Record()
    for when in (5, 1, 3, 1, 4):
        record.at(when, str(when))
    await trio.sleep(3.5)
    assert record.calls == [("1", 1), ("1", 1), ("3", 3)]
    record.at(3.7, "new first")
    await trio.sleep(10)
    assert record.calls[3:] == [("new first", 3.7), ("4", 4), ("5", 5)]


async def test_what_is_past_is_called_at_once_but_not_by_call_at(autojump_clock: Any) -> None:
    record = Record()
    record.at(-1)
    record.at(-inf)
    assert record.calls == []
    await trio.testing.wait_all_tasks_blocked()
    assert record.calls == [("", 0), ("", 0)]


def next_deadline() -> float:
    return trio.lowlevel.current_statistics().seconds_to_next_deadline


async def test_the_task_is_there_only_while_there_are_timers(autojump_clock: Any) -> None:
    record = Record()
    assert tasks() == []
    record.at(1)
    record.at(2)
    last = record.at(inf)
    await trio.sleep(1.5)
    assert len(tasks()) == 1
    await trio.sleep(1)
    assert len(tasks()) == 1
    last.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert tasks() == []
    # And again.
    record.at(5)
    assert len(tasks()) == 1
    await trio.sleep(5)
    assert tasks() == []
    assert [when for _, when in record.calls] == [1, 2, 5]


async def test_a_task_that_is_kept_waits_for_nothing(autojump_clock: Any) -> None:
    kept = keep_task()
    for _ in range(3):
        call_at(10, lambda: None).cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert len(tasks()) == 1
        assert next_deadline() == inf
    kept.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert tasks() == []


async def test_an_earlier_one_may_come_later(autojump_clock: Any) -> None:
    record = Record()
    record.at(10, "late")
    await trio.sleep(1)
    record.at(3, "early")
    await trio.sleep(20)
    assert record.calls == [("early", 3), ("late", 10)]


async def test_cancelled(autojump_clock: Any) -> None:
    record = Record()
    made = [record.at(number, str(number)) for number in range(1, 11)]
    for timer in (made[0], made[0], made[4], made[9]):
        timer.cancel()
    await trio.sleep(20)
    assert [name for name, _ in record.calls] == ["2", "3", "4", "6", "7", "8", "9"]
    # Too late, and no harm.
    made[1].cancel()
    record.at(30)
    await trio.sleep(20)
    assert record.calls[-1] == ("", 30)


class Owner:
    def call(self) -> None:
        raise AssertionError


async def test_cancelled_ones_are_not_kept(autojump_clock: Any) -> None:
    stays = call_at(7200, Owner().call)
    for _ in range(100):
        owner = Owner()
        gone = weakref.ref(owner)
        call_at(7200, owner.call).cancel()
        del owner
        gc.collect(0)
        assert gone() is None
    assert sum(type(one) is Timer and one[0] == 7200 for one in gc.get_objects()) <= 2
    stays.cancel()


async def test_a_timer_may_cancel_another_and_make_new_ones(autojump_clock: Any) -> None:
    record = Record()
    victim = record.at(1.0, "victim")

    def call() -> None:
        victim.cancel()
        record.at(0, "at once")
        record.at(2, "later")

    call_at(0.5, call)
    await trio.sleep(3)
    assert record.calls == [("at once", 0.5), ("later", 2)]


async def test_a_defect_stops_no_other_timer(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record()
    logged: list[str] = []
    monkeypatch.setattr(timers._logger, "exception", logged.append)
    call_at(1, lambda: record.calls.append(("broken", 1 / 0)))
    record.at(1)
    record.at(2)
    await trio.sleep(3)
    assert [when for _, when in record.calls] == [1, 2]
    assert logged == ["internal error in a timer of trio_grpc"]
