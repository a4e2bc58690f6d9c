"""The streams alive on one connection, and the slots that the peer's stream limit leaves (RFC 9113, 5.1.2).

A stream holds its table, never its connection. Slots are handed out first come, first served; a waiter that is
cancelled passes its turn on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

from outcome import Value
from trio.lowlevel import Abort, RaiseCancelT, Task, current_task, reschedule, wait_task_rescheduled

StreamT = TypeVar("StreamT")

#: What a client assumes before the peer's SETTINGS arrive (grpc-go, internal/transport/defaults.go).
DEFAULT_STREAM_LIMIT = 100
#: Streams of which it is remembered that this side ended them first. Rust's h2 remembers 50 for a second; frames of
#: more streams are rarely in flight, and a number costs less than a clock.
_REMEMBERED = 1024
#: SETTINGS_MAX_CONCURRENT_STREAMS absent from the peer's SETTINGS means no limit.
UNLIMITED_STREAMS = 2**31 - 1


class StreamTable(Generic[StreamT]):
    """Live streams by id, and the count that is held against a limit.

    Attributes:
        streams: live streams that have an id; shared with reader and writer.
        slots_used: streams that hold a slot, also those that the writer has not given an id yet.
        background: those of them that are no calls, see `acquire_background`.
        opened: slots taken so far, for calls.
        limit: how many slots there are; may fall below ``slots_used``.
        refusal: why no more slots are handed out, or None.
        peer_header_list_limit: the peer's SETTINGS_MAX_HEADER_LIST_SIZE, inf where it has said nothing.
    """

    __slots__ = (
        "_cut_short",
        "_on_idle",
        "_waiters",
        "background",
        "limit",
        "opened",
        "peer_header_list_limit",
        "refusal",
        "slots_used",
        "streams",
    )

    def __init__(self, limit: int, on_idle: Callable[[], None]) -> None:
        self.streams: dict[int, StreamT] = {}
        self.slots_used: int = 0
        self.background: int = 0
        self.opened: int = 0
        self.limit: int = limit
        self.refusal: BaseException | None = None
        self.peer_header_list_limit: float = inf
        self._cut_short: OrderedDict[int, None] = OrderedDict()
        self._waiters: OrderedDict[Task, None] = OrderedDict()
        self._on_idle = on_idle

    @property
    def waiting(self) -> int:
        """Calls that wait for a slot."""
        return len(self._waiters)

    def acquire_nowait(self) -> bool:
        """Take a slot if one is free and nobody is before us."""
        if self.slots_used < self.limit and not self._waiters and self.refusal is None:
            self.slots_used += 1
            self.opened += 1
            return True
        return False

    async def acquire(self) -> None:
        """Take a slot, waiting in line for one.

        Raises:
            BaseException: the refusal, once the connection takes no more streams.
        """
        while not self.acquire_nowait():
            if self.refusal is not None:
                raise self.refusal
            task = current_task()

            def abort(_: RaiseCancelT, task: Task = task) -> Abort:
                del self._waiters[task]
                return Abort.SUCCEEDED

            self._waiters[task] = None
            if await wait_task_rescheduled(abort):
                return

    async def acquire_background(self) -> None:
        """`acquire` a slot for a stream that the channel keeps for itself, which is no sign that somebody uses it.

        Raises:
            BaseException: the refusal, once the connection takes no more streams.
        """
        await self.acquire()
        self.background += 1
        self.opened -= 1

    def leave(self, stream_id: int) -> None:
        """A stream has ended on both sides (or was orphaned): free its slot."""
        self.streams.pop(stream_id, None)
        self.slots_used -= 1
        if self._waiters:
            self._hand_out()
        if not self.slots_used:
            self._on_idle()

    def cut_short(self, stream_id: int) -> None:
        """Remember that this side ended a stream before the peer did: what was under way then is no fault."""
        self._cut_short[stream_id] = None
        if len(self._cut_short) > _REMEMBERED:
            self._cut_short.popitem(last=False)

    def was_cut_short(self, stream_id: int) -> bool:
        """Whether frames may still come on a stream that has left the table (RFC 9113, 5.1, "closed")."""
        return stream_id in self._cut_short

    def set_limit(self, limit: int) -> None:
        """Follow the peer's SETTINGS_MAX_CONCURRENT_STREAMS up and down."""
        self.limit = limit
        self._hand_out()

    def refuse(self, reason: BaseException) -> None:
        """Hand out no more slots; each waiter raises ``reason``."""
        if self.refusal is None:
            self.refusal = reason
        while self._waiters:
            task, _ = self._waiters.popitem(last=False)
            reschedule(task)

    def _hand_out(self) -> None:
        # The slot is taken here, for the waiter, so that nobody can slip in before it runs.
        while self._waiters and self.slots_used < self.limit and self.refusal is None:
            task, _ = self._waiters.popitem(last=False)
            self.slots_used += 1
            self.opened += 1
            reschedule(task, Value(True))


class WatchedStreamTable(StreamTable[StreamT]):
    """A table that also says when it stops being empty. A class of its own: no other table shall pay for asking.

    Args:
        on_busy: called when the first slot is taken, before anything is queued for it.
    """

    __slots__ = ("_on_busy",)

    def __init__(self, limit: int, on_idle: Callable[[], None], on_busy: Callable[[], None]) -> None:
        super().__init__(limit, on_idle)
        self._on_busy = on_busy

    def acquire_nowait(self) -> bool:
        taken = super().acquire_nowait()
        if taken and self.slots_used == 1:
            self._on_busy()
        return taken

    def _hand_out(self) -> None:
        was_idle = not self.slots_used
        super()._hand_out()
        if was_idle and self.slots_used:
            self._on_busy()
