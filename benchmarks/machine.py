"""What figures were measured on: the machine, the versions, the folders; and pinning to a core."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: Where results go when no file is named; not under version control.
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("trio", "h2", "hpack", "protobuf", "grpcio", "grpclib", "uvloop", "purerpc", "anyio")


def versions(python: str) -> dict[str, str]:
    """Returns the versions of the packages that matter, as `python` has them."""
    code = (
        "import importlib.metadata as m, json\n"
        "def v(n):\n"
        "    try: return m.version(n)\n"
        "    except m.PackageNotFoundError: return None\n"
        f"print(json.dumps({{n: v(n) for n in {PACKAGES!r} if v(n)}}))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    found: dict[str, str] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


def machine() -> dict[str, Any]:
    """Describes what the figures were measured on."""
    model = "unknown"
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        model = found.group(1) if found else model
    except OSError:
        pass
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.platform(),
        "processor": model,
        "cores": os.cpu_count(),
    }


def pin(core: int | None) -> None:
    """Pins this process to a core. Before a library starts threads: those inherit it."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
