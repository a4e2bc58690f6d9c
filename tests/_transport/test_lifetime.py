"""When a connection has been idle for too long or is old enough, without a connection."""

from __future__ import annotations

import random
from math import inf
from typing import Any

import pytest
import trio
import trio.testing

from trio_grpc._options import ConnectionLifetime
from trio_grpc._transport.lifetime import MAX_AGE, MAX_IDLE, LifetimeTimer


class Clock:
    """A timer under test that notes when its time has come."""

    def __init__(self, nursery: trio.Nursery, *, busy: bool = False, **lifetime: float) -> None:
        self.busy = busy
        self.timer = LifetimeTimer(ConnectionLifetime(**lifetime), busy=lambda: self.busy)
        self.ended: tuple[float, bytes] | None = None
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        reason = await self.timer.wait()
        self.ended = (trio.current_time(), reason)

    def end_call(self) -> None:
        self.busy = False
        self.timer.on_idle()


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)


async def test_idle_from_the_beginning(nursery: trio.Nursery, autojump_clock: Any) -> None:
    await trio.sleep(5)
    clock = Clock(nursery, max_idle=10)
    await trio.sleep(100)
    assert clock.ended == (pytest.approx(15), MAX_IDLE)


async def test_idle_since_the_last_call(nursery: trio.Nursery, autojump_clock: Any) -> None:
    clock = Clock(nursery, max_idle=10, busy=True)
    await trio.sleep(1003)
    clock.end_call()
    await trio.sleep(9)
    clock.busy = True
    await trio.sleep(0.5)
    clock.end_call()
    await trio.sleep(100)
    assert clock.ended == (pytest.approx(1022.5), MAX_IDLE)


async def test_calls_between_its_looks(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """It looks now and then; calls that come and go in between count all the same."""
    clock = Clock(nursery, max_idle=10)
    for _ in range(50):
        await trio.sleep(9.9)
        clock.busy = True
        clock.end_call()
    assert clock.ended is None
    await trio.sleep(100)
    assert clock.ended == (pytest.approx(505), MAX_IDLE)


async def test_busy_for_ever(nursery: trio.Nursery, autojump_clock: Any) -> None:
    clock = Clock(nursery, max_idle=10, busy=True)
    await trio.sleep(10_000)
    assert clock.ended is None
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("busy", [False, True])
async def test_age(busy: bool, nursery: trio.Nursery, autojump_clock: Any) -> None:
    await trio.sleep(5)
    clock = Clock(nursery, max_age=10, max_idle=inf if not busy else 3, busy=busy)
    await trio.sleep(100)
    assert clock.ended == (pytest.approx(15), MAX_AGE)


async def test_the_grace_is_told(nursery: trio.Nursery, autojump_clock: Any) -> None:
    assert Clock(nursery, max_age=10).timer.max_age_grace == inf
    assert Clock(nursery, max_age=10, max_age_grace=5).timer.max_age_grace == 5
    await trio.sleep(20)


@pytest.mark.parametrize("end", [0, 1])
async def test_jitter_is_a_tenth(
    end: int, nursery: trio.Nursery, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: (low, high)[end])
    clock = Clock(nursery, max_age=100)
    idle = Clock(nursery, max_idle=100)
    await trio.sleep(1000)
    assert clock.ended == (pytest.approx((90, 110)[end]), MAX_AGE)
    assert idle.ended == (pytest.approx(100), MAX_IDLE)
