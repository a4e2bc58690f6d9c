"""What of an exception is cancellation: where several tasks end at once, their nursery raises one group of it all."""

from __future__ import annotations

from typing import Any

import trio


def split_cancelled(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """Return the part of an exception that is cancellation and the part that is not; None for what there is none of."""
    if isinstance(error, trio.Cancelled):
        return error, None
    # By duck typing: Python 3.10 has no groups of its own. (An `Exception` is never a group that has Cancelled in it.)
    group: Any = error
    if isinstance(error, Exception) or not hasattr(group, "exceptions"):
        return None, error
    parts: tuple[BaseException | None, BaseException | None] = group.split(trio.Cancelled)
    return parts


__all__ = ["split_cancelled"]
