"""A load balancing policy around another one that sees each attempt, and what would have been even at the time.

Each pick among n READY backends is worth 1/n to each of them. What these add up to while a backend is READY is its fair
share: what it would have got from a policy that is even, whatever came and went meanwhile.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import attrs
import trio

from tests.simulation.stories import Attempt
from trio_grpc import (
    CallEnd,
    ConnectivityState,
    Endpoint,
    LoadBalancingPolicy,
    Pick,
    PickInfo,
    PolicyContext,
    Subchannel,
)
from trio_grpc._balancing.policy import Picker


class Watcher:
    """What one client's policy has seen.

    Args:
        begin: called with the name of a call and each attempt of it.
        end: called with each attempt that has ended; without a code it was none.

    Attributes:
        picks: how often each backend was picked.
        shares: what would have been fair; up to date after `settle`.
        states: of the backends that the client knows.
    """

    def __init__(self, begin: Callable[[str, Attempt], None], end: Callable[[str, Attempt], None]) -> None:
        self.picks: Counter[str] = Counter()
        self.shares: defaultdict[str, float] = defaultdict(float)
        self.states: dict[str, ConnectivityState] = {}
        self._begin = begin
        self._end = end
        #: What one backend would have got, had it always been READY.
        self._turns = 0.0
        self._ready_since: dict[str, float] = {}

    def change(self, address: str, state: ConnectivityState) -> None:
        """A backend has another state."""
        self.states[address] = state
        if state is ConnectivityState.READY:
            self._ready_since.setdefault(address, self._turns)
        else:
            self._settle(address)

    def forget(self, address: str) -> None:
        """A backend is none of the client's any more."""
        self._settle(address)
        del self.states[address]

    def _settle(self, address: str) -> None:
        since = self._ready_since.pop(address, None)
        if since is not None:
            self.shares[address] += self._turns - since

    def settle(self) -> None:
        """Add up all that is READY until now."""
        for address in tuple(self._ready_since):
            self._settle(address)
            self._ready_since[address] = self._turns

    def pick(self, info: PickInfo, subchannel: Subchannel) -> Pick:
        """The other policy has picked."""
        self._turns += 1 / len(self._ready_since)
        call = info.metadata["call"]
        assert isinstance(call, str)
        attempt = Attempt(subchannel.endpoint.address)
        self.picks[attempt.address] += 1

        def on_end(end: CallEnd) -> None:
            attempt.end, attempt.code, attempt.local = trio.current_time(), end.code, end.local
            self._end(call, attempt)

        self._begin(call, attempt)
        return Pick(subchannel, on_end)


@attrs.frozen
class Watched:
    """Makes the policy: another one, seen by a watcher."""

    child: Callable[[PolicyContext], LoadBalancingPolicy]
    watcher: Watcher

    def __call__(self, context: PolicyContext) -> LoadBalancingPolicy:
        return WatchedPolicy(context, self.child, self.watcher)


class WatchedPolicy(LoadBalancingPolicy, PolicyContext):
    """Stands between a channel and its policy."""

    def __init__(
        self, context: PolicyContext, child: Callable[[PolicyContext], LoadBalancingPolicy], watcher: Watcher
    ) -> None:
        super().__init__(context)
        self._watcher = watcher
        self._child = child(self)

    def update_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        self._child.update_endpoints(endpoints)

    def subchannel_changed(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        self._watcher.change(subchannel.endpoint.address, state)
        self._child.subchannel_changed(subchannel, state)

    def resolver_failed(self, error: Exception) -> None:
        self._child.resolver_failed(error)

    def exit_idle(self) -> None:
        self._child.exit_idle()

    def new_subchannel(self, endpoint: Endpoint) -> Subchannel:
        return self.context.new_subchannel(endpoint)

    def shut_down(self, subchannel: Subchannel) -> None:
        self._watcher.forget(subchannel.endpoint.address)
        self.context.shut_down(subchannel)

    def publish(
        self,
        state: ConnectivityState,
        picker: Picker | Subchannel | None = None,
        error: Exception | None = None,
    ) -> None:
        if picker is None or isinstance(picker, Subchannel):
            self.context.publish(state, picker, error)
            return
        choose = picker

        def pick(info: PickInfo) -> Pick | None:
            subchannel = choose(info)
            assert subchannel is None or isinstance(subchannel, Subchannel)
            return None if subchannel is None else self._watcher.pick(info, subchannel)

        self.context.publish(state, pick, error)

    def request_resolution(self) -> None:
        self.context.request_resolution()

    def call_later(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        return self.context.call_later(seconds, function)
