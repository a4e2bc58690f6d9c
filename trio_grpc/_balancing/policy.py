"""What decides which connection a call goes to: the protocol between load balancing policies and channels."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs

from trio_grpc._balancing.connectivity import ConnectivityState
from trio_grpc._balancing.endpoint import Endpoint
from trio_grpc._balancing.subchannel import Subchannel
from trio_grpc._metadata import Metadata, readable_metadata
from trio_grpc._options import check_kind
from trio_grpc._status import StatusCode

#: Chooses the subchannel of one attempt of a call. It runs in the caller's task, before the attempt, and must not wait.
#: It returns one that is READY, alone or in a `Pick`. For one that is not, or None, the call waits until the policy
#: publishes again, and then asks again.
Picker = Callable[["PickInfo"], "Subchannel | Pick | None"]


class PickInfo:
    """What a picker is told of the attempt that it chooses for; made by the channel.

    Attributes:
        method: the path of the method, ``"/package.Service/Method"``.
    """

    __slots__ = ("_fields", "_metadata", "_report", "method")

    def __init__(self, method: str, fields: Any = ()) -> None:
        # ``fields``, the metadata as it goes on the wire, is Any: the public signature does not drag in the transport.
        self.method: str = method
        self._fields = fields
        self._metadata: Metadata | None = None
        #: Tells the policy how the attempt ended: the outcome of its stream, or None where there was none.
        self._report: Callable[[Any], None] | None = None

    @property
    def metadata(self) -> Metadata:
        """The call's own metadata, without that of the channel. Not to be changed."""
        if self._metadata is None:
            self._metadata = Metadata.from_wire(self._fields)
        return self._metadata

    def _watch(self, stream: Any) -> None:
        """The attempt has its stream: when that ends, the policy is told."""
        report, self._report = self._report, None
        if report is not None:
            stream.on_outcome = report
            if stream.outcome is not None:
                report(stream.outcome)

    def _drop(self) -> None:
        """The attempt that was picked for will not be made."""
        report, self._report = self._report, None
        if report is not None:
            report(None)

    def __repr__(self) -> str:
        return f"<PickInfo of {self.method}>"


class CallEnd:
    """How an attempt ended, for the policy that has picked for it; made by the channel.

    Attributes:
        code: its status code; None where it was never sent: it found no free stream, or its caller gave up before.
        local: the status was made on this side (the call was cancelled, its deadline passed, its connection was lost)
            and did not come from a server.
    """

    __slots__ = ("_fields", "code", "local")

    def __init__(self, code: StatusCode | None, local: bool, fields: Any = ()) -> None:
        self.code: StatusCode | None = code
        self.local: bool = local
        self._fields = fields

    @property
    def trailing_metadata(self) -> Metadata:
        """What the server sent with the status."""
        return readable_metadata(self._fields)

    def __repr__(self) -> str:
        code = None if self.code is None else self.code.name
        return f"<CallEnd {code}{', local' if self.local else ''}>"


