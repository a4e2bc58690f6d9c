"""What became of each call: its attempts, as the channel's policy saw them, and why it failed if it did."""

from __future__ import annotations

from math import inf

import attrs
import trio

from trio_grpc import StatusCode

#: The status that calls are tried again for, as the service config of the clients says.
RETRYABLE = StatusCode.UNAVAILABLE
#: Attempts of one call, at most.
MAX_ATTEMPTS = 4
#: Retry tokens of a channel: each failure takes one, each success brings some back, and there are no retries while half
#: of them are gone (gRFC A6). Clients this quiet need more back than the usual tenth.
MAX_TOKENS = 20
TOKEN_RATIO = 0.5


@attrs.define(eq=False)
class Attempt:
    """One attempt of a call.

    Attributes:
        address: of the backend that was picked.
        begin, end: when.
        code: its status; None while it runs, and of one that was never made.
        local: no backend has sent that status.
    """

    address: str
    begin: float = attrs.field(factory=trio.current_time)
    end: float = inf
    code: StatusCode | None = None
    local: bool = False

    def __str__(self) -> str:
        code = "running" if self.code is None else f"{self.code.name}{' (local)' if self.local else ''}"
        return f"{self.address} {self.begin:.3f}-{self.end:.3f} {code}"


@attrs.define(eq=False)
class Story:
    """One call.

    Attributes:
        name: of the call.
        timeout: the call's own.
        attempts: so far, without those that never had a stream.
        replies: how many have been received.
        begin, end: when.
    """

    name: str
    timeout: float
    attempts: list[Attempt] = attrs.field(factory=list)
    replies: int = 0
    begin: float = attrs.field(factory=trio.current_time)
    end: float = inf

    @property
    def over(self) -> bool:
        """Whether the call has ended, and each of its attempts."""
        return self.end < inf and all(attempt.end < inf for attempt in self.attempts)

    def reason(self, code: StatusCode, *, throttled: bool) -> str | None:
        """Return why no retry could save this call, which ended with a code; None if one should have.

        Args:
            code: of the call.
            throttled: the client had no retry tokens to spare then.
        """
        if code is StatusCode.DEADLINE_EXCEEDED:
            return "deadline" if self.attempts and self.end - self.begin >= self.timeout - 1e-6 else None
        if code is not RETRYABLE:
            return None
        if self.replies:
            return "committed"
        if len(self.attempts) >= MAX_ATTEMPTS:
            return "exhausted"
        return "throttled" if throttled else None

    def __str__(self) -> str:
        attempts = "; ".join(map(str, self.attempts)) or "no attempts"
        return f"call {self.name} {self.begin:.3f}-{self.end:.3f}, {self.replies} replies: {attempts}"
