"""The group of commands."""

from __future__ import annotations

import click


@click.group()
def main() -> None:
    """Ask, call, watch and load gRPC servers."""


__all__ = ["main"]
