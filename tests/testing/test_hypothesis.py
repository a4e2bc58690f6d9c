"""The testing package together with hypothesis: whatever happens to the network, a call has one of few ends.

State machines with async rules need no other library: a list of steps, drawn by hypothesis and played in one test, is
the same, and shrinks as well.
"""

from __future__ import annotations

import trio
import trio.testing
from echo_pb2 import EchoRequest
from echo_trio_grpc import EchoStub
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.echo_service import Echo
from trio_grpc import RpcError, StatusCode
from trio_grpc.testing import Faults, assert_no_leaks, open_channel_pair

STEPS = st.lists(
    st.one_of(
        st.sampled_from(["call", "stream", "cut", "goaway", "reset", "refuse", "accept", "freeze", "thaw"]).map(
            lambda name: (name, 0)
        ),
        st.tuples(st.just("latency"), st.integers(0, 3)),
        st.tuples(st.just("bandwidth"), st.integers(1_000, 1_000_000)),
        st.tuples(st.just("cut after"), st.integers(0, 500)),
        st.tuples(st.just("wait"), st.integers(0, 10)),
    ),
    max_size=15,
)


class World:
    """A channel, a server, what is between them, and the ends of calls."""

    def __init__(self, faults: Faults, stub: EchoStub, nursery: trio.Nursery) -> None:
        self.faults = faults
        self.stub = stub
        self.nursery = nursery
        self.begun = 0
        self.ends: list[StatusCode] = []

    async def call(self) -> None:
        try:
            assert (await self.stub.Unary(EchoRequest(count=7), timeout=60)).count == 7
        except RpcError as error:
            self.ends.append(error.code)
        else:
            self.ends.append(StatusCode.OK)

    async def stream(self) -> None:
        try:
            async with self.stub.ServerStream(EchoRequest(count=5), timeout=60) as replies:
                assert [reply.count async for reply in replies] == [0, 1, 2, 3, 4]
        except RpcError as error:
            self.ends.append(error.code)
        else:
            self.ends.append(StatusCode.OK)

    async def take(self, step: str, number: int) -> None:
        faults = self.faults
        if step in ("call", "stream"):
            self.begun += 1
            self.nursery.start_soon(self.call if step == "call" else self.stream)
        elif step == "wait":
            await trio.sleep(number)
        elif step == "latency":
            faults.latency = number
        elif step == "bandwidth":
            faults.bandwidth = number
        elif step == "cut after":
            faults.cut_after(number, toward="client")
        else:
            {
                "cut": faults.cut,
                "goaway": faults.goaway,
                "reset": faults.reset_stream,
                "refuse": faults.refuse_connections,
                "accept": faults.accept_connections,
                "freeze": faults.freeze,
                "thaw": faults.thaw,
            }[step]()
        await trio.testing.wait_all_tasks_blocked()


@settings(max_examples=60)
@given(STEPS)
def test_whatever_happens_to_the_network_each_call_ends_in_its_time(steps: list[tuple[str, int]]) -> None:
    # A clock for each example: a fixture would be one for all of them.
    trio.run(play, steps, clock=trio.testing.MockClock(autojump_threshold=0))


async def play(steps: list[tuple[str, int]]) -> None:
    faults = Faults()
    async with assert_no_leaks(), open_channel_pair(Echo(), faults=faults) as (channel, server):
        async with trio.open_nursery() as nursery:
            world = World(faults, EchoStub(channel), nursery)
            for step, number in steps:
                await world.take(step, number)
        assert trio.current_time() < 600
        assert len(world.ends) == world.begun
        assert set(world.ends) <= {
            StatusCode.OK, StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED,
        }  # fmt: skip
        faults.thaw()
        faults.accept_connections()
        faults.latency = 0
        await EchoStub(channel).Unary(EchoRequest(), wait_for_ready=True)
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics().handlers == 0
