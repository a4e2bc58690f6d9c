"""What the two faces of grpcio share: credentials from the certificates of one sitting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped,import-not-found,unused-ignore]

from benchmarks.certificates import AUTHORITY, CHAIN, KEY


def server_credentials(folder: Path) -> Any:
    """Returns what a server shows."""
    return grpc.ssl_server_credentials([((folder / KEY).read_bytes(), (folder / CHAIN).read_bytes())])


def channel_credentials(folder: Path) -> Any:
    """Returns what a client trusts."""
    return grpc.ssl_channel_credentials((folder / AUTHORITY).read_bytes())
