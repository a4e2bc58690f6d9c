"""What happens to a simulated world, act by act. Each is an async function that ends when all is well again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from math import ceil

import trio

from tests.simulation.backend import Backend
from tests.simulation.client import STEP
from tests.simulation.network import Link
from tests.simulation.world import World

#: Seconds for which a process is restarted, and for which a machine or link is out of order.
RESTART = (0.2, 0.8)
OUTAGE = (2.0, 60.0)
#: Seconds after the beginning of calls at which something happens.
MOMENT = 0.06
#: Of an act, outages take this share at most.
LONGEST = 0.25
#: Of all backends, the share that an act may have out of order at once.
MOST_DOWN = 0.2


async def calm(world: World, seconds: float) -> None:
    """Nothing happens."""
    del world
    await trio.sleep(seconds)


async def rolling_restart(world: World, seconds: float) -> None:
    """Each backend is drained and started again, one after the other."""
    backends = world.listed
    world.rng.shuffle(backends)
    async with trio.open_nursery() as nursery:
        for backend in backends:
            nursery.start_soon(_restart, world, backend)
            await trio.sleep(seconds / len(backends))


async def _restart(world: World, backend: Backend) -> None:
    await backend.drain()
    await trio.sleep(world.rng.uniform(*RESTART))
    await backend.start()


async def crashes(world: World, seconds: float) -> None:
    """Processes are killed, and machines lose their power, up to a fifth of them at once."""
    async with trio.open_nursery() as nursery:
        async for backend in _victims(world, seconds):
            nursery.start_soon(_crash, world, backend, _outage(world, seconds))


async def _crash(world: World, backend: Backend, seconds: float) -> None:
    if not world.in_order(backend):
        # Another act was quicker.
        return
    if world.rng.random() < 0.5:
        await backend.kill()
    else:
        await backend.lose_power()
    await trio.sleep(seconds)
    await backend.start()


async def partitions(world: World, seconds: float) -> None:
    """Single backends are cut off from all clients, and single clients from a fifth of the backends."""
    async with trio.open_nursery() as nursery:
        async for backend in _victims(world, seconds):
            client = world.rng.choice(world.clients)
            if world.rng.random() < 0.5:
                links = [world.network.link(one.name, backend.address) for one in world.clients]
                world.chronicle.note("cut off", backend.address)
            else:
                some = world.rng.sample(world.listed, max(1, round(len(world.listed) * MOST_DOWN)))
                links = [world.network.link(client.name, one.address) for one in some]
                world.chronicle.note("cut off", client.name, "from", len(links))
            nursery.start_soon(_cut, world, links, _outage(world, seconds))


async def _cut(world: World, links: list[Link], seconds: float) -> None:
    mine = [link for link in links if not link.cut]
    for link in mine:
        link.sever()
    await trio.sleep(seconds)
    for link in mine:
        link.heal()
    world.chronicle.note("healed", len(mine))


async def slow_nodes(world: World, seconds: float) -> None:
    """Backends take a hundred times as long, up to a fifth of them at once."""
    async with trio.open_nursery() as nursery:
        async for backend in _victims(world, seconds):
            nursery.start_soon(_be, world, backend, "slow", _outage(world, seconds))


async def _be(world: World, backend: Backend, kind: str, seconds: float) -> None:
    backend.begin(kind)
    await trio.sleep(seconds)
    backend.end(kind)


async def new_addresses(world: World, seconds: float) -> None:
    """Backends move to new addresses; now and then the name server does not answer."""
    async with trio.open_nursery() as nursery:
        async for backend in _victims(world, seconds):
            nursery.start_soon(_move, world, backend, _outage(world, seconds))
            if world.rng.random() < 0.1:
                world.dns.break_down()
                await trio.sleep(_outage(world, seconds))
                world.dns.repair()


async def _move(world: World, backend: Backend, seconds: float) -> None:
    if not world.in_order(backend):
        return
    world.dns.publish(tuple(address for address in world.dns.addresses if address != backend.address))
    new = await world.add_backend()
    world.dns.publish((*world.dns.addresses, new.address))
    # Some give their clients time to notice.
    if world.rng.random() < 0.5:
        await trio.sleep(seconds)
    await backend.drain()


async def outage(world: World, seconds: float) -> None:
    """All backends answer UNAVAILABLE, and halfway the name server gives all addresses in another order."""
    with _failing(world.listed):
        await trio.sleep(seconds / 2)
        # With the same service config: that is no reason to think that there are tokens again.
        world.dns.publish(world.dns.addresses[::-1])
        await trio.sleep(seconds / 2)


async def brown_out(world: World, seconds: float) -> None:
    """A third of the backends answers UNAVAILABLE."""
    with _failing(world.listed[::3]):
        await trio.sleep(seconds)


@contextmanager
def _failing(backends: list[Backend]) -> Iterator[None]:
    for backend in backends:
        backend.begin("failing")
    yield
    for backend in backends:
        backend.end("failing")


async def everything(world: World, seconds: float) -> None:
    """All of it at once."""
    async with trio.open_nursery() as nursery:
        for act in (crashes, partitions, slow_nodes, new_addresses):
            nursery.start_soon(act, world, seconds)


async def _victims(world: World, seconds: float) -> AsyncIterator[Backend]:
    """Choose some of the backends in some seconds, of those that nothing is wrong with, unless too few are left.

    They are chosen a moment after calls have begun, and mostly those that have some.
    """
    count = max(1, round(world.scale.harmed * len(world.listed)))
    for _ in range(count):
        # The last of them is to be in order again before the act ends.
        due = trio.current_time() + world.rng.uniform(0.5, 1.5) * seconds * (1 - LONGEST) / count
        await trio.sleep_until(ceil(due / STEP) * STEP + MOMENT)
        listed = world.listed
        healthy = [backend for backend in listed if world.in_order(backend)]
        if len(healthy) > len(listed) * (1 - MOST_DOWN):
            yield world.rng.choice([backend for backend in healthy if backend.running] or healthy)


def _outage(world: World, seconds: float) -> float:
    """Return how long something is out of order in an act of so many seconds."""
    least, most = OUTAGE
    return world.rng.uniform(least, max(least, min(most, seconds * LONGEST)))
