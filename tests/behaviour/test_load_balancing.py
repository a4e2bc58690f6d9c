"""Which of several servers get the calls, under each policy that connects to many, while these come and go."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
import trio
import trio.testing
from echo_pb2 import EchoReply, EchoRequest
from echo_trio_grpc import EchoStub

import trio_grpc
from tests.echo_service import Context, Echo, Waiting
from tests.support.backends import Backend
from trio_grpc import (
    Channel,
    ConnectivityState,
    FailurePercentageEjection,
    LeastRequest,
    OutlierDetection,
    RingHash,
    RoundRobin,
    RpcError,
    StatusCode,
    WeightedRoundRobin,
)
from trio_grpc.health import HealthServicer, ServingStatus
from trio_grpc.orca import LoadReporter, MetricRecorder, OrcaServicer
from trio_grpc.testing import ManualResolver

Clock = trio.testing.MockClock

settle = trio.testing.wait_all_tasks_blocked

#: Those that keep a connection to every server.
EVEN = [
    pytest.param(RoundRobin(), id="round_robin"),
    pytest.param(LeastRequest(), id="least_request"),
    pytest.param(WeightedRoundRobin(), id="weighted_round_robin"),
]


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """Let policies draw the same lots in each run."""
    state = random.getstate()
    random.seed(7)
    yield
    random.setstate(state)


class Slow(Echo):
    """Takes some time for each call."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        await trio.sleep(self.seconds)
        return await super().Unary(request, context)


async def start(nursery: trio.Nursery, *servicers: Echo) -> list[Backend]:
    backends = [Backend(nursery, f"backend {number}") for number in range(len(servicers))]
    for backend, servicer in zip(backends, servicers, strict=True):
        await backend.start(servicer)
    return backends


@contextlib.asynccontextmanager
async def open_over(
    backends: Sequence[Backend], load_balancing: trio_grpc.LoadBalancing
) -> AsyncIterator[tuple[Channel, ManualResolver]]:
    resolver = ManualResolver(*(backend.endpoint for backend in backends))
    async with trio_grpc.open_channel(
        "test:///echo", resolvers={"test": resolver}, load_balancing=load_balancing, idle_timeout=None
    ) as channel:
        yield channel, resolver


async def connect_to_all(channel: Channel, count: int) -> None:
    await channel.wait_ready()
    await settle()
    assert channel.statistics().connections == count


async def call_in_turn(channel: Channel, outcomes: Counter[StatusCode], times: int) -> None:
    for number in range(times):
        try:
            await EchoStub(channel).Unary(EchoRequest(), metadata={"key": str(number)})
        except RpcError as error:
            outcomes[error.code] += 1
        else:
            outcomes[StatusCode.OK] += 1


@pytest.mark.parametrize("load_balancing", EVEN)
async def test_servers_that_are_alike_get_as_many_calls(
    nursery: trio.Nursery, autojump_clock: Clock, load_balancing: trio_grpc.LoadBalancing
) -> None:
    backends = await start(nursery, *(Slow(0.01) for _ in range(3)))
    outcomes: Counter[StatusCode] = Counter()
    async with open_over(backends, load_balancing) as (channel, _):
        await connect_to_all(channel, 3)
        async with trio.open_nursery() as clients:
            for _ in range(12):
                clients.start_soon(call_in_turn, channel, outcomes, 25)
    assert outcomes == {StatusCode.OK: 300}
    assert all(90 <= backend.calls <= 110 for backend in backends)


