"""The ``pick_first`` policy: one connection, to the first address that answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import attrs

from trio_grpc._balancing.connectivity import ConnectivityState
from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.happy_eyeballs import CONNECTION_ATTEMPT_DELAY, interleave
from trio_grpc._balancing.json_fields import boolean
from trio_grpc._balancing.policy import LoadBalancingPolicy, PolicyContext
from trio_grpc._balancing.subchannel import Subchannel, all_failed
from trio_grpc._options import flag

_IDLE = ConnectivityState.IDLE
_CONNECTING = ConnectivityState.CONNECTING
_READY = ConnectivityState.READY
_FAILED = ConnectivityState.TRANSIENT_FAILURE


@attrs.frozen(kw_only=True)
class PickFirst:
    """The ``pick_first`` policy, for ``load_balancing=`` of `open_channel`: the default.

    The channel connects to the addresses in their order, IPv6 and IPv4 taking turns, each 250 ms after the one before
    unless that has failed sooner (Happy Eyeballs, gRFC A61). All calls go to the first that answers. When that is lost
    the channel is IDLE until the next call. When all have failed the channel is TRANSIENT_FAILURE, and stays that until
    an attempt in the background succeeds (gRFC A62).

    Attributes:
        shuffle_address_list: shuffle the addresses first, so that many clients spread over them (gRFC A62).
    """

    shuffle_address_list: bool = attrs.field(default=False, validator=flag)

    @classmethod
    def from_json(cls, config: Mapping[str, object]) -> PickFirst:
        """Return the policy that a service config asks for (gRFC A62).

        Raises:
            ServiceConfigError: a field is wrong.
        """
        return cls(shuffle_address_list=boolean(config, "shuffleAddressList", False))

    def __call__(self, context: PolicyContext) -> LoadBalancingPolicy:
        """Return the policy for one channel."""
        return PickFirstPolicy(context, random.shuffle if self.shuffle_address_list else None)


class PickFirstPolicy(LoadBalancingPolicy):
    """What `PickFirst` does in one channel.

    Args:
        context: the channel.
        shuffle: shuffles a list in place.
    """

    #: With one connection there is no other backend for its calls (gRFC A17).
    watches_health = False

    def __init__(self, context: PolicyContext, shuffle: Callable[[list[Endpoint]], None] | None = None) -> None:
        super().__init__(context)
        self._shuffle = shuffle
        #: In the order in which they are tried.
        self._subchannels: dict[Endpoint, Subchannel] = {}
        self._selected: Subchannel | None = None
        self._state = _CONNECTING
        #: Those that this pass over the addresses has not come to yet; None while there is no pass.
        self._pass: list[Subchannel] | None = None
        #: The one that this pass came to last.
        self._current: Subchannel | None = None
        #: Those that have failed in this pass; after it, since the last request to resolve again.
        self._failed: set[Subchannel] = set()
        self._cancel_timer: Callable[[], None] | None = None

    def update_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        order = list(endpoints)
        if self._shuffle is not None:
            self._shuffle(order)
        old, self._subchannels = self._subchannels, {}
        for endpoint in interleave(order):
            known = endpoint in old
            self._subchannels[endpoint] = old.pop(endpoint) if known else self.context.new_subchannel(endpoint)
        for subchannel in old.values():
            self.context.shut_down(subchannel)
        if self._selected is not None and self._selected in self._subchannels.values():
            return
        self._selected = None
        if not self._subchannels:
            self._end_pass()
            self._state = _FAILED
            self.context.publish(_FAILED, error=ValueError("the resolver found no addresses"))
            self.context.request_resolution()
        elif self._state is not _IDLE:
            self._start_pass()

    def exit_idle(self) -> None:
        if self._state is _IDLE and self._subchannels:
            self._start_pass()

    def subchannel_changed(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        if state is _READY:
            if self._selected is None:
                self._select(subchannel)
            else:
                # It answered while another one was being told about.
                subchannel.disconnect()
        elif subchannel is self._selected:
            self._lose(state)
        elif self._selected is not None or self._state is _IDLE:
            # Not needed now: a backoff that has ended, an attempt that was given up.
            return
        elif state is _FAILED:
            self._fail(subchannel)
        elif state is _IDLE and (self._pass is None or not (subchannel in self._failed or subchannel in self._pass)):
            # Its backoff is over; or its connection did not live long enough to be selected.
            subchannel.connect()

    def _start_pass(self) -> None:
        """Try the addresses one after another (gRFC A61)."""
        if self._state is not _FAILED:
            self._state = _CONNECTING
            self.context.publish(_CONNECTING)
        self._failed.clear()
        self._pass = list(self._subchannels.values())
        self._try_next()

    def _try_next(self) -> None:
        self._stop_timer()
        while self._pass:
            subchannel = self._pass.pop(0)
            if subchannel.state is _FAILED:
                # In backoff. Its last failure is this pass's.
                self._failed.add(subchannel)
                continue
            self._current = subchannel
            subchannel.connect()
            if self._pass:
                self._cancel_timer = self.context.call_later(CONNECTION_ATTEMPT_DELAY, self._try_next)
            return
        self._end_pass_if_all_failed(self._last_failed())

    def _fail(self, subchannel: Subchannel) -> None:
        self._failed.add(subchannel)
        if self._pass is None:
            if len(self._failed) >= len(self._subchannels):
                self._failed.clear()
                self.context.request_resolution()
            self._publish_failure(subchannel)
        elif self._pass and subchannel is self._current:
            self._try_next()
        else:
            self._end_pass_if_all_failed(subchannel)

    def _end_pass_if_all_failed(self, last: Subchannel | None) -> None:
        if self._pass is None or last is None or len(self._failed) < len(self._subchannels):
            return
        self._end_pass()
        self._publish_failure(last)
        self.context.request_resolution()
        # From here on each goes its own way, attempt after backoff, until one is READY (gRFC A62).
        for subchannel in self._subchannels.values():
            subchannel.connect()

    def _last_failed(self) -> Subchannel | None:
        failed = [subchannel for subchannel in self._subchannels.values() if subchannel in self._failed]
        return failed[-1] if failed else None

    def _publish_failure(self, subchannel: Subchannel) -> None:
        self._state = _FAILED
        self.context.publish(_FAILED, error=all_failed(self._subchannels.values(), subchannel))

    def _select(self, subchannel: Subchannel) -> None:
        self._end_pass()
        self._selected = subchannel
        self._state = _READY
        for other in self._subchannels.values():
            if other is not subchannel:
                other.disconnect()
        self.context.publish(_READY, subchannel)

    def _lose(self, state: ConnectivityState) -> None:
        """The connection is no more; where the addresses lead may have changed (grpc/grpc-go#4513)."""
        self._selected = None
        self.context.request_resolution()
        if state is _IDLE:
            self._state = _IDLE
            self.context.publish(_IDLE)
        else:
            self._state = _CONNECTING
            self._start_pass()

    def _end_pass(self) -> None:
        self._stop_timer()
        self._pass = None
        self._current = None
        self._failed.clear()

    def _stop_timer(self) -> None:
        if self._cancel_timer is not None:
            self._cancel_timer()
            self._cancel_timer = None


__all__ = ["PickFirst"]