@attrs.frozen
class Pick:
    """A picker's choice, for policies that want to know how the attempt ends.

    Attributes:
        subchannel: carries the attempt.
        on_end: called once after the attempt has ended, or was given up before it began; like the methods of the
            policy, in the same task. What it raises is logged. When the channel is closed it is not called any more.

    Raises:
        TypeError: there is no subchannel, or ``on_end`` cannot be called.
    """

    subchannel: Subchannel = attrs.field(validator=attrs.validators.instance_of(Subchannel))
    on_end: Callable[[CallEnd], None] | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.is_callable())
    )


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
        """Let go of a subchannel: no new calls; those in flight go on. The policy hears of it no more. Idempotent."""

    def publish(
        self,
        state: ConnectivityState,
        picker: Picker | Subchannel | None = None,
        error: Exception | None = None,
    ) -> None:
        """Set the state of the channel, and where its calls go.

        Args:
            state: from now on.
            picker: with READY, chooses for each call; or the one subchannel that gets all calls, which is quicker. A
                policy that connects only to what calls ask for may have a picker with other states too: where that
                tells a subchannel to connect and returns it, the call waits; where it returns None, the state decides.
            error: with TRANSIENT_FAILURE, why calls fail.

        Raises:
            TypeError: an argument is of none of these types.
            ValueError: a policy may not publish this state, or not with this picker.
        """

    def request_resolution(self) -> None:
        """Ask the resolver to resolve again, when it can: connections fail, so what it said may be out of date."""

    def call_later(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        """Have a function called once in some seconds, like a method of the policy; return what calls it off.

        Args:
            seconds: how long from now, on trio's clock.
            function: what to call, without arguments.

        Raises:
            TypeError: one is no number, or the other no function.
            ValueError: the seconds are negative or NaN.
        """


class LoadBalancingPolicy(abc.ABC):
    """Decides which endpoints a channel connects to, and to which of these connections each call goes.

    A channel makes one when it leaves IDLE, by calling what ``load_balancing=`` of `open_channel` was given with a
    context, and lets go of it and its subchannels when it goes IDLE again. Its methods are called in one task of the
    channel, one after another, and must not wait. What they raise is logged, and fails the channel's calls; where the
    service config asks for a policy that cannot be made, the one before it stays.

    Args:
        context: what the channel does for it.

    Attributes:
        context: the same.
        watches_health: whether the channel watches the health of its subchannels' backends where the service config
            names a service (gRFC A17). One that is connected and not healthy is then TRANSIENT_FAILURE to the policy.
    """

    watches_health: bool = True

    def __init__(self, context: PolicyContext) -> None:
        self.context = context

    def reconfigure(self, make_policy: PolicyFactory) -> bool:
        """Go on with the options of another factory, and with all that is known so far.

        Args:
            make_policy: what the service config asks for now; not equal to what has made this policy.

        Returns:
            Whether it does so; otherwise what the other factory makes takes the place of this policy.
        """
        del make_policy
        return False

    @abc.abstractmethod
    def update_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        """Use these endpoints from now on, in the place of those before; there may be none."""

    @abc.abstractmethod
    def subchannel_changed(self, subchannel: Subchannel, state: ConnectivityState) -> None:
        """A subchannel has come to a state; changes are told in order, so it may have moved on since.

        Args:
            subchannel: one that this policy has asked for.
            state: what it has come to.
        """

    def resolver_failed(self, error: Exception) -> None:  # noqa: B027 # not all care
        """The resolver has failed, after it had published endpoints. Mostly these are as good as before.

        Args:
            error: what it raised, or failed with.
        """

    def exit_idle(self) -> None:  # noqa: B027 # not all are ever idle
        """A call waits, or the user wants to connect: leave IDLE where the policy has published that."""


def check_policy(policy: object) -> LoadBalancingPolicy:
    """Return what was made to be a policy.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(policy, LoadBalancingPolicy):
        raise TypeError(f"load_balancing must make a LoadBalancingPolicy, not {type(policy).__name__}")
    return policy


def check_published(state: object, picker: object, error: object) -> None:
    """Check what a policy publishes.

    Raises:
        TypeError: it is of a wrong type.
        ValueError: a policy may not publish this state, or not with this picker.
    """
    check_kind("state", state, ConnectivityState)
    if picker is not None and not isinstance(picker, Subchannel) and not callable(picker):
        raise TypeError(f"picker must be callable or a Subchannel, not {type(picker).__name__}")
    if error is not None:
        check_kind("error", error, Exception)
    if state is ConnectivityState.SHUTDOWN:
        raise ValueError("a policy cannot shut its channel down")
    if picker is None and state is ConnectivityState.READY:
        raise ValueError("a policy publishes READY with a picker")
    if isinstance(picker, Subchannel) and state is not ConnectivityState.READY:
        raise ValueError("a policy publishes a subchannel as its picker with READY, and only then")


#: Makes the policy of a channel; frozen records such as `PickFirst` are such factories.
PolicyFactory = Callable[[PolicyContext], LoadBalancingPolicy]


def check_factory(name: str, factory: Any, words: str) -> PolicyFactory:
    """Return what a user has given to make policies.

    Args:
        name: of the option.
        factory: what was given.
        words: what it must be, for the message.

    Raises:
        TypeError: it cannot be called, or makes something else.
    """
    if isinstance(factory, type) and not issubclass(factory, LoadBalancingPolicy):
        # `PickFirst` where `PickFirst()` was meant.
        raise TypeError(f"{name} must be {words}, not the class {factory.__name__}; {factory.__name__}() may be meant")
    if not callable(factory):
        raise TypeError(f"{name} must be {words}, not {type(factory).__name__}")
    made: PolicyFactory = factory
    return made


__all__ = ["CallEnd", "LoadBalancingPolicy", "Pick", "PickInfo", "Picker", "PolicyContext", "PolicyFactory"]
