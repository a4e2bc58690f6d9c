"""What every test gets: a watchdog in real time.

Tests run on trio's virtual clock, where a test that waits for something that never comes does not time out: it
jumps over every timeout and then hangs, or spins.  So each test (with its fixtures) has a bound in real time.  When
it is reached the watchdog fails that one test, tells where each of its tasks waits, and lets the run go on.  Where
asking trio does not help, because a task never yields or is shielded, it raises where the main thread is; where that
does not help either, because the main thread is stuck in C, the run ends with the stacks of all threads.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType

import pytest
import trio

WATCHDOG_SECONDS = 60.0
#: Between one step and the next, harsher one.
GRACE_SECONDS = 5.0

_real_stderr: int | None = None


def pytest_configure() -> None:
    """Keep the real stderr, which pytest hides while a test runs."""
    global _real_stderr  # noqa: PLW0603 -- one descriptor for the whole run
    _real_stderr = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)


def pytest_unconfigure() -> None:
    global _real_stderr  # noqa: PLW0603
    if _real_stderr is not None:
        os.close(_real_stderr)
        _real_stderr = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Bound one test, its set-up and its tear-down in real time."""
    marker = item.get_closest_marker("watchdog")
    seconds = float(marker.args[0]) if marker is not None else WATCHDOG_SECONDS

    asked = False

    def on_alarm(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        report = f"{item.name} still runs after {seconds:g} s of real time\n{describe_tasks()}"
        try:
            token = None if asked else trio.lowlevel.current_trio_token()
        except RuntimeError:  # not inside trio.run
            token = None
        asked = True
        if token is None:
            pytest.fail(report)
        # A failure in trio's entry queue cancels all tasks, lets them clean up, and comes out of trio.run.
        token.run_sync_soon(pytest.fail, report)

    assert _real_stderr is not None
    faulthandler.dump_traceback_later(seconds + 3 * GRACE_SECONDS, exit=True, file=_real_stderr)
    has_alarm = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGALRM, on_alarm) if has_alarm else None
    if has_alarm:
        signal.setitimer(signal.ITIMER_REAL, seconds, GRACE_SECONDS)
    try:
        return (yield)
    finally:
        if has_alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        faulthandler.cancel_dump_traceback_later()


def describe_tasks() -> str:
    """Tell where each task of the running trio loop waits; empty outside trio."""
    try:
        root = trio.lowlevel.current_root_task()
    except RuntimeError:
        return ""
    lines: list[str] = []
    pending = [] if root is None else [(root, 0)]
    while pending:
        task, depth = pending.pop()
        lines.append(f"{'  ' * depth}{task.name}")
        stack = traceback.StackSummary.extract(task.iter_await_frames(), lookup_lines=True)
        lines += [f"{'  ' * depth}    {frame.filename}:{frame.lineno} {frame.line}" for frame in stack[-4:]]
        pending += [(child, depth + 1) for nursery in task.child_nurseries for child in nursery.child_tasks]
    return "\n".join(lines)
