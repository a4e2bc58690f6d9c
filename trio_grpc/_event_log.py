"""What has happened to a channel, one of its subchannels or a server: the last few events, for channelz (gRFC A14)."""

from __future__ import annotations

from time import time

import attrs

#: Events that are remembered of each; so many does grpc-go keep.
_REMEMBERED = 30


@attrs.frozen
class Event:
    """Something that has happened.

    Attributes:
        time: when, in seconds since the epoch.
        text: what, for humans.
        warning: whether it is something bad.
        subchannel: the id of the subchannel that it is about and the name of that; None where it is about no other one.
    """

    time: float
    text: str
    warning: bool = False
    subchannel: tuple[int, str] | None = None


class EventLog:
    """The last events, the oldest first.

    Attributes:
        created: when the first of them could have happened, in seconds since the epoch.
        count: all that ever happened.
        events: those that are remembered.
    """

    __slots__ = ("count", "created", "events")

    def __init__(self) -> None:
        self.created: float = time()
        self.count: int = 0
        # No deque: an empty one takes 600 bytes, and each subchannel has one of these.
        self.events: list[Event] = []

    def add(self, text: str, *, warning: bool = False, subchannel: tuple[int, str] | None = None) -> None:
        """Something has happened now; see `Event`."""
        self.count += 1
        self.events.append(Event(time(), text, warning, subchannel))
        if len(self.events) > _REMEMBERED:
            del self.events[0]


__all__ = ["Event", "EventLog"]
