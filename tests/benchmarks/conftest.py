"""What the smoke runs of several commands share: runs of client and server processes, which are slow to start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import peers, turns
from benchmarks.peers import Options
from benchmarks.workloads import Library, Workload

#: Flags of a smoke run. Runs are shared between commands that measure equally long.
SMOKE = ("--cores", "none", "--duration", "0.05", "--warmup", "0.05")


@pytest.fixture(scope="session")
def runs() -> dict[object, dict[str, Any]]:
    """What was played so far."""
    return {}


@pytest.fixture
def smoke(runs: dict[object, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The flags of a smoke run, in which nothing is played that an earlier one has played: its figures come again."""

    def play_once(
        library: Library, workload: Workload, options: Options, on_started: Callable[[int, int], None] | None = None
    ) -> dict[str, Any]:
        key = (library, workload, options.duration, options.warmup, options.cores, options.malloc)
        if key not in runs:
            runs[key] = run_once(library, workload, options, on_started)
        return dict(runs[key])

    run_once = peers.run_once
    for module in (peers, turns):
        monkeypatch.setattr(module, "run_once", play_once)
    return SMOKE
