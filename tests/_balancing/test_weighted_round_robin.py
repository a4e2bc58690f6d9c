"""The ``weighted_round_robin`` policy by itself."""

from __future__ import annotations

import binascii
from collections import Counter
from math import inf, nan
from typing import Any

import pytest
import trio
import trio.testing

from tests.support.policies import FakeContext, State
from trio_grpc import CallEnd, Endpoint, Pick, PickInfo, RoundRobin, StatusCode, WeightedRoundRobin
from trio_grpc._balancing.load_report import LoadReport
from trio_grpc._balancing.weighted_round_robin import WeightedRoundRobinPolicy, effective_weights, weight_of
from trio_grpc.orca import OrcaLoadReport

Clock = trio.testing.MockClock

ONE, TWO, THREE = (Endpoint(f"{n}.{n}.{n}.{n}:1") for n in (1, 2, 3))
INFO = PickInfo("/echo.Echo/Unary")


class Bench:
    """A policy and its channel, with all backends READY; what they report is up to the test."""

    def __init__(self, *endpoints: Endpoint, **options: Any) -> None:
        self.context = FakeContext()
        self.policy = WeightedRoundRobinPolicy(self.context, WeightedRoundRobin(**options), lambda: 1.0)
        self.policy.update_endpoints(endpoints)
        self.context.tell(self.policy)
        self.become(State.READY, *endpoints)

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

    def call(self, loads: dict[Endpoint, dict[str, float]] | None = None) -> str:
        """One call, with what its backend reports."""
        pick = self.begin()
        assert pick.on_end is not None
        load = (loads or {}).get(pick.subchannel.endpoint)
        fields: list[tuple[bytes, bytes]] = []
        if load is not None:
            data = OrcaLoadReport(**load).SerializeToString()  # type: ignore[arg-type]
            fields = [(b"endpoint-load-metrics-bin", binascii.b2a_base64(data, newline=False))]
        pick.on_end(CallEnd(StatusCode.OK, False, fields))
        return str(pick.subchannel.endpoint)[0]

    async def run(self, seconds: float, loads: dict[Endpoint, dict[str, float]]) -> Counter[str]:
        """Ten calls in each second; return where they went."""
        counts: Counter[str] = Counter()
        for _ in range(round(10 * seconds)):
            counts[self.call(loads)] += 1
            await trio.sleep(0.1)
        return counts


def load(weight: float) -> dict[str, float]:
    return {"rps_fractional": weight, "cpu_utilization": 1.0}


UNEVEN = {ONE: load(100), TWO: load(200), THREE: load(500)}


async def test_calls_follow_the_weights_after_the_blackout(autojump_clock: Clock) -> None:
    bench = Bench(ONE, TWO, THREE)
    early = await bench.run(9, UNEVEN)
    assert set(early.values()) == {30}
    await bench.run(3, UNEVEN)
    late = await bench.run(24, UNEVEN)
    assert late == {"1": 30, "2": 60, "3": 150}


async def test_reports_change_the_shares_once_per_update_period(autojump_clock: Clock) -> None:
    bench = Bench(ONE, TWO, blackout_period=0, weight_update_period=5)
    assert [bench.call(UNEVEN) for _ in range(6)] == list("121212")
    await trio.sleep(4.9)
    assert [bench.call(UNEVEN) for _ in range(6)] == list("121212")
    await trio.sleep(0.1)
    assert Counter(bench.call(UNEVEN) for _ in range(30)) == {"1": 10, "2": 20}


@pytest.mark.parametrize("period", [0, 0.05, 0.1])
async def test_the_update_period_has_a_floor(autojump_clock: Clock, period: float) -> None:
    bench = Bench(ONE, TWO, blackout_period=0, weight_update_period=period)
    assert [bench.call(UNEVEN) for _ in range(4)] == list("1212")
    await trio.sleep(0.09)
    assert [bench.call(UNEVEN) for _ in range(4)] == list("1212")
    await trio.sleep(0.02)
    assert Counter(bench.call(UNEVEN) for _ in range(30)) == {"1": 10, "2": 20}


async def test_with_one_known_weight_all_get_as_many(autojump_clock: Clock) -> None:
    bench = Bench(ONE, TWO, THREE, blackout_period=0)
    counts = await bench.run(30, {ONE: load(1000)})
    assert counts == {"1": 100, "2": 100, "3": 100}


async def test_a_backend_that_does_not_report_counts_as_average(autojump_clock: Clock) -> None:
    bench = Bench(ONE, TWO, THREE, blackout_period=0)
    loads = {ONE: load(100), TWO: load(300)}
    await bench.run(3, loads)
    assert await bench.run(24, loads) == {"1": 40, "2": 120, "3": 80}


