"""A channel that a load balancing policy can be tried on by itself: states come from the test, in no time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from trio_grpc import ConnectivityState, Endpoint, PolicyContext, Subchannel

State = ConnectivityState


class FakeSubchannel(Subchannel):
    """A subchannel whose state the test sets.

    Attributes:
        connects: attempts that were started.
        lost: the policy has let go of it.
        load_watches: functions that are called with reports of load, by the seconds between these.
    """

    def __init__(self, context: FakeContext, endpoint: Endpoint) -> None:
        # Nothing of the real one: that connects.
        self.endpoint = endpoint
        self.state = State.IDLE
        self.error: Exception | None = None
        self.connects = 0
        self.lost = False
        self.load_watches: dict[Callable[[bytes | bytearray], None], float] = {}
        self._context = context

    def connect(self) -> None:
        if self.state is State.IDLE:
            self.connects += 1
            self.become(State.CONNECTING)

    def disconnect(self) -> None:
        if self.state in (State.CONNECTING, State.READY):
            self.become(State.IDLE)

    def _watch_load(self, period: float, on_report: Callable[[bytes | bytearray], None]) -> Callable[[], None]:
        self.load_watches[on_report] = period
        return lambda: self.load_watches.pop(on_report) and None

    def become(self, state: State) -> None:
        self.state = state
        if state is State.TRANSIENT_FAILURE:
            self.error = OSError(f"{self.endpoint} refused")
        elif state is State.READY:
            self.error = None
        self._context.news.append((self, state))

    def __repr__(self) -> str:
        return f"<{self.endpoint}, {self.state.value}>"


class FakeContext(PolicyContext):
    """The channel.

    Attributes:
        made: all subchannels, in order.
        published: states, in order, with what came with each: a picker, or the text of an error.
        pickers: what came with them, an error notwithstanding.
        resolutions: how often the policy asked to resolve again.
        timers: seconds and function of each call that is due.
    """

    def __init__(self) -> None:
        self.made: list[FakeSubchannel] = []
        self.published: list[tuple[State, Any]] = []
        self.pickers: list[Any] = []
        self.resolutions = 0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.news: list[tuple[FakeSubchannel, State]] = []

    def new_subchannel(self, endpoint: Endpoint) -> Subchannel:
        self.made.append(FakeSubchannel(self, endpoint))
        return cast(Subchannel, self.made[-1])

    def shut_down(self, subchannel: Subchannel) -> None:
        cast(FakeSubchannel, subchannel).lost = True

    def publish(self, state: State, picker: Any = None, error: Exception | None = None) -> None:
        self.published.append((state, picker if error is None else str(error)))
        self.pickers.append(picker)

    def request_resolution(self) -> None:
        self.resolutions += 1

    def call_later(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        timer = (seconds, function)
        self.timers.append(timer)

        def call_off() -> None:
            if timer in self.timers:
                self.timers.remove(timer)

        return call_off

    # -- for tests

    def tell(self, policy: Any) -> None:
        """Tell the policy all that has happened, and what happens because of it."""
        while self.news:
            subchannel, state = self.news.pop(0)
            if not subchannel.lost:
                policy.subchannel_changed(subchannel, state)

    def fire(self, policy: Any) -> None:
        """Let the time of the only timer come."""
        ((_, function),) = self.timers
        self.timers.clear()
        function()
        self.tell(policy)

    @property
    def state(self) -> State:
        return self.published[-1][0]

    def by_name(self, name: str) -> FakeSubchannel:
        """The newest subchannel to an address."""
        return next(one for one in reversed(self.made) if one.endpoint.address == name)
