"""The type of options that are a time."""

from __future__ import annotations

from math import isnan, nan
from typing import Any

import click


class Seconds(click.FloatRange):
    """A number of seconds above zero, or from zero on; Python reads ``nan`` as a number, and no range refuses it."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = nan
        if isnan(number):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        seconds: float = super().convert(number, param, ctx)
        return seconds


#: Of timeouts.
POSITIVE_SECONDS = Seconds(min=0, min_open=True)

__all__ = ["POSITIVE_SECONDS", "Seconds"]
