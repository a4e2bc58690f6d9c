"""The command line: ask servers what they serve, call them, watch them, load them, and look at their frames."""

from __future__ import annotations

from trio_grpc.cli._main import main as main

__all__ = ("main",)
