"""The ``least_request`` policy by itself."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from tests.support.policies import FakeContext, State
from trio_grpc import CallEnd, Endpoint, LeastRequest, Pick, PickInfo, RoundRobin, StatusCode
from trio_grpc._balancing.least_request import LeastRequestPolicy

ONE, TWO, THREE = (Endpoint(f"{n}.{n}.{n}.{n}:1") for n in (1, 2, 3))
INFO = PickInfo("/echo.Echo/Unary")


class Bench:
    """A policy and its channel, with all backends READY; calls are begun and ended by the test."""

    def __init__(self, *endpoints: Endpoint, choice_count: int = 2, draws: Any = None) -> None:
        self.context = FakeContext()
        draw = random.Random(5).randrange if draws is None else lambda _: next(draws)
        self.policy = LeastRequestPolicy(self.context, choice_count, draw)
        self.update(*endpoints)
        self.become(State.READY, *endpoints)

    def update(self, *endpoints: Endpoint) -> None:
        self.policy.update_endpoints(endpoints)
        self.context.tell(self.policy)

    def become(self, state: State, *endpoints: Endpoint) -> None:
        for endpoint in endpoints:
            self.context.by_name(endpoint.address).become(state)
            self.context.tell(self.policy)

    def begin(self) -> Pick:
        state, picker = self.context.published[-1]
        assert state is State.READY
        picked = picker(INFO)
        assert isinstance(picked, Pick)
        return picked


def end(pick: Pick, code: StatusCode | None = StatusCode.OK) -> None:
    assert pick.on_end is not None
    pick.on_end(CallEnd(code, local=code is None))


def name(pick: Pick) -> str:
    return str(pick.subchannel.endpoint)[0]


def test_of_those_drawn_the_one_with_the_fewest_calls_is_picked() -> None:
    bench = Bench(ONE, TWO, THREE, draws=iter([0, 0, 0, 1, 0, 1, 1, 2, 2, 0]))
    # A tie goes to the one drawn first; calls so far: 1, 1+0, then two of ONE against one of TWO, ...
    assert [name(bench.begin()) for _ in range(5)] == ["1", "2", "1", "3", "3"]


def test_calls_count_until_they_end_however_they_do() -> None:
    bench = Bench(ONE, TWO, draws=iter([0, 0, 0, 0, 1, 1, 0, 1, 0, 1]))
    first, second, third = (bench.begin() for _ in range(3))
    assert [name(pick) for pick in (first, second, third)] == ["1", "1", "2"]
    end(first, StatusCode.UNAVAILABLE)
    end(second, None)
    assert name(bench.begin()) == "1"
    end(third)
    assert name(bench.begin()) == "2"


def test_more_choices_find_the_least_of_more() -> None:
    bench = Bench(ONE, TWO, THREE, choice_count=4, draws=iter([0] * 4 + [1] * 4 + [0, 1, 2, 0]))
    assert [name(bench.begin()) for _ in range(3)] == ["1", "2", "3"]


def test_load_is_spread_by_calls_in_flight() -> None:
    """TWO takes ten times as long, and gets hardly more than the ninth of the calls for which it is drawn twice."""
    bench = Bench(ONE, TWO, THREE)
    running: list[tuple[int, Pick]] = []
    counts: Counter[str] = Counter()
    for now in range(3000):
        for due, pick in list(running):
            if due <= now:
                end(pick)
                running.remove((due, pick))
        pick = bench.begin()
        counts[name(pick)] += 1
        running.append((now + (300 if name(pick) == "2" else 30), pick))
    assert 3000 / 9 * 0.9 < counts["2"] < 3000 / 9 * 1.1
    assert 0.8 < counts["1"] / counts["3"] < 1.25


def test_without_calls_in_flight_all_get_as_many() -> None:
    bench = Bench(ONE, TWO, THREE)
    counts: Counter[str] = Counter()
    for _ in range(3000):
        pick = bench.begin()
        counts[name(pick)] += 1
        end(pick)
    assert all(900 < count < 1100 for count in counts.values())


def test_counts_outlast_a_lost_connection_and_go_with_the_address() -> None:
    bench = Bench(ONE, TWO, draws=iter([0, 0, 0, 1, 0, 1, 1, 0]))
    first = bench.begin()
    bench.become(State.IDLE, ONE)
    bench.become(State.READY, ONE)
    # Its stream is still being ended: ONE has one call, and TWO none.
    assert name(bench.begin()) == "2"
    end(first)
    assert name(bench.begin()) == "1"
    bench.update(TWO)
    bench.update(ONE, TWO)
    bench.become(State.READY, ONE)
    # A new subchannel to the address of old; TWO, which comes first now, has one call.
    assert name(bench.begin()) == "1"


def test_another_count_keeps_the_connections_and_the_calls() -> None:
    bench = Bench(ONE, TWO, THREE, draws=iter([0, 0, 0, 1, 2]))
    assert name(bench.begin()) == "1"
    assert bench.policy.reconfigure(LeastRequest(choice_count=3))
    assert len(bench.context.made) == 3
    # Three draws, and ONE has a call already.
    assert name(bench.begin()) == "2"
    assert not bench.policy.reconfigure(RoundRobin())


def test_another_count_before_there_are_addresses() -> None:
    policy = LeastRequestPolicy(FakeContext(), 2)
    assert policy.reconfigure(LeastRequest(choice_count=3))


@pytest.mark.parametrize("count", [1, 0, -1, 11])
def test_a_count_out_of_range(count: int) -> None:
    with pytest.raises(ValueError, match=rf"LeastRequest\.choice_count must be between 2 and 10, got {count}"):
        LeastRequest(choice_count=count)


@pytest.mark.parametrize("count", [2.0, "2", None, True])
def test_a_count_that_is_none(count: Any) -> None:
    with pytest.raises(TypeError, match=r"LeastRequest\.choice_count must be int, not"):
        LeastRequest(choice_count=count)


def test_equal_options_are_equal() -> None:
    assert LeastRequest() == LeastRequest(choice_count=2) != LeastRequest(choice_count=3)
