"""The two ends of a connection as two values of one type."""

from __future__ import annotations

import enum


class Side(enum.Enum):
    """Which end of a connection this is."""

    CLIENT = "client"
    SERVER = "server"