@pytest.mark.parametrize("load_balancing", EVEN)
async def test_one_of_three_lost_under_load_loses_the_calls_in_flight_there(
    nursery: trio.Nursery, autojump_clock: Clock, load_balancing: trio_grpc.LoadBalancing
) -> None:
    backends = await start(nursery, *(Slow(0.01) for _ in range(3)))
    lost, *others = backends
    outcomes: Counter[StatusCode] = Counter()
    async with open_over(backends, load_balancing) as (channel, _):
        await connect_to_all(channel, 3)
        async with trio.open_nursery() as clients:
            for _ in range(12):
                clients.start_soon(call_in_turn, channel, outcomes, 50)
            await trio.sleep(0.105)
            assert lost.server is not None
            in_flight = lost.server.statistics().handlers
            assert in_flight
            await lost.stop()
            taken = [backend.calls for backend in others]
        assert outcomes == {StatusCode.OK: 600 - in_flight, StatusCode.UNAVAILABLE: in_flight}
        assert channel.state is ConnectivityState.READY
        # The others have shared what was left.
        shares = [backend.calls - before for backend, before in zip(others, taken, strict=True)]
        assert max(shares) - min(shares) <= 0.2 * sum(shares)

        await lost.start(Slow(0.01))
        await trio.sleep(150)
        await call_in_turn(channel, outcomes, 30)
        assert lost.calls >= 5


class Silent(Backend):
    """Takes connections, and never says a word."""

    def __init__(self, nursery: trio.Nursery, name: str) -> None:
        super().__init__(nursery, name)
        self._ends: list[trio.abc.Stream] = []

    async def dial(self) -> trio.abc.Stream:
        self.dials += 1
        ours, theirs = trio.testing.memory_stream_pair()
        self._ends.append(theirs)
        return ours


@pytest.mark.parametrize("load_balancing", EVEN)
async def test_only_servers_that_are_ready_get_calls(
    nursery: trio.Nursery, autojump_clock: Clock, load_balancing: trio_grpc.LoadBalancing
) -> None:
    """Not one that is silent, not one that is away, not one that has begun to drain."""
    good, draining = await start(nursery, Echo(), Waiting())
    silent, absent = Silent(nursery, "silent"), Backend(nursery, "absent")
    outcomes: Counter[StatusCode] = Counter()
    async with open_over([silent, absent, good, draining], load_balancing) as (channel, _):
        await channel.wait_ready()
        await settle()
        waiting = draining.servicer
        assert isinstance(waiting, Waiting)
        async with trio.open_nursery() as calls:
            for _ in range(8):
                calls.start_soon(call_in_turn, channel, outcomes, 1)
            await settle()
            assert waiting.entered > 0
            calls.start_soon(draining.drain)
            await settle()
            before = waiting.entered
            began = trio.current_time()
            await call_in_turn(channel, outcomes, 50)
            assert trio.current_time() == began
            assert waiting.entered == before
            waiting.gate.set()
    assert outcomes == {StatusCode.OK: 58}
    assert silent.dials >= 1
    assert absent.dials >= 1


