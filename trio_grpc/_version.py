"""The version of the library, and the name under which it presents itself."""

from __future__ import annotations

__version__ = "0.1.0.dev0"
USER_AGENT: str = f"grpc-python-trio/{__version__}"
