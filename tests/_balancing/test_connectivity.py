"""A state that tasks wait for."""

from __future__ import annotations

import trio
import trio.testing

from trio_grpc import ConnectivityState as State
from trio_grpc._balancing.connectivity import ConnectivityTracker


def test_the_names_of_the_states_are_grpcs() -> None:
    assert [state.name for state in State] == ["IDLE", "CONNECTING", "READY", "TRANSIENT_FAILURE", "SHUTDOWN"]


async def test_waiting_for_a_change() -> None:
    tracker = ConnectivityTracker()
    seen: list[State] = []

    async def watch() -> None:
        state = State.IDLE
        while state is not State.SHUTDOWN:
            state = await tracker.wait_for_change(state)
            seen.append(state)

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(watch)
        for state in (State.CONNECTING, State.CONNECTING, State.READY, State.SHUTDOWN):
            await trio.testing.wait_all_tasks_blocked()
            tracker.set(state)
    assert seen == [state for state in (State.CONNECTING, State.READY, State.SHUTDOWN) for _ in range(2)]


async def test_a_state_that_has_changed_already_is_not_waited_for() -> None:
    tracker = ConnectivityTracker()
    tracker.set(State.READY)
    with trio.testing.assert_checkpoints():
        assert await tracker.wait_for_change(State.IDLE) is State.READY


def test_shutdown_is_for_good() -> None:
    tracker = ConnectivityTracker()
    tracker.set(State.SHUTDOWN)
    tracker.set(State.READY)
    assert tracker.state is State.SHUTDOWN
