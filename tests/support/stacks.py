"""Where the tasks of a running trio loop wait, for the message of a test that hangs."""

from __future__ import annotations

import traceback

import trio


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
