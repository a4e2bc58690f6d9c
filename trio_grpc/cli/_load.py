"""Load for a server: many calls of one method, as fast as they go or at a rate, and what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import attrs
import trio

from trio_grpc._channel import Channel
from trio_grpc._metadata import Metadata
from trio_grpc._method import Method
from trio_grpc._plain_codecs import BytesCodec
from trio_grpc._status import RpcError, StatusCode
from trio_grpc._stub import bind
from trio_grpc.cli._histogram import Histogram


@attrs.frozen(kw_only=True)
class Plan:
    """What load to make.

    Attributes:
        concurrency: calls under way at a time, at most.
        duration: seconds; None where ``calls`` says when it is over.
        calls: how many; None where ``duration`` does.
        rate: calls per second; None for as many as go.
        warm_up: seconds of load before anything is counted.
        timeout: seconds for each call; None for as long as it takes.
        metadata: sent with each call.
    """

    concurrency: int
    duration: float | None
    calls: int | None
    rate: float | None
    warm_up: float
    timeout: float | None
    metadata: Metadata


class Results:
    """What became of the calls.

    Attributes:
        latencies: of those that ended with OK.
        failures: how many ended with which other status.
        messages: of those that the failures had, the first of each status.
        sent, received: messages.
        began: trio's time at which counting began, None before.
        ended: trio's time at which it ended, None before.
    """

    def __init__(self) -> None:
        self.latencies = Histogram()
        self.failures: Counter[StatusCode] = Counter()
        self.messages: dict[StatusCode, str] = {}
        self.sent = 0
        self.received = 0
        self.began: float | None = None
        self.ended: float | None = None

    @property
    def calls(self) -> int:
        """All that have ended."""
        return self.latencies.count + self.failures.total()

    @property
    def seconds(self) -> float:
        """For how long it has been counted."""
        if self.began is None:
            return 0.0
        return (trio.current_time() if self.ended is None else self.ended) - self.began

    @property
    def rate(self) -> float:
        """Calls per second."""
        return self.calls / self.seconds if self.seconds else 0.0

    def failed(self, error: RpcError) -> None:
        """Count a call that has failed."""
        self.failures[error.code] += 1
        self.messages.setdefault(error.code, error.message)


class Load:
    """Makes calls; messages are bytes, made once and never read.

    Args:
        channels: calls take turns on them.
        method: what is called.
        requests: of each call: one, or as many as it streams.
        plan: how much.

    Attributes:
        results: what became of them so far.
    """

    def __init__(
        self, channels: Sequence[Channel], method: Method[Any, Any], requests: Sequence[bytes], plan: Plan
    ) -> None:
        self.results = Results()
        self._method = Method[Any, Any].at(method.path, method.cardinality, codec=BytesCodec())
        self._bound = [bind(channel, self._method) for channel in channels]
        self._requests = list(requests)
        self._plan = plan
        self._scope = trio.CancelScope()

    def stop(self) -> None:
        """End it now; calls under way are given up, and not counted."""
        self._scope.cancel()

    async def run(self) -> Results:
        """Make the load, until it is over or stopped."""
        with self._scope:
            if self._plan.warm_up:
                await self._phase(Results(), self._plan.warm_up, None)
            self.results.began = trio.current_time()
            await self._phase(self.results, self._plan.duration, self._plan.calls)
        if self.results.began is not None:
            self.results.ended = trio.current_time()
        return self.results

    async def _phase(self, results: Results, duration: float | None, calls: int | None) -> None:
        tickets = _Tickets(self._plan.rate, calls, duration)
        async with trio.open_nursery() as nursery:
            for number in range(self._plan.concurrency):
                nursery.start_soon(self._work, self._bound[number % len(self._bound)], tickets, results)

    async def _work(self, bound: Any, tickets: _Tickets, results: Results) -> None:
        while True:
            began = tickets.take()
            if began is None:
                return
            if began > trio.current_time():
                await trio.sleep_until(began)
            try:
                await self._call(bound, results)
            except RpcError as error:
                results.failed(error)
            else:
                # Of a call that should have begun before there was somebody to make it, the wait counts: its
                # caller would have waited as well.
                results.latencies.add(trio.current_time() - began)

    async def _call(self, bound: Any, results: Results) -> None:
        options = {"timeout": self._plan.timeout, "metadata": self._plan.metadata}
        cardinality = self._method.cardinality
        if not cardinality.server_streaming:
            await bound(self._requests if cardinality.client_streaming else self._requests[0], **options)
            results.received += 1
        elif not cardinality.client_streaming:
            async with bound(self._requests[0], **options) as call:
                await _receive_all(call, results)
        else:
            failure: RpcError | None = None
            async with bound(**options) as call, trio.open_nursery() as nursery:
                nursery.start_soon(self._send_all, call)
                try:
                    await _receive_all(call, results)
                except RpcError as error:
                    # Not out of the nursery, which would make a group of it.
                    failure = error
                nursery.cancel_scope.cancel()
            if failure is not None:
                raise failure
        results.sent += len(self._requests)

    async def _send_all(self, call: Any) -> None:
        try:
            for request in self._requests:
                await call.send(request)
            await call.done_sending()
        except trio.BrokenResourceError:
            # It has ended; whoever receives is told how.
            return


async def _receive_all(call: Any, results: Results) -> None:
    async for _ in call:
        results.received += 1


class _Tickets:
    """Says when each call begins, and which one is the last.

    Args:
        rate: calls per second; None for each as soon as somebody can make it.
        calls: how many; None for no limit.
        duration: seconds; None for no limit.
    """

    def __init__(self, rate: float | None, calls: int | None, duration: float | None) -> None:
        self._rate = rate
        self._left = calls
        self._began = trio.current_time()
        self._over = None if duration is None else self._began + duration
        self._taken = 0

    def take(self) -> float | None:
        """Return when the next call should begin, or should have; None if there is none."""
        if self._left == 0:
            return None
        now = trio.current_time()
        begins = now if self._rate is None else self._began + self._taken / self._rate
        if self._over is not None and max(begins, now) >= self._over:
            return None
        self._taken += 1
        if self._left is not None:
            self._left -= 1
        return begins


__all__ = ["Load", "Plan", "Results"]
