"""The type of options that are a time."""

from __future__ import annotations

from math import isnan
from typing import Any

import click


class Seconds(click.FloatRange):
    """A number of seconds above zero, or from zero on; Python reads ``nan`` as a number, and no range refuses it."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if isnan(seconds):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


#: Of timeouts.
POSITIVE_SECONDS = Seconds(min=0, min_open=True)

__all__ = ["POSITIVE_SECONDS", "Seconds"]
