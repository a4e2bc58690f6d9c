"""The ``round_robin`` policy: a connection to every address, and calls to each in turn."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import cycle

import attrs

from trio_grpc._balancing.connectivity import ConnectivityState
from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.policy import LoadBalancingPolicy, PolicyContext
from trio_grpc._balancing.subchannel import Subchannel, all_failed

_IDLE = ConnectivityState.IDLE
_CONNECTING = ConnectivityState.CONNECTING
_READY = ConnectivityState.READY
_FAILED = ConnectivityState.TRANSIENT_FAILURE


@attrs.frozen
class RoundRobin:
    """The ``round_robin`` policy, for ``load_balancing=`` of `open_channel`.

    The channel keeps a connection to every address, and calls go to each that is READY in turn. One that fails is tried
    again in the background, with its own backoff. The channel is TRANSIENT_FAILURE only when all have failed.
    """

    def __call__(self, context: PolicyContext) -> LoadBalancingPolicy:
        """Return the policy for one channel."""
        return RoundRobinPolicy(context)


class RoundRobinPolicy(LoadBalancingPolicy):
    """What `RoundRobin` does in one channel.

    Args:
        context: the channel.
        randrange: says where in a list of backends to begin: many clients that begin at the first would all go there.
    """

    def __init__(self, context: PolicyContext, randrange: Callable[[int], int] = random.randrange) -> None:
        super().__init__(context)
        self._randrange = randrange
        self._subchannels: dict[Endpoint, Subchannel] = {}
        #: TRANSIENT_FAILURE lasts until READY, attempts in between notwithstanding, as in gRPC.
        self._states: dict[Subchannel, ConnectivityState] = {}
        self._published: tuple[Subchannel, ...] = ()

    def update_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        old, self._subchannels = self._subchannels, {}
        new = []
        for endpoint in dict.fromkeys(endpoints):
            subchannel = old.pop(endpoint, None)
            if subchannel is None:
                subchannel = self.context.new_subchannel(endpoint)
                self._states[subchannel] = _CONNECTING
                new.append(subchannel)
            self._subchannels[endpoint] = subchannel
        for subchannel in old.values():
            del self._states[subchannel]
            self.context.shut_down(subchannel)
        for subchannel in new:
            subchannel.connect()
        if not self._subchannels:
            self.context.request_resolution()
        self._publish()

    def subchannel_changed(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        before = self._states[subchannel]
        if state is _READY or before is not _FAILED:
            self._states[subchannel] = state
        if state is _IDLE:
            subchannel.connect()
        if state is _FAILED or (state is _IDLE and before is _READY):
            self.context.request_resolution()
        self._publish()

    def _publish(self) -> None:
        states = self._states.values()
        ready = tuple(subchannel for subchannel, state in self._states.items() if state is _READY)
        if ready:
            if ready != self._published:
                start = self._randrange(len(ready))
                turns = cycle(ready[start:] + ready[:start])
                self.context.publish(_READY, lambda _: next(turns))
        elif not states:
            self.context.publish(_FAILED, error=ValueError("the resolver found no addresses"))
        elif all(state is _FAILED for state in states):
            self.context.publish(_FAILED, error=all_failed(self._states))
        else:
            self.context.publish(_CONNECTING)
        self._published = ready


__all__ = ["RoundRobin"]
