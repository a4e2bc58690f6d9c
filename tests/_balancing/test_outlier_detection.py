"""The ``outlier_detection`` policy by itself, around others: what it counts, whom it ejects, and for how long."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

import trio_grpc
from tests.support.policies import FakeContext, FakeSubchannel, State
from trio_grpc import (
    CallEnd,
    Endpoint,
    FailurePercentageEjection,
    LeastRequest,
    OutlierDetection,
    Pick,
    PickFirst,
    PickInfo,
    PolicyContext,
    RingHash,
    RoundRobin,
    ServiceConfigError,
    StatusCode,
    Subchannel,
    SuccessRateEjection,
)
from trio_grpc._balancing.outlier_detection import OutlierDetectionPolicy
from trio_grpc._balancing.policies import parse_load_balancing, policy_by_name

SUCCESS_RATE = SuccessRateEjection(minimum_hosts=3, request_volume=10)
FAILURES = FailurePercentageEjection(threshold=50, minimum_hosts=3, request_volume=10)

OK = CallEnd(StatusCode.OK, local=False)
FAILED = CallEnd(StatusCode.UNAVAILABLE, local=False)


def endpoints(count: int) -> list[Endpoint]:
    return [Endpoint(f"10.0.0.{number}:1") for number in range(count)]


def by_success_rate(**options: Any) -> OutlierDetection:
    return OutlierDetection(**{"child": RoundRobin(), "success_rate_ejection": SUCCESS_RATE, **options})


def by_failures(**options: Any) -> OutlierDetection:
    return OutlierDetection(
        **{
            "child": RoundRobin(),
            "success_rate_ejection": None,
            "failure_percentage_ejection": FAILURES,
            **options,
        }
    )


class Bench:
    """A policy and its channel, with all backends READY.

    Attributes:
        now: the time.
        chance: what the next outliers draw, from 0 to 99.
    """

    def __init__(self, options: OutlierDetection, count: int = 10) -> None:
        self.now = 0.0
        self.chance: list[int] = []
        self.context = FakeContext()
        self.policy = OutlierDetectionPolicy(self.context, options, self._draw, lambda: self.now)
        self.update(count)
        for subchannel in self.context.made:
            subchannel.become(State.READY)
        self.tell()

    def _draw(self, count: int) -> int:
        assert count == 100
        return self.chance.pop(0) if self.chance else 0

    def update(self, count: int) -> None:
        self.policy.update_endpoints(endpoints(count))
        self.tell()

    def tell(self) -> None:
        self.context.tell(self.policy)

    def become(self, number: int, state: State) -> None:
        self.subchannel(number).become(state)
        self.tell()

    def subchannel(self, number: int) -> FakeSubchannel:
        return self.context.by_name(f"10.0.0.{number}:1")

    def pick(self) -> Pick:
        picked = self.context.pickers[-1](PickInfo("/a.B/C"))
        assert isinstance(picked, Pick)
        return picked

    def call(self, count: int, *bad: int, bad_end: CallEnd = FAILED, good_end: CallEnd = OK) -> None:
        """Make so many calls to each backend that gets any; those to the bad ones end badly."""
        self.call_each(count, dict.fromkeys(bad, count), bad_end, good_end)

    def call_each(
        self, count: int, failures: dict[int, int], bad_end: CallEnd = FAILED, good_end: CallEnd = OK
    ) -> None:
        for _ in range(count * len(self.chosen)):
            picked = self.pick()
            number = number_of(picked.subchannel)
            bad = failures.get(number, 0) > 0
            if bad:
                failures[number] -= 1
            assert picked.on_end is not None
            picked.on_end(bad_end if bad else good_end)

    def sweep(self) -> None:
        """Let the interval end."""
        ((seconds, function),) = [timer for timer in self.context.timers if timer[1] == self.policy._sweep]
        self.context.timers.remove((seconds, function))
        self.now += seconds
        function()
        self.tell()

    def tell_new(self) -> None:
        """Let what is due at once be called."""
        for timer in [timer for timer in self.context.timers if timer[0] == 0]:
            self.context.timers.remove(timer)
            timer[1]()
        self.tell()

    @property
    def chosen(self) -> list[int]:
        """Which backends get calls."""
        if self.context.state is not State.READY:
            return []
        picker = self.context.pickers[-1]
        return sorted({number_of(picker(PickInfo("/a.B/C"))) for _ in range(400)})

    @property
    def ejected(self) -> list[int]:
        return sorted(set(range(len(self.policy._addresses))) - set(self.chosen))


def number_of(picked: Any) -> int:
    subchannel = picked.subchannel if isinstance(picked, Pick) else picked
    return int(subchannel.endpoint.address.split(":")[0].split(".")[3])


# -- by success rate


def test_who_is_far_below_the_others_is_ejected() -> None:
    bench = Bench(by_success_rate())
    bench.call(10, 3)
    assert bench.ejected == []
    bench.sweep()
    assert bench.ejected == [3]
    assert bench.now == 10
    assert bench.subchannel(3).state is State.READY


def test_who_is_a_little_below_is_not() -> None:
    bench = Bench(by_success_rate(max_ejection_percent=100))
    # The mean is 0.9, the standard deviation 0.1: less than 0.71 is an outlier.
    bench.call_each(10, {0: 2, 1: 0, 2: 2, 3: 0, 4: 2, 5: 0, 6: 2, 7: 0, 8: 2})
    bench.sweep()
    assert bench.ejected == []


def test_the_factor_is_in_thousandths_of_the_standard_deviation() -> None:
    # Nine at 1.0 and one at 0.0: mean 0.9, standard deviation 0.3.
    for factor, ejected in ((2900, [3]), (3000, []), (0, [3])):
        ejection = SuccessRateEjection(minimum_hosts=3, request_volume=10, stdev_factor=factor)
        bench = Bench(by_success_rate(success_rate_ejection=ejection))
        bench.call(10, 3)
        bench.sweep()
        assert bench.ejected == ejected


def test_it_takes_enough_calls() -> None:
    bench = Bench(by_success_rate())
    bench.call(9, 3)
    bench.sweep()
    assert bench.ejected == []
    # Calls of other intervals are forgotten.
    bench.call(9, 3)
    bench.sweep()
    assert bench.ejected == []


def test_it_takes_enough_backends_with_enough_calls() -> None:
    bench = Bench(by_success_rate(), count=3)
    bench.become(0, State.IDLE)
    bench.call(20, 1)
    bench.become(0, State.READY)
    bench.sweep()
    assert bench.ejected == []


def test_those_with_few_calls_are_not_in_the_mean() -> None:
    bench = Bench(by_success_rate(), count=10)
    for number in range(4):
        bench.become(number, State.IDLE)
    bench.call(10, 9)
    for number in range(4):
        bench.become(number, State.READY)
    bench.call(1, 0, 1, 2, 3)
    bench.sweep()
    assert bench.ejected == [9]


# -- by failures


def test_who_fails_too_often_is_ejected() -> None:
    bench = Bench(by_failures(max_ejection_percent=100))
    # More than half.
    bench.call_each(10, {1: 5, 2: 6, 3: 10})
    bench.sweep()
    assert bench.ejected == [2, 3]


def test_failures_take_enough_calls_and_enough_backends() -> None:
    bench = Bench(by_failures())
    bench.call(9, 3)
    bench.sweep()
    assert bench.ejected == []
    bench = Bench(by_failures(), count=2)
    bench.call(10, 1)
    bench.sweep()
    assert bench.ejected == []


def test_a_threshold_of_all_is_never_passed() -> None:
    ejection = FailurePercentageEjection(threshold=100, minimum_hosts=1, request_volume=1)
    bench = Bench(by_failures(failure_percentage_ejection=ejection))
    bench.call(10, 0)
    bench.sweep()
    assert bench.ejected == []


def test_both_ejections_together_eject_once() -> None:
    bench = Bench(by_failures(success_rate_ejection=SUCCESS_RATE, max_ejection_percent=100))
    bench.call(10, 3)
    bench.sweep()
    assert bench.ejected == [3]
    assert bench.policy._addresses["10.0.0.3:1"].multiplier == 1
    # Success rates are below nobody's when too many are bad; failures are looked at all the same.
    bench = Bench(by_failures(success_rate_ejection=SUCCESS_RATE, max_ejection_percent=100))
    bench.call(10, 0, 1, 2, 3, 4, 5)
    bench.sweep()
    assert bench.ejected == [0, 1, 2, 3, 4, 5]


# -- how many


def test_no_more_are_ejected_than_may_be() -> None:
    bench = Bench(by_failures(max_ejection_percent=30))
    bench.call(10, 0, 1, 2, 3, 4)
    bench.sweep()
    assert len(bench.ejected) == 3
    bench.call(10, 4)
    bench.sweep()
    assert len(bench.ejected) == 3


@pytest.mark.parametrize("percent", [0, 1, 10])
def test_one_may_always_be_ejected(percent: int) -> None:
    bench = Bench(by_failures(max_ejection_percent=percent), count=5)
    bench.call(10, 2, 3)
    bench.sweep()
    assert bench.ejected == [2]


def test_all_may_be_ejected() -> None:
    bench = Bench(by_failures(max_ejection_percent=100), count=3)
    bench.call(10, 0, 1, 2)
    bench.sweep()
    state, error = bench.context.published[-1]
    assert state is State.TRANSIENT_FAILURE
    assert error == "; ".join(
        f"10.0.0.{number}:1 gets no calls for a while as an outlier: 10 of its 10 calls failed, and 50 % is the most"
        for number in range(3)
    )


@pytest.mark.parametrize("make", [by_success_rate, by_failures])
def test_chance_decides_where_not_all_outliers_are_to_be_ejected(make: Callable[..., OutlierDetection]) -> None:
    options = make(max_ejection_percent=100)
    success_rate, failures = options.success_rate_ejection, options.failure_percentage_ejection
    options = make(
        max_ejection_percent=100,
        success_rate_ejection=success_rate
        and SuccessRateEjection(minimum_hosts=3, request_volume=10, enforcement_percentage=40, stdev_factor=1000),
        failure_percentage_ejection=failures
        and FailurePercentageEjection(threshold=50, minimum_hosts=3, request_volume=10, enforcement_percentage=40),
    )
    bench = Bench(options)
    bench.chance = [40, 39, 99]
    bench.call(10, 1, 2, 3)
    bench.sweep()
    assert bench.chance == []
    assert bench.ejected == [2]


def test_nobody_is_ejected_with_an_enforcement_of_nothing() -> None:
    ejection = FailurePercentageEjection(minimum_hosts=3, request_volume=10, enforcement_percentage=0)
    bench = Bench(by_failures(failure_percentage_ejection=ejection))
    bench.call(10, 1)
    bench.sweep()
    assert bench.ejected == []


# -- for how long


def test_an_ejection_ends_after_its_time_and_each_is_longer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trio_grpc")
    bench = Bench(by_failures(max_ejection_time=70))
    # An ejection ends with the first interval after its time, and a good interval takes one from the multiplier: here
    # there is none.
    for lasts in (40, 70, 80, 80):
        bench.call(10, 3)
        bench.sweep()
        began = bench.now
        assert bench.ejected == [3]
        while bench.ejected:
            bench.call(10)
            bench.sweep()
        assert bench.now - began == lasts
    assert (
        caplog.messages
        == [
            "10.0.0.3:1 gets no calls for a while as an outlier: 10 of its 10 calls failed, and 50 % is the most",
            "calls go to 10.0.0.3:1 again",
        ]
        * 4
    )


def test_good_intervals_make_the_next_ejection_shorter() -> None:
    bench = Bench(by_failures())
    for _ in range(3):
        bench.call(10, 3)
        bench.sweep()
        while bench.ejected:
            bench.sweep()
    address = bench.policy._addresses["10.0.0.3:1"]
    multipliers = [address.multiplier]
    for _ in range(4):
        bench.call(10)
        bench.sweep()
        multipliers.append(address.multiplier)
    assert multipliers == [3, 2, 1, 0, 0]


def test_the_base_is_the_least_maximum() -> None:
    bench = Bench(by_failures(base_ejection_time=50, max_ejection_time=20))
    bench.call(10, 3)
    bench.sweep()
    ejected_at = bench.now
    while bench.ejected:
        bench.sweep()
    assert bench.now - ejected_at == 60


# -- what counts


@pytest.mark.parametrize(
    ("end", "ejected"),
    [
        (CallEnd(StatusCode.UNAVAILABLE, local=True), True),
        (CallEnd(StatusCode.DEADLINE_EXCEEDED, local=True), True),
        (CallEnd(StatusCode.NOT_FOUND, local=False), True),
        (CallEnd(StatusCode.CANCELLED, local=False), True),
        # Its caller did not want it any more.
        (CallEnd(StatusCode.CANCELLED, local=True), False),
        # It was never sent.
        (CallEnd(None, local=True), False),
    ],
)
def test_which_ends_are_failures(end: CallEnd, ejected: bool) -> None:
    bench = Bench(by_failures())
    bench.call(10, 3, bad_end=end)
    bench.sweep()
    assert bench.ejected == ([3] if ejected else [])


def test_calls_that_say_nothing_are_no_successes_either() -> None:
    bench = Bench(by_failures())
    bench.call(10, 3)
    bench.call(100, 3, bad_end=CallEnd(None, local=True))
    bench.sweep()
    assert bench.ejected == [3]


def test_the_ends_that_the_child_asks_for_are_told_on() -> None:
    bench = Bench(by_failures(child=LeastRequest()))
    ends: Counter[str] = Counter()
    for _ in range(1000):
        picked = bench.pick()
        assert picked.on_end is not None
        bad = number_of(picked.subchannel) == 3
        ends["bad" if bad else "good"] += 1
        picked.on_end(FAILED if bad else OK)
    assert ends["bad"] >= 10
    child: Any = bench.policy._child._serving
    assert {backend.in_flight for backend in child.policy._backends.values()} == {0}
    bench.sweep()
    assert bench.ejected == [3]


class Odd(trio_grpc.LoadBalancingPolicy):
    """Connects to all, and to one more; picks as the test says."""

    picked: Any = None

    def update_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        self.subchannels = [self.context.new_subchannel(one) for one in [*endpoints, Endpoint("10.9.9.9:1")]]

    def subchannel_changed(self, subchannel: Subchannel, state: State) -> None:
        self.context.publish(State.READY, lambda _: self.picked)


def test_other_picks_pass() -> None:
    bench = Bench(by_failures(child=Odd), count=2)
    child: Any = bench.policy._child._serving
    stranger = child.policy.subchannels[-1]
    pick = bench.context.pickers[-1]
    for child.policy.picked in (None, stranger, Pick(stranger, print), "a mistake"):
        assert pick(PickInfo("/a.B/C")) is child.policy.picked
    # A pick without an end gets one.
    child.policy.picked = Pick(child.policy.subchannels[0])
    assert bench.pick().on_end is not None
    # A child may let go of something twice.
    for _ in range(2):
        child.policy.context.shut_down(child.policy.subchannels[0])
    assert len(bench.policy._tracked) == 2


# -- states


def test_the_child_does_not_hear_of_the_ejected() -> None:
    bench = Bench(by_failures())
    bench.call(10, 3)
    bench.sweep()
    bench.become(3, State.IDLE)
    # Nobody connects it meanwhile (A50).
    assert bench.subchannel(3).state is State.IDLE
    while bench.policy._addresses["10.0.0.3:1"].ejected_at is not None:
        bench.sweep()
    assert bench.subchannel(3).state is State.CONNECTING
    bench.become(3, State.READY)
    assert bench.ejected == []


def test_errors_say_why_and_come_back() -> None:
    bench = Bench(by_failures())
    bench.call(10, 3)
    bench.sweep()
    subchannel = bench.subchannel(3)
    why = "10.0.0.3:1 gets no calls for a while as an outlier: 10 of its 10 calls failed, and 50 % is the most"
    assert str(subchannel.error) == why
    bench.become(3, State.IDLE)
    bench.become(3, State.TRANSIENT_FAILURE)
    assert str(subchannel.error) == why
    while str(subchannel.error) == why:
        bench.sweep()
    assert str(subchannel.error) == "10.0.0.3:1 refused"
    assert bench.ejected == [3]
    bench.become(3, State.IDLE)
    bench.become(3, State.READY)
    assert subchannel.error is None
    assert bench.ejected == []


def test_a_new_subchannel_to_an_ejected_address_is_ejected() -> None:
    bench = Bench(by_failures(child=RoundRobin()))
    bench.call(10, 3)
    bench.sweep()
    options = by_failures(child=LeastRequest())
    assert bench.policy.reconfigure(options)
    bench.update(10)
    bench.tell_new()
    for subchannel in bench.context.made[10:]:
        subchannel.become(State.READY)
    bench.tell()
    assert bench.context.made[3].lost
    assert bench.ejected == [3]
    while bench.ejected:
        bench.sweep()
    assert bench.now == 50


def test_a_new_child_learns_who_is_ejected() -> None:
    bench = Bench(by_failures(max_ejection_percent=100), count=3)
    bench.call(10, 0, 1, 2)
    bench.sweep()
    assert bench.policy.reconfigure(by_failures(max_ejection_percent=100, child=LeastRequest()))
    bench.update(3)
    assert bench.context.state is State.CONNECTING
    bench.tell_new()
    state, error = bench.context.published[-1]
    assert state is State.TRANSIENT_FAILURE
    assert error.count("as an outlier") == 3


def test_what_has_changed_before_the_child_learns_it_is_not_told() -> None:
    bench = Bench(by_failures(max_ejection_percent=100), count=4)
    bench.call(10, 2, 3)
    bench.sweep()
    assert bench.policy.reconfigure(by_failures(max_ejection_percent=100, child=LeastRequest()))
    bench.update(4)
    # One is let go of, and one comes back.
    bench.update(3)
    bench.policy._take_back(bench.policy._addresses["10.0.0.2:1"])
    bench.tell_new()
    for subchannel in bench.context.made[4:7]:
        subchannel.become(State.READY)
    bench.tell()
    assert bench.chosen == [0, 1, 2]
    assert bench.context.made[6].error is None


def test_addresses_come_and_go() -> None:
    bench = Bench(by_failures())
    bench.call(10, 3)
    bench.sweep()
    bench.update(3)
    assert bench.chosen == [0, 1, 2]
    bench.update(10)
    for subchannel in bench.context.made[10:]:
        subchannel.become(State.READY)
    bench.tell()
    # Another one lives there now.
    assert bench.ejected == []
    assert len(bench.policy._tracked) == 10


@pytest.mark.parametrize("child", [RoundRobin(), LeastRequest(), RingHash()])
def test_it_works_with_children_of_all_kinds(child: trio_grpc.PolicyContext) -> None:
    bench = Bench(by_failures(child=child))
    for _ in range(400):
        picked = bench.pick()
        assert picked.on_end is not None
        picked.on_end(FAILED if number_of(picked) == 3 else OK)
        bench.tell()
    bench.sweep()
    picked_then = {number_of(bench.pick()) for _ in range(400)}
    assert picked_then == set(range(10)) - {3}


def test_nothing_is_ejected_from_pick_first() -> None:
    bench = Bench(by_failures(child=PickFirst()), count=3)
    assert not bench.policy.watches_health
    state, picker = bench.context.published[-1]
    assert state is State.READY
    # The quickest way of all, and nothing counts.
    assert isinstance(picker, Subchannel)
    bench.sweep()


def test_one_subchannel_for_all_is_counted_too() -> None:
    class First(Odd):
        def subchannel_changed(self, subchannel: Subchannel, state: State) -> None:
            self.context.publish(State.READY, self.subchannels[0])

    ejection = FailurePercentageEjection(threshold=50, minimum_hosts=1, request_volume=10)
    bench = Bench(by_failures(child=First, failure_percentage_ejection=ejection), count=3)
    for _ in range(10):
        picked = bench.pick()
        assert picked.on_end is not None
        picked.on_end(FAILED)
    bench.sweep()
    assert bench.policy._addresses["10.0.0.0:1"].ejected_at == 10


# -- other options


def test_without_ejections_it_is_not_there() -> None:
    bench = Bench(by_failures(failure_percentage_ejection=None))
    assert bench.context.timers == []
    assert isinstance(bench.context.pickers[-1](PickInfo("/a.B/C")), Subchannel)


def test_other_options_keep_what_is_known() -> None:
    bench = Bench(by_failures())
    bench.call(10, 3)
    bench.sweep()
    bench.now += 4
    assert bench.policy.reconfigure(by_failures(interval=6, base_ejection_time=13))
    assert [seconds for seconds, _ in bench.context.timers] == [2]
    assert bench.ejected == [3]
    # Not a subchannel was made anew.
    assert len(bench.context.made) == 10
    bench.sweep()
    bench.sweep()
    assert bench.ejected == [3]
    bench.sweep()
    assert (bench.ejected, bench.now) == ([], 28)
    # One that is over already ends now.
    bench.now += 5
    assert bench.policy.reconfigure(by_failures(interval=3))
    assert [seconds for seconds, _ in bench.context.timers] == [0]


def test_counts_begin_when_there_is_something_to_count_for() -> None:
    bench = Bench(by_failures(failure_percentage_ejection=None))
    bench.now = 7
    assert bench.policy.reconfigure(by_failures())
    bench.call(10, 3)
    bench.sweep()
    assert (bench.ejected, bench.now) == ([3], 17)
    # What ends meanwhile is not counted.
    picks = [bench.pick() for _ in range(100)]
    # Without ejections nobody would ever come back.
    assert bench.policy.reconfigure(by_failures(failure_percentage_ejection=None))
    assert bench.ejected == []
    assert bench.context.timers == []
    assert isinstance(bench.context.pickers[-1](PickInfo("/a.B/C")), Subchannel)
    for picked in picks:
        assert picked.on_end is not None
        picked.on_end(FAILED)
    assert bench.policy.reconfigure(by_failures(max_ejection_percent=100))
    bench.sweep()
    assert bench.ejected == []


def test_another_policy_is_no_other_option() -> None:
    bench = Bench(by_failures())
    assert not bench.policy.reconfigure(RoundRobin())


def test_a_child_that_nothing_is_ejected_from_gets_all_back() -> None:
    bench = Bench(by_failures())
    bench.call(10, 3)
    bench.sweep()
    assert bench.policy.reconfigure(by_failures(child=PickFirst()))
    bench.update(10)
    bench.context.made[10].become(State.READY)
    bench.tell()
    assert not bench.policy.watches_health
    assert bench.policy._addresses["10.0.0.3:1"].ejected_at is None
    assert isinstance(bench.context.pickers[-1], FakeSubchannel)


def test_what_a_child_publishes_when_it_gets_one_back_is_what_counts() -> None:
    class Plain(Odd):
        watches_health = False

        def subchannel_changed(self, subchannel: Subchannel, state: State) -> None:
            self.last = lambda _: None
            self.context.publish(State.READY, self.last)

    bench = Bench(by_failures())
    bench.call(10, 3)
    bench.sweep()
    assert bench.policy.reconfigure(by_failures(child=Plain))
    bench.update(10)
    bench.context.made[10].become(State.READY)
    bench.tell()
    child: Any = bench.policy._child._serving
    assert bench.policy._addresses["10.0.0.3:1"].ejected_at is None
    assert bench.context.pickers[-1] is child.policy.last


def test_the_child_talks_to_the_channel() -> None:
    bench = Bench(by_failures(), count=2)
    before = bench.context.resolutions
    bench.become(0, State.IDLE)
    assert bench.context.resolutions == before + 1
    told: list[str] = []
    child = cast(Any, bench.policy._child)
    child.resolver_failed = lambda error: told.append(str(error))
    child.exit_idle = lambda: told.append("exit")
    bench.policy.resolver_failed(OSError("no names"))
    bench.policy.exit_idle()
    assert told == ["no names", "exit"]
    call_off = bench.policy.call_later(5, lambda: None)
    assert 5 in [seconds for seconds, _ in bench.context.timers]
    call_off()
    assert 5 not in [seconds for seconds, _ in bench.context.timers]


def test_what_makes_no_policy_is_told() -> None:
    def make(context: PolicyContext) -> Any:
        return "round_robin"

    with pytest.raises(TypeError, match="must make a LoadBalancingPolicy, not str"):
        OutlierDetectionPolicy(FakeContext(), OutlierDetection(child=make))


# -- options and JSON


def test_defaults_are_those_of_a50() -> None:
    options = OutlierDetection(child=RoundRobin())
    assert options == OutlierDetection(
        child=RoundRobin(),
        interval=10,
        base_ejection_time=30,
        max_ejection_time=300,
        max_ejection_percent=10,
        success_rate_ejection=SuccessRateEjection(
            stdev_factor=1900, enforcement_percentage=100, minimum_hosts=5, request_volume=100
        ),
        failure_percentage_ejection=None,
    )
    assert FailurePercentageEjection() == FailurePercentageEjection(
        threshold=85, enforcement_percentage=100, minimum_hosts=5, request_volume=50
    )


@pytest.mark.parametrize(
    ("make", "error", "why"),
    [
        (lambda: by_failures(child="x"), TypeError, "OutlierDetection.child must be a load balancing policy, not str"),
        (lambda: by_failures(child=RoundRobin), TypeError, r"the class RoundRobin; RoundRobin\(\) may be meant"),
        (lambda: by_failures(interval=0), ValueError, "OutlierDetection.interval must be more than 0 seconds"),
        (lambda: by_failures(interval=-1), ValueError, "OutlierDetection.interval must be 0 or more seconds, got -1"),
        (lambda: by_failures(interval="10s"), TypeError, "interval must be a number of seconds, not str"),
        (lambda: by_failures(base_ejection_time=-1), ValueError, "base_ejection_time must be 0 or more seconds"),
        (lambda: by_failures(max_ejection_time=-1), ValueError, "max_ejection_time must be 0 or more seconds"),
        (lambda: by_failures(max_ejection_percent=101), ValueError, "max_ejection_percent must be between 0 and 100"),
        (lambda: by_failures(success_rate_ejection=True), TypeError, "must be SuccessRateEjection or None, not bool"),
        (lambda: by_failures(failure_percentage_ejection=5), TypeError, "FailurePercentageEjection or None, not int"),
        (lambda: SuccessRateEjection(enforcement_percentage=101), ValueError, "between 0 and 100, got 101"),
        (
            lambda: SuccessRateEjection(stdev_factor=cast(Any, 1.9)),
            TypeError,
            "SuccessRateEjection.stdev_factor must be int",
        ),
        (lambda: FailurePercentageEjection(threshold=101), ValueError, "threshold must be between 0 and 100, got 101"),
        (lambda: FailurePercentageEjection(enforcement_percentage=-1), ValueError, "between 0 and 100, got -1"),
    ],
)
def test_wrong_options_are_refused_at_once(make: Callable[[], object], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        make()


@pytest.mark.parametrize("name", ["outlier_detection_experimental", "outlier_detection"])
def test_from_json(name: str) -> None:
    config = {
        "interval": "5s",
        "baseEjectionTime": "15.5s",
        "maxEjectionTime": "60s",
        "maxEjectionPercent": 50,
        "successRateEjection": {"stdevFactor": 1000, "requestVolume": 7},
        "failurePercentageEjection": {"threshold": 20, "enforcementPercentage": 50, "minimumHosts": 2},
        "childPolicy": [{"unheard_of": {}}, {"round_robin": {}}],
    }
    assert parse_load_balancing([{name: config}], "x") == OutlierDetection(
        child=RoundRobin(),
        interval=5,
        base_ejection_time=15.5,
        max_ejection_time=60,
        max_ejection_percent=50,
        success_rate_ejection=SuccessRateEjection(stdev_factor=1000, request_volume=7),
        failure_percentage_ejection=FailurePercentageEjection(threshold=20, enforcement_percentage=50, minimum_hosts=2),
    )


def test_in_json_an_ejection_must_be_asked_for() -> None:
    config: dict[str, Any] = {"childPolicy": [{"pick_first": {}}]}
    assert parse_load_balancing([{"outlier_detection": config}], "x") == OutlierDetection(
        child=PickFirst(), success_rate_ejection=None
    )
    config = {"childPolicy": [{"pick_first": {}}], "failurePercentageEjection": {}}
    assert parse_load_balancing([{"outlier_detection": config}], "x") == OutlierDetection(
        child=PickFirst(), success_rate_ejection=None, failure_percentage_ejection=FailurePercentageEjection()
    )


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"childPolicy": None}, r"x\[0\]\.outlier_detection\.childPolicy: is missing"),
        ({"childPolicy": [{"unheard_of": {}}]}, r"x\[0\]\.outlier_detection\.childPolicy: has no known policy"),
        ({"childPolicy": [{"pick_first": 5}]}, r"outlier_detection\.childPolicy\[0\]\.pick_first: must be an object"),
        ({"interval": 5}, r"outlier_detection\.interval: must be a duration"),
        ({"interval": "-1s"}, r"outlier_detection: OutlierDetection\.interval must be 0 or more"),
        ({"maxEjectionPercent": 101}, "max_ejection_percent must be between 0 and 100"),
        ({"successRateEjection": {"stdevFactor": "much"}}, r"successRateEjection\.stdevFactor: must be a whole number"),
        (
            {"successRateEjection": {"enforcementPercentage": 101}},
            r"successRateEjection: SuccessRateEjection\.enforcement_percentage must be between 0 and 100, got 101",
        ),
        ({"failurePercentageEjection": {"threshold": 101}}, r"failurePercentageEjection: .*threshold must be between"),
        ({"failurePercentageEjection": []}, r"outlier_detection\.failurePercentageEjection: must be an object"),
    ],
)
def test_wrong_json_is_refused_with_the_path(fields: dict[str, Any], why: str) -> None:
    config = {"childPolicy": [{"round_robin": {}}], **fields}
    with pytest.raises(ServiceConfigError, match=why):
        parse_load_balancing([{"outlier_detection": config}], "x")


def test_a_mere_name_has_no_child() -> None:
    with pytest.raises(ValueError, match="'outlier_detection' has no default for childPolicy"):
        policy_by_name("outlier_detection")


def test_looks_are_not_taken_without_a_pause() -> None:
    bench = Bench(by_failures(interval=1e-6))
    assert [seconds for seconds, _ in bench.context.timers] == [0.1]
    bench.now = 0.1
    bench.context.fire(bench.policy)
    assert [seconds for seconds, _ in bench.context.timers] == [0.1]