async def test_weights_expire_and_are_blacked_out_after_that(autojump_clock: Clock) -> None:
    bench = Bench(ONE, TWO, blackout_period=10, weight_expiration_period=60)
    await bench.run(12, UNEVEN)
    assert await bench.run(30, {}) == {"1": 100, "2": 200}
    await trio.sleep(31)
    assert await bench.run(10, {}) == {"1": 50, "2": 50}
    # Reports again, and as long without consequence as in the beginning.
    assert (await bench.run(9, UNEVEN))["1"] == 45
    await bench.run(3, UNEVEN)
    assert await bench.run(30, UNEVEN) == {"1": 100, "2": 200}


async def test_a_gap_between_reports_is_noticed_without_calls_in_it(autojump_clock: Clock) -> None:
    bench = Bench(ONE, TWO, blackout_period=10, weight_expiration_period=60)
    await bench.run(12, UNEVEN)
    await trio.sleep(100)
    assert (await bench.run(9, UNEVEN))["1"] == 45


async def test_a_new_connection_has_a_blackout_of_its_own(autojump_clock: Clock) -> None:
    bench = Bench(ONE, TWO)
    await bench.run(12, UNEVEN)
    bench.become(State.IDLE, ONE)
    assert await bench.run(3, UNEVEN) == {"2": 30}
    bench.become(State.READY, ONE)
    assert (await bench.run(9, UNEVEN))["1"] == 45
    await bench.run(3, UNEVEN)
    assert (await bench.run(30, UNEVEN))["1"] == 100


async def test_reports_that_say_nothing_are_as_good_as_none(autojump_clock: Clock) -> None:
    bench = Bench(ONE, TWO, blackout_period=0)
    await bench.run(3, UNEVEN)
    empty: dict[Endpoint, dict[str, float]] = {ONE: {"mem_utilization": 1.0}, TWO: {"rps_fractional": 5}}
    assert await bench.run(15, empty) == {"1": 50, "2": 100}


@pytest.mark.parametrize("value", [b"!!!", b"Cw", b"/w"])
async def test_reports_that_cannot_be_read_are_as_good_as_none(autojump_clock: Clock, value: bytes) -> None:
    bench = Bench(ONE, TWO, blackout_period=0)
    await bench.run(3, UNEVEN)
    for _ in range(30):
        pick = bench.begin()
        assert pick.on_end is not None
        pick.on_end(CallEnd(StatusCode.OK, False, [(b"endpoint-load-metrics-bin", value)]))
        await trio.sleep(0.1)
    assert await bench.run(15, {}) == {"1": 50, "2": 100}


async def test_reports_out_of_band_replace_those_of_calls(autojump_clock: Clock) -> None:
    bench = Bench(ONE, TWO, enable_oob_load_report=True, oob_reporting_period=7, blackout_period=0)
    assert bench.begin().on_end is None
    for endpoint in (ONE, TWO):
        ((report, period),) = bench.context.by_name(endpoint.address).load_watches.items()
        assert period == 7
        report(OrcaLoadReport(**UNEVEN[endpoint]).SerializeToString())  # type: ignore[arg-type]
        report(b"nonsense")
    await trio.sleep(1)
    assert Counter(str(bench.begin().subchannel.endpoint)[0] for _ in range(30)) == {"1": 10, "2": 20}


async def test_a_backend_is_asked_for_its_load_as_long_as_it_is_on_the_list(autojump_clock: Clock) -> None:
    bench = Bench(ONE, TWO, enable_oob_load_report=True)
    bench.become(State.IDLE, ONE)
    bench.become(State.READY, ONE)
    one, two = (bench.context.by_name(endpoint.address) for endpoint in (ONE, TWO))
    assert (len(one.load_watches), len(two.load_watches)) == (1, 1)
    bench.policy.update_endpoints([TWO, THREE])
    assert (len(one.load_watches), len(two.load_watches)) == (0, 1)
    assert not bench.context.by_name(THREE.address).load_watches
    bench.become(State.READY, THREE)
    assert len(bench.context.by_name(THREE.address).load_watches) == 1


async def test_other_options_keep_the_connections_and_what_is_known(autojump_clock: Clock) -> None:
    bench = Bench(ONE, TWO, blackout_period=0, weight_update_period=100)
    await bench.run(3, UNEVEN)
    assert bench.policy.reconfigure(WeightedRoundRobin(blackout_period=0))
    assert await bench.run(15, {}) == {"1": 50, "2": 100}
    assert bench.policy.reconfigure(WeightedRoundRobin(blackout_period=0, enable_oob_load_report=True))
    assert bench.begin().on_end is None
    one = bench.context.by_name(ONE.address)
    assert list(one.load_watches.values()) == [10]
    bench.policy.reconfigure(WeightedRoundRobin(enable_oob_load_report=True, oob_reporting_period=5))
    assert list(one.load_watches.values()) == [5]
    bench.policy.reconfigure(WeightedRoundRobin(enable_oob_load_report=True, oob_reporting_period=5, blackout_period=5))
    assert list(one.load_watches.values()) == [5]
    bench.policy.reconfigure(WeightedRoundRobin())
    assert not one.load_watches
    assert bench.begin().on_end is not None
    assert len(bench.context.made) == 2
    assert not bench.policy.reconfigure(RoundRobin())


