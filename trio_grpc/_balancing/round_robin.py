"""The ``round_robin`` policy: a connection to every address, and calls to each in turn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, cycle

import attrs

from trio_grpc._balancing.connect_to_all import ConnectToAllPolicy
from trio_grpc._balancing.policy import LoadBalancingPolicy, Picker, PolicyContext
from trio_grpc._balancing.subchannel import Subchannel


@attrs.frozen
class RoundRobin:
    """The ``round_robin`` policy, for ``load_balancing=`` of `open_channel`.

    The channel keeps a connection to every address, and calls go to each that is READY in turn. One that fails is tried
    again in the background, with its own backoff. The channel is TRANSIENT_FAILURE only when all have failed.
    """

    @classmethod
    def from_json(cls, config: Mapping[str, object]) -> RoundRobin:  # noqa: ARG003 # it has no fields
        """Return the policy that a service config asks for."""
        return cls()

    def __call__(self, context: PolicyContext) -> LoadBalancingPolicy:
        """Return the policy for one channel."""
        return RoundRobinPolicy(context)


class RoundRobinPolicy(ConnectToAllPolicy):
    """What `RoundRobin` does in one channel.

    Args:
        context: the channel.
        randrange: says where in a list of backends to begin: many clients that begin at the first would all go there.
    """

    def __init__(self, context: PolicyContext, randrange: Callable[[int], int] = random.randrange) -> None:
        super().__init__(context)
        self._randrange = randrange
        self._ready: tuple[Subchannel, ...] = ()
        self._turns: Iterator[Subchannel] = iter(())

    def make_picker(self, ready: tuple[Subchannel, ...]) -> Picker:
        """Go on where it was: if it began anew each time, chance would spread the calls wherever backends come and go.

        But a new backend is the next one with the probability that gives all of them, over many clients, the same
        chance. Otherwise the calls of all clients would begin at the one that came first.
        """
        place = self._randrange(len(ready))
        turn = next(self._turns, None)
        start = ready.index(turn) if turn is not None and turn in ready else place
        turns: Iterator[Subchannel] = cycle(ready[start:] + ready[:start])
        if start != place and ready[place] not in self._ready:
            turns = chain((ready[place],), turns)
        self._ready = ready
        self._turns = turns
        return lambda _: next(turns)


__all__ = ["RoundRobin"]
