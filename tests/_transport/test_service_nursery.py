"""Background tasks that outlive a body and never touch its exceptions."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
import trio.testing

from trio_grpc._transport.service_nursery import ServiceNursery


async def no_farewell() -> None:
    await trio.lowlevel.checkpoint()


class UserError(Exception):
    pass


class UserGroup(UserError):
    """Stands for the user's own exception group; Python 3.10 has no such class."""

    exceptions = (UserError(1), UserError(2))


@pytest.mark.parametrize(
    "error",
    [UserError("text"), UserGroup(), KeyboardInterrupt(), SystemExit(3), StopAsyncIteration(), RuntimeError()],
    ids=lambda error: type(error).__name__,
)
async def test_the_bodys_exception_comes_out_as_itself(error: BaseException) -> None:
    cause, context = ValueError("cause"), ValueError("context")
    error.__cause__, error.__context__ = cause, context
    with pytest.raises(type(error)) as caught:  # noqa: PT012
        async with ServiceNursery(no_farewell) as services:
            services.start_soon(trio.sleep_forever)
            raise error
    assert caught.value is error
    assert error.__cause__ is cause
    assert error.__context__ is context


async def test_a_group_of_the_users_own_nursery_comes_out_as_itself() -> None:
    seen: list[BaseException] = []

    async def fail(number: int) -> None:
        raise UserError(number)

    with pytest.raises(BaseException) as caught:  # noqa: PT012
        async with ServiceNursery(no_farewell) as services:
            services.start_soon(trio.sleep_forever)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(fail, 1)
                    nursery.start_soon(fail, 2)
            except BaseException as error:
                seen.append(error)
                raise
    assert caught.value is seen[0]
    group: Any = caught.value
    assert sorted(error.args[0] for error in group.exceptions) == [1, 2]


async def test_a_cancellation_of_the_body_goes_to_its_own_scope() -> None:
    with trio.CancelScope() as outer:
        with trio.CancelScope() as scope:
            async with ServiceNursery(no_farewell) as services:
                services.start_soon(trio.sleep_forever)
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
    assert not outer.cancelled_caught


async def test_tasks_end_with_the_body() -> None:
    ended: list[str] = []

    async def service() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("service")

    async with ServiceNursery(no_farewell) as services:
        services.start_soon(service)
        await trio.testing.wait_all_tasks_blocked()
        assert not ended
    assert ended == ["service"]


async def test_tasks_run_on_while_a_cancelled_body_cleans_up() -> None:
    """That is what they are for: a ``finally`` in the body can still finish a call."""
    send, receive = trio.open_memory_channel[int](0)
    answers: list[int] = []

    async def service() -> None:
        answers.append(await receive.receive())

    with send, receive, trio.CancelScope() as scope:
        async with ServiceNursery(no_farewell) as services:
            services.start_soon(service)
            scope.cancel()
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await send.send(1)
                    await trio.testing.wait_all_tasks_blocked()
                    assert answers == [1]


async def test_tasks_run_on_during_the_farewell() -> None:
    said: list[str] = []
    goodbye = trio.Event()

    async def service() -> None:
        await goodbye.wait()
        said.append("goodbye")

    async def farewell() -> None:
        goodbye.set()
        await trio.testing.wait_all_tasks_blocked()
        said.append("said")

    with trio.CancelScope() as scope:
        async with ServiceNursery(farewell) as services:
            services.start_soon(service)
            scope.cancel()
    assert said == ["goodbye", "said"]


async def test_the_farewell_has_a_bound(autojump_clock: trio.testing.MockClock) -> None:
    async with ServiceNursery(trio.sleep_forever, 3.0) as services:
        services.start_soon(trio.sleep_forever)
    assert trio.current_time() == pytest.approx(3.0)


async def test_a_task_started_in_a_cancelled_body_runs() -> None:
    """Its scope is made before it starts, so that no moment is left in which the body's scope reaches it."""
    steps: list[str] = []

    async def service() -> None:
        await trio.lowlevel.checkpoint()
        steps.append("ran")

    with trio.CancelScope() as scope:
        async with ServiceNursery(no_farewell) as services:
            scope.cancel()
            services.start_soon(service)
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
    assert steps == ["ran"]


async def test_a_single_task_can_be_ended() -> None:
    async with ServiceNursery(no_farewell) as services:
        scope = services.start_soon(trio.sleep_forever)
        services.start_soon(trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert services._nursery is not None
        assert len(services._nursery.child_tasks) == 1
        assert len(services._scopes) == 1


async def test_a_fault_of_a_task_is_logged_and_the_body_does_not_pay(caplog: pytest.LogCaptureFixture) -> None:
    # The search for leaks takes such a record for a failure of the test, which for once it is not.
    logger = logging.getLogger("trio_grpc")
    others, logger.handlers = logger.handlers, []
    try:

        async def service() -> None:
            raise UserError("broken")

        async with ServiceNursery(no_farewell) as services:
            services.start_soon(service)
            await trio.testing.wait_all_tasks_blocked()
            await trio.lowlevel.checkpoint()
    finally:
        logger.handlers = others
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], UserError)


async def test_tasks_that_started_tasks_while_closing_are_waited_for() -> None:
    ended: list[str] = []

    async def last() -> None:
        try:
            await trio.lowlevel.checkpoint()
        finally:
            ended.append("last")

    async with ServiceNursery(no_farewell) as services:

        async def service() -> None:
            try:
                await trio.sleep_forever()
            finally:
                services.start_soon(last)

        services.start_soon(service)
        await trio.testing.wait_all_tasks_blocked()
    assert ended == ["last"]


async def test_closing_is_known_from_the_beginning_of_the_end() -> None:
    async def farewell() -> None:
        assert services.closing
        await trio.lowlevel.checkpoint()

    services = ServiceNursery(farewell)
    assert not services.closing
    async with services:
        assert not services.closing
    assert services.closing


def test_it_can_be_made_before_trio_runs() -> None:
    services = ServiceNursery(no_farewell)

    async def main() -> None:
        async with services:
            await trio.lowlevel.checkpoint()

    trio.run(main)


async def test_a_task_that_another_one_starts_as_it_is_cancelled_ends_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with ServiceNursery(no_farewell) as services:

        async def start_another() -> None:
            try:
                await trio.sleep_forever()
            finally:
                services.start_soon(trio.sleep_forever)

        services.start_soon(start_another)
        await trio.testing.wait_all_tasks_blocked()
