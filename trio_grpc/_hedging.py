"""A call of several attempts at a time, the quickest of which counts (gRFC A6, hedging).

Each attempt waits for its connection in a task of its own. All else is told by the streams and by one timer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio
from trio.lowlevel import checkpoint

from trio_grpc._attempts import Attempts, Request, described, unavailable
from trio_grpc._retry import AttemptRules, Hedges
from trio_grpc._status import RpcError, StatusCode
from trio_grpc._transport.stream import Outcome, Stream
from trio_grpc._transport.timers import Timer, call_at

#: Why attempts are given up whose answers are not needed any more.
_LOST = "another attempt of the call was quicker"


class HedgedAttempts(Attempts):
    """Stands for the stream of a call until that is known: several attempts at a time, the quickest of which counts.

    Args:
        request: what all attempts send first.
        first: the request of a method that takes one, None for a stream of them.
        hedges: how many there are, and when.
        on_settled: called once with the stream that this stands for, when it is known.
    """

    __slots__ = ("_failure", "_hedges", "_launched", "_opening", "_streams", "_timer")

    def __init__(
        self,
        request: Request,
        first: tuple[bytes, bool] | None,
        hedges: Hedges,
        on_settled: Callable[[Stream], None] | None = None,
    ) -> None:
        super().__init__(request, first, None, on_settled)
        self._hedges = hedges
        #: Those under way that have a stream, the oldest first.
        self._streams: list[Stream] = []
        #: The tasks of those that have none yet.
        self._opening: dict[int, trio.CancelScope] = {}
        self._launched = 0
        #: For the next one.
        self._timer: Timer | None = None
        #: How the one that failed last did; its stream where it had one.
        self._failure: tuple[Outcome, Stream | None] | None = None

    @property
    def _rules(self) -> AttemptRules:
        return self._hedges

    # -- the attempts

    async def _open_first(self) -> None:
        self._launch(0)
        self._schedule(self._hedges.delay)

    def _launch(self, previous: int) -> None:
        self._launched += 1
        number = self._launched
        self._opening[number] = self._start(self._begin_hedge, number, previous)

    def _schedule(self, delay: float | None) -> None:
        """Send the next hedge in so many seconds; None: never."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if delay == 0:
            self._hedge()
        elif delay is not None:
            if self._streams or self._opening:
                self._timer = call_at(trio.current_time() + delay, self._hedge)
            else:
                # Nothing is under way that would tell of the end of the channel.
                self._launched += 1
                self._opening[self._launched] = self._start(self._hedge_later, self._launched, delay)

    def _hedge(self) -> None:
        self._timer = None
        if self._hedges.begin():
            self._launch(self._hedges.previous)
            self._schedule(self._hedges.delay)
        else:
            self._fail_if_last()

    async def _hedge_later(self, number: int, delay: float) -> None:
        await self.request.channel._sleep(delay)
        self._opening.pop(number, None)
        if self._is_open():
            self._hedge()

    async def _begin_hedge(self, number: int, previous: int) -> None:
        try:
            stream = await self.request.open(previous, self._is_open)
        except RpcError as error:
            outcome = unavailable(error)
        else:
            self._opening.pop(number, None)
            if stream is not None:
                self._add(stream, previous)
            return
        self._opening.pop(number, None)
        self._failed(outcome, None)

    def _add(self, stream: Stream, previous: int) -> None:
        self._streams.append(stream)
        self._replay(stream)
        stream.on_head = partial(self._on_head_of, stream)
        stream.on_ended = partial(self._on_end_of, stream, previous)
        self._wake()
        self._announce(stream)

    # -- what becomes of them

    def _on_head_of(self, stream: Stream) -> None:
        if stream.head_record is not None and stream.head_record.is_initial:
            self._settle(stream)

    def _on_end_of(self, stream: Stream, previous: int) -> None:
        outcome = stream.outcome
        assert outcome is not None
        if self._is_over(outcome):
            self._settle(stream)
        elif outcome.code is StatusCode.OK:
            self._hedges.succeeded()
            self._settle(stream)
        else:
            stream.on_head = stream.on_ended = None
            self._streams.remove(stream)
            if outcome.unprocessed and self._transparency.allows(bool(stream.stream_id)):
                self._launch(previous)
            else:
                self._failed(outcome, stream)

    def _failed(self, outcome: Outcome, stream: Stream | None) -> None:
        """An attempt has failed. The call has, too, where that is fatal or where no other attempt is left."""
        if not self._is_open():
            # It was given up while it failed.
            return
        self.last = described(outcome)
        self._failure = outcome, stream
        if self._is_over(outcome) or not self._hedges.failed(outcome.code, outcome.fields):
            self._fail(outcome, stream)
            return
        # At once, later, or (asked by the server not to) never.
        self._schedule(self._hedges.next_delay(outcome.fields))
        self._fail_if_last()

    def _fail_if_last(self) -> None:
        if self._is_open() and not self._streams and not self._opening and self._timer is None:
            assert self._failure is not None
            self._fail(*self._failure)

    def _fail(self, outcome: Outcome, stream: Stream | None) -> None:
        if stream is None:
            self._finish(outcome)
        else:
            self._settle(stream)

    def _stop(self) -> None:
        self._schedule(None)
        for scope in self._opening.values():
            scope.cancel()
        losers, self._streams = self._streams, []
        for stream in losers:
            if stream is not self.live:
                stream.on_head = stream.on_ended = None
                stream.cancel(_LOST)
        self._failure = None
        super()._stop()

    # -- sending

    async def send_message(self, data: bytes, compressed: bool = False) -> bool:
        while True:
            await checkpoint()
            if self.live is not None:
                return await self.live.send_message(data, compressed)
            if not self._is_open() or self.end_stream:
                return False
            if self._keep(data, compressed):
                # Not held up by the slowest of them: what is kept is bounded.
                for stream in self._streams:
                    stream.queue_message(data, compressed)
                    stream.announce()
                return True
            if self._streams:
                # The one that is furthest.
                self._settle(min(self._streams, key=_pending_bytes))
            else:
                await self._wait_sender()

    def done_sending(self) -> None:
        super().done_sending()
        for stream in self._streams:
            stream.done_sending()


def _pending_bytes(stream: Stream) -> int:
    return stream.pending_bytes
