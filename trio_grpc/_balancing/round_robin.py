"""The ``round_robin`` policy: a connection to every address, and calls to each in turn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle

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
        #: Whose turn it was when `_turns` began.
        self._first: Subchannel | None = None
        self._turns: Iterator[Subchannel] = iter(())

    def make_picker(self, ready: tuple[Subchannel, ...]) -> Picker:
        start = self._find_start(ready)
        self._ready = ready
        self._first = ready[start]
        turns = self._turns = cycle(ready[start:] + ready[:start])
        return lambda _: next(turns)

    def _find_start(self, ready: tuple[Subchannel, ...]) -> int:
        """Return whose turn it is.

        It goes on where it was, or calls would be spread by chance wherever backends often come and go. But while there
        are no calls any may be the first: all clients may have connected to the same backend before the others.
        """
        turn = next(self._turns, None)
        if turn is not self._first:
            places = {subchannel: place for place, subchannel in enumerate(ready)}
            for _ in self._ready:
                if turn in places:
                    return places[turn]
                turn = next(self._turns)
        return self._randrange(len(ready))


__all__ = ["RoundRobin"]
