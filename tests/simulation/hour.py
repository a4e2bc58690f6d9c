"""The simulated hour: its acts, and what is known and asserted of each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TextIO

import attrs
import trio

from tests.simulation import acts
from tests.simulation.client import WORKERS, Client
from tests.simulation.stories import MAX_TOKENS, TOKEN_RATIO
from tests.simulation.world import Scale, World, run
from trio_grpc import StatusCode

#: In which the clients come, of which nothing is asserted but that all goes well.
OPENING = 30.0
#: After each act, for calls that are still troubled; of an act's time at most a fifth.
SETTLING = 60.0

#: How much more or less than its share a backend may get.
EVEN = 0.1
#: Calls to each backend from which on it means something how even they are.
TELLING = 50
#: Faults that a report names.
MOST_TOLD = 20

#: What happens, with the share of the time that it takes.
PLAN: tuple[tuple[Callable[[World, float], Awaitable[None]], float], ...] = (
    (acts.calm, 0.15),
    (acts.rolling_restart, 0.15),
    (acts.crashes, 0.12),
    (acts.partitions, 0.12),
    (acts.slow_nodes, 0.08),
    (acts.new_addresses, 0.1),
    (acts.everything, 0.15),
    (acts.outage, 0.05),
    (acts.brown_out, 0.04),
    (acts.calm, 0.04),
)
#: The first acts of it, in which no call may fail, retries or not.
HARMLESS = 2


@attrs.frozen(kw_only=True)
class Totals:
    """What some clients have done in some time.

    Attributes:
        clients: how many these are.
        succeeded: calls that ended well.
        failures: those that did not, by the reason that no retry could save them.
        attempts: that all these calls made.
        retries: attempts that followed a failure which a backend had sent.
    """

    clients: int = 0
    succeeded: int = 0
    failures: Counter[str] = attrs.field(factory=Counter)
    attempts: int = 0
    retries: int = 0

    @classmethod
    def of(cls, client: Client) -> Totals:
        """Return what one client has done since the beginning."""
        return cls(
            clients=1,
            succeeded=client.codes[StatusCode.OK],
            failures=+client.reasons,
            attempts=client.attempts,
            retries=client.retries,
        )

    @property
    def calls(self) -> int:
        """All that ended."""
        return self.succeeded + self.failures.total()

    @property
    def allowed(self) -> float:
        """How many retries there may be: each takes a token from the upper half of them.

        Workers that wait for their retries have been given theirs before.
        """
        return self.clients * (MAX_TOKENS / 2 + WORKERS) + self.succeeded * TOKEN_RATIO

    def since(self, before: Totals) -> Totals:
        """Return what was added."""
        return Totals(
            clients=self.clients,
            succeeded=self.succeeded - before.succeeded,
            failures=self.failures - before.failures,
            attempts=self.attempts - before.attempts,
            retries=self.retries - before.retries,
        )

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            clients=self.clients + other.clients,
            succeeded=self.succeeded + other.succeeded,
            failures=self.failures + other.failures,
            attempts=self.attempts + other.attempts,
            retries=self.retries + other.retries,
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
        seconds: how long it was.
        clients: what each has done.
        load: where the calls went.
        dials: attempts to connect.
    """

    name: str
    seconds: float
    clients: dict[str, Totals]
    load: Load
    dials: int

    @classmethod
    def of(cls, world: World, name: str) -> Act:
        """Return what was seen since the beginning."""
        return cls(
            name=name,
            seconds=trio.current_time(),
            clients={client.name: Totals.of(client) for client in world.clients},
            load=Load.of(world),
            dials=world.network.dials,
        )

    @property
    def totals(self) -> Totals:
        """What all clients have done."""
        return sum(self.clients.values(), Totals())

    def since(self, before: Act) -> Act:
        """Return what was added."""
        return Act(
            name=self.name,
            seconds=self.seconds - before.seconds,
            clients={name: totals.since(before.clients[name]) for name, totals in self.clients.items()},
            load=self.load.since(before.load),
            dials=self.dials - before.dials,
        )


@attrs.frozen(kw_only=True)
class Result:
    """What is known of a simulated world in the end.

    Attributes:
        seed: of all that was random.
        scale: of the world.
        acts: one after the other.
        whole: all of it.
        faults: what should not have happened.
        digest: the same for the same history.
        lines: how long that is.
    """

    seed: int
    scale: Scale
    acts: list[Act]
    whole: Act
    faults: list[str]
    digest: str
    lines: int


