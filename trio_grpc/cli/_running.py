"""How commands run their async part."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from trio_grpc._lone_exception import unwrapped

ResultT = TypeVar("ResultT")


def run_async(function: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Run an async function, and let a lone exception come out as what it is, not in the group of a nursery.

    Raises:
        BaseException: what the function raises.
    """
    with unwrapped():
        return trio.run(function)


__all__ = ["run_async"]
