"""The ``pick_first`` policy by itself: which subchannel is told to connect, when, and what is published."""

from __future__ import annotations

import random

import pytest

from tests.support.policies import FakeContext, State
from trio_grpc import Endpoint, PickFirst
from trio_grpc._balancing.pick_first import PickFirstPolicy

ONE, TWO, THREE = (Endpoint(f"{n}.{n}.{n}.{n}:1") for n in (1, 2, 3))


class Bench:
    """A policy and its channel."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self.context = FakeContext()
        self.policy = PickFirstPolicy(self.context)
        self.update(*endpoints)

    def update(self, *endpoints: Endpoint) -> None:
        self.policy.update_endpoints(endpoints)
        self.context.tell(self.policy)

    def become(self, endpoint: Endpoint, state: State) -> None:
        self.context.by_name(endpoint.address).become(state)
        self.context.tell(self.policy)

    def fail(self, *endpoints: Endpoint) -> None:
        for endpoint in endpoints:
            self.become(endpoint, State.TRANSIENT_FAILURE)

    def states(self) -> dict[str, State]:
        return {one.endpoint.address[0]: one.state for one in self.context.made if not one.lost}

    @property
    def picked(self) -> str:
        state, picker = self.context.published[-1]
        assert state is State.READY
        return str(picker.endpoint)


def test_the_first_address_is_tried_alone() -> None:
    bench = Bench(ONE, TWO)
    assert bench.states() == {"1": State.CONNECTING, "2": State.IDLE}
    assert bench.context.state is State.CONNECTING
    assert [seconds for seconds, _ in bench.context.timers] == [0.25]
    bench.become(ONE, State.READY)
    assert bench.picked == ONE.address
    assert not bench.context.timers


def test_the_next_address_is_tried_after_a_while_and_the_first_answer_wins() -> None:
    bench = Bench(ONE, TWO, THREE)
    bench.context.fire(bench.policy)
    assert bench.states() == {"1": State.CONNECTING, "2": State.CONNECTING, "3": State.IDLE}
    bench.become(TWO, State.READY)
    assert bench.picked == TWO.address
    assert bench.states() == {"1": State.IDLE, "2": State.READY, "3": State.IDLE}
    assert not bench.context.timers


def test_the_next_address_is_tried_at_once_after_a_failure() -> None:
    bench = Bench(ONE, TWO, THREE)
    bench.fail(ONE)
    assert bench.states() == {"1": State.TRANSIENT_FAILURE, "2": State.CONNECTING, "3": State.IDLE}
    assert bench.context.state is State.CONNECTING
    assert len(bench.context.timers) == 1


def test_a_failure_of_an_earlier_address_does_not_hurry_the_next() -> None:
    bench = Bench(ONE, TWO, THREE)
    bench.context.fire(bench.policy)
    bench.fail(ONE)
    assert bench.states()["3"] is State.IDLE


def test_when_all_have_failed_the_channel_has_and_stays_so_until_one_answers() -> None:
    bench = Bench(ONE, TWO)
    bench.fail(ONE, TWO)
    assert bench.context.published[-1] == (State.TRANSIENT_FAILURE, "1.1.1.1:1 refused; 2.2.2.2:1 refused")
    assert bench.context.resolutions == 1
    # Each goes its own way, attempt after backoff.
    for _ in range(5):
        bench.become(ONE, State.IDLE)
        assert bench.states()["1"] is State.CONNECTING
        assert bench.context.state is State.TRANSIENT_FAILURE
        bench.fail(ONE)
    bench.become(TWO, State.IDLE)
    bench.become(TWO, State.READY)
    assert bench.picked == TWO.address


def test_it_asks_to_resolve_again_once_per_round_of_failures() -> None:
    bench = Bench(ONE, TWO)
    bench.fail(ONE, TWO)
    for round_ in range(1, 4):
        assert bench.context.resolutions == round_
        for endpoint in (ONE, TWO):
            bench.become(endpoint, State.IDLE)
            bench.fail(endpoint)


def test_an_address_that_failed_early_waits_for_the_end_of_the_pass() -> None:
    bench = Bench(ONE, TWO)
    bench.fail(ONE)
    bench.become(ONE, State.IDLE)
    assert bench.states() == {"1": State.IDLE, "2": State.CONNECTING}
    bench.fail(TWO)
    assert bench.states() == {"1": State.CONNECTING, "2": State.TRANSIENT_FAILURE}


def test_a_lost_connection_makes_it_idle_until_somebody_needs_one() -> None:
    bench = Bench(ONE, TWO)
    bench.become(ONE, State.READY)
    bench.become(ONE, State.IDLE)
    assert bench.context.state is State.IDLE
    assert bench.context.resolutions == 1
    assert bench.states() == {"1": State.IDLE, "2": State.IDLE}
    bench.policy.exit_idle()
    bench.policy.exit_idle()
    bench.context.tell(bench.policy)
    assert bench.context.state is State.CONNECTING
    assert bench.states() == {"1": State.CONNECTING, "2": State.IDLE}


def test_an_idle_channel_takes_new_addresses_without_connecting() -> None:
    bench = Bench(ONE)
    bench.become(ONE, State.READY)
    bench.become(ONE, State.IDLE)
    bench.update(TWO)
    assert bench.states() == {"2": State.IDLE}
    assert bench.context.state is State.IDLE
    bench.policy.exit_idle()
    assert bench.states() == {"2": State.CONNECTING}


def test_a_connection_that_is_lost_into_backoff_starts_a_pass() -> None:
    bench = Bench(ONE, TWO)
    bench.become(ONE, State.READY)
    bench.fail(ONE)
    assert bench.context.state is State.CONNECTING
    assert bench.states() == {"1": State.TRANSIENT_FAILURE, "2": State.CONNECTING}
    bench.fail(TWO)
    assert bench.context.state is State.TRANSIENT_FAILURE


def test_the_only_address_lost_into_backoff_fails_the_channel() -> None:
    bench = Bench(ONE)
    bench.become(ONE, State.READY)
    bench.fail(ONE)
    assert bench.context.published[-1] == (State.TRANSIENT_FAILURE, "1.1.1.1:1 refused")


def test_a_connection_that_is_still_on_the_list_is_kept() -> None:
    bench = Bench(ONE)
    bench.become(ONE, State.READY)
    published = len(bench.context.published)
    bench.update(THREE, ONE)
    assert len(bench.context.published) == published
    assert bench.states() == {"1": State.READY, "3": State.IDLE}


def test_a_connection_that_is_not_on_the_list_any_more_is_replaced() -> None:
    bench = Bench(ONE)
    bench.become(ONE, State.READY)
    bench.update(TWO)
    assert bench.context.by_name(ONE.address).lost
    assert bench.context.state is State.CONNECTING
    bench.become(TWO, State.READY)
    assert bench.picked == TWO.address


def test_new_addresses_in_the_middle_of_a_pass_begin_another() -> None:
    bench = Bench(ONE, TWO)
    bench.fail(ONE)
    bench.update(ONE, THREE)
    assert bench.states() == {"1": State.TRANSIENT_FAILURE, "3": State.CONNECTING}
    bench.fail(THREE)
    assert bench.context.state is State.TRANSIENT_FAILURE


def test_new_addresses_after_a_failure_do_not_hide_it() -> None:
    bench = Bench(ONE)
    bench.fail(ONE)
    bench.update(TWO)
    assert bench.context.state is State.TRANSIENT_FAILURE
    assert bench.states() == {"2": State.CONNECTING}
    bench.become(TWO, State.READY)
    assert bench.picked == TWO.address


def test_no_addresses() -> None:
    bench = Bench()
    assert bench.context.published == [(State.TRANSIENT_FAILURE, "the resolver found no addresses")]
    assert bench.context.resolutions == 1
    bench.update(ONE)
    bench.become(ONE, State.READY)
    assert bench.picked == ONE.address
    bench.update()
    assert bench.context.state is State.TRANSIENT_FAILURE
    assert bench.context.by_name(ONE.address).lost


def test_the_second_to_answer_is_let_go() -> None:
    bench = Bench(ONE, TWO)
    bench.context.fire(bench.policy)
    # Both before the policy hears of either.
    for endpoint in (TWO, ONE):
        bench.context.by_name(endpoint.address).become(State.READY)
    bench.context.tell(bench.policy)
    assert bench.picked == TWO.address
    assert bench.states() == {"1": State.IDLE, "2": State.READY}
    assert bench.context.state is State.READY


def test_a_connection_that_ended_before_it_could_be_told_of_is_made_again() -> None:
    bench = Bench(ONE)
    subchannel = bench.context.by_name(ONE.address)
    subchannel.become(State.READY)
    subchannel.become(State.IDLE)
    bench.context.tell(bench.policy)
    assert [state for state, _ in bench.context.published] == [State.CONNECTING, State.READY, State.IDLE]


def test_addresses_are_shuffled_when_asked_for() -> None:
    endpoints = [Endpoint(f"10.0.0.{number}:1") for number in range(20)]
    firsts = set()
    for seed in range(20):
        context = FakeContext()
        PickFirstPolicy(context, random.Random(seed).shuffle).update_endpoints(endpoints)
        firsts.add(next(one for one in context.made if one.connects).endpoint.address)
    assert len(firsts) > 5
    context = FakeContext()
    PickFirst(shuffle_address_list=True)(context).update_endpoints(endpoints)
    assert sorted(one.endpoint.address for one in context.made) == sorted(one.address for one in endpoints)


def test_its_option_is_checked() -> None:
    with pytest.raises(TypeError, match="shuffle_address_list"):
        PickFirst(shuffle_address_list="yes")  # type: ignore[arg-type]
