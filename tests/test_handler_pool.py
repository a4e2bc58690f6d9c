"""Where handlers run: workers that are used again, and never remembered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from functools import partial
from math import inf
from typing import Any, cast

import pytest
import trio
import trio.testing
from trio.lowlevel import Task, current_task

from trio_grpc import StatusCode
from trio_grpc._handler_pool import _MAX_IDLE, HandlerPool, Job

variable: ContextVar[str] = ContextVar("variable", default="unset")


class FakeStream:
    """What a pool knows of a stream."""

    def __init__(self) -> None:
        self.cancelled: str | None = None
        self.refused: StatusCode | None = None

    def refuse(self, code: StatusCode, message: str) -> None:
        self.refused = code


class Jobs:
    """Jobs for a pool, and what they saw."""

    def __init__(self, pool: HandlerPool) -> None:
        self.pool = pool
        self.tasks: list[Task] = []
        self.scopes: list[trio.CancelScope] = []
        self.values: list[str] = []

    def start(self, job: Callable[[trio.CancelScope], Any] | None = None) -> FakeStream:
        stream = FakeStream()
        self.pool.start(cast(Any, stream), cast(Job, job or self.quick))
        return stream

    async def quick(self, scope: trio.CancelScope) -> bool:
        self.tasks.append(current_task())
        self.scopes.append(scope)
        self.values.append(variable.get())
        return True


@pytest.fixture
async def pool() -> AsyncIterator[HandlerPool]:
    async with HandlerPool(1000) as pool:
        yield pool


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_a_worker_that_ended_well_is_used_again(pool: HandlerPool) -> None:
    jobs = Jobs(pool)
    for _ in range(3):
        jobs.start()
        assert pool.running == 1
        await settle()
        assert pool.running == 0
    assert len(set(jobs.tasks)) == 1


async def test_jobs_at_the_same_time_have_workers_of_their_own(pool: HandlerPool) -> None:
    jobs = Jobs(pool)
    for _ in range(10):
        jobs.start()
    assert pool.running == 10
    await settle()
    assert len(set(jobs.tasks)) == 10


async def test_starting_never_blocks_and_never_runs_the_job_at_once(pool: HandlerPool) -> None:
    jobs = Jobs(pool)
    for _ in range(2):
        with trio.testing.assert_no_checkpoints():
            jobs.start()
        assert len(jobs.tasks) < 2
        await settle()


@pytest.mark.parametrize("how", ["not reusable", "cancelled", "deadline"])
async def test_a_worker_that_ended_otherwise_is_not_used_again(
    how: str, pool: HandlerPool, autojump_clock: trio.testing.MockClock
) -> None:
    jobs = Jobs(pool)

    async def job(scope: trio.CancelScope) -> bool:
        await jobs.quick(scope)
        if how == "cancelled":
            scope.cancel()
            await trio.sleep_forever()
        if how == "deadline":
            scope.deadline = trio.current_time() + 1
            await trio.sleep_forever()
        return False

    jobs.start(job)
    await trio.sleep(2)
    assert pool.running == 0
    jobs.start()
    await settle()
    first, second = jobs.tasks
    assert first is not second


async def test_a_cancellation_swallowed_by_the_handler_does_not_reach_the_next(pool: HandlerPool) -> None:
    jobs = Jobs(pool)

    async def job(scope: trio.CancelScope) -> bool:
        scope.cancel()
        return True

    jobs.start(job)
    await settle()

    async def patient(scope: trio.CancelScope) -> bool:
        await trio.lowlevel.checkpoint()
        return await jobs.quick(scope)

    jobs.start(patient)
    await settle()
    assert len(jobs.tasks) == 1


async def test_a_deadline_does_not_outlive_its_job(pool: HandlerPool, autojump_clock: trio.testing.MockClock) -> None:
    jobs = Jobs(pool)

    async def hurried(scope: trio.CancelScope) -> bool:
        scope.deadline = trio.current_time() + 1
        return await jobs.quick(scope)

    async def patient(scope: trio.CancelScope) -> bool:
        # As every job does: what the last one has set is still there.
        scope.deadline = inf
        await trio.sleep(100)
        return await jobs.quick(scope)

    jobs.start(hurried)
    await settle()
    jobs.start(patient)
    await trio.sleep(200)
    assert len(jobs.tasks) == 2
    assert len(set(jobs.tasks)) == 1


async def test_each_job_has_a_context_of_its_own(pool: HandlerPool) -> None:
    jobs = Jobs(pool)

    async def setting(name: str, scope: trio.CancelScope) -> bool:
        await jobs.quick(scope)
        variable.set(name)
        await trio.lowlevel.checkpoint()
        assert variable.get() == name
        return True

    for name in "ab":
        jobs.start(partial(setting, name))
        await settle()
    assert jobs.values == ["unset", "unset"]
    assert len(set(jobs.tasks)) == 1
    assert variable.get() == "unset"


async def test_jobs_see_the_context_in_which_the_pool_was_made() -> None:
    token = variable.set("outside")
    try:
        pool = HandlerPool(10)
    finally:
        variable.reset(token)
    async with pool:
        jobs = Jobs(pool)
        for _ in range(2):
            jobs.start()
            await settle()
    assert jobs.values == ["outside", "outside"]


async def test_idle_workers_are_bounded(pool: HandlerPool) -> None:
    jobs = Jobs(pool)
    for _ in range(3 * _MAX_IDLE):
        jobs.start()
    await settle()
    assert pool._nursery is not None
    assert len(pool._nursery.child_tasks) == _MAX_IDLE


async def test_leaving_cancels_running_and_idle_workers_and_waits() -> None:
    ended: list[str] = []
    async with HandlerPool(10) as pool:
        jobs = Jobs(pool)

        async def stubborn(scope: trio.CancelScope) -> bool:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    for _ in range(5):
                        await trio.lowlevel.checkpoint()
                ended.append("stubborn")

        jobs.start(stubborn)
        jobs.start()
        await settle()
        assert pool.running == 1
    assert ended == ["stubborn"]
    assert pool.running == 0


async def test_a_job_given_to_an_idle_worker_is_run_also_when_the_pool_is_cancelled_first() -> None:
    """It must be told, or its stream would never end."""
    async with HandlerPool(10) as pool:
        jobs = Jobs(pool)
        jobs.start()
        await settle()
        jobs.start()
        pool.cancel()
        await settle()
    assert len(jobs.tasks) == 2
    assert pool.running == 0


async def test_a_job_started_in_a_cancelled_pool_is_told() -> None:
    async with HandlerPool(10) as pool:
        jobs = Jobs(pool)
        told: list[bool] = []

        async def job(scope: trio.CancelScope) -> bool:
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                told.append(True)
                raise

        pool.cancel()
        jobs.start(job)
        await settle()
    assert told == [True]


# -- more calls than may run


async def test_jobs_over_the_limit_wait_for_their_turn_in_order() -> None:
    async with HandlerPool(2) as pool:
        started: list[int] = []
        gates = [trio.Event() for _ in range(5)]

        async def job(number: int, scope: trio.CancelScope) -> bool:
            started.append(number)
            await gates[number].wait()
            return True

        jobs = Jobs(pool)
        for number in range(5):
            jobs.start(partial(job, number))
        await settle()
        assert sorted(started) == [0, 1]
        assert pool.running == 2
        gates[1].set()
        await settle()
        assert started[2:] == [2]
        gates[0].set()
        gates[2].set()
        await settle()
        assert sorted(started[3:]) == [3, 4]
        assert pool.running == 2
        for gate in gates:
            gate.set()


async def test_who_was_reset_while_it_waited_never_runs() -> None:
    async with HandlerPool(1) as pool:
        gate = trio.Event()

        async def job(scope: trio.CancelScope) -> bool:
            await gate.wait()
            return True

        jobs = Jobs(pool)
        jobs.start(job)
        reset, alive = jobs.start(), jobs.start()
        reset.cancelled = "reset by peer"
        gate.set()
        await settle()
        assert len(jobs.tasks) == 1
        assert alive.refused is None
        assert pool.running == 0


async def test_waiting_jobs_are_bounded_by_live_streams() -> None:
    """Rapid reset: each stream is gone before its handler could start."""
    async with HandlerPool(4) as pool:
        jobs = Jobs(pool)

        async def job(scope: trio.CancelScope) -> bool:
            await trio.sleep_forever()
            raise AssertionError

        for _ in range(4):
            jobs.start(job)
        for _ in range(10_000):
            jobs.start(job).cancelled = "reset by peer"
        assert len(pool._waiting) <= 9


async def test_who_waits_when_the_pool_ends_is_refused() -> None:
    async with HandlerPool(1) as pool:
        jobs = Jobs(pool)

        async def job(scope: trio.CancelScope) -> bool:
            await trio.sleep_forever()
            raise AssertionError

        jobs.start(job)
        await settle()
        waiting = jobs.start()
    assert waiting.refused is StatusCode.UNAVAILABLE


async def test_an_exception_of_a_job_comes_out_of_the_pool() -> None:
    """Handlers contain their own; what is left is a fault of ours, or Ctrl-C."""

    async def job(scope: trio.CancelScope) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(BaseException) as caught:  # noqa: PT012
        async with HandlerPool(10) as pool:
            Jobs(pool).start(job)
            await trio.sleep_forever()
    error: Any = caught.value
    assert [type(inner) for inner in error.exceptions] == [KeyboardInterrupt]
    assert pool.running == 0


# -- deadlines of used workers


def job_with_deadline(done: list[str], name: str, deadline: float = inf) -> Job:
    async def run(scope: trio.CancelScope) -> bool:
        scope.deadline = deadline
        await trio.lowlevel.checkpoint()
        done.append(name)
        return True

    return run


async def test_the_deadline_of_one_rpc_does_not_end_the_next(mock_clock: trio.testing.MockClock) -> None:
    done: list[str] = []
    async with HandlerPool(10) as pool:
        pool.start(cast(Any, FakeStream()), job_with_deadline(done, "first", deadline=0.5))
        await trio.testing.wait_all_tasks_blocked()
        # Handed to the worker before the deadline, begun after it.
        pool.start(cast(Any, FakeStream()), job_with_deadline(done, "second"))
        mock_clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
        assert done == ["first", "second"]
        assert pool.running == 0
        pool.start(cast(Any, FakeStream()), job_with_deadline(done, "third"))
        await trio.testing.wait_all_tasks_blocked()
        assert done == ["first", "second", "third"]
        assert pool.running == 0


async def test_a_worker_whose_last_deadline_comes_while_it_is_idle_is_not_asked_again(
    mock_clock: trio.testing.MockClock,
) -> None:
    done: list[str] = []
    async with HandlerPool(10) as pool:
        for name in ("a", "b"):
            pool.start(cast(Any, FakeStream()), job_with_deadline(done, name, deadline=0.5))
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(0.6)
        await trio.testing.wait_all_tasks_blocked()
        pool.start(cast(Any, FakeStream()), job_with_deadline(done, "c"))
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(done) == ["a", "b", "c"]
        assert pool.running == 0
