"""What resolvers publish to, and how they are kept running."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from trio_grpc import Endpoint, Resolution, ResolverTarget
from trio_grpc._balancing.backoff import Backoff
from trio_grpc._balancing.resolving import run_resolver

Clock = trio.testing.MockClock
TARGET = ResolverTarget("test", "", "x")
ENDPOINT = Endpoint("10.0.0.1:1")

settle = trio.testing.wait_all_tasks_blocked


class News:
    """What was published, and when."""

    def __init__(self) -> None:
        self.all: list[tuple[float, object]] = []
        self.resolution = Resolution(lambda endpoints, _: self._add(endpoints), self._add)

    def _add(self, news: object) -> None:
        self.all.append((trio.current_time(), news))

    async def run(self, resolver: object) -> None:
        await run_resolver(resolver, TARGET, self.resolution, Backoff(jitter=0))  # type: ignore[arg-type]


async def test_what_is_published_may_be_for_ever(autojump_clock: Clock) -> None:
    async def resolver(target: ResolverTarget, resolution: Resolution, /) -> None:
        assert target is TARGET
        await trio.lowlevel.checkpoint()
        resolution.update(endpoint for endpoint in [ENDPOINT])

    news = News()
    await news.run(resolver)
    assert news.all == [(0, (ENDPOINT,))]


async def test_only_endpoints_can_be_published(autojump_clock: Clock) -> None:
    news = News()
    with pytest.raises(TypeError, match="Endpoint objects, not str"):
        news.resolution.update([ENDPOINT, "10.0.0.1:1"])  # type: ignore[list-item]
    assert not news.all


async def test_only_exceptions_can_be_failed_with(autojump_clock: Clock) -> None:
    news = News()
    for no_error in ("down", None, KeyboardInterrupt()):
        with pytest.raises(TypeError, match=f"with an exception, not {type(no_error).__name__}"):
            news.resolution.fail(no_error)  # type: ignore[arg-type]
    assert not news.all


async def test_failures_in_a_row_are_told_and_wait_longer(autojump_clock: Clock) -> None:
    errors = [OSError(str(number)) for number in range(4)]

    async def resolver(_: ResolverTarget, resolution: Resolution, /) -> None:
        await trio.lowlevel.checkpoint()
        if len(news.all) < 4:
            raise errors[len(news.all)]
        resolution.update([ENDPOINT])

    news = News()
    await news.run(resolver)
    assert [one for _, one in news.all] == [*errors, (ENDPOINT,)]
    assert [at for at, _ in news.all] == pytest.approx([0, 1, 2.6, 5.16, 9.256])


async def test_a_list_ends_the_row(autojump_clock: Clock) -> None:
    async def resolver(_: ResolverTarget, resolution: Resolution, /) -> None:
        await trio.lowlevel.checkpoint()
        resolution.update([ENDPOINT])
        raise OSError("later")

    news = News()
    with trio.move_on_after(3.5):
        await news.run(resolver)
    assert [at for at, one in news.all if isinstance(one, OSError)] == [0, 1, 2, 3]


async def test_one_that_ends_without_a_word_has_failed(autojump_clock: Clock) -> None:
    async def resolver(_: ResolverTarget, __: Resolution, /) -> None:
        await trio.lowlevel.checkpoint()

    news = News()
    with trio.move_on_after(0.5):
        await news.run(resolver)
    ((_, error),) = news.all
    assert "ended without publishing" in str(error)


async def test_requests_are_kept_until_they_are_waited_for(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    resolution = News().resolution
    resolution.request()
    resolution.request()
    await resolution.wait_stale()
    with trio.move_on_after(1) as scope:
        await resolution.wait_stale()
    assert scope.cancelled_caught
