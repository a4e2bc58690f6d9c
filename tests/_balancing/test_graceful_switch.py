"""Policies that take over from each other, by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.support.policies import FakeContext, State
from trio_grpc import Endpoint, LoadBalancingPolicy, PolicyContext, Subchannel
from trio_grpc._balancing.graceful_switch import GracefulSwitch

ONE, TWO = Endpoint("1.1.1.1:1"), Endpoint("2.2.2.2:2")


class Child(LoadBalancingPolicy):
    """Connects to everything, and publishes what it is told to."""

    def __init__(self, context: PolicyContext, name: str) -> None:
        super().__init__(context)
        self.name = name
        self.told: list[Any] = []
        self.subchannels: list[Subchannel] = []

    def update_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        self.told.append([endpoint.address[0] for endpoint in endpoints])
        for endpoint in endpoints:
            self.subchannels.append(self.context.new_subchannel(endpoint))
            self.subchannels[-1].connect()

    def subchannel_changed(self, subchannel: Subchannel, state: State) -> None:
        self.told.append(state)
        if state in (State.READY, State.IDLE, State.TRANSIENT_FAILURE):
            self.publish(state)

    def resolver_failed(self, error: Exception) -> None:
        self.told.append(error)

    def exit_idle(self) -> None:
        self.told.append("exit idle")

    def publish(self, state: State) -> None:
        error = OSError(self.name) if state is State.TRANSIENT_FAILURE else None
        self.context.publish(state, self.pick if state is State.READY else None, error)

    def pick(self, _: object) -> Any:
        return self.name


class Bench:
    """A switch and its channel.

    Attributes:
        children: the policies that were made, by name.
        takeovers: whether health is watched, for each time that another policy took over.
    """

    def __init__(self, *names: str) -> None:
        self.context = FakeContext()
        self.takeovers: list[bool] = []
        self.switch = GracefulSwitch(self.context, lambda: self.takeovers.append(self.switch.watches_health))
        self.children: dict[str, Child] = {}
        self.factories: dict[str, Callable[[PolicyContext], LoadBalancingPolicy]] = {}
        for name in names:
            self.use(name)

    def use(self, name: str, *endpoints: Endpoint) -> Child:
        """Switch to this policy, and have it told of the endpoints."""

        def make(context: PolicyContext) -> LoadBalancingPolicy:
            assert name not in self.children
            self.children[name] = Child(context, name)
            return self.children[name]

        self.switch.switch_to(self.factories.setdefault(name, make))
        self.switch.update_endpoints(endpoints or (ONE,))
        self.context.tell(self.switch)
        return self.children[name]

    def become(self, child: Child, state: State) -> None:
        for subchannel in child.subchannels:
            subchannel.become(state)  # type: ignore[attr-defined]
        self.context.tell(self.switch)

    def serving(self) -> Any:
        """The name of the policy that gets the calls, or the state of the channel."""
        state, picker = self.context.published[-1]
        return picker(None) if state is State.READY else state

    def lost(self, child: Child) -> list[bool]:
        return [subchannel.lost for subchannel in child.subchannels]  # type: ignore[attr-defined]


def test_the_first_policy_serves_at_once() -> None:
    bench = Bench()
    one = bench.use("one", ONE, TWO)
    assert one.told == [["1", "2"], State.CONNECTING, State.CONNECTING]
    assert bench.serving() is State.CONNECTING
    bench.become(one, State.READY)
    assert bench.serving() == "one"
    bench.become(one, State.TRANSIENT_FAILURE)
    assert bench.context.published[-1] == (State.TRANSIENT_FAILURE, "one")


def test_the_policy_that_serves_says_whether_health_is_watched() -> None:
    bench = Bench()
    bench.use("one")
    assert bench.takeovers == [True]
    bench.become(bench.children["one"], State.READY)

    def make(context: PolicyContext) -> LoadBalancingPolicy:
        child = Child(context, "two")
        child.watches_health = False
        return child

    bench.switch.switch_to(make)
    assert bench.takeovers == [True]
    bench.become(bench.children["one"], State.IDLE)
    assert bench.takeovers == [True, False]


def test_the_same_policy_is_not_made_again() -> None:
    bench = Bench()
    one = bench.use("one")
    assert bench.use("one", TWO) is one
    assert one.told == [["1"], State.CONNECTING, ["2"], State.CONNECTING]
    bench.become(one, State.READY)
    two = bench.use("two")
    assert bench.use("two") is two


@pytest.mark.parametrize("state", [State.READY, State.TRANSIENT_FAILURE, State.IDLE])
def test_the_old_one_serves_until_the_new_one_has_left_connecting(state: State) -> None:
    bench = Bench()
    one = bench.use("one")
    bench.become(one, State.READY)
    count = len(bench.context.published)
    two = bench.use("two", TWO)
    two.publish(State.CONNECTING)
    assert bench.serving() == "one"
    assert len(bench.context.published) == count
    assert bench.lost(one) == [False]
    bench.become(two, state)
    assert bench.serving() == ("two" if state is State.READY else state)
    assert bench.lost(one) == [True]
    assert bench.lost(two) == [False]


def test_the_new_one_is_published_before_the_subchannels_of_the_old_one_go() -> None:
    bench = Bench()
    one = bench.use("one")
    bench.become(one, State.READY)
    two = bench.use("two")
    seen: list[object] = []
    shut_down = bench.context.shut_down

    def watch(subchannel: Subchannel) -> None:
        seen.append(bench.serving())
        shut_down(subchannel)

    bench.context.shut_down = watch  # type: ignore[method-assign]
    bench.become(two, State.READY)
    assert seen == ["two"]


@pytest.mark.parametrize("state", [State.TRANSIENT_FAILURE, State.IDLE])
def test_the_new_one_takes_over_from_one_that_is_not_ready(state: State) -> None:
    bench = Bench()
    one = bench.use("one")
    bench.become(one, state)
    two = bench.use("two")
    assert bench.serving() is State.CONNECTING
    assert bench.lost(one) == [True]
    bench.become(two, State.READY)
    assert bench.serving() == "two"


@pytest.mark.parametrize("state", [State.TRANSIENT_FAILURE, State.IDLE])
def test_the_new_one_takes_over_when_the_old_one_loses_what_it_had(state: State) -> None:
    bench = Bench()
    one = bench.use("one")
    bench.become(one, State.READY)
    two = bench.use("two")
    bench.become(one, state)
    assert bench.serving() is State.CONNECTING
    assert bench.lost(one) == [True]
    bench.become(two, State.READY)
    assert bench.serving() == "two"


def test_one_that_publishes_as_it_is_made_takes_over_at_once() -> None:
    bench = Bench()
    one = bench.use("one")
    bench.become(one, State.READY)

    def make(context: PolicyContext) -> LoadBalancingPolicy:
        child = Child(context, "two")
        child.publish(State.TRANSIENT_FAILURE)
        return child

    bench.switch.switch_to(make)
    assert bench.context.published[-1] == (State.TRANSIENT_FAILURE, "two")
    assert bench.lost(one) == [True]


def test_a_third_one_takes_the_place_of_the_second() -> None:
    bench = Bench()
    one = bench.use("one")
    bench.become(one, State.READY)
    two = bench.use("two")
    three = bench.use("three")
    assert bench.lost(two) == [True]
    assert bench.serving() == "one"
    two.publish(State.READY)
    assert bench.serving() == "one"
    bench.become(three, State.READY)
    assert bench.serving() == "three"
    assert bench.lost(one) == [True]


def test_each_hears_of_its_own_subchannels_and_the_newest_of_everything_else() -> None:
    bench = Bench()
    one = bench.use("one")
    bench.become(one, State.READY)
    two = bench.use("two")
    one.told.clear()
    two.told.clear()
    error = OSError("no names")
    bench.switch.resolver_failed(error)
    bench.switch.exit_idle()
    bench.switch.update_endpoints([TWO])
    assert one.told == []
    assert two.told == [error, "exit idle", ["2"]]
    bench.become(one, State.CONNECTING)
    assert one.told == [State.CONNECTING]


def test_before_there_is_a_policy_nobody_hears_of_anything() -> None:
    bench = Bench()
    bench.switch.exit_idle()
    bench.switch.resolver_failed(OSError())
    assert bench.context.published == []


def test_one_that_has_ended_is_not_heard_any_more() -> None:
    bench = Bench()
    one = bench.use("one")
    fired: list[str] = []
    one.context.call_later(1, lambda: fired.append("one"))
    bench.become(one, State.READY)
    two = bench.use("two")
    bench.become(two, State.READY)
    one.publish(State.TRANSIENT_FAILURE)
    one.context.request_resolution()
    bench.context.fire(bench.switch)
    late = one.context.new_subchannel(TWO)
    assert bench.serving() == "two"
    assert bench.context.resolutions == 0
    assert fired == []
    assert late.lost  # type: ignore[attr-defined]


def test_timers_and_requests_of_the_one_that_serves() -> None:
    bench = Bench()
    one = bench.use("one")
    fired: list[str] = []
    call_off = one.context.call_later(1, lambda: fired.append("off"))
    call_off()
    one.context.call_later(2, lambda: fired.append("on"))
    bench.context.fire(bench.switch)
    one.context.request_resolution()
    assert fired == ["on"]
    assert bench.context.resolutions == 1
    with pytest.raises(TypeError, match="function must be callable, not NoneType"):
        one.context.call_later(1, None)  # type: ignore[arg-type]


def test_what_a_successor_publishes_is_checked_when_it_does() -> None:
    bench = Bench()
    one = bench.use("one")
    bench.become(one, State.READY)
    two = bench.use("two")
    with pytest.raises(ValueError, match="a policy publishes READY with a picker"):
        two.context.publish(State.READY)
    assert bench.serving() == "one"


def test_what_makes_no_policy_leaves_the_old_one(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    with pytest.raises(TypeError, match="load_balancing must make a LoadBalancingPolicy, not str"):
        bench.switch.switch_to(lambda _: "two")  # type: ignore[arg-type, return-value]
    one = bench.use("one")
    bench.become(one, State.READY)
    bench.switch.switch_to(lambda _: "two")  # type: ignore[arg-type, return-value]
    assert "load_balancing must make a LoadBalancingPolicy, not str" in caplog.text
    assert bench.serving() == "one"
    bench.switch.update_endpoints([TWO])
    assert one.told[-1] == ["2"]
