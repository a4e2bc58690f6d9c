"""When a channel counts as idle."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from trio_grpc._balancing.idleness import watch_idleness


async def test_idle_from_the_start(autojump_clock: trio.testing.MockClock) -> None:
    await watch_idleness(80, lambda: 0)
    assert 80 <= trio.current_time() <= 90


@pytest.mark.parametrize("last_call", [1, 5, 39, 40.5, 79.5, 100, 1000])
async def test_calls_put_it_off(autojump_clock: trio.testing.MockClock, last_call: float) -> None:
    # A call every three seconds up to then.
    await watch_idleness(80, lambda: min(trio.current_time(), last_call) // 3)
    assert last_call + 77 <= trio.current_time() <= last_call + 90


async def test_a_call_in_flight_puts_it_off(autojump_clock: trio.testing.MockClock) -> None:
    await watch_idleness(80, lambda: None if 5 < trio.current_time() < 1000 else 0)
    assert 1080 <= trio.current_time() <= 1090
