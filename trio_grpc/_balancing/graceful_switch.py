"""One policy in the place of another while calls go on: the old one serves until the new one can."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from trio_grpc._balancing.connectivity import ConnectivityState
from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.policy import (
    LoadBalancingPolicy,
    Picker,
    PolicyContext,
    PolicyFactory,
    check_policy,
    check_published,
)
from trio_grpc._balancing.subchannel import Subchannel

_logger = logging.getLogger("trio_grpc")

_CONNECTING = ConnectivityState.CONNECTING
_READY = ConnectivityState.READY


class GracefulSwitch(LoadBalancingPolicy):
    """The policy that the service config asks for, of which another config may make another one.

    There are two of them at times: the one that serves, and its successor, which is told the endpoints from the
    beginning and takes over when it has left CONNECTING, or as soon as the other one is not READY (as in grpc-go,
    internal/balancer/gracefulswitch). Subchannels of the old one are shut down then: calls in flight on them go on.

    Args:
        context: the channel.
        on_takeover: called whenever another policy serves from now on.
    """

    def __init__(self, context: PolicyContext, on_takeover: Callable[[], None]) -> None:
        super().__init__(context)
        self._on_takeover = on_takeover
        self._serving: _Tenure | None = None
        self._successor: _Tenure | None = None
        #: Whose each subchannel is.
        self._owners: dict[Subchannel, _Tenure] = {}

    def switch_to(self, make_policy: PolicyFactory) -> None:
        """Use the policy that this makes, unless the newest one is that already, or becomes it.

        If it cannot be made that is logged, and the newest one stays, as with a config that is wrong (gRFC A21).

        Raises:
            Exception: it cannot be made, and there is none before it.
        """
        newest = self._newest
        if newest is not None and newest.make_policy == make_policy:
            return
        if newest is not None and newest.policy.reconfigure(make_policy):
            newest.make_policy = make_policy
            return
        try:
            tenure = _Tenure(self, self.context, make_policy)
        except Exception:
            if newest is None:
                raise
            _logger.exception("a load balancing policy could not be made; the one before it stays")
            return
        dropped, self._successor = self._successor, tenure
        if dropped is not None:
            dropped.end()
        if self._serving is None or self._serving.state is not _READY or tenure.state is not _CONNECTING:
            self.take_over()

    @property
    def _newest(self) -> _Tenure | None:
        return self._successor or self._serving

    def update_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        assert self._newest is not None
        self._newest.policy.update_endpoints(endpoints)

    def subchannel_changed(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        self._owners[subchannel].policy.subchannel_changed(subchannel, state)

    def resolver_failed(self, error: Exception) -> None:
        if self._newest is not None:
            self._newest.policy.resolver_failed(error)

    def exit_idle(self) -> None:
        if self._newest is not None:
            self._newest.policy.exit_idle()

    # -- for tenures

    def own(self, subchannel: Subchannel, owner: _Tenure) -> None:
        """Tell this tenure of the subchannel's changes."""
        self._owners[subchannel] = owner

    def disown(self, subchannel: Subchannel) -> None:
        """Nobody hears of the subchannel any more."""
        self._owners.pop(subchannel, None)

    def published(self, tenure: _Tenure) -> None:
        """A policy has published something new."""
        if tenure is self._successor:
            if tenure.state is not _CONNECTING:
                self.take_over()
        elif tenure is self._serving:
            if self._successor is not None and tenure.state is not _READY:
                self.take_over()
            else:
                tenure.republish()

    def take_over(self) -> None:
        """The successor serves from now on."""
        old, self._serving, self._successor = self._serving, self._successor, None
        assert self._serving is not None
        # First of all, so that no call is sent where the subchannels have gone.
        self._serving.republish()
        if old is not None:
            old.end()
        self._on_takeover()


class _Tenure(PolicyContext):
    """The time of one policy, which is its channel meanwhile.

    Args:
        switch: whose policy it is.
        context: the channel.
        make_policy: makes the policy.

    Attributes:
        make_policy: the same.
        policy: what it has made.
        state: what it has published last.
    """

    def __init__(self, switch: GracefulSwitch, context: PolicyContext, make_policy: PolicyFactory) -> None:
        self.make_policy = make_policy
        self.state = _CONNECTING
        self._switch = switch
        self._context = context
        self._picker: Picker | Subchannel | None = None
        self._error: Exception | None = None
        self._subchannels: set[Subchannel] = set()
        self._ended = False
        try:
            self.policy = check_policy(make_policy(self))
        except BaseException:
            self.end()
            raise

    def republish(self) -> None:
        """Publish to the channel what the policy has published last."""
        self._switch.watches_health = self.policy.watches_health
        self._context.publish(self.state, self._picker, self._error)

    def end(self) -> None:
        """The policy is let go of; it is not heard and hears nothing any more."""
        self._ended = True
        for subchannel in list(self._subchannels):
            self.shut_down(subchannel)

    def new_subchannel(self, endpoint: Endpoint) -> Subchannel:
        subchannel = self._context.new_subchannel(endpoint)
        self._subchannels.add(subchannel)
        self._switch.own(subchannel, self)
        if self._ended:
            # The policy is still in the method in which it has published that it is not READY.
            self.shut_down(subchannel)
        return subchannel

    def shut_down(self, subchannel: Subchannel) -> None:
        self._subchannels.discard(subchannel)
        self._switch.disown(subchannel)
        self._context.shut_down(subchannel)

    def publish(
        self,
        state: ConnectivityState,
        picker: Picker | Subchannel | None = None,
        error: Exception | None = None,
    ) -> None:
        check_published(state, picker, error)
        self.state, self._picker, self._error = state, picker, error
        if not self._ended:
            self._switch.published(self)

    def request_resolution(self) -> None:
        if not self._ended:
            self._context.request_resolution()

    def call_later(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            if not self._ended:
                function()

        if not callable(function):
            raise TypeError(f"function must be callable, not {type(function).__name__}")
        return self._context.call_later(seconds, call)
