"""What a test has left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs
import trio
import trio.testing

from trio_grpc._channel import Channel
from trio_grpc._server import Server

#: What the kernel says of this process; not every system has it.
_DESCRIPTORS = Path("/proc/self/fd")


class NoLeaks:
    """Looks for what a block leaves behind; made by `assert_no_leaks`."""

    def __init__(self, watched: tuple[Channel | Server, ...]) -> None:
        for one in watched:
            if not isinstance(one, (Channel, Server)):
                raise TypeError(f"assert_no_leaks takes channels and servers, not {type(one).__name__}")
        self._watched = watched
        self._tasks: set[trio.lowlevel.Task] = set()
        self._descriptors: dict[str, str] = {}

    async def __aenter__(self) -> None:
        await trio.testing.wait_all_tasks_blocked()
        self._tasks = set(_tasks())
        self._descriptors = _descriptors()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_value is not None:
            # Its reason is worth more than what it has left behind.
            return
        await trio.testing.wait_all_tasks_blocked()
        leaks = [*self._leaked_tasks(), *self._leaked_descriptors(), *self._unfinished()]
        if leaks:
            raise AssertionError("left behind:\n  " + "\n  ".join(leaks))

    def _leaked_tasks(self) -> Iterator[str]:
        for task in _tasks():
            if task not in self._tasks:
                yield f"task {task.name!r}, which waits at {_place(task)}"

    def _leaked_descriptors(self) -> Iterator[str]:
        for number, name in _descriptors().items():
            if self._descriptors.get(number) != name:
                yield f"file descriptor {number}: {name}"

    def _unfinished(self) -> Iterator[str]:
        for one in self._watched:
            held: dict[str, Any] = attrs.asdict(one.statistics())
            for name, count in held.items():
                # A channel and its server may well stay connected.
                if name not in ("state", "connections") and count:
                    yield f"{one!r}: {name}={count}"


def assert_no_leaks(*watched: Channel | Server) -> NoLeaks:
    """Assert that an ``async with`` block leaves nothing behind.

    At the end of the block it waits until every task waits for something; then there must be no task and no open file
    or socket that was not there before. Channels and servers that are named must have no streams, handlers and control
    frames left; their connections may stay.

    A block that ends with an exception is not judged.

    Args:
        watched: channels and servers that live longer than the block.

    Returns:
        An async context manager.

    Raises:
        AssertionError: at the end of the block; the text names everything that is left, and where tasks wait.
        TypeError: something else is named.
    """
    return NoLeaks(watched)


def _tasks() -> Iterator[trio.lowlevel.Task]:
    root = trio.lowlevel.current_root_task()
    pending = [] if root is None else [root]
    while pending:
        task = pending.pop()
        yield task
        for nursery in task.child_nurseries:
            pending.extend(nursery.child_tasks)


def _place(task: trio.lowlevel.Task) -> str:
    """Return the innermost line that is not trio's."""
    place = "an unknown place"
    for frame, line in task.iter_await_frames():
        path = Path(frame.f_code.co_filename)
        if "trio" not in path.parts:
            place = f"{path}:{line} in {frame.f_code.co_name}"
    return place


def _descriptors() -> dict[str, str]:
    found = {}
    if _DESCRIPTORS.is_dir():
        for entry in tuple(_DESCRIPTORS.iterdir()):
            try:
                found[entry.name] = str(entry.readlink())
            except OSError:
                # The folder's own, which is closed by now.
                continue
    return found


__all__ = ["NoLeaks", "assert_no_leaks"]
