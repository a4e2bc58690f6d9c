"""A simulated world: clients, backends, the network between them and a name server, from one seed.

Whatever is random comes from the seed, the library's jitter and trio's scheduling included, and time is virtual: one
seed is one run.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TextIO

import attrs
import trio
import trio._core._run
import trio.testing

from tests.simulation.backend import Backend
from tests.simulation.chronicle import Chronicle
from tests.simulation.client import Client
from tests.simulation.dns import Dns
from tests.simulation.network import Network


@attrs.frozen(kw_only=True)
class Scale:
    """How large a world is.

    Attributes:
        backends: at a time.
        clients: all the time.
        seconds: that it lasts.
        calls_per_second: of each client.
        harmed: the share of the backends that each act does something to, if that is what it does.
    """

    backends: int = 200
    clients: int = 50
    seconds: float = 3600.0
    calls_per_second: float = 0.3
    harmed: float = 0.1


class World:
    """All of it.

    Args:
        nursery: for the backends.
        seed: of all that is random.
        scale: how large it is.
        log: gets all lines of the chronicle.

    Attributes:
        scale: how large it is.
        rng: what is random.
        chronicle: notes what happens.
        network: the machines and links.
        dns: the name server.
        backends: by their addresses, those that are not in use any more included.
        clients: all of them.
    """

    def __init__(self, nursery: trio.Nursery, seed: int, scale: Scale, log: TextIO | None = None) -> None:
        self.scale = scale
        self.rng = Random(seed)
        self.chronicle = Chronicle(log)
        self.network = Network(self.rng, self.chronicle)
        self.dns = Dns(self.network, self.chronicle)
        self.backends: dict[str, Backend] = {}
        self.clients: list[Client] = []
        self._nursery = nursery

    async def add_backend(self) -> Backend:
        """Start a backend that nobody knows of yet."""
        number = len(self.backends)
        machine = self.network.machine(f"10.0.{number // 250}.{number % 250 + 1}:50051")
        backend = self.backends[machine.address] = Backend(self._nursery, machine, self.rng, self.chronicle)
        await backend.start()
        return backend

    def add_client(self) -> Client:
        """Make a client that has not begun to call."""
        client = Client(
            f"client{len(self.clients)}",
            network=self.network,
            dns=self.dns,
            rng=self.rng,
            chronicle=self.chronicle,
            calls_per_second=self.scale.calls_per_second,
        )
        self.clients.append(client)
        return client

    @property
    def listed(self) -> list[Backend]:
        """The backends whose addresses are found."""
        return [self.backends[address] for address in self.dns.addresses]

    def in_order(self, backend: Backend) -> bool:
        """Whether nothing is wrong with a backend, and it is to stay."""
        return backend.healthy and backend.address in self.dns.addresses


def run(function: Callable[..., Awaitable[Any]], *args: Any, seed: int) -> Any:
    """Run an async function in virtual time, as the seed would have it."""
    with _seeded(seed):
        return trio.run(function, *args, clock=trio.testing.MockClock(autojump_threshold=0))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Take the randomness of the library and of trio's scheduling from a seed."""
    scheduler: Any = trio._core._run
    state, scheduler_state = random.getstate(), scheduler._r.getstate()
    sorts = scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    random.seed(seed)
    scheduler._r.seed(seed)
    # Tasks that become runnable at once often come from a set. So they are sorted by age before they are shuffled.
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    try:
        yield
    finally:
        random.setstate(state)
        scheduler._r.setstate(scheduler_state)
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = sorts
