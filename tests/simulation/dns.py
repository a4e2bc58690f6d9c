"""The names of a simulated world: what a resolver finds changes, and clients learn of it late."""

from __future__ import annotations

import trio

from tests.simulation.chronicle import Chronicle
from tests.simulation.network import Network
from tests.simulation.stories import MAX_ATTEMPTS, MAX_TOKENS, RETRYABLE, TOKEN_RATIO
from trio_grpc import Resolution, Resolver, ResolverTarget

#: Seconds after which an answer is old: a headless service of Kubernetes has as many.
TTL = 30.0
#: Seconds at least between two questions of one client.
MIN_INTERVAL = 5.0
#: What clients are told together with the addresses.
SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": MAX_ATTEMPTS,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": [RETRYABLE.name],
            },
        }
    ],
    "retryThrottling": {"maxTokens": MAX_TOKENS, "tokenRatio": TOKEN_RATIO},
}


class Dns:
    """One name and its addresses.

    Attributes:
        addresses: what is found now.
        known: what each client has been told last.
    """

    def __init__(self, network: Network, chronicle: Chronicle) -> None:
        self.addresses: tuple[str, ...] = ()
        self.known: dict[str, tuple[str, ...]] = {}
        self._network = network
        self._chronicle = chronicle
        self._fails = False

    def publish(self, addresses: tuple[str, ...]) -> None:
        """Let the name lead there from now on."""
        self.addresses = addresses
        self._chronicle.note("dns", len(addresses), "addresses")

    def break_down(self) -> None:
        """Answer no question."""
        self._fails = True
        self._chronicle.note("dns", "fails")

    def repair(self) -> None:
        """Answer again."""
        self._fails = False
        self._chronicle.note("dns", "answers")

    def known_to_all(self, address: str) -> bool:
        """Whether each client has heard of an address, and not yet of its end."""
        return all(address in addresses for addresses in self.known.values())

    def resolver(self, client: str) -> Resolver:
        """Return the resolver of one client."""

        async def resolve(_: ResolverTarget, resolution: Resolution, /) -> None:
            while True:
                if self._fails:
                    resolution.fail(OSError("the name server does not answer"))
                elif self.addresses != self.known.get(client) or not resolution.updates:
                    self.known[client] = self.addresses
                    self._chronicle.note(client, "knows of", len(self.addresses))
                    endpoints = [self._network.endpoint(client, address) for address in self.addresses]
                    resolution.update(endpoints, service_config=SERVICE_CONFIG)
                with trio.move_on_after(TTL - MIN_INTERVAL):
                    await resolution.wait_stale()
                await trio.sleep(MIN_INTERVAL)

        return resolve