async def test_a_slow_server_gets_fewer_calls(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    """Ten times slower: least_request leaves it about what it can do, round_robin makes everybody wait for it."""
    elapsed = []
    for load_balancing in (LeastRequest(choice_count=3), RoundRobin()):
        backends = await start(nursery, Slow(0.1), Slow(0.01), Slow(0.01))
        outcomes: Counter[StatusCode] = Counter()
        async with open_over(backends, load_balancing) as (channel, _):
            await connect_to_all(channel, 3)
            began = trio.current_time()
            async with trio.open_nursery() as clients:
                for _ in range(12):
                    clients.start_soon(call_in_turn, channel, outcomes, 25)
            elapsed.append(trio.current_time() - began)
        assert outcomes == {StatusCode.OK: 300}
        if isinstance(load_balancing, LeastRequest):
            assert backends[0].calls < 0.3 * backends[1].calls
        else:
            assert [backend.calls for backend in backends] == [100, 100, 100]
    assert elapsed[0] < elapsed[1]


async def test_streams_count_while_they_last_and_no_longer(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = await start(nursery, Echo(), Echo())
    # Of ten draws from two, each is nearly always among them.
    async with open_over(backends, LeastRequest(choice_count=10)) as (channel, _):
        await connect_to_all(channel, 2)
        for _ in range(3):
            before = [backend.calls for backend in backends]
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(6):
                    call = await stack.enter_async_context(EchoStub(channel).Bidi())
                    await call.send(EchoRequest())
                    await call.receive()
                assert [backend.calls - calls for backend, calls in zip(backends, before, strict=True)] == [3, 3]
            # Left in the middle, they are cancelled.
            await settle()


# -- ring_hash

BY_KEY = RingHash(request_hash_header="key")


async def server_of(channel: Channel, key: str, **options: object) -> str:
    """Call with a key; return who has answered."""
    metadata = {"key": key} if key else {}
    async with EchoStub(channel).Unary.open(EchoRequest(), metadata=metadata, **options) as call:  # type: ignore[arg-type]
        await call.receive()
        return call.peer


async def test_calls_with_one_key_meet_one_server(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = await start(nursery, *(Echo() for _ in range(5)))
    keys = [str(number) for number in range(50)]
    async with open_over(backends, BY_KEY) as (channel, _), open_over(backends[::-1], BY_KEY) as (another, _):
        homes = {key: await server_of(channel, key) for key in keys}
        assert min(Counter(homes.values()).values()) >= 5
        assert {key: await server_of(channel, key) for key in keys} == homes
        assert {key: await server_of(another, key) for key in keys} == homes


async def test_only_servers_that_are_called_are_connected_to(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = await start(nursery, *(Echo() for _ in range(5)))
    async with open_over(backends, BY_KEY) as (channel, _):
        for _ in range(20):
            await server_of(channel, "k")
        assert channel.statistics().connections == 1
        await channel.wait_ready()
        assert sorted(backend.dials for backend in backends) == [0, 0, 0, 0, 1]
    async with open_over(backends, BY_KEY) as (channel, _):
        await settle()
        assert channel.state is ConnectivityState.IDLE
        await channel.wait_ready()
        assert channel.statistics().connections == 1


async def test_a_key_moves_on_while_its_server_is_down_and_comes_back(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backends = await start(nursery, *(Echo() for _ in range(5)))
    async with open_over(backends, BY_KEY) as (channel, _):
        keys = [str(number) for number in range(50)]
        homes = {key: await server_of(channel, key) for key in keys}
        (lost,) = (backend for backend in backends if backend.endpoint.address == homes["0"])
        await lost.stop()
        await settle()
        away = {key: await server_of(channel, key) for key in keys}
        assert {key for key in keys if away[key] != homes[key]} == {
            key for key in keys if homes[key] == lost.endpoint.address
        }
        # Not all to one neighbour.
        assert len({away[key] for key in keys if away[key] != homes[key]}) > 1
        await lost.start()
        await trio.sleep(150)
        assert {key: await server_of(channel, key) for key in keys} == homes


async def test_ring_hash_under_load_loses_the_calls_in_flight_on_a_server_that_is_lost(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backends = await start(nursery, *(Slow(0.01) for _ in range(3)))
    lost = backends[0]
    outcomes: Counter[StatusCode] = Counter()
    async with open_over(backends, BY_KEY) as (channel, _), trio.open_nursery() as clients:
        for _ in range(12):
            clients.start_soon(call_in_turn, channel, outcomes, 50)
        while True:
            await trio.sleep(0.005)
            assert lost.server is not None
            if in_flight := lost.server.statistics().handlers:
                break
        await lost.stop()
    assert outcomes == {StatusCode.OK: 600 - in_flight, StatusCode.UNAVAILABLE: in_flight}


async def test_calls_fail_when_two_servers_have_failed_and_none_is_ready(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backends = [Backend(nursery, f"backend {number}") for number in range(3)]
    async with open_over(backends, BY_KEY) as (channel, _):
        with pytest.raises(RpcError, match=r"failed to connect to backend \d: no server here; failed to") as caught:
            await server_of(channel, "k")
        assert caught.value.code is StatusCode.UNAVAILABLE
        assert channel.state is ConnectivityState.TRANSIENT_FAILURE
        waited: list[str] = []

        async def wait() -> None:
            waited.append(await server_of(channel, "k", wait_for_ready=True))

        nursery.start_soon(wait)
        await trio.sleep(10)
        assert not waited
        await backends[2].start()
        await trio.sleep(10)
        assert waited == ["backend 2"]


async def test_a_call_waits_for_a_silent_server_as_long_as_for_one_attempt_to_connect(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    (good,) = await start(nursery, Echo())
    silent = Silent(nursery, "silent")
    async with open_over([good, silent], BY_KEY) as (channel, _):
        times = Counter[float]()
        for key in range(20):
            began = trio.current_time()
            assert await server_of(channel, str(key)) == "backend 0"
            times[round(trio.current_time() - began)] += 1
        # Once; from then on the calls of its keys go to the other one at once.
        assert times == {0: 19, 20: 1}


async def test_calls_without_a_key_go_to_what_is_ready(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends = await start(nursery, *(Echo() for _ in range(4)))
    async with open_over(backends, BY_KEY) as (channel, _):
        seen = Counter([await server_of(channel, "") for _ in range(400)])
    assert len(seen) == 4
    assert min(seen.values()) >= 60


# -- weighted_round_robin


async def start_reporting(nursery: trio.Nursery, *utilizations: float) -> tuple[list[Backend], list[MetricRecorder]]:
    """Servers that all serve 100 queries per second, and are more or less busy with that."""
    backends = [Backend(nursery, f"backend {number}") for number in range(len(utilizations))]
    loads = [MetricRecorder(qps=100, cpu_utilization=utilization) for utilization in utilizations]
    for backend, load in zip(backends, loads, strict=True):
        await backend.start(interceptors=[LoadReporter(load)])
    return backends, loads


async def calls_in(channel: Channel, backends: Sequence[Backend], seconds: float) -> list[int]:
    """Ten calls in each second; return how many each backend gets."""
    before = [backend.calls for backend in backends]
    for _ in range(round(10 * seconds)):
        await EchoStub(channel).Unary(EchoRequest())
        await trio.sleep(0.1)
    return [backend.calls - calls for backend, calls in zip(backends, before, strict=True)]


async def test_calls_follow_the_load_that_servers_report(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends, loads = await start_reporting(nursery, 0.8, 0.4, 0.2)
    async with open_over(backends, WeightedRoundRobin()) as (channel, _):
        await connect_to_all(channel, 3)
        assert await calls_in(channel, backends, 9) == [30, 30, 30]
        await calls_in(channel, backends, 4)
        shares = await calls_in(channel, backends, 35)
        assert [round(share / 50) for share in shares] == [1, 2, 4]
        # One gets slower.
        loads[2].cpu_utilization = 0.8
        await calls_in(channel, backends, 3)
        shares = await calls_in(channel, backends, 20)
        assert [round(share / 50) for share in shares] == [1, 2, 1]


async def test_a_server_without_reports_gets_an_average_share(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends, _ = await start_reporting(nursery, 0.2, 0.6)
    silent = Backend(nursery, "silent")
    await silent.start()
    backends.append(silent)
    async with open_over(backends, WeightedRoundRobin(blackout_period=0)) as (channel, _):
        await connect_to_all(channel, 3)
        await calls_in(channel, backends, 3)
        assert [round(share / 10) for share in await calls_in(channel, backends, 30)] == [15, 5, 10]


async def test_a_restarted_server_begins_with_an_average_share(nursery: trio.Nursery, autojump_clock: Clock) -> None:
    backends, loads = await start_reporting(nursery, 0.2, 0.6)
    async with open_over(backends, WeightedRoundRobin()) as (channel, _):
        await connect_to_all(channel, 2)
        await calls_in(channel, backends, 14)
        assert [round(share / 10) for share in await calls_in(channel, backends, 20)] == [15, 5]
        await backends[1].stop()
        await backends[1].start(interceptors=[LoadReporter(loads[1])])
        # The first attempt to connect again came before.
        await trio.sleep(2)
        assert channel.statistics().connections == 2
        shares = await calls_in(channel, backends, 8)
        assert abs(shares[0] - shares[1]) <= 2
        await calls_in(channel, backends, 4)
        assert [round(share / 10) for share in await calls_in(channel, backends, 20)] == [15, 5]


async def test_calls_follow_the_load_that_servers_report_out_of_band(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backends = [Backend(nursery, f"backend {number}") for number in range(3)]
    loads = [MetricRecorder(qps=100, cpu_utilization=utilization) for utilization in (0.8, 0.4, 0.2)]
    for backend, load in zip(backends, loads, strict=True):
        backend.others = (OrcaServicer(load, min_report_interval=1),)
        await backend.start()
    policy = WeightedRoundRobin(enable_oob_load_report=True, oob_reporting_period=5)
    async with open_over(backends, policy) as (channel, _):
        await connect_to_all(channel, 3)
        # There are no calls in the blackout period, and none that would report.
        await trio.sleep(11)
        shares = await calls_in(channel, backends, 35)
        assert [round(share / 50) for share in shares] == [1, 2, 4]
        loads[0].cpu_utilization = 0.1
        await trio.sleep(6)
        shares = await calls_in(channel, backends, 35)
        assert [round(share / 25) for share in shares] == [8, 2, 4]


# -- in other policies


class Failing(Echo):
    """Fails each call for as long as it is ill."""

    def __init__(self) -> None:
        super().__init__()
        self.ill = True

    async def Unary(self, request: EchoRequest, context: Context, /) -> EchoReply:
        reply = await super().Unary(request, context)
        if self.ill:
            await context.abort(StatusCode.INTERNAL, "out of order")
        return reply


@pytest.mark.parametrize(
    "child",
    [
        pytest.param(LeastRequest(), id="least_request"),
        pytest.param(WeightedRoundRobin(blackout_period=0), id="weighted_round_robin"),
        pytest.param(BY_KEY, id="ring_hash"),
    ],
)
async def test_an_ejected_server_gets_no_calls_until_it_is_taken_back(
    nursery: trio.Nursery, autojump_clock: Clock, child: LeastRequest | WeightedRoundRobin | RingHash
) -> None:
    failing = Failing()
    backends = await start(nursery, failing, *(Echo() for _ in range(4)))
    policy = OutlierDetection(
        child=child,
        success_rate_ejection=None,
        failure_percentage_ejection=FailurePercentageEjection(minimum_hosts=2, request_volume=2),
    )
    outcomes: Counter[StatusCode] = Counter()
    async with open_over(backends, policy) as (channel, _):
        await channel.wait_ready()
        await settle()
        while trio.current_time() < 9:
            await call_in_turn(channel, outcomes, 20)
            await trio.sleep(1)
        assert failing.calls == outcomes[StatusCode.INTERNAL] > 10
        # The interval of ten seconds is over, the ejection takes thirty.
        await trio.sleep(2)
        before = failing.calls
        outcomes.clear()
        await call_in_turn(channel, outcomes, 50)
        assert outcomes == {StatusCode.OK: 50}
        assert failing.calls == before
        failing.ill = False
        await trio.sleep(40)
        await call_in_turn(channel, outcomes, 50)
        await call_in_turn(channel, outcomes, 50)
        assert outcomes == {StatusCode.OK: 150}
        assert failing.calls > before


async def test_the_keys_of_a_server_that_is_not_healthy_move_on_and_come_back(
    nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    backends = [Backend(nursery, f"backend {number}") for number in range(4)]
    healths = [HealthServicer() for _ in backends]
    for backend, health in zip(backends, healths, strict=True):
        backend.others = (health,)
        await backend.start()
    resolver = ManualResolver(*(backend.endpoint for backend in backends))
    async with trio_grpc.open_channel(
        "test:///echo",
        resolvers={"test": resolver},
        load_balancing=BY_KEY,
        service_config={"healthCheckConfig": {"serviceName": ""}},
    ) as channel:
        keys = [str(number) for number in range(40)]
        homes = {key: await server_of(channel, key) for key in keys}
        assert len(set(homes.values())) == 4
        healths[2].set("", ServingStatus.NOT_SERVING)
        await settle()
        away = {key: await server_of(channel, key) for key in keys}
        assert all((away[key] != homes[key]) == (homes[key] == "backend 2") for key in keys)
        healths[2].set("", ServingStatus.SERVING)
        await settle()
        assert {key: await server_of(channel, key) for key in keys} == homes
        assert [backend.dials for backend in backends] == [1, 1, 1, 1]
