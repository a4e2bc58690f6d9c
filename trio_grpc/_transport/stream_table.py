"""The streams alive on one connection, and the slots that the peer's stream limit leaves (RFC 9113, 5.1.2).

A stream holds its table, never its connection. Slots are handed out first come, first served; a waiter that is
cancelled passes its turn on. Several connections to one place may share a line of waiters (gRFC A105).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import inf
from typing import Any, Generic, TypeVar

from outcome import Value
from trio.lowlevel import Abort, RaiseCancelT, Task, current_task, reschedule, wait_task_rescheduled

from trio_grpc._call_counts import CallCounts
from trio_grpc._tls_info import TlsInfo

StreamT = TypeVar("StreamT")

#: What a client assumes before the peer's SETTINGS arrive (grpc-go, internal/transport/defaults.go).
DEFAULT_STREAM_LIMIT = 100
#: Streams of which it is remembered that this side ended them first. Rust's h2 remembers 50 for a second; frames of
#: more streams are rarely in flight, and a number costs less than a clock.
_REMEMBERED = 1024
#: SETTINGS_MAX_CONCURRENT_STREAMS absent from the peer's SETTINGS means no limit.
UNLIMITED_STREAMS = 2**31 - 1


class SlotLine:
    """A line of calls in which each takes the first slot that any of several tables has, the oldest before the others.

    Args:
        on_wait: called when a call has to wait, as no table has a slot.

    Attributes:
        tables: those that still take streams, in the order in which they came.
    """

    __slots__ = ("_on_wait", "tables", "waiters")

    def __init__(self, on_wait: Callable[[], None]) -> None:
        self.tables: list[StreamTable[Any]] = []
        #: Each with the only table that will do for it, None where all do.
        self.waiters: OrderedDict[Task, StreamTable[Any] | None] = OrderedDict()
        self._on_wait = on_wait

    @property
    def calls_wait(self) -> bool:
        """Whether somebody waits who would take a slot of any table."""
        return any(only is None for only in self.waiters.values())

    def add(self, table: StreamTable[Any], owner: object) -> None:
        """From now on, who waits at the table stands in this line. A table leaves it when it takes no more streams.

        Args:
            table: one that has not refused yet.
            owner: what `StreamTable.acquire` returns for the table's slots.
        """
        self.tables.append(table)
        table._join(self, owner)


class StreamTable(Generic[StreamT]):
    """Live streams by id, and the count that is held against a limit.

    Attributes:
        streams: live streams that have an id; shared with reader and writer.
        slots_used: streams that hold a slot, also those that the writer has not given an id yet.
        background: those of them that are no calls, see `acquire_background`.
        opened: slots taken so far, for calls.
        calls: counts how those end; an owner of several tables has them count together, and counts there what each has
            `opened` when that cannot grow any more. A server counts failures only.
        last_opened: when the last call got its stream id, in seconds since the epoch; 0.0 before the first (client).
        last_background: the same of what is no call.
        failed: streams with an id that have not ended in order: not with END_STREAM of the server.
        limit: how many slots there are; may fall below ``slots_used``.
        refusal: why no more slots are handed out, or None.
        peer_header_list_limit: the peer's SETTINGS_MAX_HEADER_LIST_SIZE, inf where it has said nothing.
        tls: what TLS knows of the peer, None in plaintext.
    """

    __slots__ = (
        "_cut_short",
        "_line",
        "_on_idle",
        "_owner",
        "_waiters",
        "background",
        "calls",
        "failed",
        "last_background",
        "last_opened",
        "limit",
        "opened",
        "peer_header_list_limit",
        "refusal",
        "slots_used",
        "streams",
        "tls",
    )

    def __init__(self, limit: int, on_idle: Callable[[], None]) -> None:
        self.streams: dict[int, StreamT] = {}
        self.slots_used: int = 0
        self.background: int = 0
        self.opened: int = 0
        self.calls: CallCounts = CallCounts()
        self.last_opened: float = 0.0
        self.last_background: float = 0.0
        self.failed: int = 0
        self.limit: int = limit
        self.refusal: BaseException | None = None
        self.peer_header_list_limit: float = inf
        self.tls: TlsInfo | None = None
        self._cut_short: OrderedDict[int, None] = OrderedDict()
        #: See `SlotLine`: shared with others where there is a line.
        self._waiters: OrderedDict[Task, StreamTable[Any] | None] = OrderedDict()
        self._line: SlotLine | None = None
        self._owner: Any = None
        self._on_idle = on_idle

    @property
    def waiting(self) -> int:
        """Calls that wait for a slot. Those in a line are counted by the first table of the line alone."""
        if self._line is None:
            return 0 if self.refusal is not None else len(self._waiters)
        return len(self._waiters) if self._line.tables[0] is self else 0

    @property
    def calls_wait(self) -> bool:
        """Whether a call waits for a slot, and not only what the channel keeps for itself."""
        return any(only is None for only in self._waiters.values())

    def acquire_nowait(self) -> bool:
        """Take a slot if one is free and nobody is before us."""
        if self.slots_used < self.limit and not self._waiters and self.refusal is None:
            self.slots_used += 1
            self.opened += 1
            return True
        return False

    async def acquire(self) -> Any:
        """Take a slot, of this table or of another one in its line; wait in line for one.

        Returns:
            The owner of the table that it is from, as the line was told; None where there is no line.

        Raises:
            BaseException: the refusal, once neither the connection nor another one in line takes more streams.
        """
        return await self._acquire(None)

    async def acquire_background(self) -> None:
        """Take a slot of this very table for a stream that the channel keeps for itself: no sign that somebody uses it.

        Raises:
            BaseException: the refusal, once the connection takes no more streams.
        """
        await self._acquire(self)
        self.background += 1
        self.opened -= 1

    async def _acquire(self, only: StreamTable[Any] | None) -> Any:
        while True:
            for table in (self,) if only is not None or self._line is None else self._line.tables:
                if table.acquire_nowait():
                    return table._owner
                # Who waits for another table alone is not before us.
                if table.slots_used < table.limit and table.refusal is None and table._next_waiter() is None:
                    table._take()
                    return table._owner
            if self.refusal is not None:
                raise self.refusal
            task = current_task()

            def abort(_: RaiseCancelT, task: Task = task) -> Abort:
                del self._waiters[task]
                return Abort.SUCCEEDED

            self._waiters[task] = only
            if self._line is not None:
                self._line._on_wait()
            served: StreamTable[Any] | None = await wait_task_rescheduled(abort)
            if served is not None:
                return served._owner

    def give_back(self) -> None:
        """Free a slot for which no stream was made: no call has begun."""
        # Not from `opened`, which may have been counted already.
        self.calls.started -= 1
        self.leave(0)

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
        """Hand out no more slots. Waiters raise ``reason``, but for those in a line where others take their turn."""
        if self.refusal is not None:
            return
        self.refusal = reason
        line, self._line = self._line, None
        if line is not None:
            line.tables.remove(self)
        for task, only in tuple(self._waiters.items()):
            if line is None or not line.tables or only is self:
                del self._waiters[task]
                reschedule(task, Value(None))

    def _join(self, line: SlotLine, owner: object) -> None:
        line.waiters.update(self._waiters)
        self._waiters = line.waiters
        self._line = line
        self._owner = owner
        self._hand_out()

    def _next_waiter(self) -> Task | None:
        """Whose turn it is to take a slot of this table."""
        return next((task for task, only in self._waiters.items() if only is None or only is self), None)

    def _take(self) -> None:
        self.slots_used += 1
        self.opened += 1

    def _hand_out(self) -> None:
        # The slot is taken here, for the waiter, so that nobody can slip in before it runs.
        while self._waiters and self.slots_used < self.limit and self.refusal is None:
            task = self._next_waiter()
            if task is None:
                return
            del self._waiters[task]
            self._take()
            reschedule(task, Value(self))


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

    def _take(self) -> None:
        super()._take()
        if self.slots_used == 1:
            self._on_busy()
