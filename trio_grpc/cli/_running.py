"""How commands run their async part."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import trio

ResultT = TypeVar("ResultT")


def run_async(function: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Run an async function, and let a lone exception come out as what it is, not in the group of a nursery.

    Raises:
        BaseException: what the function raises.
    """
    with unwrapped():
        return trio.run(function)


@contextmanager
def unwrapped() -> Iterator[None]:
    """Let a lone exception out as what it is, where a nursery has made a group of it."""
    try:
        yield
    except BaseException as error:
        # By duck typing: Python 3.10 has no such class of its own.
        lone: Any = error
        while len(getattr(lone, "exceptions", ())) == 1:
            lone = lone.exceptions[0]
        if lone is error:
            raise
        raise lone from lone.__cause__


__all__ = ["run_async", "unwrapped"]
