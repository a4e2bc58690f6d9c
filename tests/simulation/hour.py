"""The simulated hour: its acts, and what is known and asserted of each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from math import sqrt
from typing import TextIO

import attrs
import trio

from tests.simulation import acts
from tests.simulation.world import Scale, World, run

#: In which the clients come, of which nothing is asserted but that all goes well.
OPENING = 30.0
#: After each act, for calls that are still troubled; of an act's time at most a fifth.
SETTLING = 60.0

#: How much more or less than its share a backend may get.
EVEN = 0.1
#: Whenever backends come or go a client begins at a random one. So what a backend gets meanwhile may differ from its
#: share as chance has it: by so many standard deviations, at most.
CHANCE = 5.0
#: Faults that a report names.
MOST_TOLD = 20

#: What happens, with the share of the time that it takes.
PLAN: tuple[tuple[Callable[[World, float], Awaitable[None]], float], ...] = (
    (acts.calm, 0.4),
    (acts.rolling_restart, 0.1),
    (acts.crashes, 0.1),
    (acts.partitions, 0.1),
    (acts.slow_nodes, 0.05),
    (acts.new_addresses, 0.05),
    (acts.brown_out, 0.05),
    (acts.everything, 0.1),
    (acts.calm, 0.05),
)
#: The first acts of it, in which no call may fail, retries or not.
HARMLESS = 2


@attrs.frozen(kw_only=True)
class Totals:
    """What all clients have done in some time.

    Attributes:
        seconds: how long that was.
        calls: that ended.
        failures: those of them that failed, by the reason that no retry could save them.
        attempts: that these calls made.
        retries: those of them that followed a failure which a backend had sent.
        dials: attempts to connect.
    """

    seconds: float
    calls: int
    failures: Counter[str]
    attempts: int
    retries: int
    dials: int

    @classmethod
    def of(cls, world: World) -> Totals:
        """Return all since the beginning."""
        clients = world.clients
        return cls(
            seconds=trio.current_time(),
            calls=sum(client.codes.total() for client in clients),
            failures=sum((client.reasons for client in clients), Counter()),
            attempts=sum(client.attempts for client in clients),
            retries=sum(client.retries for client in clients),
            dials=world.network.dials,
        )

    def since(self, before: Totals) -> Totals:
        """Return what was added."""
        return Totals(
            seconds=self.seconds - before.seconds,
            calls=self.calls - before.calls,
            failures=self.failures - before.failures,
            attempts=self.attempts - before.attempts,
            retries=self.retries - before.retries,
            dials=self.dials - before.dials,
        )


@attrs.frozen(kw_only=True)
class Load:
    """How evenly calls went to backends in some time.

    Attributes:
        picks: how often each backend was picked.
        shares: how often a policy that is even would have picked each.
    """

    picks: Counter[str]
    shares: dict[str, float]

    @classmethod
    def of(cls, world: World) -> Load:
        """Return all since the beginning."""
        shares: dict[str, float] = dict.fromkeys(world.backends, 0.0)
        for client in world.clients:
            client.watcher.settle()
            for address, share in client.watcher.shares.items():
                shares[address] += share
        return cls(picks=sum((client.watcher.picks for client in world.clients), Counter()), shares=shares)

    def since(self, before: Load) -> Load:
        """Return what was added."""
        shares = {address: share - before.shares.get(address, 0.0) for address, share in self.shares.items()}
        return Load(picks=self.picks - before.picks, shares=shares)

    @property
    def steady(self) -> list[str]:
        """The backends that were there most of the time: whose shares are more than half of the largest."""
        most = max(self.shares.values())
        return [address for address, share in self.shares.items() if share > most / 2]

    @property
    def deviations(self) -> dict[str, float]:
        """By how much of its share each steady backend got too many or too few."""
        return {address: self.picks[address] / self.shares[address] - 1 for address in self.steady}

    @property
    def worst(self) -> float:
        """The largest deviation, either way."""
        return max(map(abs, self.deviations.values()))


@attrs.frozen(kw_only=True)
class Act:
    """What was seen in one act.

    Attributes:
        name: of the act.
        totals: of its calls.
        load: where they went.
    """

    name: str
    totals: Totals
    load: Load


@attrs.frozen(kw_only=True)
class Result:
    """What is known of a simulated world in the end.

    Attributes:
        seed: of all that was random.
        scale: of the world.
        acts: one after the other.
        totals: of all calls.
        load: where they went.
        faults: what should not have happened.
        digest: the same for the same history.
        lines: how long that is.
    """

    seed: int
    scale: Scale
    acts: list[Act]
    totals: Totals
    load: Load
    faults: list[str]
    digest: str
    lines: int


def simulate(seed: int, scale: Scale, log: TextIO | None = None) -> Result:
    """Run a world."""
    result: Result = run(_simulate, seed, scale, log, seed=seed)
    return result


async def _simulate(seed: int, scale: Scale, log: TextIO | None) -> Result:
    seen: list[Act] = []
    over = trio.Event()
    async with trio.open_nursery() as nursery:
        world = World(nursery, seed, scale, log)
        world.dns.publish(tuple([(await world.add_backend()).address for _ in range(scale.backends)]))
        async with trio.open_nursery() as clients:
            await _come(world, clients, over)
            for act, share in PLAN:
                seen.append(await _play(world, act, share))
            over.set()
        result = Result(
            seed=seed,
            scale=scale,
            acts=seen,
            totals=Totals.of(world),
            load=Load.of(world),
            faults=[],
            digest=world.chronicle.digest,
            lines=world.chronicle.lines,
        )
        result.faults.extend(_faults(world, result))
        nursery.cancel_scope.cancel()
    return result


async def _come(world: World, nursery: trio.Nursery, over: trio.Event) -> None:
    """Let the clients come one after the other, and connect to all backends."""
    for _ in range(world.scale.clients):
        nursery.start_soon(world.add_client().run, over)
        await trio.sleep(OPENING / world.scale.clients)


async def _play(world: World, act: Callable[[World, float], Awaitable[None]], share: float) -> Act:
    name = act.__name__.replace("_", " ")
    world.chronicle.note("act", name)
    totals, load = Totals.of(world), Load.of(world)
    seconds = share * (world.scale.seconds - OPENING)
    ends = trio.current_time() + seconds
    await act(world, seconds - min(SETTLING, seconds / 5))
    await trio.sleep_until(ends)
    return Act(name=name, totals=Totals.of(world).since(totals), load=Load.of(world).since(load))


def _faults(world: World, result: Result) -> list[str]:
    faults = [fault for client in world.clients for fault in client.faults]
    faults += [
        f"calls failed in the act {act.name!r}: {dict(act.totals.failures)}"
        for act in result.acts[:HARMLESS]
        if act.totals.failures
    ]
    calm = result.acts[0].load
    if calm.worst > EVEN:
        faults.append(f"the load is uneven by {calm.worst:.1%} although nothing happens")
    for address in result.load.steady:
        picks, share = result.load.picks[address], result.load.shares[address]
        if abs(picks - share) > CHANCE * sqrt(share):
            faults.append(f"{address} got {picks} attempts, and its share is {share:.0f}")
    return faults


def report(result: Result) -> str:
    """Return what a reader wants to know."""
    scale = result.scale
    lines = [
        f"{scale.backends} backends, {scale.clients} clients, {scale.seconds:g} simulated seconds, seed {result.seed}",
        "",
        f"{'act':<16}{'seconds':>8}{'calls':>9}{'failed':>8}{'attempts':>10}{'retries':>9}{'dials':>8}{'uneven':>8}",
    ]
    for act in (*result.acts, Act(name="all", totals=result.totals, load=result.load)):
        totals = act.totals
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(totals.failures.items()))
        lines.append(
            f"{act.name:<16}{totals.seconds:>8.0f}{totals.calls:>9}{totals.failures.total():>8}{totals.attempts:>10}"
            f"{totals.retries:>9}{totals.dials:>8}{act.load.worst:>8.1%}  {reasons}".rstrip()
        )
    lines += ["", f"history: {result.lines} lines, digest {result.digest}"]
    lines += [f"FAULT: {fault}" for fault in result.faults[:MOST_TOLD]]
    if len(result.faults) > MOST_TOLD:
        lines.append(f"and {len(result.faults) - MOST_TOLD} more")
    return "\n".join(lines)
