"""What decides which connection a call goes to: the protocol between load balancing policies and channels."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Protocol

from trio_grpc._balancing.connectivity import ConnectivityState
from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.subchannel import Subchannel

#: Chooses the subchannel of one call. It runs in the caller's task, before the call, and must not wait. It returns one
#: that is READY; for one that is not any more, or None, the call waits for the next picker.
Picker = Callable[[], "Subchannel | None"]


class PolicyContext(Protocol):
    """What a channel does for its load balancing policy."""

    def new_subchannel(self, endpoint: Endpoint) -> Subchannel:
        """Make a subchannel, which is IDLE.

        Args:
            endpoint: where its connections lead.

        Raises:
            TypeError: that is no `Endpoint`.
        """

    def shut_down(self, subchannel: Subchannel) -> None:
        """Let go of a subchannel: no new calls; those in flight go on. The policy hears of it no more."""

    def publish(
        self,
        state: ConnectivityState,
        picker: Picker | Subchannel | None = None,
        error: Exception | None = None,
    ) -> None:
        """Set the state of the channel, and where its calls go.

        Args:
            state: from now on.
            picker: with READY, chooses for each call; or the one subchannel that gets all calls, which is quicker.
            error: with TRANSIENT_FAILURE, why calls fail.

        Raises:
            TypeError: an argument is of none of these types.
            ValueError: a policy may not publish this state, or not with this picker.
        """

    def request_resolution(self) -> None:
        """Ask the resolver to resolve again, when it can: connections fail, so what it said may be out of date."""

    def call_later(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        """Have a function called once in some seconds, like a method of the policy; return what calls it off.

        Raises:
            TypeError: one is no number, or the other no function.
            ValueError: the seconds are negative or NaN.
        """


class LoadBalancingPolicy(abc.ABC):
    """Decides which endpoints a channel connects to, and to which of these connections each call goes.

    A channel makes one when it leaves IDLE, by calling what ``load_balancing=`` of `open_channel` was given with a
    context, and lets go of it and its subchannels when it goes IDLE again. Its methods are called in one task of the
    channel, one after another, and must not wait. What they raise is logged, and fails the channel's calls.

    Args:
        context: what the channel does for it.
    """

    def __init__(self, context: PolicyContext) -> None:
        self.context = context

    @abc.abstractmethod
    def update_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        """Use these endpoints from now on, in the place of those before; there may be none."""

    @abc.abstractmethod
    def subchannel_changed(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        """A subchannel has come to a state; changes are told in order, so it may have moved on since."""

    def resolver_failed(self, error: Exception) -> None:  # noqa: B027 # not all care
        """The resolver has failed, after it had published endpoints. Mostly these are as good as before.

        Args:
            error: what it raised, or failed with.
        """

    def exit_idle(self) -> None:  # noqa: B027 # not all are ever idle
        """A call waits, or the user wants to connect: leave IDLE where the policy has published that."""


__all__ = ["LoadBalancingPolicy", "Picker", "PolicyContext"]
