"""Bearer tokens as call credentials: fetched when the first call needs one, kept, and fetched again in time."""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable
from math import inf
from typing import TypeAlias, cast

import trio

from trio_grpc._balancing.backoff import Backoff
from trio_grpc._credentials import CallCredentials, CallInfo
from trio_grpc._metadata import Metadata
from trio_grpc._options import check_async_callable, check_kind, check_timeout
from trio_grpc._status import RpcError, StatusCode

#: Seconds before its end at which a token counts as old (C-core, GRPC_SECURE_TOKEN_REFRESH_THRESHOLD_SECS).
_REFRESH_BEFORE = 60.0
#: gRFC A97 has fetches that fail wait as connections do.
_BACKOFF = Backoff()
#: Wider than RFC 6750, 2.1, which is what is told of them: not all who issue tokens keep to that.
_SENDABLE = re.compile("[!-~]+")

#: How the messages of all failures begin.
_NO_TOKEN = "no bearer token: "

#: What a fetch returns: a token, or a token and the seconds for which it is good (OAuth's ``expires_in``).
FetchedToken: TypeAlias = "str | tuple[str, float]"


class _Fetch:
    """A fetch under way, and what came of it: a token, an error, or nothing where its task was cancelled."""

    __slots__ = ("done", "error", "task", "token")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.task = trio.lowlevel.current_task()
        self.token: str | None = None
        self.error: Exception | None = None


def is_sendable(token: str) -> bool:
    """Return whether a token can stand in a header."""
    return _SENDABLE.fullmatch(token) is not None


class BearerToken(CallCredentials):
    """Sends ``authorization: Bearer ...`` with each call.

    The first call that needs a token fetches it, in its own task; calls at the same time wait for that one. Where the
    call that fetches is cancelled or out of time, one of those that wait fetches in its place. A token is fetched anew
    when it is about to expire, and after a server has said UNAUTHENTICATED to it; the call that was told so is not
    repeated.

    A fetch that fails ends the calls that waited for it with UNAVAILABLE, unless there is a token from before that is
    still good. After it no fetch is tried for a second, and longer after each further one, up to two minutes, as with
    attempts to connect; calls fail at once meanwhile (gRFC A97).

    Args:
        fetch: an async function that returns a token, or a pair: the token and the seconds for which it is good. It
            must not make calls with these credentials itself.
        refresh_before: seconds before its end at which a token is fetched anew; half its time for tokens that are good
            for less than twice as long. Default: 60, as in C-core.
        allow_plaintext: let it travel where others can read it.

    Raises:
        TypeError, ValueError: an argument is malformed.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[FetchedToken]],
        *,
        refresh_before: float = _REFRESH_BEFORE,
        allow_plaintext: bool = False,
    ) -> None:
        check_async_callable("fetch", fetch)
        if check_timeout(refresh_before, "refresh_before") < 0:
            raise ValueError(f"refresh_before must not be negative, got {refresh_before}")
        self.allow_plaintext: bool = check_kind("allow_plaintext", allow_plaintext, bool)
        self._fetch = fetch
        self._refresh_before = refresh_before
        self._token: str | None = None
        self._refresh_at = inf
        self._expires = inf
        self._under_way: _Fetch | None = None
        self._failures = 0
        #: Until when no fetch is tried, and why: the last one's status.
        self._paused_until = -inf
        self._problem = (StatusCode.UNAVAILABLE, "")

    async def __call__(self, call: CallInfo, /) -> Metadata:  # noqa: ARG002 -- one token for all
        """Return the header, after a fetch where there is no token that is good."""
        token = self._token
        if token is None or trio.current_time() >= self._refresh_at:
            token = await self._wait_token()
        return Metadata([("authorization", f"Bearer {token}")])

    def rejected(self, metadata: Metadata, /) -> None:
        """Forget the token, if it is still the one that was sent: the next call fetches another."""
        if self._token is not None and f"Bearer {self._token}" in metadata.get_all("authorization"):
            self._token = None

    async def _wait_token(self) -> str:
        while True:
            token: str | None = None
            problem: Exception | None = None
            fetch = self._under_way
            pause = self._paused_until - trio.current_time()
            if fetch is None and pause > 0:
                code, text = self._problem
                problem = RpcError(code, f"{text}; next attempt in {pause:.1f} s")
            else:
                if fetch is None:
                    fetch = await self._run_fetch()
                elif fetch.task is trio.lowlevel.current_task():
                    raise RuntimeError("fetch has made a call with the credentials whose token it is to fetch")
                else:
                    await fetch.done.wait()
                token, problem = fetch.token, fetch.error
                # The error's traceback may lead to a frame of this function: with the fetch in it, that is a cycle.
                del fetch
            if problem is not None:
                if self._token is not None and trio.current_time() < self._expires:
                    return self._token
                try:
                    raise self._failure(problem) from problem
                finally:
                    del problem
            if token is not None:
                return token

    async def _run_fetch(self) -> _Fetch:
        fetch = self._under_way = _Fetch()
        try:
            fetch.token = await self._fetch_now()
        except Exception as error:
            fetch.error = error
            self._failures += 1
            self._paused_until = trio.current_time() + _BACKOFF.delay(self._failures, random.uniform)
            # Not the error: this object and its traceback would hold each other.
            failure = self._failure(error)
            self._problem = failure.code, failure.message
            del failure
        else:
            self._failures = 0
        finally:
            self._under_way = None
            fetch.done.set()
        try:
            return fetch
        finally:
            # It has the error, whose traceback has this frame.
            del fetch

    def _failure(self, error: Exception) -> RpcError:
        """Return what a call ends with for want of a token. Each has its own: exceptions collect tracebacks."""
        if isinstance(error, RpcError):
            text = error.message
            return RpcError(error.code, text if text.startswith(_NO_TOKEN) else f"{_NO_TOKEN}{text}")
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return RpcError(StatusCode.UNAVAILABLE, f"{_NO_TOKEN}{reason}")

    async def _fetch_now(self) -> str:
        fetched = await self._fetch()
        if isinstance(fetched, tuple) and len(fetched) != 2:
            raise TypeError(f"fetch must return a token, or a pair of a token and seconds, not {len(fetched)} values")
        token, seconds = fetched if isinstance(fetched, tuple) else (fetched, inf)
        # It is the user's: annotations prove nothing.
        if not isinstance(cast("object", token), str):
            raise TypeError(f"fetch must return a token, or a pair of a token and seconds, not {type(token).__name__}")
        if not is_sendable(token):
            # It may be a secret with something around it: not for messages.
            what = "a token with blanks, line ends or characters outside of ASCII" if token else "an empty token"
            raise ValueError(f"fetch returned {what}")
        check_timeout(seconds, "the seconds that fetch returns")
        self._token = token
        self._expires = trio.current_time() + seconds
        self._refresh_at = self._expires - min(self._refresh_before, seconds / 2)
        return token

    def __repr__(self) -> str:
        # Never the token.
        return f"<BearerToken of {getattr(self._fetch, '__qualname__', None) or type(self._fetch).__name__}>"


__all__ = ["BearerToken", "FetchedToken", "is_sendable"]
