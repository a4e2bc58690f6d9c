"""What policies share that keep a connection to every address: they differ in which of the READY ones gets a call."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from trio_grpc._balancing.connectivity import ConnectivityState
from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.policy import LoadBalancingPolicy, Picker, PolicyContext
from trio_grpc._balancing.subchannel import Subchannel, all_failed

_IDLE = ConnectivityState.IDLE
_CONNECTING = ConnectivityState.CONNECTING
_READY = ConnectivityState.READY
_FAILED = ConnectivityState.TRANSIENT_FAILURE


class ConnectToAllPolicy(LoadBalancingPolicy):
    """Keeps a connection to every address, and publishes a picker whenever other ones are READY than before.

    The channel is TRANSIENT_FAILURE only when all have failed, as with ``round_robin`` in other languages.
    """

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._subchannels: dict[Endpoint, Subchannel] = {}
        #: TRANSIENT_FAILURE lasts until READY, attempts in between notwithstanding, as in gRPC.
        self._states: dict[Subchannel, ConnectivityState] = {}
        self._published: tuple[Subchannel, ...] = ()

    @abc.abstractmethod
    def make_picker(self, ready: tuple[Subchannel, ...]) -> Picker:
        """Return what chooses among these, which are all that are READY; there is at least one."""

    def became_ready(self, subchannel: Subchannel) -> None:  # not all care
        """There is a new connection to an address."""

    def forget(self, subchannel: Subchannel) -> None:  # not all remember
        """An address is not on the list any more."""

    def renew_picker(self) -> None:
        """Publish another picker, where there is one: the options have changed."""
        self._published = ()
        if self._states:
            self._publish()

    def update_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        old, self._subchannels = self._subchannels, {}
        new: list[Subchannel] = []
        for endpoint in dict.fromkeys(endpoints):
            subchannel = old.pop(endpoint, None)
            if subchannel is None:
                subchannel = self.context.new_subchannel(endpoint)
                self._states[subchannel] = _CONNECTING
                new.append(subchannel)
            self._subchannels[endpoint] = subchannel
        for subchannel in old.values():
            del self._states[subchannel]
            self.forget(subchannel)
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
        if state is _READY and before is not _READY:
            self.became_ready(subchannel)
        elif state is _IDLE:
            subchannel.connect()
        if state is _FAILED or (state is _IDLE and before is _READY):
            self.context.request_resolution()
        self._publish()

    def _publish(self) -> None:
        states = self._states.values()
        ready = tuple(subchannel for subchannel, state in self._states.items() if state is _READY)
        if ready:
            if ready != self._published:
                self.context.publish(_READY, self.make_picker(ready))
        elif not states:
            self.context.publish(_FAILED, error=ValueError("the resolver found no addresses"))
        elif all(state is _FAILED for state in states):
            self.context.publish(_FAILED, error=all_failed(self._states))
        else:
            self.context.publish(_CONNECTING)
        self._published = ready
