"""Callers that never pause, and what becomes of their calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import trio
from many_machines_pb2 import WorkRequest
from many_machines_trio_grpc import MachineStub

import trio_grpc

#: How long a machine works for a call, in seconds: so that some calls are in flight at any time.
WORK = 0.02
#: A call that takes so much longer is one that has got no answer.
STUCK = 1.0


class Phase:
    """What has happened while something was done to the machines.

    Attributes:
        name: what was done.
        answered: calls that were answered, by the kind of caller and the machine.
        failures: what other calls have ended with, by the kind of caller.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.answered: Counter[tuple[str, str]] = Counter()
        self.failures: dict[str, Counter[str]] = {}

    @property
    def answers(self) -> Counter[str]:
        """Calls that were answered, by machine."""
        answers: Counter[str] = Counter()
        for (_, machine), count in self.answered.items():
            answers[machine] += count
        return answers

    def judge(self, allowed: Mapping[str, int], codes: frozenset[str]) -> str:
        """Say what was not allowed to happen, or nothing.

        Args:
            allowed: how many calls may fail, by the kind of caller; none of the other kinds.
            codes: with which statuses.
        """
        for kind, failures in self.failures.items():
            if failures.total() > allowed.get(kind, 0):
                return f"{failures.total()} calls {kind} failed, {allowed.get(kind, 0)} may"
            if not codes.issuperset(failures):
                return f"calls {kind} failed with {', '.join(sorted(set(failures) - codes))}"
        return "" if self.answered else "no call was answered"


class Load:
    """All callers.

    Attributes:
        phase: where calls that end now are counted.
        kinds: the kinds of callers.
    """

    def __init__(self, phase: Phase, kinds: Collection[str]) -> None:
        self.phase = phase
        self.kinds = kinds
        self._started: dict[object, float] = {}
        self._answered = trio.Event()

    async def call(self, channel: trio_grpc.Channel, kind: str, timeout: float) -> None:
        """Make one call after the other, for ever."""
        machine = MachineStub(channel)
        me = object()
        while True:
            self._started[me] = trio.current_time()
            try:
                reply = await machine.Work(WorkRequest(seconds=WORK), timeout=timeout)
            except trio_grpc.RpcError as error:
                self.phase.failures.setdefault(kind, Counter())[error.code.name] += 1
            else:
                self.phase.answered[kind, reply.machine] += 1
                self._answered.set()
                self._answered = trio.Event()

    async def wait_flowing(self) -> None:
        """Wait until no caller is stuck, and for as long again as it takes to see that one is."""
        seen = trio.current_time()
        while trio.current_time() < seen + STUCK:
            await trio.sleep(0.05)
            if min(self._started.values()) < trio.current_time() - STUCK:
                seen = trio.current_time()

    async def wait_answers(self, machine: str) -> None:
        """Wait until a machine has answered some calls in this phase, of every kind: each has its own connection."""
        while any(self.phase.answered[kind, machine] < 10 for kind in self.kinds):
            await self._answered.wait()
