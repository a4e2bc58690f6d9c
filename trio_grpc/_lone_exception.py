"""Users get bare exceptions: what is alone in the group that a nursery of ours made comes out as itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def unwrapped() -> Iterator[None]:
    """Let a lone exception out of its groups, as the same object and with the context that it had."""
    try:
        yield
    except BaseException as error:
        # By duck typing: Python 3.10 has no such class of its own.
        lone: Any = error
        while len(getattr(lone, "exceptions", ())) == 1:
            lone = lone.exceptions[0]
        if lone is error:
            raise
        context = lone.__context__
        try:
            raise lone
        finally:
            lone.__context__ = context
            del lone, error


__all__ = ["unwrapped"]
