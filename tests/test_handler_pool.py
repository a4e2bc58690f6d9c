"""Workers that are used again: nothing of one RPC is felt by the next."""

from __future__ import annotations

from math import inf
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_grpc._handler_pool import HandlerPool, Job

STREAM: Any = None


def job(done: list[str], name: str, deadline: float = inf) -> Job:
    async def run(scope: trio.CancelScope) -> bool:
        scope.deadline = deadline
        await trio.lowlevel.checkpoint()
        done.append(name)
        return True

    return run


async def test_the_deadline_of_one_rpc_does_not_end_the_next(mock_clock: MockClock) -> None:
    done: list[str] = []
    async with HandlerPool(10) as pool:
        pool.start(STREAM, job(done, "first", deadline=0.5))
        await wait_all_tasks_blocked()
        # Handed to the worker before the deadline, begun after it.
        pool.start(STREAM, job(done, "second"))
        mock_clock.jump(1)
        await wait_all_tasks_blocked()
        assert done == ["first", "second"]
        assert pool.running == 0
        pool.start(STREAM, job(done, "third"))
        await wait_all_tasks_blocked()
        assert done == ["first", "second", "third"]
        assert pool.running == 0


async def test_a_worker_whose_last_deadline_comes_while_it_is_idle_is_not_asked_again(mock_clock: MockClock) -> None:
    done: list[str] = []
    async with HandlerPool(10) as pool:
        for name in ("a", "b"):
            pool.start(STREAM, job(done, name, deadline=0.5))
        await wait_all_tasks_blocked()
        mock_clock.jump(0.6)
        await wait_all_tasks_blocked()
        pool.start(STREAM, job(done, "c"))
        await wait_all_tasks_blocked()
        assert sorted(done) == ["a", "b", "c"]
        assert pool.running == 0
