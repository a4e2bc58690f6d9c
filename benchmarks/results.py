"""The file that a command leaves behind: circumstances, and the figures of each case by round.

One form for every command, so that `compare` can read any two of one kind:

    {"format": 1, "command": "codec", "time": ..., "machine": {...}, "versions": {...}, "options": {...},
     "cases": {"350 B": [{"ns_per_op": 41250.0, ...}, ...one record a round...], ...}}

What a figure is called for a reader, its unit and its direction are in `benchmarks.metrics`.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import machine, versions

FORMAT = 1


class BadResultsError(Exception):
    """A file is no results of ours; the text names the file and says what is wrong."""


def record(command: str, options: dict[str, Any], cases: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Returns everything that goes to disk about one sitting.

    Args:
        command: The command that measured.
        options: What it was asked to do, by flag.
        cases: The figures of each round by case. A figure's key is one of `benchmarks.metrics`; other keys are kept.
    """
    return {
        "format": FORMAT,
        "command": command,
        "time": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(sys.executable),
        "options": options,
        "cases": cases,
    }


def write(path: Path, results: dict[str, Any]) -> None:
    """Writes results, and says where on stderr."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"results in {path}", file=sys.stderr)


def read(path: Path) -> dict[str, Any]:
    """Reads results.

    Raises:
        BadResultsError: The file cannot be read, or has another form.
    """
    try:
        results = json.loads(path.read_text())
    except OSError as error:
        raise BadResultsError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise BadResultsError(f"{path}: no JSON: {error}") from error
    if not isinstance(results, dict) or results.get("format") != FORMAT or not isinstance(results.get("cases"), dict):
        raise BadResultsError(f"{path}: no results of `python -m benchmarks` in format {FORMAT}")
    return results