def simulate(
    seed: int, scale: Scale, *, log: TextIO | None = None, on_act: Callable[[Act], None] = lambda _: None
) -> Result:
    """Run a world.

    Args:
        seed: of all that is random.
        scale: how large it is.
        log: gets its whole history.
        on_act: called with each act that has ended, and then with all of them as one.
    """
    result: Result = run(_simulate, seed, scale, log, on_act, seed=seed)
    return result


async def _simulate(seed: int, scale: Scale, log: TextIO | None, on_act: Callable[[Act], None]) -> Result:
    seen: list[Act] = []
    over = trio.Event()
    async with trio.open_nursery() as nursery:
        world = World(nursery, seed, scale, log)
        world.dns.publish(tuple([(await world.add_backend()).address for _ in range(scale.backends)]))
        async with trio.open_nursery() as clients:
            await _come(world, clients, over)
            for act, share in PLAN:
                seen.append(await _play(world, act, share))
                on_act(seen[-1])
            over.set()
        whole = Act.of(world, "all")
        on_act(whole)
        result = Result(
            seed=seed,
            scale=scale,
            acts=seen,
            whole=whole,
            faults=_faults(world, seen, whole),
            digest=world.chronicle.digest,
            lines=world.chronicle.lines,
        )
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
    before = Act.of(world, name)
    seconds = share * (world.scale.seconds - OPENING)
    ends = trio.current_time() + seconds
    await act(world, seconds - min(SETTLING, seconds / 5))
    await trio.sleep_until(ends)
    return Act.of(world, name).since(before)


def _faults(world: World, seen: list[Act], whole: Act) -> list[str]:
    """Return all that should not be."""
    faults = [fault for client in world.clients for fault in client.faults]
    faults += [
        f"calls failed in the act {act.name!r}: {dict(act.totals.failures)}"
        for act in seen[:HARMLESS]
        if act.totals.failures
    ]
    faults += [
        f"{name} made {totals.retries} retries in the act {act.name!r}, and was allowed {totals.allowed:.1f}"
        for act in (*seen, whole)
        for name, totals in act.clients.items()
        if totals.retries > totals.allowed
    ]
    faults += [
        f"{address} got {whole.load.picks[address]} attempts, its share is {whole.load.shares[address]:.1f}"
        for address, deviation in whole.load.deviations.items()
        if abs(deviation) > EVEN
    ]
    return faults


def report(result: Result) -> str:
    """Return all that a reader wants to know."""
    rows = map(row, (*result.acts, result.whole))
    return "\n".join((*heading(result.seed, result.scale), *rows, "", *verdict(result)))


def heading(seed: int, scale: Scale) -> list[str]:
    """Return the lines above the first act."""
    return [
        f"seed {seed}: {scale.backends} backends, {scale.clients} clients, {scale.seconds:g} simulated seconds",
        "",
        _row(
            "act", "seconds", "calls", "failed", "attempts", "retries", "allowed", "dials", "uneven", "why they failed"
        ),
    ]


def row(act: Act) -> str:
    """Return the line of one act."""
    totals = act.totals
    return _row(
        act.name,
        f"{act.seconds:.0f}",
        str(totals.calls),
        str(totals.failures.total()),
        str(totals.attempts),
        str(totals.retries),
        f"{totals.allowed:.0f}",
        str(act.dials),
        f"{act.load.worst:.1%}" if min(act.load.shares[address] for address in act.load.steady) > TELLING else "-",
        ", ".join(f"{count} {reason}" for reason, count in sorted(totals.failures.items())),
    )


def _row(name: str, *columns: str) -> str:
    *numbers, text = columns
    return f"{name:<16}{''.join(f'{number:>9}' for number in numbers)}  {text}".rstrip()


def verdict(result: Result) -> list[str]:
    """Return the lines below the last act."""
    lines = [f"history: {result.lines} lines, digest {result.digest}"]
    lines += [f"FAULT: {fault}" for fault in result.faults[:MOST_TOLD]]
    if len(result.faults) > MOST_TOLD:
        lines.append(f"and {len(result.faults) - MOST_TOLD} more")
    if result.faults:
        lines.append(f"what failed, fails again with the same numbers and --seed {result.seed}")
    return lines
