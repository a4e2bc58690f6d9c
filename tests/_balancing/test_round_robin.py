"""The ``round_robin`` policy by itself."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from tests.support.policies import FakeContext, State
from trio_grpc import Endpoint, PickInfo
from trio_grpc._balancing.round_robin import RoundRobinPolicy

ONE, TWO, THREE = (Endpoint(f"{n}.{n}.{n}.{n}:1") for n in (1, 2, 3))


class Bench:
    """A policy and its channel."""

    def __init__(self, *endpoints: Endpoint, start: int = 0, randrange: Callable[[int], int] | None = None) -> None:
        self.context = FakeContext()
        self.start = start
        self.policy = RoundRobinPolicy(self.context, randrange or (lambda count: self.start % count))
        self.update(*endpoints)

    def update(self, *endpoints: Endpoint) -> None:
        self.policy.update_endpoints(endpoints)
        self.context.tell(self.policy)

    def become(self, state: State, *endpoints: Endpoint) -> None:
        for endpoint in endpoints:
            self.context.by_name(endpoint.address).become(state)
            self.context.tell(self.policy)

    def picks(self, count: int) -> str:
        state, picker = self.context.published[-1]
        assert state is State.READY
        return "".join(str(picker(PickInfo("/a.B/C")).endpoint)[0] for _ in range(count))


def test_all_are_connected_to_at_once() -> None:
    bench = Bench(ONE, TWO, THREE, TWO)
    assert [one.state for one in bench.context.made] == [State.CONNECTING] * 3
    assert bench.context.state is State.CONNECTING


def test_each_that_is_ready_is_picked_in_turn() -> None:
    bench = Bench(ONE, TWO, THREE)
    bench.become(State.READY, TWO)
    assert bench.picks(3) == "222"
    bench.become(State.READY, ONE, THREE)
    assert bench.picks(7) == "1231231"


def test_it_begins_anywhere() -> None:
    bench = Bench(ONE, TWO, THREE, start=2)
    bench.become(State.READY, ONE, TWO, THREE)
    assert bench.picks(4) == "3123"


def test_one_that_fails_is_not_picked_and_tried_again() -> None:
    bench = Bench(ONE, TWO)
    bench.become(State.READY, ONE, TWO)
    bench.become(State.IDLE, ONE)
    assert bench.context.by_name(ONE.address).state is State.CONNECTING
    assert bench.context.resolutions == 1
    assert bench.picks(3) == "222"
    bench.become(State.TRANSIENT_FAILURE, ONE)
    assert bench.context.resolutions == 2
    bench.become(State.IDLE, ONE)
    assert bench.context.by_name(ONE.address).state is State.CONNECTING
    bench.become(State.READY, ONE)
    assert bench.picks(4) == "1212"


def test_it_fails_when_all_have_and_until_one_is_ready() -> None:
    bench = Bench(ONE, TWO)
    bench.become(State.TRANSIENT_FAILURE, ONE)
    assert bench.context.state is State.CONNECTING
    bench.become(State.TRANSIENT_FAILURE, TWO)
    assert bench.context.published[-1] == (State.TRANSIENT_FAILURE, "1.1.1.1:1 refused; 2.2.2.2:1 refused")
    # An attempt in the background is no reason to wait.
    bench.become(State.IDLE, ONE)
    assert bench.context.state is State.TRANSIENT_FAILURE
    bench.become(State.READY, ONE)
    assert bench.picks(2) == "11"


def test_picks_go_on_where_they_were_while_nothing_changes() -> None:
    bench = Bench(ONE, TWO, THREE)
    bench.become(State.READY, ONE, TWO)
    assert bench.picks(1) == "1"
    bench.become(State.TRANSIENT_FAILURE, THREE)
    bench.update(ONE, TWO, THREE)
    assert bench.picks(1) == "2"


def test_picks_go_on_where_they_were_when_one_goes_and_returns() -> None:
    bench = Bench(ONE, TWO, THREE)
    bench.become(State.READY, ONE, TWO, THREE)
    assert bench.picks(2) == "12"
    bench.become(State.IDLE, ONE)
    # More than one change, and no call in between.
    bench.become(State.TRANSIENT_FAILURE, ONE)
    bench.become(State.IDLE, ONE)
    assert bench.picks(4) == "3232"
    bench.start = 1
    bench.become(State.READY, ONE)
    assert bench.picks(4) == "3123"


def test_a_new_one_has_its_chance_to_be_the_next() -> None:
    bench = Bench(ONE, TWO, THREE)
    bench.become(State.READY, ONE, TWO)
    assert bench.picks(1) == "1"
    bench.start = 2
    bench.become(State.READY, THREE)
    assert bench.picks(4) == "3231"


def test_any_is_the_next_when_the_one_whose_turn_it_is_goes() -> None:
    bench = Bench(ONE, TWO, THREE)
    bench.become(State.READY, ONE, TWO, THREE)
    assert bench.picks(1) == "1"
    bench.become(State.IDLE, TWO)
    assert bench.picks(3) == "131"


def test_clients_do_not_all_begin_at_the_backend_that_is_ready_first() -> None:
    rng = random.Random(1)
    endpoints = [Endpoint(f"{n}.0.0.0:1") for n in range(1, 6)]
    firsts: Counter[str] = Counter()
    for _ in range(1000):
        bench = Bench(*endpoints, randrange=rng.randrange)
        bench.become(State.READY, *endpoints)
        firsts[bench.picks(1)] += 1
    assert set(firsts) == set("12345")
    assert max(firsts.values()) < 250


def test_addresses_come_and_go() -> None:
    bench = Bench(ONE, TWO)
    bench.become(State.READY, ONE, TWO)
    bench.update(TWO, THREE)
    assert bench.context.by_name(ONE.address).lost
    assert len(bench.context.made) == 3
    assert bench.picks(2) == "22"
    bench.become(State.READY, THREE)
    assert sorted(bench.picks(4)) == list("2233")


def test_the_last_ready_one_is_taken_off_the_list() -> None:
    bench = Bench(ONE, TWO)
    bench.become(State.READY, ONE)
    bench.become(State.TRANSIENT_FAILURE, TWO)
    bench.update(TWO)
    assert bench.context.published[-1] == (State.TRANSIENT_FAILURE, "2.2.2.2:1 refused")


def test_no_addresses() -> None:
    bench = Bench(ONE)
    bench.become(State.READY, ONE)
    bench.update()
    assert bench.context.published[-1] == (State.TRANSIENT_FAILURE, "the resolver found no addresses")
    assert bench.context.resolutions == 1
    assert bench.context.by_name(ONE.address).lost