async def test_backends_come_and_go_without_a_change_of_step(autojump_clock: Clock) -> None:
    bench = Bench(ONE, TWO, THREE)
    assert "".join(bench.call() for _ in range(4)) == "1231"
    bench.become(State.IDLE, ONE)
    assert "".join(bench.call() for _ in range(4)) == "2323"
    bench.policy.update_endpoints([TWO, THREE])
    assert "".join(bench.call() for _ in range(2)) == "23"


# -- weights


@pytest.mark.parametrize(
    ("report", "penalty", "weight"),
    [
        (LoadReport(qps=100, cpu_utilization=0.5), 1.0, 200),
        (LoadReport(qps=100, cpu_utilization=0.5, application_utilization=0.25), 1.0, 400),
        (LoadReport(qps=100, cpu_utilization=2.0), 1.0, 50),
        (LoadReport(qps=100, cpu_utilization=0.5, eps=50), 1.0, 100),
        (LoadReport(qps=100, cpu_utilization=0.5, eps=50), 3.0, 50),
        (LoadReport(qps=100, cpu_utilization=0.5, eps=50), 0.0, 200),
        (LoadReport(qps=100), 1.0, 0),
        (LoadReport(qps=100, eps=100), 1.0, 0),
        (LoadReport(cpu_utilization=0.5), 1.0, 0),
        (LoadReport(qps=-1, cpu_utilization=0.5), 1.0, 0),
        (LoadReport(qps=1, cpu_utilization=-0.5), 1.0, 0),
        (LoadReport(qps=nan, cpu_utilization=0.5), 1.0, 0),
        (LoadReport(qps=1, cpu_utilization=nan), 1.0, 0),
        (LoadReport(qps=1, cpu_utilization=1, eps=nan), 1.0, 1),
        (LoadReport(qps=inf, cpu_utilization=0.5), 1.0, 0),
        (LoadReport(qps=1, cpu_utilization=inf), 1.0, 0),
        (LoadReport(qps=1e300, cpu_utilization=1e-300), 1.0, 0),
    ],
)
def test_the_weight_of_a_report(report: LoadReport, penalty: float, weight: float) -> None:
    assert weight_of(report, penalty) == weight


@pytest.mark.parametrize(
    ("weights", "effective"),
    [
        ([1.0, 1.0], [1, 1]),
        ([0.0, 0.0, 0.0], [1, 1, 1]),
        ([5.0, 0.0], [1, 1]),
        ([50.0], [1]),
        ([2.0, 4.0, 0.0], [0.5, 1, 0.75]),
        # A tenth of the mean at least, ten times the mean at most.
        ([1e-9, 1.0, 1.0, 1.0], [0.075, 1, 1, 1]),
        ([1e-9] * 39 + [1.0], [0.0025] * 39 + [0.25]),
        ([1.7e308, 1.7e308, 5e-324], [1, 1, 0.1 * 2 / 3]),
    ],
)
def test_effective_weights(weights: list[float], effective: list[float]) -> None:
    assert effective_weights(weights) == pytest.approx(effective)


# -- options


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"blackout_period": -1}, ValueError, r"WeightedRoundRobin\.blackout_period must be 0 or more seconds, got -1"),
        (
            {"weight_expiration_period": nan},
            ValueError,
            r"\.weight_expiration_period must be 0 or more",
        ),
        (
            {"weight_update_period": "1s"},
            TypeError,
            r"\.weight_update_period must be a number of sec",
        ),
        ({"oob_reporting_period": 0}, ValueError, r"WeightedRoundRobin\.oob_reporting_period must be more than 0"),
        ({"error_utilization_penalty": -0.5}, ValueError, r"error_utilization_penalty must be a number of 0 or more"),
        ({"error_utilization_penalty": inf}, ValueError, r"error_utilization_penalty must be a number of 0 or more"),
        ({"error_utilization_penalty": None}, TypeError, r"error_utilization_penalty must be a number, not NoneType"),
        ({"enable_oob_load_report": 1}, TypeError, "enable_oob_load_report"),
    ],
)
def test_wrong_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        WeightedRoundRobin(**options)


def test_equal_options_are_equal() -> None:
    assert WeightedRoundRobin() == WeightedRoundRobin(blackout_period=10) != WeightedRoundRobin(blackout_period=11)
